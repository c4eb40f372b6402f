"""A worker process: how it is started, that it keeps its memory, and that it does not outlive its executor.

Standard library only.
"""

import ctypes
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

PARENT = "EMABANK_EXECUTOR"  # the variable with the process id of a worker's executor
LOCKED = 75  # the exit code of a worker whose run another process is at work on

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**25  # bytes; glibc allows no more


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


def keep_freed_memory() -> bool:
    """Have this process keep freed memory, from here on; False where that cannot be had (no glibc).

    A tensor of some megabytes is otherwise given back when it is freed, and fetched again page by page, zeroed by
    the system, when the next layer or step wants one like it. Only for processes that just train: a library should
    not change how a program uses its memory.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))


def stop_with_executor(*, every: float = 1.0, grace: float = 30.0) -> None:
    """Interrupt this process, as Ctrl-C would, when its executor is gone; kill it if it has not ended after `grace`.

    Call it once, at the start of a worker. Without an executor (started by hand) it does nothing. An executor killed by
    -9 cannot signal its workers, so a thread looks every second whether it still runs.
    """
    executor = os.environ.pop(PARENT, None)  # taken, so that children of this worker do not look for it too
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
    """Whether the parent is still the same; for a worker forked by another process, the executor must be alive too."""
    asker = multiprocessing.parent_process()
    return os.getppid() == executor and (asker is None or asker.is_alive())
