"""From `emabank report`, `claims` and `status` to what is shown and written. Never imports torch.

May import the report, runs and progress.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.study.progress import counting, duration
from emabank.study.report.build import Report, build_report, try_next
from emabank.study.report.claims.all import claims
from emabank.study.report.claims.show import claims_text, summary
from emabank.study.report.evidence import LeftOut
from emabank.study.report.forms.terminal import terminal
from emabank.study.report.load import load_evidence, load_studies
from emabank.study.runs.folder import CONFIG, RunFolder, State

SHOWN = ("generalization/headline", "label-noise/leaderboard")
"""The tables that are printed when no others are asked for."""
_STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")


def make_report(runs: Path, out: Path | None, *, tables: str = "", console: Console | None = None) -> Report:
    """Write the report of a folder of runs, print a table or two and what was left out; `tables`: those whose name has
    this in it, or all.
    """
    console = console or Console()
    evidence = load_evidence(runs)
    out = out or runs / "report"
    with counting(console, "files of the report") as tell:
        report = build_report(evidence, out, tell=tell)
    _show_tables(report, tables, console)
    _say(console, summary(report.claims))
    _left_out(evidence.left_out, console)
    following = try_next(evidence, runs=runs)
    if evidence.settings:
        _say(console, f"{len(report.sheets)} tables and {len(report.figures)} figures are in {os.path.relpath(out)}.")
    else:
        _say(console, f"There is nothing to report in {runs} yet; `{following}` makes runs.")
    _say(console, f"Open {os.path.relpath(report.page)} in a browser; next: `{following}`.")
    return report


def _show_tables(report: Report, asked: str, console: Console) -> None:
    names = [sheet.name for sheet in report.sheets]
    shown = [name for name in names if asked == "all" or (asked in name if asked else name.endswith(SHOWN))]
    for sheet in report.sheets:
        if sheet.name in shown:
            console.print(terminal(sheet, width=console.width))
            console.print()
    if asked and not shown:
        _say(console, f"No table has {asked!r} in its name; there are {', '.join(names)}.")


def show_claims(runs: Path, *, short: bool = False, console: Console | None = None) -> None:
    """Print every claim of the paper with what these runs say about it."""
    console = console or Console()
    evidence = load_evidence(runs)
    console.print(claims_text(claims(evidence), parts=not short))
    _left_out(evidence.left_out, console)


def show_status(runs: Path, console: Console | None = None) -> None:
    """Print how far the studies and runs of a folder are."""
    console = console or Console()
    studies, left_out = load_studies(runs)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("study", "scale", "state"):
        table.add_column(head)
    for study in studies:
        state = f"{study.state}: {study.reason}" if study.reason else study.state
        table.add_row(*map(Text, (study.name, study.scale, state)))
    if studies:
        console.print(table)
    folders = [RunFolder(path) for path in sorted(runs.iterdir()) if (path / CONFIG).exists()]
    states = [folder.state() for folder in folders]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _STATES)
    _say(console, f"{len(folders)} runs: {counts}")
    for folder, state in zip(folders, states, strict=True):
        if state == "failed":
            _say(console, f"  {folder.id} failed: {folder.failure()}")
        elif state != "done":
            _say(console, f"  {folder.id} {state}{_how_far(folder)}")
    _left_out(left_out, console)


def _how_far(folder: RunFolder) -> str:
    told = folder.progress()
    if told is None or not isinstance(told.seconds_left, float | int | None):
        return ""
    left = "" if told.seconds_left is None else f", {duration(told.seconds_left)} left"
    return f": epoch {told.epoch} of {told.epochs}{left}: {told.words}"


def _left_out(left_out: Sequence[LeftOut], console: Console) -> None:
    if left_out:
        _say(console, "Left out:")
        for what, why in left_out:
            _say(console, f"  {what}: {why}")


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
