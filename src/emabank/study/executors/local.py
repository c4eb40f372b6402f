"""Runs tasks as processes on this machine, a few at a time.

Each worker has its own session, so that Ctrl-C reaches only this process, which then stops its workers cleanly. If this
process is killed, they notice (see `worker.py`). Importing torch takes as long as a small run, so workers are forked
from a process that has only imported it (Python's "forkserver"): they inherit neither threads nor devices.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from rich.console import Console

from emabank.study.executors import Outcome, Task
from emabank.study.executors.loop import TaskHandle, describe_exit_code, run_tasks
from emabank.study.executors.worker import LOCKED, PARENT, start_worker
from emabank.study.runs.locks import is_locked
from emabank.study.runs.reader import LOCK

FORKS = sys.platform == "linux"  # macOS has libraries that do not survive a fork
_AFTER_SIGTERM = 5.0  # seconds until SIGKILL


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Runs tasks on this machine, `jobs` at a time."""

    jobs: int = 1
    grace: float = 10.0
    """Seconds that interrupted workers have to write a checkpoint before they get SIGTERM, then SIGKILL."""
    patience: float = 30.0
    """Seconds to wait for a run that another process has open: workers of a study that was just killed may still be
    writing their checkpoints."""
    poll: float = 0.1
    """Seconds between checks of the workers."""
    warm: tuple[str, ...] = ()
    """Modules to preload: workers that run `python -m` of the first one start at once, where the system allows
    (`ForkedWorker`)."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; give the number of runs at a time, 1 or more")

    def run_all(
        self, tasks: Sequence[Task], *, console: Console | None = None, before: int = 0, total: int = 0
    ) -> list[Outcome]:
        start = partial(_Job, warm=self.warm, patience=self.patience)
        return run_tasks(
            tasks, start, self._stop, at_once=self.jobs, poll=self.poll,
            console=console or Console(stderr=True), before=before, total=total,
        )  # fmt: skip

    def _stop(self, running: list["_Job"], interrupts: list[int]) -> None:
        """Stop running workers: gently at first, and faster with each further Ctrl-C."""
        for number, seconds in ((signal.SIGINT, self.grace), (signal.SIGTERM, _AFTER_SIGTERM), (signal.SIGKILL, 1e9)):
            asked, until = len(interrupts), time.monotonic() + seconds
            for job in running:
                job.send(number)
            while any(job.process.poll() is None for job in running):
                if time.monotonic() > until or (len(interrupts) > asked and number != signal.SIGKILL):
                    break
                time.sleep(0.02)


class _Job(TaskHandle):
    """One worker process, and the folder of its run."""

    def __init__(self, task: Task, *, warm: tuple[str, ...] = (), patience: float = 0.0) -> None:
        super().__init__(task)
        self._warm, self._patience = warm, patience
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes] | ForkedWorker":
        command, environment = self.task.command, self.task.environment
        if FORKS and command[:3] == (sys.executable, "-m", *self._warm[:1]):
            with suppress(OSError):  # if its socket cannot be created, for example
                return ForkedWorker(self._warm, command[3:], log=self.log, environment=environment)
        return start_worker(command, log=self.log, environment=environment)

    def poll(self) -> Outcome | None:
        code = self.process.poll()
        if code is None or (code == LOCKED and self._wait_for_lock()):
            return None
        return self.outcome(code, describe_exit_code(code))

    def _wait_for_lock(self) -> bool:
        """Whether to wait for the process that has the run open; restarts the worker once the run is free."""
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
            except ProcessLookupError:  # it has just ended, or is a forked worker that does not lead its session yet
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)


# Forked workers ------------------------------------------------------------------------------------------------------


class ForkedWorker:
    """A worker like `python -m MODULE ARGUMENTS`, with the part of `subprocess.Popen`'s interface that executors use.

    It runs the first of `modules`; all of them are preloaded. Soon after its start it leads its own session. Its output
    is appended to the log. `OSError` if it cannot be started; the command can then be started as a fresh process.
    """

    def __init__(
        self, modules: Sequence[str], arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(modules))
        cwd_and_env = os.getcwd(), {**os.environ, **environment}
        self._process = context.Process(target=_work, args=(modules[0], list(arguments), str(log), *cwd_and_env))
        _start_server(environment)
        try:
            self._process.start()
        except EOFError:
            raise ChildProcessError("the process that workers are forked from has ended") from None
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode


def _start_server(environment: Mapping[str, str]) -> None:
    """Start the process that workers are forked from, unless it is running.

    It gets the first worker's variables, because libraries read the number of threads when they are loaded. SIGINT is
    blocked in it and, until they are ready, in its workers: a terminal sends Ctrl-C to all, and imports take long.
    """
    before = {name: os.environ.get(name) for name in environment}
    resource_tracker.ensure_running()  # the server needs it, and starting it below would unblock SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ.update(environment)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(module: str, arguments: list[str], log: str, folder: str, environment: dict[str, str]) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update({**environment, PARENT: str(os.getppid())})
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = import_module(module).main(arguments)
    except KeyboardInterrupt:  # end as Python itself would, so that the run counts as stopped, not failed
        traceback.print_exc()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    sys.exit(code)
