"""The progress of runs: bars on a terminal, otherwise a plain line now and then."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import Task as Bar
from rich.table import Column
from rich.text import Text

from emabank.study.executors import Outcome, Task
from emabank.study.runs.reader import LOG, Progress

_LINES = 12  # plain lines per run, roughly


def say(console: Console, sentence: str) -> None:
    """Print a sentence as it is, on one line."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(console: Console, epochs: int) -> Generator[Callable[[int, str], None]]:
    """Yield a function to call after each epoch of a run, with the epoch, counted from 1, and a status line."""
    if console.is_terminal:
        columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TimeRemainingColumn())
        words = TextColumn("{task.description}", markup=False)
        with Bars(TextColumn("epoch"), *columns, words, console=console) as bars:
            bar = bars.add_task("", total=epochs)
            yield lambda epoch, words: bars.update(bar, completed=epoch, description=words)
        return
    start = time.monotonic()

    def print_line(epoch: int, words: str) -> None:
        if is_due(epoch, epochs, last=epoch - 1):
            left = (time.monotonic() - start) / epoch * (epochs - epoch)
            say(console, plain_line(epoch, epochs, left, words))

    yield print_line


@contextmanager
def counting(console: Console, what: str) -> Generator[Callable[[int, int], None]]:
    """Yield a function to call with the number done and the total; nothing is shown before the first call."""
    if console.is_terminal:
        with Bars(TextColumn(what), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), console=console) as bars:
            bar = bars.add_task("", total=None, visible=False)
            yield lambda done, total: bars.update(bar, completed=done, total=total, visible=True)
        return
    printed = 0

    def print_line(done: int, total: int) -> None:
        nonlocal printed
        if is_due(done, total, last=printed):
            say(console, f"{what}: {done:,} of {total:,}")
            printed = done

    yield print_line


def is_due(epoch: int, epochs: int, *, last: int) -> bool:
    """Whether a plain line is due at an epoch; `last` is the epoch of the last check, 0 before the first."""
    between = max(1, epochs // _LINES)
    return epoch > last and (last == 0 or epoch >= epochs or epoch // between > last // between)


def plain_line(epoch: int, epochs: int, left: float | None, words: str) -> str:
    """The progress of a run, such as `epoch 3/60, 3 min left: live 81.0%`."""
    time_left = "" if left is None else f", {duration(left)} left"
    return f"epoch {epoch}/{epochs}{time_left}: {words}"


def duration(seconds: float) -> str:
    """A duration, rounded: 119 s, 3 min, 8.3 h or 116 days."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


# Many runs on one screen ---------------------------------------------------------------------------------------------


class Display:
    """Plain lines: when a run starts, now and then while it trains, and when it ends."""

    def __init__(self, console: Console, ended: int, total: int) -> None:
        self._console, self._ended, self._total = console, ended, total
        self._last: dict[str, int] = {}

    def started(self, task: Task) -> None:
        self.say(f"started: {task.title}")

    def progressed(self, task: Task, progress: Progress) -> None:
        if is_due(progress.epoch, progress.epochs, last=self._last.get(task.id, 0)):
            line = plain_line(progress.epoch, progress.epochs, progress.seconds_left, progress.words)
            self.say(f"{task.title}: {line}")
        self._last[task.id] = progress.epoch

    def ended(self, outcome: Outcome) -> None:
        self._ended += 1
        took = f" in {duration(outcome.seconds)}" if outcome.state == "done" else ""
        why = f" ({outcome.reason})" if outcome.reason else ""
        self.say(f"{outcome.state}{took}: {outcome.task.title}{why} [{self._ended} of {self._total}]")

    def say(self, sentence: str) -> None:
        say(self._console, sentence)


class _CutColumn(TextColumn):
    """One line of text, which is cut in a narrow terminal so that the columns beside it stay whole."""

    def render(self, task: Bar) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class _BarDisplay(Display):
    def __init__(self, console: Console, ended: int, total: int, bars: Bars) -> None:
        super().__init__(console, ended, total)
        self._bars = bars
        count = f"{ended}/{total}"
        self._all = bars.add_task("all runs", completed=ended, total=total, count=count, left="", words="")
        self._of: dict[str, TaskID] = {}

    def started(self, task: Task) -> None:
        # Without a total the bar pulses until the first progress.
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
def display(console: Console, ended: int, total: int) -> Generator[Display]:
    """Show the progress of runs, of which `ended` of `total` have already ended."""
    if not console.is_terminal:
        yield Display(console, ended, total)
        return
    columns = (
        TextColumn("{task.fields[count]}", markup=False),
        BarColumn(bar_width=max(4, min(20, console.width // 8))),
        TextColumn("{task.fields[left]}", markup=False),
        _CutColumn("{task.description}", markup=False, table_column=Column()),
        _CutColumn("{task.fields[words]}", markup=False, table_column=Column()),
    )
    with Bars(*columns, console=console) as bars:
        yield _BarDisplay(console, ended, total, bars)


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """A summary of the failed runs: which, why, their last lines of output, and where the log is."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if not failed:
        return []
    lines = [f"{len(failed)} of {len(outcomes)} runs failed:"]
    for outcome in failed:
        lines += [f"- {outcome.task.title}: {outcome.reason}"]
        lines += [f"    {line}" for line in outcome.log]
        lines += [f"  log: {outcome.task.folder / LOG}"]
    return lines
