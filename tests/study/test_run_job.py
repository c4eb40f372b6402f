"""One run from its configuration to its finished folder, and how it is stopped."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from emabank.study.config import Place
from emabank.study.data.images import Dataset
from emabank.study.run_job import Job, encode_job, folder_of, main, run_job, stop_requests
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.storage import read_state
from tests.study.small_runs import config, digits, files_in, logits_of, network_with, parts_of, with_random_test_images
from tests.study.small_runs import one_thread as one_thread
from tests.support.processes import SOURCE, wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run(place: Place) -> RunFolder:
    return run_job(Job(config(), forks=(1,)), place, digits()[0])


def test_a_finished_run_has_a_complete_folder(run: RunFolder, place: Place):
    assert run.path == folder_of(config(), place).path
    assert run.is_done(contents=True)
    assert run.config()["recipe"]["training"]["network"] == "resnet8"
    assert [epoch["epoch"] for epoch in run.history()] == [1, 2, 3, 4]
    names = run.snapshots()
    assert len(names) == 10
    assert run.predictions() == names
    assert read_state(run.fork_path(1))["steps"] == 5
    assert not list(run.path.glob("checkpoint*"))
    assert {(row.run, row.seed) for row in run.rows()} == {(run.id, 0)}
    assert run.summary()["diverged"] is False
    assert run.summary()["has_batchnorm"] is True
    assert run.progress().epoch == 4  # type: ignore[union-attr]


def test_kept_weights_score_as_when_they_were_chosen(run: RunFolder):
    history = {
        (row.weights, row.epoch): row.value
        for row in run.rows()
        if row.selected_by is None and row.metric == "accuracy"
    }
    rescored = {
        (row.weights, row.epoch): row.value
        for row in run.rows()
        if row.selected_by and row.batchnorm != "recomputed" and (row.split, row.metric) == ("val", "accuracy")
    }
    assert rescored and rescored.items() <= history.items()


def test_a_snapshot_in_a_new_network_gives_exactly_the_stored_predictions(run: RunFolder):
    parts = parts_of(config())
    for name in run.snapshots():
        tensors, notes = run.load_snapshot(name)
        assert (tuple(notes["mean"]), tuple(notes["std"])) == (parts.normalisation.mean, parts.normalisation.std)
        model = network_with(config(), tensors)
        for split, part in (("train", parts.train), ("val", parts.validation), ("test", parts.test)):
            predictions = run.load_predictions(name)[split]
            assert np.array_equal(predictions.logits, logits_of(model, part, parts).numpy())
            assert np.array_equal(predictions.labels, part.labels if split == "train" else part.clean)


def test_a_run_restores_the_random_state_and_the_number_of_threads(place: Place, tmp_path: Path):
    torch.manual_seed(123)
    state = torch.get_rng_state()
    torch.set_num_threads(1)
    for run_config in (
        config(data={"subset": 60}, training={"epochs": 1, "width": 2}, hardware={"threads": 2}),
        config(fingerprint="another"),
    ):
        try:
            run_job(Job(run_config), replace(place, runs=tmp_path), digits()[0])
        except ValueError:
            assert run_config.fingerprint == "another"
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.get_num_threads() == 1


def test_data_that_changed_since_planning_is_refused(tmp_path: Path):
    dataset, found = digits()
    parts = with_random_test_images(parts_of(config()))
    other = Dataset("digits", 10, dataset.train, parts.test)
    with pytest.raises(ValueError, match=rf"^the data of digits has changed .* planned with {found}\); plan it again"):
        run_job(Job(config()), Place(runs=tmp_path), other)
    assert not list(tmp_path.iterdir())


def test_an_unresolved_device_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"^the device of a run is auto; resolve it"):
        run_job(Job(config(hardware={"device": "auto"})), Place(runs=tmp_path), digits()[0])


def test_a_diverging_run_is_done_and_marked_as_diverged(tmp_path: Path):
    run = run_job(Job(config(rate=1e6)), Place(runs=tmp_path), digits()[0])
    assert run.is_done()
    assert run.summary()["diverged"] is True
    assert run.summary()["chosen"] == {}
    assert run.snapshots() == run.predictions() == []
    assert run.history() == [{"epoch": 1, "rate": pytest.approx(run.history()[0]["rate"]), "training_loss": None}]


def test_a_run_starts_from_its_fork_or_without_it_from_the_beginning(tmp_path: Path):
    trunk_config = config(trained_on="100%", training={"epochs": 3})
    place = Place(runs=tmp_path / "forked")
    trunk = run_job(Job(trunk_config, forks=(2,)), place, digits()[0])
    swa = replace(trunk_config, constant_from=2, swa=True)
    fork = trunk.path / "forks" / "epoch-2.pt"
    epochs: list[int] = []
    forked = run_job(
        Job(swa, fork=fork), place, digits()[0], on_progress=lambda progress: epochs.append(progress.epoch)
    )
    assert epochs == [3]
    alone = run_job(Job(swa, fork=tmp_path / "none.pt"), Place(runs=tmp_path / "alone"), digits()[0])
    assert files_in(forked) == files_in(alone)
    assert forked.snapshots() == ["live-last", "swa-recomputed-last"]


# Stopping


def test_stop_requests_catch_signals_and_restore_the_handlers():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with stop_requests() as stop_requested:
            assert not stop_requested()
            signal.raise_signal(number)
            assert stop_requested()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_worker_exits_with_130_on_a_signal_and_the_same_command_resumes(tmp_path: Path):
    run_config = config(data={"subset": 100}, training={"epochs": 12, "width": 2})
    place = Place(runs=tmp_path / "stopped", checkpoint_seconds=0)
    folder, text = folder_of(run_config, place), encode_job(Job(run_config, forks=(1,)), place)
    command = [sys.executable, "-m", "emabank.study.run_job", text]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as in what a worker of Ray starts
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    wait_until((folder.path / "checkpoint.pt").exists)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert output.startswith("asked to stop in epoch ")
    assert output.count("\n") == 1
    assert folder.state() == "waiting"
    assert main([text]) == 0
    assert len(folder.environment()) == 2
    assert files_in(folder) == files_in(run_job(Job(run_config, forks=(1,)), Place(runs=tmp_path), digits()[0]))


def test_a_worker_prints_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = encode_job(Job(config(fingerprint="0123456789abcdef")), Place(runs=tmp_path))
    assert main([text]) == 1
    output = capsys.readouterr().out
    assert output.startswith("emabank: the data of digits has changed since this run was planned")
    assert output.count("\n") == 1
