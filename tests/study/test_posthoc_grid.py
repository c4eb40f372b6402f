"""Window and stopping epoch tried after a run, against the averages that the same run kept, and measured once more."""

from pathlib import Path

import numpy as np
import pytest

from emabank.posthoc import snapshot_steps, synthesize
from emabank.study.averages import windows
from emabank.study.config import Place
from emabank.study.run_job import Job, run_job
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import Row, read_rows
from tests.study.small_runs import config, digits, logits_of, network_with, parts_of, recalibrated
from tests.study.small_runs import one_thread as one_thread

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


def test_there_is_a_field_for_every_window_and_epoch(rows: list[Row]):
    fields = {(name, epoch) for name in WINDOWS for epoch in (1, 2, 3, 4)}
    for metric in ("accuracy", "loss", "profile_error"):
        assert set(values(rows, metric)) == fields, metric
    assert set(values(rows, "weight_distance", "averaged")) == {(name, 4) for name in WINDOWS[:3]}


def test_a_field_is_what_the_kept_average_gave_where_there_is_one(run: RunFolder, rows: list[Row]):
    kept, made = values(run.rows(), "loss"), values(rows, "loss")
    shared = [field for field in made if field in kept]
    assert len(shared) == 12
    for field in shared:
        if field[0] != "ema-5%":  # a window of one step
            assert made[field] == pytest.approx(kept[field], rel=0.02), field
    for (name, _), value in values(rows, "weight_distance", "averaged").items():
        assert value is not None and 0 < value < (1e-2 if name == "ema-5%" else 1e-4)
    errors = values(rows, "profile_error")
    assert max(errors[name, epoch] or 0 for name in WINDOWS[1:] for epoch in (2, 3, 4)) < 0.1


def test_a_field_measured_by_hand_is_the_same(run: RunFolder, rows: list[Row]):
    parts = parts_of(RUN)
    assert parts.validation is not None
    found = synthesize(run.path / "posthoc", windows(RUN.recipe.averages, 20)["ema-85%"], at_step=15)
    model = recalibrated(network_with(RUN, found.weights), parts)
    guessed = logits_of(model, parts.validation, parts).argmax(1)
    accuracy = float((guessed == parts.validation.clean).double().mean())
    assert values(rows, "accuracy")["ema-85%", 3] == pytest.approx(accuracy, abs=1e-9)
    assert values(rows, "profile_error")["ema-85%", 3] == found.error


def test_the_run_is_done_with_it_and_keeps_the_snapshots(run: RunFolder):
    assert run.is_done(contents=True)
    assert snapshot_steps(run.path / "posthoc") == list(range(21))
    (run.path / "posthoc/step-000000003.pt").unlink()
    assert run.is_done(contents=True), "whoever needs the room may remove them"
    content = (run.path / "posthoc.jsonl").read_bytes()
    (run.path / "posthoc.jsonl").unlink()
    assert not run.is_done()
    (run.path / "posthoc.jsonl").write_bytes(content)


def test_other_rows_do_not_know_of_it(run: RunFolder, tmp_path: Path):
    plain = run_job(Job(config(measuring={"recompute": "each-epoch"})), Place(runs=tmp_path), digits()[0])
    bare = [(row.weights, row.epoch, row.metric, row.split, row.batchnorm, row.value) for row in plain.rows()]
    ours = [(row.weights, row.epoch, row.metric, row.split, row.batchnorm, row.value) for row in run.rows()]
    assert bare == ours
    assert not (plain.path / "posthoc.jsonl").exists()


def test_without_batch_norm_nothing_is_recomputed(tmp_path: Path):
    small = config(posthoc=4, training={"network": "vgg-small", "width": 4, "epochs": 2}, rate=0.05)
    run = run_job(Job(small), Place(runs=tmp_path), digits()[0])
    rows = read_rows(run.path / "posthoc.jsonl")
    assert {row.batchnorm for row in rows} == {"averaged"}
    assert np.isfinite([row.value for row in rows if row.metric == "accuracy"]).all()


def test_a_run_that_diverged_has_no_fields(tmp_path: Path):
    run = run_job(Job(config(posthoc=4, rate=1e9)), Place(runs=tmp_path), digits()[0])
    assert run.summary()["diverged"] and read_rows(run.path / "posthoc.jsonl") == []


# Its configuration ---------------------------------------------------------------------------------------------------
