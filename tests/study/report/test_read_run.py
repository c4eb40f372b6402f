"""One run's folder: what is read of it, and for whatever may have happened to its files, why it cannot be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emabank.study.report.results import LIVE, Curve, read_results, read_run
from emabank.study.runs.reader import RunFolder
from tests.study.report.spoiling import SPOILT, content, forget_sizes, put
from tests.study.small_folder import finished as finished

FILES = (
    "config.json", "done.json", "environment.json", "history.json", "rows.jsonl", "test_curves.jsonl",
    "predictions/live-last.npz", "snapshots/live-last.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(finished: Path) -> Path:
    """A refit: it has curves on test, and kept weights."""
    return finished / read_results(finished).settings[0].variants["refit"][0].id


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(shutil.copytree(whole, tmp_path / "runs" / whole.name))


def why_not(folder: RunFolder) -> str:
    with pytest.raises(ValueError, match=".") as caught:
        read_run(folder)
    words = str(caught.value)
    assert words and "\n" not in words and str(folder.path.parent) not in words
    return words


# What it holds -------------------------------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write a file of rows again, each as it is changed, without those that are None, and let the run forget theirs."""
    forget_sizes(path.parent, path.name)
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def test_what_is_null_or_missing_in_the_rows_is_not_a_number(folder: RunFolder):
    curve = Curve(LIVE, "own", "test", "loss")
    before = read_run(folder).curves[curve]

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        mine = (row["weights"], row["metric"]) == (LIVE, "loss")
        return None if mine and row["epoch"] == 1 else {**row, "value": None} if mine and row["epoch"] == 2 else row

    rewritten(folder.path / "test_curves.jsonl", change)
    np.testing.assert_array_equal(read_run(folder).curves[curve], [np.nan, np.nan, before[2]])


def test_what_was_chosen_is_no_point_of_a_curve(folder: RunFolder):
    before = read_run(folder).curves
    rewritten(folder.path / "rows.jsonl", lambda row: {**row, "value": 77.0} if row["selected_by"] else row)
    after = read_run(folder).curves
    assert before.keys() == after.keys() and not any(77.0 in found for found in after.values())


def test_an_epoch_that_the_run_does_not_have_is_no_point_of_a_curve(folder: RunFolder):
    before = read_run(folder).curves
    rewritten(folder.path / "test_curves.jsonl", lambda row: {**row, "epoch": row["epoch"] - 1})
    after = read_run(folder).curves
    for curve, found in before.items():
        if curve.split == "test":
            np.testing.assert_array_equal(after[curve], [*found[1:], np.nan])


def test_a_run_that_diverged_has_as_many_epochs_as_it_came_to(folder: RunFolder):
    forget_sizes(folder.path, "history.json")
    put(folder.path / "history.json", content(folder.path, "history.json")[:1])
    found = read_run(folder)
    assert found.epochs == 1 and all(len(curve) == 1 for curve in found.curves.values())


def rows(folder: Path, name: str = "rows.jsonl") -> Path:
    """A file of rows that the run has no checksum of, as those of an earlier emabank."""
    forget_sizes(folder, name)
    return folder / name


# Why it cannot be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: (path / "history.json").unlink(), "damaged: history.json is missing"),
        (lambda path: (path / "done.json").unlink(), "interrupted before its end; the same command resumes"),
        (lambda path: (path / "done.json").write_text("{"), "damaged: done.json is not what this emabank writes"),
        (lambda path: (path / "rows.jsonl").unlink(), "damaged: rows.jsonl is missing"),
        (lambda path: (path / "rows.jsonl").write_text(""), "damaged: rows.jsonl has 0 bytes instead of "),
        (lambda path: rows(path).write_text(""), "rows.jsonl is empty; measure that run again"),
        (lambda path: rows(path, "test_curves.jsonl").write_text(""), "test_curves.jsonl is empty; measure that run "),
        (lambda path: rows(path).write_text('{"run": "a"}\n'), "rows.jsonl, line 1 is not a row"),
        (lambda path: rows(path).write_bytes(b"\xff"), "rows.jsonl is damaged: it is not UTF-8 text; "),
        (
            lambda path: (path / "predictions" / "live-last.npz").write_bytes(b"short"),
            "damaged: predictions/live-last.npz has 5 bytes instead of ",
        ),
        (lambda path: shutil.rmtree(path), "it is not there"),
        (lambda path: (shutil.rmtree(path), path.write_text("")), "it is no folder"),
    ],
)  # fmt: skip
def test_a_damaged_run_says_what_is_wrong_with_it(spoil: Callable[[Path], object], why: str, folder: RunFolder):
    spoil(folder.path)
    assert why_not(folder).startswith(why)


@pytest.mark.parametrize("how", SPOILT)
def test_whatever_happens_to_a_file_there_is_a_reason(how: str, whole: Path, tmp_path: Path):
    for place, file in enumerate(FILES):
        folder = RunFolder(shutil.copytree(whole, tmp_path / str(place)))
        SPOILT[how](folder.path / file)
        assert why_not(folder), file


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda found: {**found, "config": {**found["config"], "seed": "0"}}),
        ("config.json", lambda found: {**found, "config": {**found["config"], "rate": -1.0}}),
        ("config.json", lambda found: {**found, "config": {**found["config"], "another": 1}}),
        ("history.json", lambda found: [*found, *found]),
        ("history.json", lambda found: [{**found[0], "rate": None}, *found[1:]]),
        ("history.json", lambda found: [{**found[0], "rate": "high"}, *found[1:]]),
        ("history.json", lambda found: [{"epoch": 1}]),
        ("environment.json", lambda found: {"sessions": [3]}),
        ("environment.json", lambda found: {"sessions": {"a": 1}}),
        ("environment.json", lambda found: {"sessions": [{"cpu": "\ud800"}]}),
    ],
)
def test_json_of_another_shape_is_a_reason(file: str, change: Callable[[Any], Any], folder: RunFolder):
    forget_sizes(folder.path, file)
    put(folder.path / file, change(content(folder.path, file)))
    assert why_not(folder)


def test_predictions_that_cannot_be_read_are_refused_when_asked_for(folder: RunFolder):
    path = folder.path / "predictions" / "live-last.npz"
    path.write_bytes(b"x" * path.stat().st_size)
    found = read_run(folder)
    with pytest.raises(ValueError, match="does not match its checksum") as caught:
        found.predictions("live-last")
    assert str(caught.value).startswith(f"{folder.id}/predictions/live-last.npz is damaged")
    assert str(folder.path.parent) not in str(caught.value)
    with pytest.raises(ValueError, match=r"none\.npz is not there; the run has "):
        found.predictions("none")
