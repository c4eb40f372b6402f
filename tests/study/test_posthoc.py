"""Averages rebuilt from the snapshots of a run, compared with the averages that the run kept."""

from pathlib import Path

import numpy as np
import pytest

from emabank.posthoc import snapshot_steps, synthesize
from emabank.study.averages import windows
from emabank.study.config import Place
from emabank.study.run_job import Job, run_job
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import Row, read_rows
from emabank.study.train import Interrupted
from tests.study.small_runs import (
    CheckpointFiles,
    config,
    digits,
    logits_of,
    network_with,
    parts_of,
    recalibrated,
    trained,
    training_of,
)
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal

# Snapshots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshots", "epochs", "every", "steps"),
    [
        (4, 4, 1, [5, 10, 15, 20]),
        (7, 4, 1, [5, 10, 15, 20]),
        (8, 4, 1, [2, 5, 7, 10, 12, 15, 17, 20]),
        (100, 2, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (100, 2, 2, [2, 5, 7, 10]),  # never more than there are samples
        (2, 4, 1, [10, 20]),
        (2, 5, 1, [15, 25]),  # always at the last step
        (1, 4, 1, [20]),
    ],
)
def test_snapshots_are_due_at_the_ends_of_epochs_and_evenly_between(
    snapshots: int, epochs: int, every: int, steps: list[int]
):
    training = training_of(config(posthoc=snapshots, training={"epochs": epochs}, averages={"every": every}))
    assert len(training.loader) == 5
    assert [step for step in range(1, 5 * epochs + 1) if training.recorder.is_due(step)] == steps


def test_snapshots_do_not_change_the_run(tmp_path: Path):
    plain = trained(config())
    training = training_of(config(posthoc=8))
    training.recorder.keep_in(tmp_path)
    training.run()
    assert snapshot_steps(tmp_path) == [0, 2, 5, 7, 10, 12, 15, 17, 20]
    assert states_equal(plain.model.state_dict(), training.model.state_dict())
    assert states_equal(plain.bank.state_dict(), training.bank.state_dict())
    assert plain.measured == training.measured
    unrecorded = training_of(config())
    unrecorded.recorder.keep_in(tmp_path / "posthoc")
    unrecorded.run()
    assert unrecorded.recorder.state_dict() is None and not (tmp_path / "posthoc").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_resumed_run_has_the_same_snapshots(tmp_path: Path):
    run_config = config(posthoc=8)
    whole = training_of(run_config)
    whole.recorder.keep_in(tmp_path / "whole")
    whole.run()
    checkpoints = CheckpointFiles(tmp_path)
    first = training_of(run_config)
    first.recorder.keep_in(tmp_path / "parts")
    with pytest.raises(Interrupted):
        first.run(checkpoints, checkpoint_seconds=1e9, should_stop=lambda: first.steps >= 6)
    state = checkpoints.load_checkpoint()
    first.run()  # without a checkpoint, as if it were killed after step 20
    assert max(snapshot_steps(tmp_path / "parts")) == 20
    second = training_of(run_config)
    second.load_state_dict(state)
    second.recorder.keep_in(tmp_path / "parts")
    assert snapshot_steps(tmp_path / "parts") == [0, 2, 5]
    second.run()
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


def test_a_run_from_the_beginning_removes_old_snapshots(tmp_path: Path):
    run_config = config(posthoc=8)
    first = training_of(run_config)
    first.recorder.keep_in(tmp_path)
    first.run()
    again = training_of(run_config)
    again.recorder.keep_in(tmp_path)
    assert snapshot_steps(tmp_path) == [0]
    (tmp_path / "step-000000005.pt").touch()
    with pytest.raises(ValueError, match="has snapshots up to step 5"):  # the other ranks remove nothing
        training_of(run_config).recorder.keep_in(tmp_path, is_first=False)


def test_a_checkpoint_without_snapshots_is_refused():
    plain = trained(config())
    with pytest.raises(ValueError, match="this checkpoint is of a run without snapshots"):
        training_of(config(posthoc=8)).load_state_dict(plain.state_dict())
    training_of(config()).load_state_dict({k: v for k, v in plain.state_dict().items() if k != "posthoc"})


# Windows and stopping epochs ------------------------------------------------------------------------------------------

