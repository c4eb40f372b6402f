"""How far runs are: bars where there is a terminal, a plain line now and then where there is none."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_LINES = 12  # how many plain lines a run may print, roughly

Tell = Callable[[int, str], None]


@contextmanager
def progress(console: Console, epochs: int) -> Generator[Tell]:
    """Yield a function that is told of each finished epoch: its number, counted from 1, and how it went."""
    if console.is_terminal:
        columns = (
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=epochs)
            yield lambda epoch, words: bar.update(task, completed=epoch, description=words)
    else:
        yield _plain_lines(console, epochs)


def _plain_lines(console: Console, epochs: int) -> Tell:
    start = time.monotonic()

    def tell(epoch: int, words: str) -> None:
        if is_due(epoch, epochs, told=epoch - 1):
            left = (time.monotonic() - start) / epoch * (epochs - epoch)
            console.print(plain_line(epoch, epochs, left, words), highlight=False)

    return tell


def is_due(epoch: int, epochs: int, *, told: int) -> bool:
    """Whether a plain line is due at an epoch, when the last one looked at was `told`; 0: none was.

    >>> [epoch for epoch in range(1, 61) if is_due(epoch, 60, told=epoch - 1)]
    [1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]
    """
    between = max(1, epochs // _LINES)
    return epoch > told and (told == 0 or epoch >= epochs or epoch // between > told // between)


def plain_line(epoch: int, epochs: int, left: float | None, words: str) -> str:
    """What a plain line says.

    >>> plain_line(3, 60, 200.0, "live 81.0%")
    'epoch 3/60, 3 min left: live 81.0%'
    """
    time_left = "" if left is None else f", {duration(left)} left"
    return f"epoch {epoch}/{epochs}{time_left}: {words}"


def duration(seconds: float) -> str:
    """A time to wait, as exact as one wants to know it.

    >>> duration(119), duration(200), duration(30000), duration(1e7)
    ('119 s', '3 min', '8.3 h', '116 days')
    """
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


@contextmanager
def counting(console: Console, what: str) -> Generator[Callable[[int, int], None]]:
    """Yield a function that is told how many of how many are done; nothing is shown until it is told something.

    >>> with counting(Console(quiet=True), "images decoded") as tell:
    ...     tell(1, 2)
    """
    if console.is_terminal:
        with Progress(
            TextColumn(what), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), console=console
        ) as bar:
            tasks: list[TaskID] = []

            def show(done: int, total: int) -> None:
                if not tasks:
                    tasks.append(bar.add_task("", total=total))
                bar.update(tasks[0], completed=done, total=total)

            yield show
    else:
        said = 0

        def say(done: int, total: int) -> None:
            nonlocal said
            if is_due(done, total, told=said):
                console.print(f"{what}: {done:,} of {total:,}", highlight=False)
                said = done

        yield say
