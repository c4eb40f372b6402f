"""Subjects of the torture tests, the processes that run them, and the record of the faults.

A subject is a function of a folder that resumes from whatever it finds there and returns an exit code. To add one:
write the function, and a line in SUBJECTS; the files that it leaves are compared automatically.
"""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from emabank import EMABank, Uniform, checkpoint
from emabank.atomic import write_atomically
from emabank.selection import BestTracker
from emabank.study import run_job
from emabank.study.commands import main
from emabank.study.config import Place
from emabank.study.executors import local
from emabank.study.run_job import Job, encode_job
from emabank.study.runs.locks import is_locked
from tests.study.small_runs import config
from tests.support.processes import SOURCE
from tests.torture import averages
from tests.torture.averages import scratch_folder

PRELOADED = ["torch._dynamo", "emabank.study.run_job", "emabank.study.launch", "tests.torture.faults"]
LONG = pytest.mark.torture


def amounts(name: str, short: Any, long: Any) -> pytest.MarkDecorator:
    """A short version of a test for every run, and a long one for `make torture`."""
    return pytest.mark.parametrize(name, [pytest.param(short, id="short"), pytest.param(long, id="long", marks=LONG)])


# Files that depend on time and place; all other files must be the same however often a run was disturbed.
TIME_DEPENDENT = {"done.json", "environment.json", "progress.json", "log.txt", "lock"}


