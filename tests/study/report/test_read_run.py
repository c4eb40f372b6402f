"""Reading one run, and the errors for damaged files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emabank.study.report.results import LIVE, Curve, read_results, read_run
from emabank.study.runs.reader import RunFolder
from tests.study.report.spoiling import DAMAGES, content, forget_sizes, put
from tests.study.small_folder import finished as finished

FILES = (
    "config.json", "done.json", "environment.json", "history.json", "rows.jsonl", "test_curves.jsonl",
    "predictions/live-last.npz", "snapshots/live-last.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(finished: Path) -> Path:
    """A refit, with curves on test and saved weights."""
    return finished / read_results(finished).settings[0].variants["refit"][0].id


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> RunFolder:
    """A copy of the run."""
    return RunFolder(shutil.copytree(whole, tmp_path / "runs" / whole.name))


def error_of(folder: RunFolder) -> str:
    with pytest.raises(ValueError, match=".") as caught:
        read_run(folder)
    message = str(caught.value)
    assert message and "\n" not in message and str(folder.path.parent) not in message
    return message


# Curves --------------------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change each row of a file, drop those that become None, and let the run accept the new size."""
    forget_sizes(path.parent, path.name)
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def test_null_and_missing_rows_are_nan(folder: RunFolder):
    curve = Curve(LIVE, "own", "test", "loss")
    before = read_run(folder).curves[curve]

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        epoch = row["epoch"] if (row["weights"], row["metric"]) == (LIVE, "loss") else 0
        return None if epoch == 1 else {**row, "value": None} if epoch == 2 else row

    rewrite(folder.path / "test_curves.jsonl", change)
    np.testing.assert_array_equal(read_run(folder).curves[curve], [np.nan, np.nan, before[2]])


def test_rows_of_selected_weights_are_not_part_of_a_curve(folder: RunFolder):
    before = read_run(folder).curves
    rewrite(folder.path / "rows.jsonl", lambda row: {**row, "value": 77.0} if row["selected_by"] else row)
    after = read_run(folder).curves
    assert before.keys() == after.keys() and not any(77.0 in curve for curve in after.values())


def test_rows_of_epochs_outside_the_run_are_ignored(folder: RunFolder):
    before = read_run(folder).curves
    rewrite(folder.path / "test_curves.jsonl", lambda row: {**row, "epoch": row["epoch"] - 1})
    after = read_run(folder).curves
    for key, curve in before.items():
        if key.split == "test":
            np.testing.assert_array_equal(after[key], [*curve[1:], np.nan])


def test_a_diverged_run_has_only_the_epochs_in_its_history(folder: RunFolder):
    forget_sizes(folder.path, "history.json")
    put(folder.path / "history.json", content(folder.path, "history.json")[:1])
    run = read_run(folder)
    assert run.epochs == 1 and all(len(curve) == 1 for curve in run.curves.values())


def rows(folder: Path, name: str = "rows.jsonl") -> Path:
    """A file of rows without a known size, as in runs of an earlier emabank."""
    forget_sizes(folder, name)
    return folder / name


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
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
def test_a_damaged_run_is_a_clear_error(damage: Callable[[Path], object], message: str, folder: RunFolder):
    damage(folder.path)
    assert error_of(folder).startswith(message)


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damaged_file_is_a_clear_error(damage: str, whole: Path, tmp_path: Path):
    for index, file in enumerate(FILES):
        folder = RunFolder(shutil.copytree(whole, tmp_path / str(index)))
        DAMAGES[damage](folder.path / file)
        assert error_of(folder), file


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda old: {**old, "config": {**old["config"], "seed": "0"}}),
        ("config.json", lambda old: {**old, "config": {**old["config"], "rate": -1.0}}),
        ("config.json", lambda old: {**old, "config": {**old["config"], "another": 1}}),
        ("history.json", lambda old: [*old, *old]),
        ("history.json", lambda old: [{**old[0], "rate": None}, *old[1:]]),
        ("history.json", lambda old: [{**old[0], "rate": "high"}, *old[1:]]),
        ("history.json", lambda old: [{"epoch": 1}]),
        ("environment.json", lambda old: {"sessions": [3]}),
        ("environment.json", lambda old: {"sessions": {"a": 1}}),
        ("environment.json", lambda old: {"sessions": [{"cpu": "\ud800"}]}),
    ],
)
def test_json_of_another_shape_is_a_clear_error(file: str, change: Callable[[Any], Any], folder: RunFolder):
    forget_sizes(folder.path, file)
    put(folder.path / file, change(content(folder.path, file)))
    assert error_of(folder)


def test_damaged_predictions_are_refused_when_read(folder: RunFolder):
    path = folder.path / "predictions" / "live-last.npz"
    path.write_bytes(b"x" * path.stat().st_size)
    run = read_run(folder)
    with pytest.raises(ValueError, match="does not match its checksum") as caught:
        run.predictions("live-last")
    assert str(caught.value).startswith(f"{folder.id}/predictions/live-last.npz is damaged")
    assert str(folder.path.parent) not in str(caught.value)
    with pytest.raises(ValueError, match=r"none\.npz is not there; the run has "):
        run.predictions("none")
