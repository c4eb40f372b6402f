"""Runs for the cluster tests: long enough to be interrupted, with the same results on every machine."""

import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from emabank.study.config import Place
from emabank.study.executors import Executor, Outcome, Task
from emabank.study.run_job import Job, run_job, task_of
from emabank.study.runs.reader import LOCK, RunFolder
from tests.study.small_runs import config, digits, files_in
from tests.support.processes import wait_until

EPOCHS = 300


def tasks_in(runs: Path, count: int, *, epochs: int = EPOCHS) -> list[Task]:
    """Runs of some seconds with frequent checkpoints."""
    place = Place(runs=runs, checkpoint_seconds=0.2)
    return [task_of(Job(config(seed=seed, training={"epochs": epochs})), place.absolute()) for seed in range(count)]


def undisturbed_files(runs: Path, count: int, *, epochs: int = EPOCHS) -> list[dict[Any, Any]]:
    """The files of the same runs without any interruption."""
    place = Place(runs=runs)
    jobs = [Job(config(seed=seed, training={"epochs": epochs})) for seed in range(count)]
    return [files_in(run_job(job, place, digits()[0])) for job in jobs]


class BackgroundRun:
    """`executor.run_all` in a thread, so that the test can interfere."""

    def __init__(self, executor: Executor, tasks: Sequence[Task]) -> None:
        self._console = Console(file=io.StringIO(), width=200, color_system=None)
        self._outcomes: list[Outcome] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(executor, tasks), daemon=True)
        self._thread.start()

    def _run(self, executor: Executor, tasks: Sequence[Task]) -> None:
        try:
            self._outcomes = executor.run_all(tasks, console=self._console)
        except BaseException as error:
            self._error = error

    @property
    def output(self) -> str:
        return self._console.file.getvalue()  # type: ignore[attr-defined]

    def wait(self, seconds: float = 300) -> list[Outcome]:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"it did not end within {seconds} s:\n{self.output}"
        if self._error is not None:
            raise self._error
        return self._outcomes


def wait_for_epoch(task: Task, epoch: int, *, seconds: float = 120) -> None:
    def is_reached() -> bool:
        progress = RunFolder(task.folder).progress()
        return progress is not None and progress.epoch >= epoch

    wait_until(is_reached, seconds=seconds)


def process_of(task: Task) -> int:
    """The process that holds the lock of a run."""
    return int(json.loads((task.folder / LOCK).read_text())["process"])


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
