"""How far a run is: a bar where there is a terminal, a plain line now and then where there is none."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
    between = max(1, epochs // _LINES)

    def tell(epoch: int, words: str) -> None:
        if epoch % between == 0 or epoch in (1, epochs):
            left = (time.monotonic() - start) / epoch * (epochs - epoch)
            console.print(f"epoch {epoch}/{epochs}, {left:.0f} s left: {words}", highlight=False)

    return tell
