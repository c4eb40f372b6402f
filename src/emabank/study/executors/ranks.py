"""Runs carried out one after the other, each by all the processes that torchrun has started.

The first process has the plan and the screen, the others follow it: they are told of each run, and take their share.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from emabank.study.executors import Outcome, Task, in_order
from emabank.study.executors.display import display
from emabank.study.ranks import Ranks
from emabank.study.runs.folder import Progress, RunFolder

Tell = Callable[[Progress], None]
Work = Callable[[Sequence[str], Ranks, Tell], None]
"""Carries out what the arguments of a worker describe, together with the other processes."""


@dataclass(frozen=True, kw_only=True)
class RanksExecutor:
    """Of the first process: has each task carried out by all of them."""

    ranks: Ranks
    work: Work
    jobs: int = 1
    """Runs at a time: all processes are at work on each."""

    def run_all(self, tasks: Sequence[Task], *, console: Console | None = None) -> list[Outcome]:
        """Carry out every task that is not done. A run that fails ends all: the others cannot go on without it."""
        tasks = in_order(tasks)
        outcomes: list[Outcome] = []
        with display(console or Console(), len(tasks)) as shown:
            for task in tasks:
                if RunFolder(task.folder).is_done():
                    outcomes.append(Outcome(task=task, state="already done"))
                else:
                    shown.started(task)
                    started = time.monotonic()
                    arguments = self.ranks.from_first(task.command[3:])
                    self.work(arguments, self.ranks, lambda progress, task=task: shown.progressed(task, progress))
                    outcomes.append(Outcome(task=task, state="done", seconds=time.monotonic() - started))
                shown.ended(outcomes[-1])
        return outcomes

    def release(self) -> None:
        """Let the others go home: there is no more work."""
        self.ranks.from_first(None)


def follow(ranks: Ranks, work: Work) -> None:
    """Of the others: take part in each run that the first process tells of, until there is no more."""
    while (arguments := ranks.from_first()) is not None:
        work(arguments, ranks, lambda progress: None)
