"""The report's single HTML page. Pure: the same input gives the same bytes.

Its layout is in assets/ (template.html.jinja, page.css, plot.js, page.js); this file makes the content.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from emabank.study.report import render, render_claims
from emabank.study.report.claims import Claim, Finding, Rule
from emabank.study.report.figures import Figure, Line, Panel, styles_of
from emabank.study.report.results import Results, Run, Setting
from emabank.study.report.series import REFIT
from emabank.study.report.tables import Cell, Table, difference_cell, selection_note, value_cell
from emabank.study.studies.catalogue import STUDIES
from emabank.study.studies.scales import SCALES

_SCALES: Sequence[str] = SCALES[::-1]
_SECTIONS = {study.name: (study.title, study.question) for study in STUDIES.values()}
_SECTIONS["setup"] = ("Setup", "What was trained, and how.")
_SECTIONS["demo"] = ("Curves and numbers", "")


def page(
    results: Results,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    claims: Sequence[Claim],
    *,
    title: str = "",
    lead: str = "",
    command: str = "emabank report",
    facts: Mapping[str, str] | None = None,
) -> str:
    """The whole report as one HTML document; empty parts are skipped.

    `title` and `lead` say what was run and with what result; by default they come from the results. `command` and
    `facts` (value by name) say how the page was made.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    filters: dict[str, Any] = environment.filters
    filters.update(code=_code, minus=_minus, number=_number, sentence=_sentence, slug=_slug)
    style = _asset("page.css")
    # One script in a scope of its own.
    script = f'"use strict";\n(() => {{\n{_asset("plot.js")}\n{_asset("page.js")}}})();\n'
    scales = {*results.scales, *(item.scale for item in (*results.studies, *tables, *figures))}
    conditions, headline = _conditions(results), _headline(results.settings, claims)
    made = environment.from_string(_asset("template.html.jinja")).render(
        title=title or _title(results),
        lead=lead or _answer(headline),
        runs=sum(entry["runs"] for entry in conditions),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        command=command,
        facts=facts or {},
        results=results,
        scales=[scale for scale in _SCALES if scale in scales],
        summary=render_claims.claims_summary(claims),
        claims=[(claim, _statistics(claim.findings)) for claim in claims if claim.verdict != "not run"],
        not_run=[claim for claim in claims if claim.verdict == "not run"],
        headline=headline,
        chosen_on=selection_note(results.settings),
        sections=_sections(results, tables, figures),
        conditions=conditions,
        render=render,
        figure_json=figure_json,
        styles_of=styles_of,
        estimate=render_claims.estimate,
    )
    return made + "\n"


