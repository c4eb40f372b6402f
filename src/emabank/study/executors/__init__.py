"""Where runs are trained: an executor runs tasks, and reports for each whether it is done or why it failed.

This file is what all executors have in common: `local` has processes of this machine, `torchrun` those that torchrun
started, `slurm` and `ray` are clusters. A task is a command line, so an executor needs to
know nothing of training. The run's folder decides its state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run for a process of its own, which marks the run's folder as done."""

    id: str
    title: str
    """As it is shown."""
    folder: Path
    """The run's folder; made if it is not there. What the process prints goes to its log.txt."""
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables to add to those of this process, OMP_NUM_THREADS say."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a task."""

    task: Task
    state: Literal["done", "already done", "failed"]
    seconds: float = 0.0
    reason: str | None = None
    """Why it failed, in short."""
    log: tuple[str, ...] = ()
    """If it failed: the last lines that it printed."""


class Executor(Protocol):
    """Anything that can run tasks."""

    @property
    def jobs(self) -> int | None:
        """So many at a time; None: as many as fit."""
        ...

    def run_all(
        self, tasks: Sequence[Task], *, console: Console | None = None, before: int = 0, total: int = 0
    ) -> list[Outcome]:
        """Bring every task, each with its own id, to its end and return how each ended; one that fails stops no other.

        Tasks whose folder is done are not started. Interrupted, it stops what it started and raises
        `KeyboardInterrupt`; the same call resumes. It counts on from `before` tasks of earlier calls, of `total`.
        """
        ...


class TasksFailedError(ChildProcessError):
    """Some runs failed; the message names them."""


def raise_if_failed(outcomes: Sequence[Outcome]) -> None:
    """Raise `TasksFailedError` when a task failed: for callers that need all of them."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if failed:
        titles = ", ".join(outcome.task.title for outcome in failed[:5]) + (", ..." if len(failed) > 5 else "")
        log = failed[0].task.folder / "log.txt"
        raise TasksFailedError(
            f"{len(failed)} of {len(outcomes)} runs failed, the first with {failed[0].reason}: {titles}; see "
            f"{log.as_posix()}, then start it again"
        )


def engine(package: str, *, executor: str) -> Any:
    """The package that an executor is made of; `ValueError` where it is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"--executor {executor} needs the package {package}: pip install {package}") from None
