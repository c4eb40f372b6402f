"""The loop that executors share: start waiting tasks, poll running ones, show progress, and shut down cleanly.

An executor adds how to start a task, and how to stop its worker.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from rich.console import Console

from emabank.study.executors import Outcome, Task
from emabank.study.executors.progress import display, failures
from emabank.study.executors.worker import LOCKED
from emabank.study.runs.environment import now
from emabank.study.runs.reader import FAILED, LOG, Progress, RunFolder
from emabank.study.runs.writer import mark_failed

INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a run that was stopped and has not failed

_BETWEEN_LOOKS = 0.5  # seconds between checks of a run's progress
_LOG_LINES, _LOG_BYTES = 12, 8192


class TaskHandle:
    """A started task: its progress and its outcome."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.folder = RunFolder(task.folder)
        task.folder.mkdir(parents=True, exist_ok=True)
        self.log = task.folder / LOG
        self._progress = self.folder.progress()  # possibly from an earlier start
        self._failed_before = _stamp(task.folder / FAILED)
        with open(self.log, "ab") as log:
            log.write(f"--- {now()} {task.title}\n".encode())
            log.flush()
            self._log_start = log.tell()
        self.started = self._looked = time.monotonic()

    def poll(self) -> Outcome | None:
        """The outcome; None while the task runs."""
        raise NotImplementedError

    def new_progress(self) -> Progress | None:
        """The current progress; None if it has not changed, or was read less than `_BETWEEN_LOOKS` ago."""
        if time.monotonic() - self._looked < _BETWEEN_LOOKS:
            return None
        self._looked = time.monotonic()
        progress = self.folder.progress()
        if progress == self._progress:
            return None
        self._progress = progress
        return progress

    def outcome(self, code: int | None, reason: str) -> Outcome:
        """The outcome. The folder decides: a run marked as done is done, even if its process failed."""
        seconds = time.monotonic() - self.started
        if self.folder.is_done():
            return Outcome(task=self.task, state="done", seconds=seconds)
        if _stamp(self.task.folder / FAILED) != self._failed_before:
            reason = f"{reason}: {self.folder.failure()}"
        elif code not in INTERRUPTED:
            with suppress(OSError):  # a full disk, for example; the failure is still reported
                mark_failed(self.task.folder, reason)
        return Outcome(task=self.task, state="failed", seconds=seconds, reason=reason, log=self._last_lines())

    def _last_lines(self) -> tuple[str, ...]:
        with open(self.log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_BYTES))
            text = log.read().decode(errors="replace")
        lines = ("".join(c for c in line if c.isprintable() or c == "\t") for line in text.splitlines())
        return tuple([line for line in lines if line.strip()][-_LOG_LINES:])


Running = TypeVar("Running", bound=TaskHandle)


def run_tasks(
    tasks: Sequence[Task],
    start: Callable[[Task], Running],
    stop: Callable[[list[Running], list[int]], None],
    *,
    at_once: int | None,
    poll: float,
    console: Console,
    before: int,
    total: int,
) -> list[Outcome]:
    """Run every task that is not done; the outcomes come in the order of the tasks.

    At most `at_once` run at a time; None: no limit. Failures are reported at the end, when the other tasks have
    finished. The first Ctrl-C lets workers write their checkpoints, further ones stop them sooner; then
    `KeyboardInterrupt` is raised.
    """
    outcomes: dict[str, Outcome] = {}
    running: list[Running] = []
    with _interrupts() as interrupts, display(console, before, total or len(tasks)) as shown:

        def end(outcome: Outcome) -> None:
            outcomes[outcome.task.id] = outcome
            shown.ended(outcome)

        for task in tasks:
            if RunFolder(task.folder).is_done():
                end(Outcome(task=task, state="already done"))
        waiting = deque(task for task in tasks if task.id not in outcomes)
        try:
            while (waiting or running) and not interrupts:
                while waiting and len(running) < (at_once or len(tasks)) and not interrupts:
                    task = waiting.popleft()
                    try:
                        running.append(start(task))
                        shown.started(task)
                    except OSError as error:
                        end(Outcome(task=task, state="failed", reason=f"could not be started: {error}"))
                time.sleep(poll)
                for handle in list(running):
                    if (progress := handle.new_progress()) is not None:
                        shown.progressed(handle.task, progress)
                    if (outcome := handle.poll()) is not None:
                        running.remove(handle)
                        end(outcome)
        finally:
            stop(running, interrupts)
        if interrupts:
            ended = f"{before + len(outcomes)} of {total or len(tasks)}"
            shown.say(f"interrupted: {ended} runs have ended; the same command resumes the rest")
            raise KeyboardInterrupt
    ordered = [outcomes[task.id] for task in tasks]
    for line in failures(ordered):
        shown.say(line)
    return ordered


def describe_exit_code(code: int) -> str:
    """An exit code, negative for a signal, in words."""
    if code == 0:
        return "ended without finishing the run"
    if code > 0:
        return f"exit code {code}" + (", another process is at work on it" if code == LOCKED else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    return f"killed by {name}" + (" (possibly out of memory)" if -code == signal.SIGKILL else "")


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """Yield a list that grows with each Ctrl-C, so that none interrupts statements that belong together."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may set handlers. Where Ctrl-C is ignored (`nohup command &`), it stays ignored.
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield received
        return
    signal.signal(signal.SIGINT, receive)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