def _asset(name: str) -> str:
    return (files("emabank.study.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The content security policy: nothing is loaded and no other inline text applies, even if an escape was missed."""
    kinds = (("style-src", style), ("script-src", script))
    own = [
        f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for kind, text in kinds
    ]
    return "; ".join(["default-src 'none'", "img-src data:", *own, "base-uri 'none'", "form-action 'none'"])


# What was run, and its answer -----------------------------------------------------------------------------------------


def _title(results: Results) -> str:
    names = list(dict.fromkeys(study.study for study in results.studies))
    scales = [scale for scale in _SCALES if any(study.scale == scale for study in results.studies)]
    if not names:
        return "Weight averages"
    title = _SECTIONS.get(names[0], (names[0], ""))[0] if len(names) == 1 else f"{len(names)} studies"
    return f"Weight averages: {title}, {' and '.join(scales)} scale"


def _answer(headline: Sequence[Mapping[str, Any]]) -> str:
    """The lead of the slowest average at the largest scale, as a sentence; empty without results."""
    rows = [row for row in headline if row["setting"].scale == headline[0]["setting"].scale]
    gains = sorted(row["gain"].mean for row in rows)
    if not gains:
        return ""
    span = " to ".join(dict.fromkeys(_number(gain, 2, signed=True) for gain in (gains[0], gains[-1])))
    many = f"{sum(gain > 0 for gain in gains)} of {len(gains)} setting{'s' * (len(gains) > 1)}"
    words = "at the epochs that validation chose"
    return f"The slowest average beats the live weights in {many}: {span} points of test accuracy, {words}."


# Sections -------------------------------------------------------------------------------------------------------------


def _sections(results: Results, tables: Sequence[Table], figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """One section per study: those that were run, in the report's order, then the rest, folded."""
    asked = dict.fromkeys(study.study for study in results.studies)
    names = dict.fromkeys([*_SECTIONS, *asked, *(item.study for item in (*tables, *figures))])
    sections: list[dict[str, Any]] = []
    for name in sorted(names, key=lambda name: name not in asked):
        title, question = _SECTIONS.get(name, (name or "More", ""))
        own_tables = [table for table in tables if table.study == name]
        own_figures = [figure for figure in figures if figure.study == name]
        if own_tables or own_figures or name in asked:
            sections.append({
                "id": f"study-{_slug(name)}", "title": title, "question": question,
                "folded": bool(asked) and name not in asked,
                "unfinished": [study for study in results.studies if study.study == name and study.state != "done"],
                "tables": _items("table", own_tables),
                "figures": _items("figure", own_figures),
            })  # fmt: skip
    return sections


def _items(kind: str, items: Sequence[Table] | Sequence[Figure]) -> list[dict[str, Any]]:
    """Tables or figures with their anchors.

    Neighbours with the same title show it once, above the first; those with the same caption and notes, below the last.
    """
    captions = [render.caption_of(item) if isinstance(item, Table) else item.caption for item in items]
    explained = [(caption, tuple(item.notes)) for caption, item in zip(captions, items, strict=True)]
    return [
        {
            "id": f"{kind}-{_slug(item.name)}",
            "item": item,
            "titled": index == 0 or items[index - 1].title != item.title,
            "caption": captions[index],
            "explained": explained[index + 1 : index + 2] != [explained[index]],
        }
        for index, item in enumerate(items)
    ]


# Drawings that need no script -----------------------------------------------------------------------------------------


def _headline(settings: Sequence[Setting], claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The refits' test accuracy per setting: live weights and slowest average, each at the epoch that validation chose.

    Beside it is the gain over the live weights at the end, which the paper reports. The paper's own gain is its value
    for the secondary statistic "accuracy" of claim 16.
    """
    theirs = {
        (finding.setting, finding.scale): finding.paper
        for claim in claims
        for finding in claim.findings
        if (claim.number, finding.key) == ("16", "accuracy")
    }
    rows: list[dict[str, Any]] = []
    once: dict[tuple[str, str], Setting] = {}
    for setting in settings:  # at a smaller scale, one protocol may stand in for two pairs
        once.setdefault((setting.scale, setting.protocol), setting)
    for setting in once.values():
        average = (setting, "slowest (acc.)", "accuracy", REFIT)
        cells = {
            "live": value_cell(setting, "SGD (best)", "accuracy", REFIT),
            "average": value_cell(*average),
            "gain": difference_cell(*average, minus="SGD (best)"),
            "over_last": difference_cell(*average, minus="SGD"),
        }
        if all(cell.mean is not None for cell in cells.values()):
            rows.append({"setting": setting, **cells, "paper": theirs.get((setting.title, setting.scale), "")})
    for scale in _SCALES:
        own = [row for row in rows if row["setting"].scale == scale]
        at = _axis(end for row in own for cell in (row["live"], row["average"]) for end in _ends(cell))
        for row in own:
            row["at"] = {name: [at(end) for end in (row[name].mean, *_ends(row[name]))] for name in ("live", "average")}
    return sorted(rows, key=lambda row: _SCALES.index(row["setting"].scale))


def _ends(cell: Cell) -> tuple[float, float]:
    spread = cell.std or 0.0
    return (cell.mean or 0.0) - spread, (cell.mean or 0.0) + spread


def _statistics(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings of a claim, grouped by statistic, each with the position of its interval on the group's axis."""
    groups: dict[tuple[str, Rule], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.statistic, finding.rule), []).append(finding)
    statistics: list[dict[str, Any]] = []
    for (statistic, rule), own in groups.items():
        ends = [end for finding in own for end in (finding.low, finding.high, finding.mean, *finding.values)]
        at = _axis([*(end for end in ends if end is not None), *_bounds(rule)])
        notes = {finding.note for finding in own}
        statistics.append({
            "statistic": statistic, "rule": rule, "note": notes.pop() if len(notes) == 1 else "",
            "findings": [(finding, _whisker(finding, at)) for finding in own],
        })  # fmt: skip
    return statistics


def _whisker(finding: Finding, at: Callable[[float], float]) -> dict[str, Any] | None:
    """The position of a finding's interval, in percent of the axis; None if nothing was run."""
    if finding.mean is None:
        return None
    low, high = (None if end is None else at(end) for end in (finding.low, finding.high))
    values, bounds = [at(value) for value in finding.values], [at(bound) for bound in _bounds(finding.rule)]
    return {"mean": at(finding.mean), "low": low, "high": high, "values": values, "bounds": bounds}


def _bounds(rule: Rule) -> list[float]:
    """The numbers between which an interval must lie."""
    return [bound for bound in (rule.low, rule.high) if math.isfinite(bound)]


def _axis(ends: Iterable[float]) -> Callable[[float], float]:
    """A function that maps values to positions: the smallest of `ends` to 4 percent, the largest to 96."""
    known = [end for end in ends if math.isfinite(end)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    width = (high - low) or 1.0
    low = low if high > low else low - 0.5

    return lambda value: round(4 + 92 * (value - low) / width, 2)


# Figures for the script -----------------------------------------------------------------------------------------------

# Only these can end a <script> element or open a comment in it; JSON reads the escapes as the same characters.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def figure_json(figure: Figure) -> str:
    """A figure as compact, rounded JSON for the script, safe inside a `<script>` element.

    Lines with the same label share one style and one legend entry, whatever their panel.
    """
    styles = styles_of(figure)
    indices = {label: index for index, label in enumerate(styles)}
    legend = [{"label": label, "colour": style.colour, "dash": style.dash} for label, style in styles.items()]
    xs: list[Any] = []
    panels = [_panel(panel, indices, xs) for panel in figure.panels]
    made = {"columns": figure.columns, "legend": legend, "xs": xs, "panels": panels}
    return json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _panel(panel: Panel, indices: dict[str, int], xs: list[Any]) -> dict[str, Any]:
    """A panel as JSON, without its empty parts."""
    grid = [] if panel.grid is None else panel.grid.ravel()
    shown = _digits([*(value for line in panel.lines for value in line.y), *(bar[2] for bar in panel.bars), *grid])
    lines = [{"of": indices[line.label], **_line(line, xs, shown)} for line in panel.lines]
    rate = panel.rate
    finest = 0 if rate is None else _digits(rate.y)
    parts: dict[str, Any] = {
        "rate": rate and {"label": rate.label, "digits": finest, **_line(rate, xs, finest)},
        "marks": [[*_rounded((x, y), shown + 1), label] for x, y, label in panel.marks],
        "xLimits": panel.x_limits and _rounded(panel.x_limits, 6),
        "yLimits": panel.y_limits and _rounded(panel.y_limits, 6),
        "bars": [[*_rounded(bar[:2], 6), *_rounded(bar[2:], shown + 1)] for bar in panel.bars],
        "grid": [] if panel.grid is None else [_rounded(row, shown + 1) for row in panel.grid],
        "xTicks": list(panel.x_ticks),
        "yTicks": list(panel.y_ticks),
    }
    labels = {"title": panel.title, "xLabel": panel.x_label, "yLabel": panel.y_label}
    return {**labels, "digits": shown, "lines": lines, **{name: part for name, part in parts.items() if part}}


def _digits(values: Iterable[float]) -> int:
    """The number of decimals, at most six, that gives the median value four significant digits."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    return min(6, max(0, math.floor(4 - math.log10(float(np.median(sizes)))))) if sizes else 2


def _line(line: Line, xs: list[Any], shown: int) -> dict[str, Any]:
    """A line with one more digit than is shown, for zooming in."""
    x = _steps(line.x)
    if x not in xs:
        xs.append(x)
    made: dict[str, Any] = {"x": xs.index(x), "y": _rounded(line.y, shown + 1), "n": line.n}
    if line.std is not None:
        made["std"] = _rounded(line.std, shown + 1)
    if line.seeds is not None:
        made["seeds"] = [_rounded(seed, shown + 1) for seed in line.seeds]
    return made


def _steps(x: np.ndarray) -> dict[str, Any] | list[float | int | None]:
    """The x values; if evenly spaced, as epochs mostly are, only the first, the step and the count."""
    rounded = _rounded(x, 6)
    if len(x) > 2 and np.allclose(np.diff(x), x[1] - x[0], rtol=0, atol=1e-9):
        return {"from": rounded[0], "step": _rounded(x[1:2] - x[:1], 6)[0], "count": len(x)}
    return rounded


def _rounded(values: Iterable[float], digits: int) -> list[float | int | None]:
    """Rounded numbers, whole ones as integers, so that the JSON is short; None for those that are not finite."""
    rounded = [round(float(value), digits) if math.isfinite(value) else None for value in values]
    return [int(value) if value is not None and value.is_integer() else value for value in rounded]


# How it was obtained --------------------------------------------------------------------------------------------------


def _conditions(results: Results) -> list[dict[str, Any]]:
    """Versions and hardware, once for all runs that share them, with the number of runs and when each started."""
    conditions: dict[str, dict[str, Any]] = {}
    runs: list[Run] = [run for setting in results.settings for variant in setting.variants.values() for run in variant]
    for run in {run.id: run for run in runs}.values():  # one run may serve several variants
        own = {
            str(key): _plain(value) for key, value in run.conditions.items() if key != "started" and value is not None
        }
        entry = conditions.setdefault(json.dumps(own, sort_keys=True), {"own": own, "runs": 0, "started": []})
        entry["runs"] += 1
        entry["started"] += [str(run.conditions["started"])] if run.conditions.get("started") else []
    return list(conditions.values())


def _plain(value: Any) -> str:
    """A value of a run's conditions in one line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(part)}" for key, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_plain(part) for part in value)
    return str(value)


# Texts ----------------------------------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    """A note as a sentence, with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")


def _number(value: float, digits: int, *, signed: bool = False) -> str:
    """A number with a true minus sign; one that rounds to zero has no sign."""
    rounded = round(value, digits) + 0.0
    return _minus(f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}")


def _code(text: str) -> Markup:
    """The text with everything in backticks as code."""
    parts = re.split("`([^`]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)
    )


def _minus(text: str) -> str:
    """The text with true minus signs, and no line break after a ±."""
    return re.sub(r"(?<![\w.])-(?=[\d.])", "−", text).replace("± ", "±\u00a0")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "other"
