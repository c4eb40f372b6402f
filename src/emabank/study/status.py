"""From `emabank status` to how far the studies and runs of a folder are. Imports neither torch nor matplotlib.

May import what the report reads, runs and progress.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.study.executors.progress import plain_line, say
from emabank.study.report.results import Skipped, read_studies
from emabank.study.runs.reader import CONFIG, RunFolder, State

_STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")


def show_status(runs: Path, console: Console | None = None) -> None:
    """Print how far the studies and runs of a folder are."""
    console = console or Console()
    studies, skipped = read_studies(runs)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("study", "scale", "state"):
        table.add_column(head)
    for study in studies:
        state = f"{study.state}: {study.reason}" if study.reason else study.state
        table.add_row(*map(Text, (study.study, study.scale, state)))
    if studies:
        console.print(table)
    folders = [RunFolder(path) for path in sorted(runs.iterdir()) if (path / CONFIG).exists()]
    states = [folder.state() for folder in folders]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _STATES)
    say(console, f"{len(folders)} runs: {counts}")
    for folder, state in zip(folders, states, strict=True):
        if state == "failed":
            say(console, f"  {folder.id} failed: {folder.failure()}")
        elif state != "done":
            progress = folder.progress()
            line = progress and plain_line(progress.epoch, progress.epochs, progress.seconds_left, progress.words)
            say(console, f"  {folder.id} {state}" + (f": {line}" if line else ""))
    tell_skipped(skipped, console)


def tell_skipped(skipped: Sequence[Skipped], console: Console) -> None:
    """Print what could not be used, and why."""
    if skipped:
        say(console, "Left out:")
        for what, why in skipped:
            say(console, f"  {what}: {why}")
