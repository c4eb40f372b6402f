"""A worker process: how it is started, and that it does not outlive its executor. Standard library only."""

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PARENT = "EMABANK_EXECUTOR"  # the variable that tells a worker the process id of its executor
LOCKED = 75  # the exit code of a worker whose run another process is at work on


def start_worker(
    command: Sequence[str], *, log: str | Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a worker, with these variables added to those of this process; it appends what it prints to the log.

    It leads a session of its own, so that Ctrl-C reaches its executor alone.
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


def stop_with_executor(*, every: float = 1.0, grace: float = 30.0) -> None:
    """Interrupt this process, as Ctrl-C would, when its executor is gone; kill it if it has not ended after `grace`.

    Call it once, at the start of a worker. Without an executor (started by hand) it does nothing. An executor killed by
    -9 cannot tell its workers, so a thread looks every second whether it still runs.
    """
    executor = os.environ.pop(PARENT, None)  # taken, so that children of this worker do not look for it too
    if executor is None:
        return
    faulthandler.enable()  # a crash in compiled code leaves its trace in the log
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # inherited from `nohup command &`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(int(executor), every, grace), daemon=True).start()


def _watch(executor: int, every: float, grace: float) -> None:
    while _runs(executor):  # it may have ended before this process came so far
        time.sleep(every)
    print("the executor that started this process is gone: stopping", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(executor: int) -> bool:
    """Whether the parent is who it was; of a warm worker, which another process forked, the executor must live too."""
    asker = multiprocessing.parent_process()
    return os.getppid() == executor and (asker is None or asker.is_alive())
