"""Runs as processes of this machine, a few at a time.

Each worker has a session of its own, so that Ctrl-C reaches this process alone, which then stops them in good order;
if this process is killed, they notice (`emabank.study.executors.worker`).
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import cast

from rich.console import Console

from emabank.study.executors import Outcome, Task, in_order
from emabank.study.executors.display import Display, display, failures
from emabank.study.executors.warm import AVAILABLE, WarmProcess
from emabank.study.executors.worker import PARENT
from emabank.study.runs.environment import now
from emabank.study.runs.folder import FAILED, LOG, Progress, RunFolder
from emabank.study.runs.opened import mark_failed

_BETWEEN_LOOKS = 0.5  # seconds between two looks at a run's progress
_AFTER_SIGTERM = 5.0  # seconds until SIGKILL
_LOG_LINES, _LOG_BYTES = 12, 8192
_INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # ended so, a run was stopped and has not failed


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
    poll: float = 0.1
    """Seconds between two looks at the workers."""
    warm: tuple[str, ...] = ()
    """Modules to import beforehand: workers that are `python -m` of the first start at once, where the system allows
    (executors.warm)."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; give the number of runs at a time, 1 or more")

    def run_all(self, tasks: Sequence[Task], *, console: Console | None = None) -> list[Outcome]:
        """Carry out every task that is not done; the outcomes come in the order of the tasks, each task once.

        What failed is reported at the end, when the others have finished. The first Ctrl-C lets workers write their
        checkpoints, further ones hasten the end; then `KeyboardInterrupt` is raised.
        """
        console = console or Console()
        tasks = in_order(tasks)
        with _interrupts() as interrupts, display(console, len(tasks)) as shown:
            outcomes = self._carry_out(tasks, shown, interrupts)
            if interrupts:
                shown.say(f"interrupted: {len(outcomes)} of {len(tasks)} runs ended, the same command resumes the rest")
                raise KeyboardInterrupt
        for line in failures(outcomes):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return outcomes

    def _carry_out(self, tasks: list[Task], shown: Display, interrupts: list[int]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}

        def ended(outcome: Outcome) -> None:
            outcomes[outcome.task.id] = outcome
            shown.ended(outcome)

        waiting: deque[Task] = deque()
        for task in tasks:
            if RunFolder(task.folder).is_done():
                ended(Outcome(task=task, state="already done"))
            else:
                waiting.append(task)
        running: list[_Job] = []
        try:
            while (waiting or running) and not interrupts:
                while waiting and len(running) < self.jobs and not interrupts:
                    task = waiting.popleft()
                    try:
                        running.append(_Job(task, warm=self.warm))
                        shown.started(task)
                    except OSError as error:
                        ended(Outcome(task=task, state="failed", reason=f"could not be started: {error}"))
                time.sleep(self.poll)
                for job in list(running):
                    progress = job.news()
                    if progress is not None:
                        shown.progressed(job.task, progress)
                    if job.process.poll() is not None:
                        running.remove(job)
                        ended(job.outcome())
        finally:
            self._stop(running, interrupts)
        return [outcomes[task.id] for task in tasks if task.id in outcomes]

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


class _Job:
    """One worker process, and the folder of its run."""

    def __init__(self, task: Task, *, warm: tuple[str, ...] = ()) -> None:
        self.task = task
        self.folder = RunFolder(task.folder)
        task.folder.mkdir(parents=True, exist_ok=True)
        self._log = task.folder / LOG
        self._told = self.folder.progress()  # of an earlier start, perhaps
        self._failed_before = _stamp(task.folder / FAILED)
        with open(self._log, "ab") as log:
            log.write(f"--- {now()} {task.title}\n".encode())
            log.flush()
            self._log_start = log.tell()
            self.started = time.monotonic()
            self._looked = self.started
            self.process = self._start(log.fileno(), warm)

    def _start(self, log: int, warm: tuple[str, ...]) -> "subprocess.Popen[bytes] | WarmProcess":
        environment = {"PYTHONUNBUFFERED": "1", **self.task.environment}
        if AVAILABLE and self.task.command[:3] == (sys.executable, "-m", *warm[:1]):
            with suppress(OSError):  # no room for its socket, say
                return WarmProcess(warm, self.task.command[3:], log=self._log, environment=environment)
        return subprocess.Popen(
            self.task.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, PARENT: str(os.getpid())},
            start_new_session=True,
        )

    def news(self) -> Progress | None:
        """What the run has told since the last look; None: nothing new."""
        if time.monotonic() - self._looked < _BETWEEN_LOOKS:
            return None
        self._looked = time.monotonic()
        told = self.folder.progress()
        if told == self._told:
            return None
        self._told = told
        return told

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its children, unless it has ended."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:  # it has just ended, or is a warm one that does not yet lead its session
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)

    def outcome(self) -> Outcome:
        """How it ended. The folder has the last word: a run that is done is done, whatever became of its process."""
        seconds = time.monotonic() - self.started
        if self.folder.is_done():
            return Outcome(task=self.task, state="done", seconds=seconds)
        code = cast("int", self.process.returncode)
        reason = _reason(code)
        if _stamp(self.task.folder / FAILED) != self._failed_before:
            reason = f"{reason}: {self.folder.failure()}"
        elif code not in _INTERRUPTED:
            with suppress(OSError):  # a full disk, say; the report tells it all the same
                mark_failed(self.task.folder, reason)
        return Outcome(task=self.task, state="failed", seconds=seconds, reason=reason, log=self._last_lines())

    def _last_lines(self) -> tuple[str, ...]:
        with open(self._log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_BYTES))
            text = log.read().decode(errors="replace")
        lines = ("".join(c for c in line if c.isprintable() or c == "\t") for line in text.splitlines())
        return tuple([line for line in lines if line.strip()][-_LOG_LINES:])


def _reason(code: int) -> str:
    if code == 0:
        return "ended without finishing the run"
    if code > 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    return f"killed by {name}" + (", for want of memory perhaps" if -code == signal.SIGKILL else "")


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """A list that grows with each Ctrl-C, so that none arrives between two statements that belong together."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may, and where Ctrl-C is ignored (`nohup command &`) it stays so.
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield received
        return
    signal.signal(signal.SIGINT, receive)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
