"""From evidence, sheets, figures and claims to the text of the one HTML page. Pure: the same input, the same bytes.

What the page looks like is in template.html.jinja, page.css and the scripts; here is what they are given. No torch.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from emabank.study.report.evidence import Evidence, Run, Setting, Study, all_chosen_on
from emabank.study.report.forms import words
from emabank.study.report.page.series import labels, series
from emabank.study.report.panel import Figure
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables.measures import REFIT, cell, difference
from emabank.study.report.verdict import Claim, Part

_TITLE = "Averages of weights: the paper’s studies, run again"
_SCALES = ("paper", "small", "demo")
_GAIN = "slowest (acc.) minus SGD, test accuracy, points"  # a statistic of the claims
_VERDICTS = ("reproduced", "not reproduced", "inconclusive", "too few runs", "not run")
_STUDIES = {
    "generalization": ("Generalization", "Are averages better than live weights on unseen images, and by how much?"),
    "dynamics": ("Training dynamics", "How do the live weights and the best average fare, epoch by epoch?"),
    "batchnorm": ("Batch-norm statistics", "Averaged with the weights, or recomputed: what does it change, and when?"),
    "label-noise": ("Label noise", "How far do averages get with wrong labels, and how many do they memorise?"),
    "constant-lr": ("Constant learning rate", "Held where averages are best: does training go on without overfitting?"),
    "consistency": ("Consistency", "Do runs that differ in their seed alone agree in what they predict?"),
    "calibration": ("Calibration", "Is a confidence of 90% right nine times in ten?"),
    "transfer": ("Transfer", "How well does a linear head learn another task from the frozen features?"),
    "step-decay": ("Step decay", "What is left of the gain when the learning rate falls in steps?"),
    "bootstrap": ("Bootstrap", "Does it help to copy the average back into training once an epoch?"),
    "lr-search": ("Learning-rate search", "Is the rate that is best for the live weights best for the averages?"),
    "sampling-period": ("Sampling period", "How often must an average be updated, and what does it cost?"),
    "posthoc": ("Chosen afterwards", "Which window, stopped when, had been best: found after one run, from snapshots."),
    "setup": ("Setup", "What was trained, and how."),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the report knows about itself and about the paper, beside what the runs know."""

    command: str = "emabank report"
    facts: Mapping[str, str] = field(default_factory=dict)
    """Anything else that was there when the page was made, by name, such as the version of the package."""
    conflicts: Sequence[tuple[str, str, str]] = ()
    """Where the paper disagrees with itself: what it is about, what is printed where, and what does not fit."""


def page(
    evidence: Evidence,
    sheets: Sequence[Sheet],
    figures: Sequence[Figure],
    claims: Sequence[Claim],
    *,
    title: str = _TITLE,
    provenance: Provenance | None = None,
) -> str:
    """The whole report as one HTML document; whatever is empty is left out.

    >>> made = page(Evidence(), [], [], [], title="a < b")
    >>> made.startswith("<!DOCTYPE html>"), "<title>a &lt; b</title>" in made, "<table" in made
    (True, True, False)
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    filters: dict[str, Any] = environment.filters
    filters.update(minus=_minus, number=_number, sentence=_sentence, slug=_slug, rows=_rows)
    style, script = _package_file("page.css"), _script()
    made = environment.from_string(_package_file("template.html.jinja")).render(
        title=title,
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        provenance=provenance or Provenance(),
        evidence=evidence,
        scales=_scales(evidence, sheets, figures),
        verdicts=[(verdict, sum(claim.verdict == verdict for claim in claims)) for verdict in _VERDICTS],
        claims=[(claim, _statistics(claim.parts)) for claim in claims],
        headline=_headline(evidence.settings, claims),
        chosen_on=all_chosen_on(evidence.settings),
        sections=_sections(evidence.studies, sheets, figures),
        conditions=_conditions(evidence),
        words=words,
    )
    return made + "\n"


def _script() -> str:
    """The scripts as one, in the order in which they need each other; they share names with nothing else."""
    parts = "\n".join(_package_file(f"{name}.js") for name in ("base", "axes", "drawn", "plot", "page"))
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _package_file(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and inline nothing but these two texts counts: a missed escape would still run nothing."""
    kinds = (("style-src", style), ("script-src", script))
    own = [
        f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for kind, text in kinds
    ]
    return "; ".join(["default-src 'none'", "img-src data:", *own, "base-uri 'none'", "form-action 'none'"])


