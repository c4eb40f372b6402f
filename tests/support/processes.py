"""Fresh interpreters, small worker programs, and Ctrl-C at every line of a call.

Workers import this file, so it must not import torch.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from emabank.study import executors
from emabank.study.executors import Task

SOURCE = str(Path(executors.__file__).parents[3])

# The start of every worker's code. Plain JSON instead of emabank's own writers: those would import torch.
HEAD = f"""
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {SOURCE!r})
folder = Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
def progress(epoch, epochs):
    content = dict(epoch=epoch, epochs=epochs, words=f"at {{epoch}}", seconds_left=1.0, time=str(time.time()))
    (folder / "new").write_text(json.dumps(content))
    os.replace(folder / "new", folder / "progress.json")
def done():
    (folder / "done.json").write_text(json.dumps(dict(files={{}}, summary={{}})))
"""


def task(root: Path, name: str, code: str, **options: dict[str, str]) -> Task:
    """A task whose worker runs this code."""
    folder = root / name
    command = (sys.executable, "-c", HEAD + code, str(folder))
    return Task(id=name, title=f"run {name}", folder=folder, command=command, **options)


def wait_until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"the condition does not hold after {seconds} s"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def run(code: str, *, blocked: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh interpreter that has none of the blocked packages."""
    block = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, timeout=120)


_TORCH = Path(str(find_spec("torch").origin)).parent  # found, not imported
_INTERRUPTED = (str(Path(SOURCE) / "emabank"), contextlib.__file__, str(_TORCH / "nn" / "utils"))


def interrupt_everywhere(call: Callable[[], Any], event: str = "line", step: int = 1) -> Iterator[str]:
    """Run `call` over and over, with a KeyboardInterrupt `step` lines (or opcodes) later each time.

    Interrupts the library, contextlib, and where torch swaps tensors. Yields the place, until `call` runs to its end.
    """
    for count in range(0, 1_000_000, step):
        place = _interrupt_at(call, event, count)
        if place is None:
            return
        yield place


def _interrupt_at(call: Callable[[], Any], event: str, count: int) -> str | None:
    remaining, place = count, None

    def trace(frame: FrameType, kind: str, _: Any) -> Any:
        nonlocal remaining, place
        if not frame.f_code.co_filename.startswith(_INTERRUPTED):
            return None
        frame.f_trace_opcodes = event == "opcode"
        if kind == event and place is None:
            remaining -= 1
            if remaining < 0:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return place
