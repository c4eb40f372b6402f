"""Runs tasks on a Ray cluster, or with Ray on this machine alone; each gets the CPUs and GPUs that it requests."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from emabank.study.executors import Outcome, Task, engine
from emabank.study.executors.loop import TaskHandle, describe_exit_code, run_tasks
from emabank.study.executors.progress import say
from emabank.study.executors.worker import RemoteCommand
from emabank.study.runs.environment import cores


@dataclass(frozen=True, kw_only=True)
class RayExecutor:
    """Runs tasks wherever Ray schedules them; the run folders must be on a file system shared by all machines.

    A run whose worker died is restarted from its checkpoint, up to `retries` times.
    """

    address: str | None = None
    """The cluster's address, such as auto or ray://head:10001; None starts Ray on this machine, and stops it later."""
    jobs: int | None = None
    """Runs at a time; None: as many as fit."""
    cpus: int = 1
    gpus: int = 0
    retries: int = 2
    grace: float = 30.0
    """Seconds that an interrupted run has to write a checkpoint."""
    poll: float = 0.2

    def run_all(
        self, tasks: Sequence[Task], *, console: Console | None = None, before: int = 0, total: int = 0
    ) -> list[Outcome]:
        console = console or Console(stderr=True)
        with _connected(self.address, cpus=self.cpus * (self.jobs or 1)) as ray:

            def start(task: Task) -> _Remote:
                return _Remote(task, ray, self, partial(say, console))

            return run_tasks(
                tasks, start, self._stop, at_once=self.jobs, poll=self.poll, console=console, before=before, total=total
            )

    def _stop(self, running: list["_Remote"], interrupts: list[int]) -> None:
        for handle in running:
            handle.cancel()
        for handle in running:
            handle.wait(self.grace + 10)


class _Remote(TaskHandle):
    """One Ray task, and the folder of its run."""

    def __init__(self, task: Task, ray: Any, settings: RayExecutor, say: Callable[[str], None]) -> None:
        super().__init__(task)
        self._ray, self._settings, self._say = ray, settings, say
        self._retries_left = settings.retries
        self._submit()

    def _submit(self) -> None:
        # Ray's own retries stay off, so that a death is seen and reported here.
        options = {"num_cpus": self._settings.cpus, "num_gpus": self._settings.gpus, "max_retries": 0}
        command = RemoteCommand(
            self.task.command, log=str(self.log), environment=self.task.environment, grace=self._settings.grace
        )
        self._ref = self._ray.remote(_work).options(**options, name=self.task.title).remote(command)

    def poll(self) -> Outcome | None:
        ready, _ = self._ray.wait([self._ref], timeout=0)
        if not ready:
            return None
        try:
            code = self._ray.get(self._ref)
        except self._ray.exceptions.RayError as error:  # the worker, or its machine, is gone
            if self._retries_left > 0 and not self.folder.is_done():
                self._retries_left -= 1
                self._say(
                    f"{self.task.title}: its worker died ({type(error).__name__}); it resumes from its checkpoint"
                )
                self._submit()
                return None
            return self.outcome(None, f"its worker died, {self._settings.retries + 1} times: {type(error).__name__}")
        return self.outcome(code, describe_exit_code(code))

    def cancel(self) -> None:
        self._ray.cancel(self._ref)

    def wait(self, seconds: float) -> None:
        """Wait at most this long until the task has stopped."""
        self._ray.wait([self._ref], timeout=seconds)


def _work(command: RemoteCommand) -> int:
    return command()


@contextmanager
def _connected(address: str | None, *, cpus: int) -> Generator[Any]:
    ray = engine("ray", executor="ray")
    # emabank must be installed on the workers of a cluster: nothing is sent along from here.
    where: dict[str, Any] = {"address": address}
    if address is None:
        where = {"num_cpus": max(cores(), cpus), "include_dashboard": False}
    ray.init(**where, log_to_driver=False, configure_logging=False)
    try:
        yield ray
    finally:
        ray.shutdown()
