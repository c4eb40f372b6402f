"""The state and the files of a run, and all rows below a folder: read without a lock and without torch."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from emabank.study import load_results
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import COLUMNS, Row, rows_text
from emabank.study.runs.storage import read_state
from emabank.study.runs.writer import open_run
from tests.support.processes import run as run_code

CONFIG = {"network": "resnet8", "epochs": 2, "note": 2}
ROW: dict[str, Any] = {
    "dataset": "digits", "network": "resnet8", "trained_on": "80%", "seed": 0, "weights": "live", "batchnorm": "own",
    "selected_by": None, "split": "val", "metric": "loss", "other": None,
}  # fmt: skip


@pytest.fixture
def done(tmp_path: Path) -> RunFolder:
    with open_run(tmp_path, CONFIG, threads=1) as run:
        run.save_history({"loss": [2.0, float("nan")]})
        run.save_snapshot("ema-0.998", {"weight": torch.ones(3)}, metadata={"epoch": 2})
        run.save_predictions("ema-0.998", {"val": (np.full((4, 2), 1.5), np.array([0, 1, 0, 1]))})
        run.save_fork(1, {"epoch": 1})
        for write in (run.write_rows, run.write_test_curves):
            write([Row(run=run.id, epoch=2, value=0.25, **ROW)])
        run.mark_done({"accuracy": 0.5})
    return RunFolder.of(tmp_path, CONFIG)


def test_all_files_of_a_done_run_can_be_read_and_reading_writes_nothing(done: RunFolder):
    before = {path: path.stat().st_mtime_ns for path in done.path.rglob("*")}
    assert done.state() == "done"
    assert done.is_done(contents=True)
    assert done.config() == CONFIG
    assert done.summary() == {"accuracy": 0.5}
    assert done.history() == {"loss": [2.0, None]}
    assert [row.value for row in done.rows()] == [0.25]
    assert done.snapshots() == done.predictions() == ["ema-0.998"]
    tensors, notes = done.load_snapshot("ema-0.998")
    assert torch.equal(tensors["weight"], torch.ones(3))
    assert notes == {"epoch": 2}
    assert done.load_predictions("ema-0.998")["val"].labels.tolist() == [0, 1, 0, 1]
    assert read_state(done.fork_path(1)) == {"epoch": 1}
    assert [session["threads"] for session in done.environment()] == [1]
    assert {path: path.stat().st_mtime_ns for path in done.path.rglob("*")} == before


def test_missing_files_and_invalid_names_are_clear_errors(done: RunFolder):
    with pytest.raises(FileNotFoundError, match=r"live.safetensors is not there; the run has ema-0.998 in that folder"):
        done.load_snapshot("live")
    with pytest.raises(FileNotFoundError, match=r"the run has none in that folder"):
        RunFolder(done.path / "none").load_predictions("live")
    for name in ("", ".hidden", "../up", "a/b", "a b", "-x", "a" * 101, "a\n"):
        with pytest.raises(ValueError, match="cannot name a file of a run; give up to 100"):
            done.load_snapshot(name)


@pytest.mark.parametrize("name", ["snapshots/ema-0.998.safetensors", "forks/epoch-1.pt", "history.json", "rows.jsonl"])
def test_a_run_with_a_missing_file_is_not_done(done: RunFolder, name: str):
    (done.path / name).unlink()
    assert not done.is_done()
    assert done.find_damage() == f"{done.path / name} is missing"
    assert done.state() == "waiting"


def test_a_file_of_another_size_or_content_is_detected(done: RunFolder):
    path = done.path / "snapshots" / "ema-0.998.safetensors"
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole + b"x")
    assert done.find_damage() == f"{path} has {len(whole) + 1} bytes instead of {len(whole)}"
    whole[-1] ^= 1  # safetensors itself would not notice
    path.write_bytes(whole)
    assert done.is_done()
    assert not done.is_done(contents=True)
    with pytest.raises(ValueError, match=r"ema-0.998.safetensors is damaged: .* checksum; remove the folder"):
        done.load_snapshot("ema-0.998")


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "null", '"text"', "{}", '{"files": []}', '{"files": {"config.json": 3}}']
)
def test_a_damaged_done_mark_is_ignored(done: RunFolder, content: str):
    (done.path / "done.json").write_text(content)
    assert not done.is_done()
    assert done.summary() == {}
    assert done.state() == "waiting"


LONG = '{"epoch": 1, "epochs": 2, "words": "", "seconds_left": "long", "time": ""}'


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"epoch": 1}', LONG])
def test_unreadable_progress_and_failure_are_none(tmp_path: Path, content: str):
    for name in ("progress.json", "failed.json"):
        (tmp_path / name).write_text(content)
    assert RunFolder(tmp_path).progress() is None
    assert RunFolder(tmp_path).failure() is None
    assert RunFolder(tmp_path).state() == "failed"


def test_damaged_json_is_refused_by_name(done: RunFolder):
    (done.path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged: its content does not match its checksum; remove"):
        done.config()
    (done.path / "done.json").unlink()
    with pytest.raises(ValueError, match=r"config.json is damaged: it is not JSON; remove the folder"):
        done.config()
    for content in ("[]", "{}", '{"config": 3}', "[" * 100_000):
        (done.path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config.json is damaged: .*; remove the folder"):
            done.config()


@pytest.mark.parametrize("name", ["config.json", "history.json", "environment.json", "rows.jsonl", "test_curves.jsonl"])
def test_a_change_that_is_still_valid_json_is_detected(done: RunFolder, name: str):
    path = done.path / name
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"2", b"3", 1))
    assert path.read_bytes() != whole
    readers = {"rows.jsonl": done.rows, "test_curves.jsonl": done.test_curves, "history.json": done.history}
    read = readers.get(name) or getattr(done, name.removesuffix(".json"))
    with pytest.raises(ValueError, match=rf"{name} is damaged: its content does not match its checksum"):
        read()
    assert not done.is_done(contents=True)


@pytest.mark.parametrize("name", ["../outside", "{absolute}", "snapshots/../../outside"])
def test_a_done_mark_with_paths_outside_of_the_run_is_ignored(done: RunFolder, name: str):
    outside, path = done.path.parent / "outside", done.path / "done.json"
    outside.touch()
    mark = json.loads(path.read_text())
    mark.pop("checksum")
    path.write_text(json.dumps(mark))
    assert done.is_done(contents=True), "control: a mark without a checksum is accepted"
    mark["files"][name.format(absolute=outside)] = [0, 0]  # the size and the checksum of an empty file
    path.write_text(json.dumps(mark))
    assert not done.is_done()


@pytest.mark.parametrize("name", ["rows.jsonl", "config.json", "done.json"])
def test_a_pipe_in_place_of_a_file_does_not_block(done: RunFolder, name: str):
    (done.path / name).unlink()
    os.mkfifo(done.path / name)
    assert not done.is_done(contents=True)
    readers = {"config.json": done.config, "rows.jsonl": done.rows}
    if name in readers:
        with pytest.raises(ValueError, match="is no regular file"):
            readers[name]()


# All rows below a folder ----------------------------------------------------------------------------------------------


def make_row(run: str, **changes: Any) -> Row:
    return Row(run=run, **(ROW | {"epoch": 1, "value": 0.5} | changes))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    files = {
        "b/rows.jsonl": [make_row("b", epoch=2), make_row("b", epoch=None, value=None, metric="churn", other="a")],
        "a/rows.jsonl": [make_row("a", selected_by="loss", seed=3, value=1)],
        "a/test_curves.jsonl": [make_row("a", split="test", value=0.25)],
        "study/pairs/rows.jsonl": [make_row("c")],
        "a/other.jsonl": [make_row("d")],
    }
    for name, rows in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(rows_text(rows))
    return tmp_path


def test_load_results_has_every_row_of_every_run(runs: Path):
    frame = load_results(runs)
    lines: list[dict[str, Any]] = []
    for name in ("a/rows.jsonl", "a/test_curves.jsonl", "b/rows.jsonl", "study/pairs/rows.jsonl"):
        lines += [json.loads(line) for line in (runs / name).read_text().splitlines()]
    assert len(frame) == len(lines) == 5
    for record, line in zip(frame.to_dict("records"), lines, strict=True):
        assert {key: None if pd.isna(value) else value for key, value in record.items()} == line
    assert load_results(runs / "b")["run"].tolist() == ["b", "b"], "the folder of one run gives only its rows"
    assert frame[frame["selected_by"] == "loss"]["seed"].tolist() == [3]


def test_column_types_are_the_same_with_and_without_rows(runs: Path):
    (runs / "empty").mkdir()
    full, empty = load_results(runs), load_results(str(runs / "empty"))
    assert list(full.columns) == list(empty.columns) == list(COLUMNS)
    assert empty.shape == (0, 13)
    assert full.dtypes.tolist() == empty.dtypes.tolist()
    assert str(full["epoch"].dtype) == "Int64"
    assert str(full["value"].dtype) == "float64"
    assert str(full["seed"].dtype) == "int64"
    assert all(isinstance(full[name].dtype, pd.StringDtype) for name in {*COLUMNS} - {"epoch", "value", "seed"})


def test_load_results_of_a_missing_folder_is_a_clear_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none is not there; give the folder that holds the runs"):
        load_results(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="file is not a folder; give"):
        load_results(tmp_path / "file")


def test_load_results_names_a_damaged_file(runs: Path):
    with open(runs / "a" / "test_curves.jsonl", "a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"test_curves.jsonl, line 2 is damaged"):
        load_results(runs)


def test_reading_needs_no_torch_and_imports_are_lazy(done: RunFolder, runs: Path):
    finished = run_code(
        f"""
import sys
from emabank.study.runs.reader import RunFolder
run = RunFolder({str(done.path)!r})
print(run.state(), run.progress(), len(run.rows()), 'numpy' in sys.modules)
import emabank.study as study
print('load_results' in dir(study), len(study.load_results({str(runs)!r})))
study.nothing
""",
        blocked=("torch",),
    )
    assert finished.stdout.split() == ["done", "None", "1", "False", "True", "6"], finished.stderr
    assert "AttributeError: module 'emabank.study' has no attribute 'nothing'" in finished.stderr
