"""Many runs on one screen: a bar for each that runs and one for all; plain lines where there is no terminal."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from emabank.study.executors import Outcome, Task
from emabank.study.progress import duration, is_due, plain_line
from emabank.study.runs.folder import LOG, Progress


class Display:
    """Plain lines: each run when it starts, now and then on its way, and when it ends."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._ended = 0
        self._told: dict[str, int] = {}

    def started(self, task: Task) -> None:
        """A run begins."""
        self.say(f"started: {task.title}")

    def progressed(self, task: Task, progress: Progress) -> None:
        """A running one has told how far it is."""
        if is_due(progress.epoch, progress.epochs, told=self._told.get(task.id, 0)):
            self.say(f"{task.title}: {_line(progress)}")
        self._told[task.id] = progress.epoch

    def ended(self, outcome: Outcome) -> None:
        """A run is done, was done before, or failed."""
        self._ended += 1
        took = f" in {duration(outcome.seconds)}" if outcome.state == "done" else ""
        why = f" ({outcome.reason})" if outcome.reason else ""
        self.say(f"{outcome.state}{took}: {outcome.task.title}{why} [{self._ended} of {self._total}]")

    def say(self, sentence: str) -> None:
        """Print a line, as it is."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)


class _BarDisplay(Display):
    def __init__(self, console: Console, total: int, bars: Bars) -> None:
        super().__init__(console, total)
        self._bars = bars
        self._all = bars.add_task("all runs", total=total, count=f"0/{total}", left="", words="")
        self._of: dict[str, TaskID] = {}

    def started(self, task: Task) -> None:
        # Without a total the bar pulses, until the run has told how far it is.
        self._of[task.id] = self._bars.add_task(task.title, total=None, count="", left="", words="starting")

    def progressed(self, task: Task, progress: Progress) -> None:
        self._bars.update(
            self._of[task.id],
            total=progress.epochs,
            completed=progress.epoch,
            count=f"{progress.epoch}/{progress.epochs}",
            left="" if progress.seconds_left is None else duration(progress.seconds_left),
            words=progress.words,
        )

    def ended(self, outcome: Outcome) -> None:
        super().ended(outcome)
        if outcome.task.id in self._of:
            self._bars.remove_task(self._of.pop(outcome.task.id))
        self._bars.update(self._all, completed=self._ended, count=f"{self._ended}/{self._total}")


@contextmanager
def display(console: Console, total: int) -> Generator[Display]:
    r"""Show so many runs as long as the context lasts.

    >>> import io
    >>> from pathlib import Path
    >>> console = Console(file=io.StringIO())
    >>> with display(console, 2) as shown:
    ...     shown.started(Task(id="a", title="seed 0", folder=Path("runs/a"), command=("train",)))
    >>> console.file.getvalue()
    'started: seed 0\n'
    """
    if not console.is_terminal:
        yield Display(console, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Bars(*columns, console=console) as bars:
        yield _BarDisplay(console, total, bars)


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """What to say at the end about the runs that failed: which, why, what they printed last, where the rest is.

    >>> failures([])
    []
    """
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if not failed:
        return []
    lines = [f"{len(failed)} of {len(outcomes)} runs failed:"]
    for outcome in failed:
        lines += [f"- {outcome.task.title}: {outcome.reason}"]
        lines += [f"    {line}" for line in outcome.log]
        lines += [f"  log: {outcome.task.folder / LOG}"]
    return lines


def _line(progress: Progress) -> str:
    return plain_line(progress.epoch, progress.epochs, progress.seconds_left, progress.words)
