"""Worker processes: start them here or on a cluster, keep their freed memory, and end them with their executor.

Standard library only.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PARENT = "EMABANK_EXECUTOR"  # the environment variable with the process id of a worker's executor
LOCKED = 75  # the exit code of a worker whose run another process has open

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**25  # bytes; glibc allows no more
_BETWEEN_TRIES, _BETWEEN_LOOKS = 2.0, 0.1  # seconds, for workers of a cluster


def start_worker(
    command: Sequence[str], *, log: str | Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a worker with these variables added to the environment of this process; its output is appended to the log.

    It leads its own session, so that Ctrl-C reaches only its executor.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, PARENT: str(os.getpid())},
            start_new_session=True,
        )


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory in this process from now on; False where it cannot (no glibc).

    Otherwise a tensor of some megabytes goes back to the system when it is freed, and the next layer or step that needs
    one like it gets it again page by page, zeroed by the system. Only for processes that just train: a library should
    not change how a program uses its memory.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))


def stop_with_executor(*, every: float = 1.0, grace: float = 30.0) -> None:
    """Interrupt this process, as Ctrl-C would, when its executor is gone; kill it if it has not ended after `grace`.

    Call it once, at the start of a worker. Without an executor (started by hand) it does nothing. An executor ended by
    kill -9 cannot signal its workers, so a thread checks every `every` seconds whether it still runs.
    """
    executor = os.environ.pop(PARENT, None)  # removed, so that children of this worker do not watch it too
    if executor is None:
        return
    faulthandler.enable()  # a crash in compiled code leaves its trace in the log
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # inherited from `nohup command &`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(int(executor), every, grace), daemon=True).start()


def _watch(executor: int, every: float, grace: float) -> None:
    while _runs(executor):  # it may have ended before this line
        time.sleep(every)
    print("the executor that started this process is gone: stopping", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(executor: int) -> bool:
    """Whether the parent is still the same and, for a worker forked by a fork server, the executor is alive too."""
    asker = multiprocessing.parent_process()
    return os.getppid() == executor and (asker is None or asker.is_alive())


# Workers of a cluster -------------------------------------------------------------------------------------------------


class RemoteCommand:
    """A task's command, which a cluster's worker calls: it runs in its own process, and the call returns the exit code.

    It is sent to another machine, so it holds plain values.

    When a worker dies, its task is restarted elsewhere at once, while the old process may still be writing its last
    checkpoint: the new one waits for that, at most `patience` seconds.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        *,
        log: str,
        environment: Mapping[str, str] | None = None,
        grace: float = 30.0,
        patience: float = 120.0,
    ) -> None:
        self.command, self.log, self.environment = command, log, dict(environment or {})
        self.grace, self.patience = grace, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None

    def __call__(self) -> int:
        until = time.monotonic() + self.patience
        while True:
            code = self._run()
            if code != LOCKED or time.monotonic() > until:
                return code
            time.sleep(_BETWEEN_TRIES)

    def _run(self) -> int:
        self._code = None
        with open(self.log, "ab") as log:
            log.write(f"--- on {socket.gethostname()}\n".encode())
        process = self._process = start_worker(self.command, log=self.log, environment=self.environment)
        # Another thread waits for the process: a signal handler may call `stop` at any point in this thread, and two
        # waits of one thread for the same process would deadlock.
        threading.Thread(target=self._wait_for, args=(process,), daemon=True).start()
        try:
            while self._code is None:
                time.sleep(_BETWEEN_LOOKS)
            return self._code
        finally:
            self.stop()

    def _wait_for(self, process: "subprocess.Popen[bytes]") -> None:
        self._code = process.wait()

    def stop(self) -> None:
        """Let the process write a checkpoint and end; kill it if it does not end in time."""
        for number, seconds in ((signal.SIGINT, self.grace), (signal.SIGTERM, 5.0), (signal.SIGKILL, 60.0)):
            if self._process is None or self._code is not None:
                break
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            until = time.monotonic() + seconds
            while self._code is None and time.monotonic() < until:
                time.sleep(_BETWEEN_LOOKS)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_code": None}
