"""For a worker process: it must not outlive the executor that started it. Standard library only."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time

PARENT = "EMABANK_EXECUTOR"  # the variable that tells a worker the process id of its executor
LOCKED = 75  # the exit code of a worker whose run another process is at work on


def stop_with_executor(*, every: float = 1.0, grace: float = 30.0) -> None:
    """Interrupt this process, as Ctrl-C would, when its executor is gone; kill it if it has not ended after `grace`.

    To be called once, at the start of a worker. Without an executor (started by hand) it does nothing. An executor
    killed by -9 cannot tell its workers, so a thread looks every second whether it is still there.

    >>> stop_with_executor()
    """
    executor = os.environ.pop(PARENT, None)  # taken, so that children of this worker do not look for it too
    if executor is None:
        return
    faulthandler.enable()  # a crash in compiled code leaves its trace in the log
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # inherited from `nohup command &`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(int(executor), every, grace), daemon=True).start()


def _watch(executor: int, every: float, grace: float) -> None:
    # Asked at the first look already: the executor may have ended before this process came so far.
    while _is_there(executor):
        time.sleep(every)
    print("the executor that started this process is gone: stopping", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_there(executor: int) -> bool:
    """Whether the parent is who it was; of a warm worker, which another process forked, the executor must live too."""
    asked_for_by = multiprocessing.parent_process()
    return os.getppid() == executor and (asked_for_by is None or asked_for_by.is_alive())