def files_in(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, except those that depend on the time."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TIME_DEPENDENT]
    paths = [path for path in paths if path.suffix != ".lock" and not _is_stray(path)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _is_stray(path: Path) -> bool:
    """Whether this is a temporary file of a killed process outside of a run; a run removes its own."""
    return re.fullmatch(r"\.[0-9a-f]+\.tmp|\.tmp[A-Za-z0-9]{6}", path.name) is not None and not any(
        (folder / "config.json").exists() for folder in path.parents
    )


def difference(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    """The names of the files that differ or exist on one side only."""
    return sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))


# Subjects -------------------------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """Something that writes files, and can be started again on the same folder."""

    work: Callable[[Path], int]
    """Does the remaining work below the folder; returns an exit code."""
    prepare: Callable[[Path], None] = lambda folder: None
    """Creates the files that it needs."""


def train(folder: Path) -> int:
    """One training with a checkpoint after every step, a fork, snapshots and predictions."""
    job = Job(config(data={"subset": 100}, training={"epochs": 4, "width": 2}), forks=(2,))
    return run_job.main([encode_job(job, Place(runs=folder, checkpoint_seconds=0))])


SETTINGS = ["epochs=3", "warmup_epochs=0.5", "subset=60", "test_subset=30", "width=2", "batch=32", "rates=[0.1]"]


def study(folder: Path) -> int:
    """A tiny study whose workers are forked from it, because importing torch takes longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        fork = multiprocessing.get_context("fork")
        patch.setattr(fork, "set_forkserver_preload", lambda modules: None)
        patch.setattr(local, "_start_server", lambda environment: None)
        patch.setattr(local.multiprocessing, "get_context", lambda kind: fork)
        return study_from_nothing(folder)


def study_from_nothing(folder: Path) -> int:
    """The same as a user runs it: workers are forked from a process that imports everything first."""
    _change_to(folder)
    words = ["run", "constant-lr", "--seeds", "1", "--device", "cpu", "--jobs", "2", "--runs", "."]
    return main([*words, "--set", *SETTINGS])


def report(folder: Path) -> int:
    """The report of that study."""
    _change_to(folder)
    return main(["report", "."])


def _change_to(folder: Path) -> None:
    """Change to the folder, so that the recorded command does not contain its path."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)


STEPS = 20


def library(folder: Path) -> int:
    """A user's own loop: a bank and a tracker, saved in one file after each step; the bank also in its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 30), nn.BatchNorm1d(30))
    bank = EMABank(model, {"fast": 0.93, "all": Uniform()}, every=2)
    tracker = BestTracker(bank, {"loss": "min"}, snapshots="each", folder=folder / "snapshots")
    if (folder / "all.pt").exists():
        state = checkpoint.read_state(folder / "all.pt", kind="loop")
        model.load_state_dict(state["model"])
        bank.reset()  # the weights were loaded on purpose
        bank.load_state_dict(state["bank"])
        tracker.load_state_dict(state["tracker"])
    for step in range(bank.num_steps + 1, STEPS + 1):
        values = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=values))
        bank.update()
        tracker.observe(step, {name: {"loss": (step * 7) % 11 + index} for index, name in enumerate(bank.names)})
        state = {"model": model.state_dict(), "bank": bank.state_dict(), "tracker": tracker.state_dict()}
        checkpoint.write_state(folder / "all.pt", state, kind="loop")
        with open(folder / "log.txt", "a") as log:  # from here on the step is reported as saved
            log.write(f"{step}\n")
        checkpoint.save(bank, folder / "bank.pt")
    checkpoint.save(bank, folder / "bank.pt")  # the last step may have been killed between its two files
    checkpoint.export(bank, "all", folder / "average.safetensors")
    _remove_strays(folder / "snapshots", tracker)
    return 0


def _remove_strays(folder: Path, tracker: BestTracker) -> None:
    """Remove snapshots of killed processes that no state refers to: they are not compared."""
    known = {f"{entry['average']}-epoch-{entry['epoch']}.pt" for entry in tracker.state_dict()["weights"]}
    for path in [*folder.glob("*.pt"), *folder.parent.rglob(".*.tmp*")]:
        if (path.name not in known and path.parent == folder) or path.name.startswith("."):
            path.unlink()


SUBJECTS = {
    "training": Subject(train),
    "study": Subject(study),
    "study from nothing": Subject(study_from_nothing),
    "report": Subject(report, prepare=lambda folder: shutil.copytree(undisturbed("study"), folder, dirs_exist_ok=True)),
    "library": Subject(library, prepare=lambda folder: folder.mkdir(parents=True, exist_ok=True)),
    "average": Subject(averages.average, prepare=averages.prepare),
}


# Processes ------------------------------------------------------------------------------------------------------------


class Child:
    """A subject in its own process, forked from one that has imported everything."""

    def __init__(self, name: str, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.output = folder.with_name(f"{folder.name}.output")
        self.process = context.Process(target=_child, args=(name, str(folder), str(self.output)))
        self.process.start()

    def fault(self, number: signal.Signals) -> bool:
        """Send a signal; returns whether the process was still running."""
        if self.process.exitcode is not None or self.process.pid is None:
            return False
        try:
            os.kill(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, seconds: float = 300) -> int:
        """The exit code, negative for a signal."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"it has not ended within {seconds} s: {self.output.read_text()}")
        return self.process.exitcode


def _child(name: str, folder: str, path: str) -> None:
    os.setsid()
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
    os.environ.update(OMP_NUM_THREADS="1", COLUMNS="100", PYTHONPATH=SOURCE)  # its workers import emabank from there
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(SUBJECTS[name].work(Path(folder)))


def wait_for_workers(folder: Path, seconds: float = 60) -> None:
    """Wait until no process writes below a folder: the workers of a killed study stop within a second or two."""
    until = time.monotonic() + seconds
    while any(is_locked(path) for path in folder.rglob("lock")):
        assert time.monotonic() < until, "a worker has outlived its study"
        time.sleep(0.02)


_undisturbed: dict[str, Path] = {}


def undisturbed(name: str) -> Path:
    """The folder of a subject that ran without faults; made once per test process and removed with it."""
    if name not in _undisturbed:
        folder = scratch_folder() / name
        SUBJECTS[name].prepare(folder)
        child = Child(name, folder)
        assert child.wait() == 0, child.output.read_text()
        _undisturbed[name] = folder
    return _undisturbed[name]


# Counts of faults ----------------------------------------------------------------------------------------------------


class Faults:
    """Counts of faults, with the seed of their random numbers."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed, self.started = name, seed, time.monotonic()
        self.random = random.Random(seed)
        self.counts: dict[str, int] = {}
        print(f"torture seed {seed}: TORTURE_SEED={seed} repeats it")  # printed if a test fails

    def count(self, **more: int) -> None:
        for name, number in more.items():
            self.counts[name] = self.counts.get(name, 0) + number

    def write(self) -> None:
        """Add the counts to torture.json in the folder TORTURE_RESULTS."""
        if "TORTURE_RESULTS" not in os.environ:
            return
        path = Path(os.environ["TORTURE_RESULTS"], "torture.json")
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        known[self.name] = {**self.counts, "seconds": round(time.monotonic() - self.started, 1), "seed": self.seed}
        write_atomically(path, lambda beside: beside.write_text(json.dumps(known, indent=1) + "\n"))


@contextmanager
def faults(name: str) -> Generator[Faults]:
    """Count faults under a name, and write the counts if the test passes. The seed is TORTURE_SEED, or 0."""
    counted = Faults(name, int(os.environ.get("TORTURE_SEED", "0")))
    yield counted
    counted.write()