# Sections -------------------------------------------------------------------------------------------------------------


def _sections(studies: Sequence[Study], sheets: Sequence[Sheet], figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """One for each study that was asked for or has something to show, in the report's order; unknown ones last."""
    names = dict.fromkeys([*_STUDIES, *(each.name for each in studies), *(each.study for each in (*sheets, *figures))])
    kinds = ["table"] * len(sheets) + ["figure"] * len(figures)
    ids = _ids(f"{kind}-{each.name}" for kind, each in zip(kinds, (*sheets, *figures), strict=True))
    shown = [*zip(ids, (*sheets, *figures), strict=True)]
    sections: list[dict[str, Any]] = []
    for name in names:
        title, question = _STUDIES.get(name, (name or "More", ""))
        own = [(key, each) for key, each in shown if each.study == name]
        asked = [study for study in studies if study.name == name]
        if own or asked:
            sections.append({
                "id": f"study-{_slug(name)}", "title": title, "question": question, "studies": asked,
                "sheets": [(key, each) for key, each in own if isinstance(each, Sheet)],
                "figures": [(key, each, Markup(series(each)), labels(each))
                            for key, each in own if isinstance(each, Figure)],
            })  # fmt: skip
    return sections


def _scales(evidence: Evidence, sheets: Sequence[Sheet], figures: Sequence[Figure]) -> list[str]:
    """The scales of anything on the page, the largest first."""
    there = {*evidence.scales, *(each.scale for each in (*evidence.studies, *sheets, *figures))}
    return [scale for scale in _SCALES if scale in there]


def _ids(names: Iterable[str]) -> list[str]:
    """Names as anchors, no two the same."""
    made: list[str] = []
    for name in names:
        slug = _slug(name)
        while slug in made:
            slug += "-again"
        made.append(slug)
    return made


def _rows(sheet: Sheet) -> list[dict[str, Any]]:
    """Rows with their label in two: what it shares with its neighbours ("digits, ResNet-8: 50%") is printed once."""
    split = [label.rpartition(": ") for label, _ in sheet.rows]
    heads = [head for head, _, _ in split]
    made: list[dict[str, Any]] = []
    for place, (label, cells) in enumerate(sheet.rows):
        head, rule = heads[place], place > 0 and place in sheet.breaks
        above, below = heads[place - 1 : place], heads[place + 1 : place + 2]
        shared = bool(head) and head in (*above, *below)
        again = shared and head in above and not rule
        made.append({"label": label, "head": head if shared else "", "tail": split[place][2], "again": again,
                     "cells": cells, "rule": rule})  # fmt: skip
    return made


# Drawings that need no script -----------------------------------------------------------------------------------------


def _headline(settings: Sequence[Setting], claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The test accuracy of the refits in each setting: live weights and slowest average, each where validation chose.

    The gain over the live weights at the end stands beside, because the paper has that; its own gain is what the claims
    have for the same thing.
    """
    theirs = {(part.setting, part.scale): part.paper for claim in claims for part in claim.parts
              if part.statistic == _GAIN}  # fmt: skip
    rows: list[dict[str, Any]] = []
    for setting in settings:
        average = (setting, "slowest (acc.)", "accuracy", REFIT)
        cells = {
            "live": cell(setting, "SGD (best)", "accuracy", REFIT),
            "average": cell(*average),
            "gain": difference(*average, minus="SGD (best)"),
            "over_last": difference(*average, minus="SGD"),
        }
        if all(each.mean is not None for each in cells.values()):
            rows.append({"setting": setting, **cells, "paper": theirs.get((setting.title, setting.scale), "")})
    for scale in _SCALES:
        own = [row for row in rows if row["setting"].scale == scale]
        at = _axis(end for row in own for each in (row["live"], row["average"]) for end in _ends(each))
        for row in own:
            row["at"] = {name: [at(end) for end in (row[name].mean, *_ends(row[name]))] for name in ("live", "average")}
    return sorted(rows, key=lambda row: _SCALES.index(row["setting"].scale))


def _ends(cell: Cell) -> tuple[float, float]:
    spread = cell.std or 0.0
    return (cell.mean or 0.0) - spread, (cell.mean or 0.0) + spread


def _statistics(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The parts of a claim, those of one statistic together, each with the places of its interval on their one axis."""
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.statistic, part.rule), []).append(part)
    made: list[dict[str, Any]] = []
    for (statistic, rule), own in groups.items():
        values = [end for part in own for end in (part.low, part.high, part.mean, *part.values) if end is not None]
        at = _axis([*values, *_bounds(rule)])
        notes = {part.note for part in own}
        made.append({
            "statistic": statistic, "rule": rule, "note": notes.pop() if len(notes) == 1 else "",
            "parts": [(part, _whisker(part, at)) for part in own],
        })  # fmt: skip
    return made


