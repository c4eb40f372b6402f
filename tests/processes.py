"""Small worker programs and what can be seen of processes from outside."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from emabank.study import executors
from emabank.study.executors import Task

SOURCE = str(Path(executors.__file__).parents[3])

# What every worker below can use. Plain JSON instead of emabank's own writers: those would import torch.
HEAD = f"""
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {SOURCE!r})
folder = Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
def tell(epoch, epochs):
    said = dict(epoch=epoch, epochs=epochs, words=f"at {{epoch}}", seconds_left=1.0, time=str(time.time()))
    (folder / "new").write_text(json.dumps(said))
    os.replace(folder / "new", folder / "progress.json")
def done():
    (folder / "done.json").write_text(json.dumps(dict(files={{}}, summary={{}})))
"""


def task(root: Path, name: str, code: str, **given: dict[str, str]) -> Task:
    """A task whose worker runs this code."""
    folder = root / name
    command = (sys.executable, "-c", HEAD + code, str(folder))
    return Task(id=name, title=f"run {name}", folder=folder, command=command, **given)


def wait_until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    """Wait for something that will come soon, on however busy a machine."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet asked for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
