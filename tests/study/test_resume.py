"""A run interrupted anywhere, kill -9 included, ends bit for bit as if it had not been."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emabank.study.config import Keep, Place, RunConfig
from emabank.study.run_job import Job, encode_job, folder_of, run_job
from emabank.study.runs.writer import RunWriter
from emabank.study.train import Interrupted, Training
from tests.study.small_runs import Drawer, MakeModel, config, digits, left, training_of
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal
from tests.support.processes import SOURCE


class Dropping(nn.Module):
    """Its training draws from the global random numbers at every step."""

    def __init__(self, *, loud: float = 1.0) -> None:
        super().__init__()
        self.loud = loud
        self.first, self.norm, self.drop, self.head = (
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Linear(4 * 36, 10)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.first(x)).relu().flatten(1)) * self.loud)


def everything(training: Training) -> dict[str, Any]:
    """All that there is to know of a training."""
    return {
        "state": training.state_dict(),
        "measured": str([*training.measured, *training.test_curves]),
        "history": training.history(),
        "chosen": training.selector.selected(),
        "kept": [[str(kept.keep), kept.tensors] for kept in training.kept()],
        "trackers": [training.selector.averages.state_dict(), training.selector.live.state_dict()],
    }


CASES: dict[str, tuple[dict[str, Any], MakeModel | None]] = {
    "all measured": ({"measuring": {"recompute": "each-epoch", "on_train": True}, "training": {"epochs": 2}}, None),
    "dropout": ({"training": {"network": "own", "epochs": 2}}, Dropping),
    "within warm-up and period": (
        {"averages": {"decays": (0.5, 0.99), "every": 3, "decay_warmup": "steps"}, "training": {"epochs": 2}},
        None,
    ),
    "bootstrapped": ({"training": {"bootstrap": "ema-20%", "epochs": 2, "network": "vgg-small"}}, None),
    "SWA": (
        {
            "constant_from": 1,
            "swa": True,
            "training": {"epochs": 2},
            "trained_on": "100%",
            "measuring": {"test_curves": True},
            "keep": (Keep(weights="ema-20%", epoch=2, batchnorm="averaged", selected_by="loss"),),
        },
        None,
    ),
    "whitened": ({"training": {"network": "whitened-cnn", "epochs": 1}, "hardware": {"precision": "bf16"}}, None),
    "channels last": ({"hardware": {"channels_last": True}, "training": {"epochs": 2}}, None),
    "fp16": (
        {"hardware": {"precision": "fp16"}, "training": {"network": "own", "epochs": 2}},
        lambda: Dropping(loud=64.0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_trap40_stopped_after_every_step_it_ends_as_if_it_had_not_been(case: str, tmp_path: Path):
    options, make_model = CASES[case]
    given, drawer = config(**options), Drawer(tmp_path)
    with torch.random.fork_rng():
        whole = training_of(given, make_model=make_model)
        whole.run()
        want = everything(whole)
        training, stops = training_of(given, make_model=make_model), 0
        while True:
            try:
                training.run(drawer, should_stop=lambda: True)
                break
            except Interrupted:
                stops += 1
                training = training_of(given, make_model=make_model)
                torch.rand(3)  # another process would have other random numbers
                training.load_state_dict(drawer.load_checkpoint())
        assert stops == whole.steps
        assert drawer.saved == stops + 1
        found = everything(training)
    for what, value in want.items():
        assert states_equal(found[what], value), what
    if case == "fp16":
        assert whole.bank.num_steps < whole.steps, "the loss scale has changed, and is part of the state"


def stopped(given: RunConfig, *, after: int) -> Training:
    training, calls = training_of(given, make_model=Dropping), []
    with pytest.raises(Interrupted, match=r"^asked to stop in epoch \d; the same command resumes from there$"):
        training.run(should_stop=lambda: calls.append(1) or len(calls) == after)
    return training


def test_a_state_does_not_change_under_the_training_that_gave_it_or_took_it():
    given = config(training={"network": "own"})
    with torch.random.fork_rng():
        training = stopped(given, after=7)
        state = training.state_dict()
        copied = deepcopy(state)
        training.run()
        want = everything(training)
        for _ in range(2):
            other = training_of(given, make_model=Dropping)
            other.load_state_dict(state)
            assert states_equal(other.state_dict(), copied)
            other.run()
            assert states_equal(everything(other), want)
    assert states_equal(state, copied)


def test_checkpoints_come_as_often_as_asked_inside_epochs_too(tmp_path: Path):
    for seconds, count in ((0.0, 6), (3600.0, 1)):
        drawer = Drawer(tmp_path)
        training_of(config(training={"epochs": 1})).run(drawer, checkpoint_seconds=seconds)
        assert drawer.saved == count


# Killed while it writes what it leaves


class Killed(BaseException):
    """In place of kill -9: nothing after it is done."""


def test_killed_before_any_of_its_last_writes_it_leaves_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job, dataset = Job(config(training={"epochs": 2, "width": 2}), forks=(1,)), digits()[0]
    want = left(run_job(job, Place(runs=tmp_path / "whole"), dataset))
    place, writes, deaths = Place(runs=tmp_path / "killed"), 0, 0
    last = 0

    def killing(name: str) -> None:
        write = getattr(RunWriter, name)

        def method(self: RunWriter, *given: Any, **options: Any) -> None:
            nonlocal writes
            writes += 1
            if writes > last:
                raise Killed
            write(self, *given, **options)

        monkeypatch.setattr(RunWriter, name, method)

    names = ("save_snapshot", "save_predictions", "save_history", "write_rows", "write_test_curves", "mark_done")
    for name in names:
        killing(name)
    while not (folder := folder_of(job.config, place)).is_done():
        writes = 0
        try:
            run_job(job, place, dataset)
        except Killed:
            deaths += 1
            assert folder.state() == "waiting"
        last += 4
    assert deaths >= 4
    assert left(folder) == want


# Killed for real

ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}

# In one process of its own that forks its victims, each of which is a worker: torch is imported once.
KILL = """
import os, random, signal, sys, time
from pathlib import Path
import torch._dynamo  # the optimizer of every victim would import it
from emabank.study import run_job

