"""Executors train runs: an executor runs tasks and reports for each whether it is done or why it failed.

`local` uses processes on this machine, `torchrun` those that torchrun started, `slurm` and `ray` a cluster. A task is a
command line, so an executor needs to know nothing of training. The run's folder decides the state of a task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run for a separate process, which marks the run's folder as done."""

    id: str
    title: str
    """The name shown to the user."""
    folder: Path
    """The run's folder, created if missing. The output of the process goes to log.txt there."""
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables added to the environment of this process, such as OMP_NUM_THREADS."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended."""

    task: Task
    state: Literal["done", "already done", "failed"]
    seconds: float = 0.0
    reason: str | None = None
    """Why it failed, in short."""
    log: tuple[str, ...] = ()
    """The last lines that it printed, if it failed."""


class Executor(Protocol):
    """Anything that can run tasks."""

    @property
    def jobs(self) -> int | None:
        """Tasks at a time; None: as many as fit."""
        ...

    def run_all(
        self, tasks: Sequence[Task], *, console: Console | None = None, before: int = 0, total: int = 0
    ) -> list[Outcome]:
        """Run all tasks, each with its own id, and return how each ended. A failed task does not stop the others.

        Tasks whose folder is done are not started. On Ctrl-C it stops the workers that it started and raises
        `KeyboardInterrupt`; the same call resumes. The progress counts on from `before` tasks of earlier
        calls, out of `total`.
        """
        ...


class TasksFailedError(ChildProcessError):
    """Some runs failed; the message names them."""


def raise_if_failed(outcomes: Sequence[Outcome]) -> None:
    """Raise `TasksFailedError` if a task failed, for callers that need all of them."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if failed:
        titles = ", ".join(outcome.task.title for outcome in failed[:5]) + (", ..." if len(failed) > 5 else "")
        log = failed[0].task.folder / "log.txt"
        raise TasksFailedError(
            f"{len(failed)} of {len(outcomes)} runs failed, the first with {failed[0].reason}: {titles}; see "
            f"{log.as_posix()}, then start it again"
        )


def engine(package: str, *, executor: str) -> Any:
    """Import the package that an executor needs; `ValueError` if it is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"--executor {executor} needs the package {package}: pip install {package}") from None
