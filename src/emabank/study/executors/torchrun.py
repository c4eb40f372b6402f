"""Runs tasks one after the other, each on all the ranks that torchrun started.

The first rank plans the runs and shows their progress; it sends each to the other ranks, which train their share.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from emabank.study.distributed import ProcessGroup
from emabank.study.executors import Outcome, Task
from emabank.study.executors.progress import display
from emabank.study.runs.reader import Progress, RunFolder

OnProgress = Callable[[Progress], None]
Work = Callable[[Sequence[str], ProcessGroup, OnProgress], None]
"""Trains the run that the arguments of a worker describe, together with the other ranks."""


@dataclass(frozen=True, kw_only=True)
class TorchrunExecutor:
    """On the first rank: runs each task on all ranks."""

    group: ProcessGroup
    work: Work
    jobs: int = 1
    """Runs at a time: all ranks work on each."""

    def run_all(
        self, tasks: Sequence[Task], *, console: Console | None = None, before: int = 0, total: int = 0
    ) -> list[Outcome]:
        """Run every task that is not done. A failed run ends all: the other ranks cannot continue without it."""
        outcomes: list[Outcome] = []
        with display(console or Console(stderr=True), before, total or len(tasks)) as shown:
            for task in tasks:
                if RunFolder(task.folder).is_done():
                    outcomes.append(Outcome(task=task, state="already done"))
                else:
                    shown.started(task)
                    started = time.monotonic()
                    arguments = self.group.from_first(task.command[3:])
                    self.work(arguments, self.group, lambda progress, task=task: shown.progressed(task, progress))
                    outcomes.append(Outcome(task=task, state="done", seconds=time.monotonic() - started))
                shown.ended(outcomes[-1])
        return outcomes

    def release(self) -> None:
        """Let the other ranks end: there is no more work."""
        self.group.from_first(None)


def follow(group: ProcessGroup, work: Work) -> None:
    """On the other ranks: train each run that the first rank sends, until there are no more."""
    while (arguments := group.from_first()) is not None:
        work(arguments, group, lambda progress: None)
