"""Runs as processes of this machine, a few at a time.

Each worker has a session of its own, so that Ctrl-C reaches this process alone, which then stops them in good order;
if this process is killed, they notice (`emabank.study.executors.worker`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from emabank.study.executors import Outcome, Task
from emabank.study.executors.polling import Started, carry_out_all, reason_of
from emabank.study.executors.warm import AVAILABLE, WarmProcess
from emabank.study.executors.worker import LOCKED, PARENT
from emabank.study.locks import is_locked
from emabank.study.runs.folder import LOCK

_AFTER_SIGTERM = 5.0  # seconds until SIGKILL


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Carries out tasks here, `jobs` at a time.

    >>> import io
    >>> LocalExecutor(jobs=2).run_all([], console=Console(file=io.StringIO()))
    []
    """

    jobs: int = 1
    grace: float = 10.0
    """Seconds that interrupted workers have to write a checkpoint, before they are stopped less kindly."""
    patience: float = 30.0
    """Seconds to wait for a run that another process is at work on: the workers of a study that was killed a moment ago
    still write their checkpoints."""
    poll: float = 0.1
    """Seconds between two looks at the workers."""
    warm: tuple[str, ...] = ()
    """Modules to import beforehand: workers that are `python -m` of the first start at once, where the system allows
    (executors.warm)."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; give the number of runs at a time, 1 or more")

    def run_all(self, tasks: Sequence[Task], *, console: Console | None = None) -> list[Outcome]:
        """Carry out every task that is not done (see `carry_out_all`)."""
        start = partial(_Job, warm=self.warm, patience=self.patience)
        return carry_out_all(tasks, start, self._stop, at_once=self.jobs, poll=self.poll, console=console)

    def _stop(self, running: list["_Job"], interrupts: list[int]) -> None:
        """End what still runs: kindly at first, and faster with each further Ctrl-C."""
        for number, seconds in ((signal.SIGINT, self.grace), (signal.SIGTERM, _AFTER_SIGTERM), (signal.SIGKILL, 1e9)):
            asked, until = len(interrupts), time.monotonic() + seconds
            for job in running:
                job.send(number)
            while any(job.process.poll() is None for job in running):
                if time.monotonic() > until or (len(interrupts) > asked and number != signal.SIGKILL):
                    break
                time.sleep(0.02)


class _Job(Started):
    """One worker process, and the folder of its run."""

    def __init__(self, task: Task, *, warm: tuple[str, ...] = (), patience: float = 0.0) -> None:
        super().__init__(task)
        self._warm, self._patience = warm, patience
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes] | WarmProcess":
        warm = self._warm
        environment = {"PYTHONUNBUFFERED": "1", **self.task.environment}
        if AVAILABLE and self.task.command[:3] == (sys.executable, "-m", *warm[:1]):
            with suppress(OSError):  # no room for its socket, say
                return WarmProcess(warm, self.task.command[3:], log=self.log, environment=environment)
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                self.task.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, PARENT: str(os.getpid())},
                start_new_session=True,
            )

    def poll(self) -> Outcome | None:
        code = self.process.poll()
        if code is None or (code == LOCKED and self._waits()):
            return None
        return self.outcome(code, reason_of(code))

    def _waits(self) -> bool:
        """Whether it is worth while to wait for who has the run; starts it again when they have let go of it."""
        if self.folder.is_done() or time.monotonic() - self.started > self._patience:
            return False
        if not is_locked(self.task.folder / LOCK):
            self.process = self._start()
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its children, unless it has ended."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:  # it has just ended, or is a warm one that does not yet lead its session
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)