text, checkpoint, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
random.seed(0)

def stamp():
    try:
        return checkpoint.stat().st_mtime_ns
    except FileNotFoundError:  # between two of its names
        return None

kills = 0
for number in range(rounds):
    before = stamp()
    victim = os.fork()
    if victim == 0:
        os._exit(run_job.main([text]))
    while number % 2 and stamp() in (None, before):  # by turns while it starts, and after it has trained on
        assert os.waitpid(victim, os.WNOHANG) == (0, 0), "the victim ended by itself"
        time.sleep(0.002)
    time.sleep(random.uniform(0, 0.4))
    os.kill(victim, signal.SIGKILL)
    if os.waitpid(victim, 0)[1] == 0:
        break
    kills += 1
print(kills)
"""


def killed_often(epochs: int) -> RunConfig:
    return config(
        data={"subset": 100},
        training={"epochs": epochs},
        measuring={"on_train": True, "recompute": "each-epoch"},
    )


def finish(job: Job, place: Place, *, kills: int) -> None:
    """Start the worker once more, and compare what it leaves with what an undisturbed run leaves."""
    folder = folder_of(job.config, place)
    command = [sys.executable, "-m", "emabank.study.run_job", encode_job(job, place)]
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert folder.is_done(contents=True)
    assert 1 < len(folder.environment()) <= kills + 1
    assert left(folder) == left(run_job(job, Place(runs=place.runs / "whole"), digits()[0]))


def test_killed_at_random_moments_it_leaves_byte_for_byte_what_an_undisturbed_run_leaves(tmp_path: Path):
    job, place = Job(killed_often(12), forks=(2, 5)), Place(runs=tmp_path, checkpoint_seconds=0)
    checkpoint = folder_of(job.config, place).path / "checkpoint.pt"
    command = [sys.executable, "-c", KILL, encode_job(job, place), str(checkpoint), "6"]
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    kills = int(finished.stdout)
    assert kills >= 1
    finish(job, place, kills=kills)
