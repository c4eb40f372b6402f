"""What `update()` costs on a step on which no average is due: its time, and whether it allocates anything."""

import itertools
import statistics
import timeit
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class NotDue:
    """One step that is not due.

    Args:
        nanoseconds: median over repeats of the mean of many calls; the loop around them is in it.
        kept_bytes: growth of Python's heap over many calls.
        transient_bytes: the most that was held at once during a call beyond that.
        operators: torch operators that ran; every tensor is allocated by one.
    """

    nanoseconds: float
    kept_bytes: int
    transient_bytes: int
    operators: int


class _CountOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def measure(update: Callable[[], object], *, calls: int = 100_000, repeats: int = 15) -> NotDue:
    """Measure `update`, which must not be due for the next few million calls."""
    seconds = [run / calls for run in timeit.repeat(update, number=calls, repeat=repeats)]
    with _CountOperators() as operators:
        for _ in itertools.repeat(None, 1000):
            update()
    kept, transient = (with_it - without for with_it, without in zip(_heap(update), _heap(_nothing), strict=True))
    return NotDue(statistics.median(seconds) * 1e9, kept, transient, operators.count)


def _nothing() -> None:
    """What `_heap` measures of itself: its own integers and tuples."""


def _heap(update: Callable[[], object], calls: int = 10_000) -> tuple[int, int]:
    loop = itertools.repeat(None, calls)
    update()
    tracemalloc.start()
    try:
        update()  # from here on the counter itself is an object that tracemalloc saw being made
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in loop:
            update()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - max(before, after)
