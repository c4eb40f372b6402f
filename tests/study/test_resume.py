"""An interrupted run, even one killed by SIGKILL, resumes and ends bit for bit as an uninterrupted one."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emabank.study.config import Keep, Place
from emabank.study.run_job import Job, encode_job, folder_of, run_job
from emabank.study.runs.writer import RunWriter
from emabank.study.train import Interrupted, Training
from tests.study.small_runs import CheckpointFiles, MakeModel, config, digits, files_in, training_of
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal
from tests.support.processes import SOURCE


class Dropping(nn.Module):
    """Its dropout uses the global random state at every step."""

    def __init__(self, *, loud: float = 1.0) -> None:
        super().__init__()
        self.loud = loud
        self.first, self.norm, self.drop, self.head = (
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Linear(4 * 36, 10)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.first(x)).relu().flatten(1)) * self.loud)


def everything(training: Training) -> dict[str, Any]:
    return {
        "state": training.state_dict(),
        "measured": str([*training.measured, *training.test_curves]),
        "history": training.history(),
        "chosen": training.selector.selected(),
        "kept": [[str(selected.keep), selected.tensors] for selected in training.kept()],
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
def test_trap40_a_run_stopped_after_every_step_ends_like_an_uninterrupted_one(case: str, tmp_path: Path):
    options, make_model = CASES[case]
    run_config, checkpoints = config(**options), CheckpointFiles(tmp_path)
    with torch.random.fork_rng():
        whole = training_of(run_config, make_model=make_model)
        whole.run()
        want = everything(whole)
        training, stops = training_of(run_config, make_model=make_model), 0
        while True:
            try:
                training.run(checkpoints, should_stop=lambda: True)
                break
            except Interrupted:
                stops += 1
                training = training_of(run_config, make_model=make_model)
                torch.rand(3)  # another process has another random state
                training.load_state_dict(checkpoints.load_checkpoint())
        assert stops == whole.steps
        assert checkpoints.saved == stops + 1
        found = everything(training)
    for name, value in want.items():
        assert states_equal(found[name], value), name
    if case == "fp16":
        assert whole.bank.num_steps < whole.steps, "the loss scale has changed, and is part of the state"


def test_training_does_not_change_a_state_that_was_saved_or_loaded():
    run_config = config(training={"network": "own"})
    with torch.random.fork_rng():
        training = training_of(run_config, make_model=Dropping)
        with pytest.raises(Interrupted, match=r"^asked to stop in epoch \d; the same command resumes from there$"):
            training.run(should_stop=lambda: training.steps == 7)
        state = training.state_dict()
        copied = deepcopy(state)
        training.run()
        want = everything(training)
        for _ in range(2):
            other = training_of(run_config, make_model=Dropping)
            other.load_state_dict(state)
            assert states_equal(other.state_dict(), copied)
            other.run()
            assert states_equal(everything(other), want)
    assert states_equal(state, copied)


def test_checkpoints_are_saved_at_the_given_interval_even_within_an_epoch(tmp_path: Path):
    for seconds, count in ((0.0, 6), (3600.0, 1)):
        checkpoints = CheckpointFiles(tmp_path)
        training_of(config(training={"epochs": 1})).run(checkpoints, checkpoint_seconds=seconds)
        assert checkpoints.saved == count


# Killed while it writes its results


class Killed(BaseException):
    """In place of SIGKILL."""


def test_a_run_killed_while_it_writes_its_results_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    job, dataset = Job(config(training={"epochs": 2, "width": 2}), forks=(1,)), digits()[0]
    want = files_in(run_job(job, Place(runs=tmp_path / "whole"), dataset))
    place, writes, deaths = Place(runs=tmp_path / "killed"), 0, 0
    last = 0

    def kill_before(name: str) -> None:
        write = getattr(RunWriter, name)

        def method(self: RunWriter, *args: Any, **options: Any) -> None:
            nonlocal writes
            writes += 1
            if writes > last:
                raise Killed
            write(self, *args, **options)

        monkeypatch.setattr(RunWriter, name, method)

    names = ("save_snapshot", "save_predictions", "save_history", "write_rows", "write_test_curves", "mark_done")
    for name in names:
        kill_before(name)
    while not (folder := folder_of(job.config, place)).is_done():
        writes = 0
        try:
            run_job(job, place, dataset)
        except Killed:
            deaths += 1
            assert folder.state() == "waiting"
        last += 4
    assert deaths >= 4
    assert files_in(folder) == want


# Killed for real

ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}

# One process imports torch and forks the workers that it kills.
KILL = """
import os, random, signal, sys, time
from pathlib import Path
import torch._dynamo  # or every worker would import it
from emabank.study import run_job

text, checkpoint, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
random.seed(0)

def stamp():
    try:
        return checkpoint.stat().st_mtime_ns
    except FileNotFoundError:  # not yet written, or being renamed
        return None

kills = 0
for number in range(rounds):
    before = stamp()
    worker = os.fork()
    if worker == 0:
        os._exit(run_job.main([text]))
    while number % 2 and stamp() in (None, before):  # every other time after new training, else while it starts
        assert os.waitpid(worker, os.WNOHANG) == (0, 0), "the worker ended by itself"
        time.sleep(0.002)
    time.sleep(random.uniform(0, 0.4))
    os.kill(worker, signal.SIGKILL)
    if os.waitpid(worker, 0)[1] == 0:
        break
    kills += 1
print(kills)
"""


def run_python(*args: str) -> tuple[str, str]:
    command = [sys.executable, *args]
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, finished.stderr


def test_a_run_killed_at_random_moments_ends_with_byte_for_byte_the_same_files(tmp_path: Path):
    measuring = {"on_train": True, "recompute": "each-epoch"}
    job = Job(config(data={"subset": 100}, training={"epochs": 12}, measuring=measuring), forks=(2, 5))
    place = Place(runs=tmp_path, checkpoint_seconds=0)
    folder, text = folder_of(job.config, place), encode_job(job, place)
    kills = int(run_python("-c", KILL, text, str(folder.path / "checkpoint.pt"), "6")[0])
    assert kills >= 1
    assert run_python("-m", "emabank.study.run_job", text) == ("", "")
    assert folder.is_done(contents=True)
    assert 1 < len(folder.environment()) <= kills + 1
    assert files_in(folder) == files_in(run_job(job, Place(runs=tmp_path / "whole"), digits()[0]))
