"""Workers that start at once: forked from a process that has imported the worker's module, and torch with it, already.

Importing torch takes seconds, as long as a small run of a study. The process that they are forked from (Python's
"forkserver") does nothing but import, so that no thread and no device is carried into a worker. Standard library only.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from emabank.study.executors.worker import PARENT

AVAILABLE = sys.platform == "linux"  # macOS has libraries that do not survive a fork


class WarmProcess:
    """A worker like `python -m MODULE ARGUMENTS`, with the part of `subprocess.Popen`'s face that executors use.

    The first of the modules is the worker's, the others are imported beforehand too. It is the leader of a session of
    its own, soon after it was started. What it prints goes to the end of the log. `OSError` where it cannot be started;
    the same command can then be started from nothing.
    """

    def __init__(
        self, modules: Sequence[str], arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(modules))
        surroundings = os.getcwd(), {**os.environ, **environment}
        self._process = context.Process(target=_work, args=(modules[0], list(arguments), str(log), *surroundings))
        _start_server(environment)
        try:
            self._process.start()
        except EOFError:
            raise ChildProcessError("the process that workers are forked from has ended") from None
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


def _start_server(environment: Mapping[str, str]) -> None:
    """Start the process that workers are forked from, unless it runs.

    Libraries look for the number of threads when they are loaded, so it has the variables of the first worker. Ctrl-C
    is kept from it and, until they are ready, from its workers: a terminal sends that to all, and imports take long.
    """
    before = {name: os.environ.get(name) for name in environment}
    resource_tracker.ensure_running()  # the server needs it, and it would let Ctrl-C through again
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
    except KeyboardInterrupt:  # it ends as Python itself would, so that it was stopped and has not failed
        traceback.print_exc()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    sys.exit(code)
