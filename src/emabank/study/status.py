"""The command `emabank status`: the progress of studies and runs in a folder. Imports neither torch nor matplotlib.

May import what the report reads, runs and progress.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.study.config import RunConfig
from emabank.study.executors.progress import plain_line, say
from emabank.study.report.results import DAMAGE, Skipped, read_studies, state_of
from emabank.study.runs.archive import unpacked
from emabank.study.runs.reader import CONFIG, RunFolder
from emabank.study.serialize import from_dict

_STATES = ("done", "running", "interrupted", "failed", "damaged")


def show_status(runs: Path, console: Console | None = None) -> None:
    """Print the progress of the studies and runs in a folder."""
    console = console or Console()
    with unpacked(runs) as folder:
        _show_status(folder, console)


def _show_status(runs: Path, console: Console) -> None:
    studies, skipped = read_studies(runs)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("study", "scale", "state"):
        table.add_column(head, no_wrap=head != "state", overflow="fold")
    for study in studies:
        table.add_row(study.study, study.scale, Text(state_of(study, runs)))
    if studies:
        console.print(table)
    folders = [RunFolder(path) for path in sorted(runs.iterdir()) if (path / CONFIG).exists()]
    states = [_state_of(folder) for folder in folders]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _STATES if state == "done" or state in states)
    say(
        console,
        f"{len(folders)} {'run' if len(folders) == 1 else 'runs'}: {counts}"
        if folders
        else "This folder contains no runs; `emabank run` makes some.",
    )
    for folder, state in zip(folders, states, strict=True):
        if state == "failed":
            say(console, f"  {_title(folder)} failed: {folder.failure()}")
        elif state == "damaged":
            say(console, f"  {_title(folder)} damaged, trained again by the same command: {folder.find_damage()}")
        elif state != "done":
            progress = folder.progress()
            left = progress.seconds_left if progress and state == "running" else None
            line = progress and plain_line(progress.epoch, progress.epochs, left, progress.words)
            say(console, f"  {_title(folder)} {state}" + (f": {line}" if line else ""))
    print_skipped(skipped, console)


def _state_of(folder: RunFolder) -> str:
    state = folder.state()
    if state != "waiting":
        return state
    return "damaged" if folder.find_damage() else "interrupted"


def _title(folder: RunFolder) -> str:
    """The title and id of a run; only its id if its configuration is damaged."""
    try:
        config = from_dict(RunConfig, folder.config(), where=CONFIG)
        return f"{config.recipe.title}: {config.title} ({folder.id})"
    except DAMAGE:
        return folder.id


def print_skipped(skipped: Sequence[Skipped], console: Console) -> None:
    """Print what could not be used, and why."""
    if skipped:
        say(console, "Skipped:")
        for what, why in skipped:
            say(console, f"  {what}: {why}")
