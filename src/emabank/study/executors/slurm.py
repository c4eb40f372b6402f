"""Runs tasks as jobs of a Slurm cluster, in arrays that submitit submits. Preempted and timed-out jobs resume.

A job that Slurm is about to stop writes a checkpoint and is queued again. The queue is read with `squeue`, which
every Slurm has; accounting need not be set up.
"""

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from emabank.study.executors import Outcome, Task, engine
from emabank.study.executors.loop import INTERRUPTED, TaskHandle, describe_exit_code, run_tasks
from emabank.study.executors.progress import say
from emabank.study.executors.worker import LOCKED, RemoteCommand
from emabank.study.runs.reader import LOG, RunFolder

_BETWEEN_QUEUES = 5.0  # seconds between calls of squeue, which load the controller of the whole cluster
_MOST_TIMEOUTS = 1000  # a run resumes from its checkpoint, so time-outs are not failures
_LOST = 15.0  # seconds until a result shows on a shared file system after its job has left the queue


@dataclass(frozen=True, kw_only=True)
class SlurmExecutor:
    """Submits tasks as one job array and watches their run folders, which must be on a file system shared by all nodes.

    A run whose job was lost (its node died, for example) is submitted again up to `retries` times, and resumes from its
    checkpoint.
    """

    folder: Path
    """For submitit's files: submitted commands, and the output of jobs before and after the run itself."""
    jobs: int | None = None
    """Runs at a time, the throttle of the array; None: 256."""
    cpus: int = 1
    gpus: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options for sbatch, as submitit names them: partition, time (minutes), mem, account, ..."""
    retries: int = 2
    grace: float = 30.0
    """Seconds that an interrupted run has to write a checkpoint."""
    poll: float = 0.5

    def run_all(
        self, tasks: Sequence[Task], *, console: Console | None = None, before: int = 0, total: int = 0
    ) -> list[Outcome]:
        """Run every task that is not done (see `run_tasks`). Interrupted, it cancels its jobs."""
        console = console or Console(stderr=True)
        waiting = [task for task in tasks if not RunFolder(task.folder).is_done()]
        array = _Array(self, waiting)

        def start(task: Task) -> _Submitted:
            return _Submitted(task, array, partial(say, console))

        return run_tasks(
            tasks, start, self._stop, at_once=None, poll=self.poll, console=console, before=before, total=total
        )

    def _stop(self, running: list["_Submitted"], interrupts: list[int]) -> None:
        for handle in running:
            handle.cancel()
        until = time.monotonic() + self.grace
        while any(handle.folder.state() == "running" for handle in running) and time.monotonic() < until:
            time.sleep(0.2)
        for handle in running:
            handle.end()


class _Array:
    """The jobs of one `run_all`, submitted together at the first `submit`, and the state of the queue."""

    def __init__(self, settings: SlurmExecutor, tasks: Sequence[Task]) -> None:
        self.settings, self._tasks = settings, tasks
        self._first: dict[str, Any] | None = None
        self._queue: set[str] | None = None
        self._looked = -math.inf

    def submit(self, task: Task) -> Any:
        """The job of a task: at first the one in the array, for a retry a separate one."""
        if self._first is None:
            executor = self._executor()
            with executor.batch():
                jobs = [executor.submit(self._command(task)) for task in self._tasks]
            self._first = {task.id: job for task, job in zip(self._tasks, jobs, strict=True)}
        job = self._first.pop(task.id, None) or self._executor().submit(self._command(task))
        self._looked = -math.inf
        return job

    def is_queued(self, job: Any) -> bool:
        """Whether a job waits or runs. Slurm is asked now and then, for all jobs at once; no answer counts as yes."""
        if time.monotonic() - self._looked > _BETWEEN_QUEUES:
            self._queue = _queue()
            self._looked = time.monotonic()
        return self._queue is None or job.job_id in self._queue

    def _command(self, task: Task) -> "SlurmCommand":
        log = task.folder / LOG
        return SlurmCommand(task.command, log=str(log), environment=task.environment, grace=self.settings.grace)

    def _executor(self) -> Any:
        submitit = engine("submitit", executor="slurm")
        if shutil.which("sbatch") is None:
            raise ValueError("--executor slurm: there is no sbatch on this machine; start it on a login node of Slurm")
        mine = self.settings
        executor = submitit.SlurmExecutor(mine.folder, max_num_timeout=_MOST_TIMEOUTS)
        asked = {"job_name": "emabank", "time": 60, "cpus_per_task": mine.cpus, "array_parallelism": mine.jobs or 256}
        if mine.gpus:
            asked["gpus_per_node"] = mine.gpus
        executor.update_parameters(**{**asked, **mine.settings})
        return executor


class SlurmCommand(RemoteCommand):
    """A command that Slurm may interrupt, at the time limit or for a job of higher priority."""

    def checkpoint(self) -> Any:
        """Stop the run, which writes its checkpoint, and return this command for submitit to queue again."""
        self.stop()
        return engine("submitit", executor="slurm").helpers.DelayedSubmission(self)


class _Submitted(TaskHandle):
    """One Slurm job, and the folder of its run."""

    def __init__(self, task: Task, array: _Array, say: Callable[[str], None]) -> None:
        super().__init__(task)
        self._array, self._say = array, say
        self._retries_left = array.settings.retries
        self._left_queue_at: float | None = None
        self._job = array.submit(task)

    def poll(self) -> Outcome | None:
        if self.folder.is_done():
            return self.outcome(0, "")
        if self._array.is_queued(self._job):
            self._left_queue_at = None
            return None
        self._left_queue_at = self._left_queue_at or time.monotonic()
        code = self._exit_code()
        if code is None and time.monotonic() - self._left_queue_at < _LOST:
            return None
        if code is not None and code not in (*INTERRUPTED, LOCKED):
            return self.outcome(code, describe_exit_code(code))
        if self._retries_left == 0:
            return self.outcome(None, f"its job was lost, {self._array.settings.retries + 1} times")
        self._retries_left -= 1
        self._say(f"{self.task.title}: its job {self._job.job_id} was lost; it resumes from its checkpoint")
        self._job, self._left_queue_at = self._array.submit(self.task), None
        return None

    def cancel(self) -> None:
        """Let the run write a checkpoint and end."""
        subprocess.run(["scancel", "--signal=INT", self._job.job_id], check=False, capture_output=True)

    def end(self) -> None:
        subprocess.run(["scancel", self._job.job_id], check=False, capture_output=True)

    def _exit_code(self) -> int | None:
        """The exit code of the run's process; None if the job left no result."""
        if not self._job.paths.result_pickle.exists():
            return None
        try:
            return int(self._job.result())
        except Exception:  # submitit raises many types for a job that did not end
            return None


def _queue() -> set[str] | None:
    """The ids, such as 12_3, of this user's waiting and running jobs; None if Slurm does not answer."""
    listed = subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%i", "--me"], capture_output=True, text=True, check=False
    )
    if listed.returncode:  # the controller is busy or restarting
        return None
    return set(listed.stdout.split())