RUN = config(posthoc=20, measuring={"recompute": "each-epoch"})
WINDOWS = ["ema-5%", "ema-20%", "ema-60%", "ema-85%", "ema-100%"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run(place: Place) -> RunFolder:
    return run_job(Job(RUN), place, digits()[0])


@pytest.fixture(scope="module")
def rows(run: RunFolder) -> list[Row]:
    return read_rows(run.path / "posthoc.jsonl")


def values(rows: list[Row], metric: str, batchnorm: str = "recomputed") -> dict[tuple[str, int | None], float | None]:
    return {
        (row.weights, row.epoch): row.value
        for row in rows
        if (row.metric, row.batchnorm, row.split, row.selected_by) == (metric, batchnorm, "val", None)
    }


def test_every_window_and_epoch_has_a_value(rows: list[Row]):
    keys = {(name, epoch) for name in WINDOWS for epoch in (1, 2, 3, 4)}
    for metric in ("accuracy", "loss", "profile_error"):
        assert set(values(rows, metric)) == keys, metric
    assert set(values(rows, "weight_distance", "averaged")) == {(name, 4) for name in WINDOWS[:3]}


def test_only_epochs_that_end_with_a_snapshot_are_tried(tmp_path: Path):
    run = run_job(Job(config(posthoc=2)), Place(runs=tmp_path), digits()[0])
    epochs = {row.epoch for row in read_rows(run.path / "posthoc.jsonl")}
    assert [5 * epoch for epoch in sorted(epochs)] == snapshot_steps(run.path / "posthoc")[1:] == [10, 20]


def test_rebuilt_averages_score_like_the_averages_of_the_run(run: RunFolder, rows: list[Row]):
    expected, rebuilt = values(run.rows(), "loss"), values(rows, "loss")
    shared = [key for key in rebuilt if key in expected]
    assert len(shared) == 12
    for key in shared:
        if key[0] != "ema-5%":  # a window of one step
            assert rebuilt[key] == pytest.approx(expected[key], rel=0.02), key
    for (name, _), value in values(rows, "weight_distance", "averaged").items():
        assert value is not None and 0 < value < (1e-2 if name == "ema-5%" else 1e-4)
    errors = values(rows, "profile_error")
    assert max(errors[name, epoch] or 0 for name in WINDOWS[1:] for epoch in (2, 3, 4)) < 0.1


def test_a_rebuilt_average_measured_by_hand_scores_the_same(run: RunFolder, rows: list[Row]):
    parts = parts_of(RUN)
    assert parts.validation is not None
    found = synthesize(run.path / "posthoc", windows(RUN.recipe.averages, 20)["ema-85%"], at_step=15)
    model = recalibrated(network_with(RUN, found.weights), parts)
    predicted = logits_of(model, parts.validation, parts).argmax(1)
    accuracy = float((predicted == parts.validation.clean).double().mean())
    assert values(rows, "accuracy")["ema-85%", 3] == pytest.approx(accuracy, abs=1e-9)
    assert values(rows, "profile_error")["ema-85%", 3] == found.error


def test_a_finished_run_needs_its_posthoc_rows_but_not_its_snapshots(run: RunFolder):
    assert run.is_done(contents=True)
    assert snapshot_steps(run.path / "posthoc") == list(range(21))
    (run.path / "posthoc/step-000000003.pt").unlink()
    assert run.is_done(contents=True), "snapshots may be removed to save space"
    content = (run.path / "posthoc.jsonl").read_bytes()
    (run.path / "posthoc.jsonl").unlink()
    assert not run.is_done()
    (run.path / "posthoc.jsonl").write_bytes(content)


def test_networks_without_batch_norm_recompute_nothing(tmp_path: Path):
    small = config(posthoc=4, training={"network": "vgg-small", "width": 4, "epochs": 2}, rate=0.05)
    run = run_job(Job(small), Place(runs=tmp_path), digits()[0])
    rows = read_rows(run.path / "posthoc.jsonl")
    assert {row.batchnorm for row in rows} == {"averaged"}
    assert np.isfinite([row.value for row in rows if row.metric == "accuracy"]).all()


def test_a_diverged_run_has_no_values(tmp_path: Path):
    run = run_job(Job(config(posthoc=4, rate=1e9)), Place(runs=tmp_path), digits()[0])
    assert run.summary()["diverged"] and read_rows(run.path / "posthoc.jsonl") == []
