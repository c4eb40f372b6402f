"""Renders claims for a terminal and as Markdown, CSV and JSON. Computes nothing."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from emabank.study.report.claims import Claim, Finding, Verdict
from emabank.study.report.render import csv_text

_STYLES: dict[Verdict, str] = {
    "reproduced": "green", "not reproduced": "bold red", "inconclusive": "yellow", "too few runs": "cyan",
    "not run": "dim",
}  # fmt: skip
_FOOTER = (
    "One primary statistic decides a claim: per seed, its mean over the settings that were run; then the mean and the "
    "95% t-interval over the seeds. Reproduced: the whole interval lies where the rule has it; not reproduced: the "
    "whole interval lies beyond; else inconclusive. Secondary statistics decide nothing; one that lies beyond its rule "
    "is an exception. Seeds: in how many of them the value lies where the rule has it. Nothing is corrected for the "
    "number of claims: one false verdict in nineteen is to be expected. At demo and small scale the data sets and "
    "networks are not the paper's, whose values are for orientation."
)
_FIELDS = (
    "claim", "role", "setting", "statistic", "mean", "low", "high", "n", "seeds_for", "rule", "verdict", "scale",
    "by_seed", "paper", "note", "title",
)  # fmt: skip


def claims_terminal(claims: Sequence[Claim], *, secondary: bool = False) -> Group:
    """A table of the claims and a line on those not run; with `secondary`, also every finding of each claim."""
    ran = [claim for claim in claims if claim.verdict != "not run"]
    missing = [claim for claim in claims if claim.verdict == "not run"]
    rows = [
        (claim.number, [_stated(claim.primary), *_exceptions(claim)], claim.primary, _verdict(claim)) for claim in ran
    ]
    shown: list[RenderableType] = [
        *([_grid(rows), Text("")] if rows else []),
        Text(f"Of the paper's claims: {claims_summary(claims)}.", style="bold"),
        *([Text(f"Not run: {', '.join(claim.number for claim in missing)}.")] if missing else []),
    ]
    if not secondary:
        more = "`emabank claims --all` shows every setting, the secondary statistics, and what to run for the others."
        return Group(*shown, Text(more, style="dim"))
    for claim in ran:
        rows = [
            ("", [*([_stated(finding)] if index == 0 else []), *_details(finding)], finding, finding.verdict)
            for _, group in groupby(claim.findings, key=_stated)
            for index, finding in enumerate(group)
        ]
        shown += [Text(f"\n{claim.number}. {claim.title}", style="bold"), _grid(rows)]
        shown += [Text(f"Note: {claim.note}.", style="dim")] if claim.note else []
    shown += [Text(f"{claim.number}. not run: {claim.primary.note}") for claim in missing]
    return Group(*shown, Text(f"\n{_FOOTER}", style="dim"))


def claims_summary(claims: Sequence[Claim]) -> str:
    """The number of the paper's claims per verdict."""
    counts = Counter(claim.verdict for claim in claims if not claim.beyond)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in _STYLES if counts[verdict])


def _grid(rows: Sequence[tuple[str, Sequence[str], Finding, str]]) -> Grid:
    """A row per finding: claim number, lines of text, estimate, seeds and verdict; fits in 80 characters."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("", "statistic", "mean [95%]", "seeds", "verdict"):
        grid.add_column(head, ratio=1 if head == "statistic" else None, no_wrap=head != "statistic", overflow="fold")
    for number, lines, finding, verdict in rows:
        mean = Text(estimate(finding).replace(" [", "\n["))
        shown = Text(verdict, style=_STYLES[finding.verdict])
        grid.add_row(number, Text("\n".join(lines)), mean, _seeds(finding), shown)
    return grid


def _stated(finding: Finding) -> str:
    return f"{'beyond the paper: ' * (finding.role == 'beyond')}{finding.statistic}: {finding.rule.text}"


def _verdict(claim: Claim) -> str:
    return f"{claim.verdict},\nwith exceptions" if claim.exceptions else claim.verdict


def _details(finding: Finding) -> list[str]:
    paper = f"paper: {finding.paper}" if finding.paper else ""
    return [f"- {text}" for text in (f"{finding.setting} {finding.scale}", paper, finding.note) if text.strip()]


def _exceptions(claim: Claim) -> list[str]:
    return [f"except {finding.setting}: {_stated(finding)}, is {estimate(finding)}" for finding in claim.exceptions]


def estimate(finding: Finding) -> str:
    """The mean with its interval, such as "0.50 [-0.25, 1.25]"; four decimals if all three are below 0.1, else two."""
    known = [end for end in (finding.mean, finding.low, finding.high) if end is not None]
    if not known:
        return ""
    digits = 4 if 0 < max(map(abs, known)) < 0.1 else 2
    mean, *ends = (f"{end:.{digits}f}" for end in known)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _seeds(finding: Finding) -> str:
    return f"{finding.seeds_for} of {finding.n}" if finding.n else ""


def claims_markdown(claims: Sequence[Claim]) -> str:
    """A table of the claims with their primary statistics, then a section per claim with a table of its findings."""
    lines = ["# The paper's claims", "", f"{claims_summary(claims)}.", ""]
    rows = [
        (claim.number, claim.title, _stated(claim.primary), estimate(claim.primary), _seeds(claim.primary),
         ", ".join([claim.verdict, *_exceptions(claim)]))
        for claim in claims
    ]  # fmt: skip
    lines += _table(("", "claim", "primary statistic", "mean [95% interval]", "seeds", "verdict"), rows)
    heads = ("role", "statistic", "setting", "scale", "mean [95% interval]", "rule", "seeds", "verdict", "paper",
             "note")  # fmt: skip
    for claim in claims:
        lines += ["", f"## {claim.number}. {claim.title}", ""]
        findings = [
            (finding.role, finding.statistic, finding.setting, finding.scale, estimate(finding), finding.rule.text,
             _seeds(finding), finding.verdict, finding.paper, finding.note)
            for finding in claim.findings
        ]  # fmt: skip
        lines += _table(heads, findings)
        lines += ["", f"Note: {claim.note}."] if claim.note else []
    return "\n".join([*lines, "", _FOOTER, ""])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (heads, *rows)]
    head, *body = (f"| {' | '.join(row)} |" for row in cells)
    return [head, f"|{' --- |' * len(heads)}", *body]


def _rows(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """One row per finding, with numbers in full precision."""
    return [
        {name: getattr(finding, name, None) for name in _FIELDS}
        | {"claim": claim.number, "title": claim.title, "rule": finding.rule.text}
        for claim in claims
        for finding in claim.findings
    ]


def claims_csv(claims: Sequence[Claim]) -> str:
    """A header, then one line per finding."""
    rows = _rows(claims)
    for row in rows:
        row["by_seed"] = " ".join(f"{seed}:{value!r}" for seed, value in row["by_seed"].items())
    return csv_text(_FIELDS, [list(row.values()) for row in rows])


def claims_json(claims: Sequence[Claim]) -> str:
    """A list with one object per finding."""
    return json.dumps(_rows(claims), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
