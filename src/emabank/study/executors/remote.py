"""What a worker of a cluster does with a task: its command as a process beside it, until that ends or it is stopped.

It travels to another machine, so it holds plain values, and imports the standard library only.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from emabank.study.executors.worker import LOCKED, start_worker

_BETWEEN_TRIES = 2.0  # seconds
_BETWEEN_LOOKS = 0.1


class RemoteCommand:
    """One start of a task; called, it gives the exit code of the task's command.

    When a worker dies, its task is started elsewhere at once, while the old process may still be writing its last
    checkpoint: the new one waits for that.
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
        # A thread waits for the process: `stop` may be called by a signal handler in the middle of what this thread
        # does, and two waits of one thread for one process would block each other for ever.
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
        """Let the process write a checkpoint and end; if it does not within its time, end it."""
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