def _whisker(part: Part, at: Callable[[float], float]) -> dict[str, Any] | None:
    """Where the interval of a part is drawn, in percent of a width; None for a part that was not run."""
    if part.mean is None:
        return None
    low, high = (None if end is None else at(end) for end in (part.low, part.high))
    values, bounds = ([at(value) for value in found] for found in (part.values, _bounds(part.rule)))
    return {
        "mean": at(part.mean),
        "low": low,
        "high": high,
        "values": values,
        "bounds": bounds,
        "digits": _digits(part),
    }


def _bounds(rule: str) -> list[float]:
    """The numbers that an interval is held against: those of "above 0", "below 1" or "within ±1".

    >>> _bounds("above 0"), _bounds("within ±1"), _bounds("below 1, and not above 0"), _bounds("")
    ([0.0], [-1.0, 1.0], [1.0], [])
    """
    if found := re.search(r"±\s*([\d.]*\d)", rule):
        return [-float(found[1]), float(found[1])]
    found = re.search(r"(?:above|below)\s+([-−]?[\d.]*\d)", rule)
    return [float(found[1].replace("−", "-"))] if found else []


def _axis(ends: Iterable[float]) -> Callable[[float], float]:
    """From a value to its place between 4 and 96 percent, such that all of the given ones have one."""
    there = [end for end in ends if math.isfinite(end)]
    low, high = (min(there), max(there)) if there else (0.0, 1.0)
    width = (high - low) or 1.0
    low = low if high > low else low - 0.5

    def place(value: float) -> float:
        return round(4 + 92 * (value - low) / width, 2)

    return place


def _digits(part: Part) -> int:
    """As many digits as its interval deserves: two that count; of a lone value three."""
    size, count = abs(part.mean or 0.0), 2
    if part.low is not None and part.high is not None and part.high > part.low:
        size, count = (part.high - part.low) / 2, 1
    return min(4, max(0, count - math.floor(math.log10(size)))) if size > 0 else 2


# How it was obtained --------------------------------------------------------------------------------------------------


def _conditions(evidence: Evidence) -> list[dict[str, Any]]:
    """Versions and hardware, once for all runs that share them, with how many these are and when they were started."""
    found: dict[str, dict[str, Any]] = {}
    runs: list[Run] = [run for setting in evidence.settings for arm in setting.arms.values() for run in arm]
    shared = {run.id: run for run in runs}  # one run may serve several arms
    for run in shared.values():
        own = {
            str(key): _plain(value) for key, value in run.conditions.items() if key != "started" and value is not None
        }
        entry = found.setdefault(json.dumps(own, sort_keys=True), {"own": own, "runs": 0, "started": []})
        entry["runs"] += 1
        entry["started"] += [str(run.conditions["started"])] if run.conditions.get("started") else []
    return list(found.values())


# Words ----------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> str:
    """A value of a configuration in a line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_plain(each) for each in value)
    return str(value)


def _sentence(text: str) -> str:
    """A note as a sentence of its own.

    >>> _sentence("mean of 3 seeds; not smoothed")
    'Mean of 3 seeds; not smoothed.'
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")


def _number(value: float, digits: int, *, signed: bool = False) -> str:
    """A number for people, with a true minus; one that rounds to zero has no sign."""
    rounded = round(value, digits) + 0.0
    return _minus(f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}")


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=[\d.])", "−", text)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "other"
