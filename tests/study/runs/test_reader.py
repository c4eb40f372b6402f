"""How a run stands, and what it left, read from its folder without a lock."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emabank.study.runs.reader import RunFolder, check_name
from emabank.study.runs.rows import Row
from emabank.study.runs.storage import read_state
from emabank.study.runs.writer import open_run
from tests.support.processes import run as fresh_python

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
        run.write_rows([])
        run.mark_done({"accuracy": 0.5})
    return RunFolder.of(tmp_path, CONFIG)


def test_everything_it_left_can_be_read(done: RunFolder):
    assert done.state() == "done"
    assert done.is_done(contents=True)
    assert done.config() == CONFIG
    assert done.summary() == {"accuracy": 0.5}
    assert done.history() == {"loss": [2.0, None]}
    assert done.rows() == []
    assert done.snapshots() == done.predictions() == ["ema-0.998"]
    tensors, notes = done.load_snapshot("ema-0.998")
    assert torch.equal(tensors["weight"], torch.ones(3))
    assert notes == {"epoch": 2}
    assert done.load_predictions("ema-0.998")["val"].labels.tolist() == [0, 1, 0, 1]
    assert read_state(done.fork_path(1)) == {"epoch": 1}
    assert [session["threads"] for session in done.environment()] == [1]


def test_reading_writes_nothing(done: RunFolder):
    before = {path: path.stat().st_mtime_ns for path in done.path.rglob("*")}
    test_everything_it_left_can_be_read(done)
    assert {path: path.stat().st_mtime_ns for path in done.path.rglob("*")} == before


def test_what_is_not_there_is_named_with_what_is(done: RunFolder):
    with pytest.raises(FileNotFoundError, match=r"live.safetensors is not there; the run has ema-0.998 in that folder"):
        done.load_snapshot("live")
    with pytest.raises(FileNotFoundError, match=r"the run has none in that folder"):
        RunFolder(done.path / "none").load_predictions("live")


@pytest.mark.parametrize("name", ["snapshots/ema-0.998.safetensors", "forks/epoch-1.pt", "history.json", "rows.jsonl"])
def test_a_run_that_misses_a_file_is_not_done(done: RunFolder, name: str):
    (done.path / name).unlink()
    assert not done.is_done()
    assert done.what_is_wrong() == f"{done.path / name} is missing"
    assert done.state() == "waiting"


def test_a_file_of_another_size_or_content_is_noticed(done: RunFolder):
    path = done.path / "snapshots" / "ema-0.998.safetensors"
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole + b"x")
    assert done.what_is_wrong() == f"{path} has {len(whole) + 1} bytes instead of {len(whole)}"
    whole[-1] ^= 1  # safetensors itself would not notice
    path.write_bytes(whole)
    assert done.is_done()
    assert not done.is_done(contents=True)
    with pytest.raises(ValueError, match=r"ema-0.998.safetensors is damaged: .* checksum; remove the folder"):
        done.load_snapshot("ema-0.998")


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "null", '"text"', "{}", '{"files": []}', '{"files": {"config.json": 3}}']
)
def test_a_damaged_done_mark_is_no_mark(done: RunFolder, content: str):
    (done.path / "done.json").write_text(content)
    assert not done.is_done()
    assert done.summary() == {}
    assert done.state() == "waiting"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"epoch": 1}'])
def test_progress_and_failure_that_cannot_be_read_are_none(tmp_path: Path, content: str):
    for name in ("progress.json", "failed.json"):
        (tmp_path / name).write_text(content)
    assert RunFolder(tmp_path).progress() is None
    assert RunFolder(tmp_path).failure() is None
    assert RunFolder(tmp_path).state() == "failed"


def test_damaged_json_is_named(done: RunFolder):
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
def test_a_change_that_can_still_be_read_is_noticed(done: RunFolder, name: str):
    with open_run(done.path.parent, CONFIG, threads=1) as run:  # rows may be written again when it is done
        for write in (run.write_rows, run.write_test_curves):
            write([Row(run=run.id, epoch=1, value=0.25, **ROW)])
    assert done.is_done(contents=True)
    path = done.path / name
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"2", b"3", 1))
    assert path.read_bytes() != whole
    readers = {"rows.jsonl": done.rows, "test_curves.jsonl": done.test_curves, "history.json": done.history}
    read = readers.get(name) or getattr(done, name.removesuffix(".json"))
    with pytest.raises(ValueError, match=rf"{name} is damaged: its content does not match its checksum"):
        read()
    assert not done.is_done(contents=True)


def test_a_flipped_bit_in_the_done_mark_takes_it_away(done: RunFolder):
    path = done.path / "done.json"
    whole, before = path.read_bytes(), (done.summary(), done._left())
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 7]) + whole[at + 1 :])
        if done.is_done():
            assert (done.summary(), done._left()) == before, f"byte {at}: {path.read_bytes()[at - 9 : at + 9]}"


def test_a_done_mark_of_an_earlier_emabank_is_one(done: RunFolder):
    path = done.path / "done.json"
    mark = json.loads(path.read_text())
    assert mark.pop("checksum").startswith("crc32:")
    mark["files"]["rows.jsonl"] = [None, None]
    path.write_text(json.dumps(mark))
    assert done.is_done(contents=True)


@pytest.mark.parametrize("name", ["../outside", "/dev/zero", "snapshots/../../outside"])
def test_a_done_mark_that_leads_elsewhere_is_none(done: RunFolder, name: str):
    path = done.path / "done.json"
    mark = json.loads(path.read_text())
    mark.pop("checksum")
    mark["files"][name] = [0, 0]
    path.write_text(json.dumps(mark))
    assert not done.is_done(contents=True)


@pytest.mark.parametrize("name", ["rows.jsonl", "config.json", "done.json"])
def test_a_pipe_in_place_of_a_file_stops_nobody(done: RunFolder, name: str):
    (done.path / name).unlink()
    os.mkfifo(done.path / name)
    assert not done.is_done(contents=True)
    if name == "config.json":
        with pytest.raises(ValueError, match="is no regular file"):
            done.config()


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "-x", "a" * 101, "a\n"])
def test_names_that_could_leave_the_folder_are_refused(name: str):
    with pytest.raises(ValueError, match="cannot name a file of a run; give up to 100"):
        check_name(name)


def test_asking_how_runs_stand_loads_no_torch(done: RunFolder):
    asked: dict[str, Any] = {"path": str(done.path)}
    look = f"import sys\nfrom emabank.study.runs.writer import RunFolder\nrun = RunFolder({asked['path']!r})\n"
    look += "print(run.state(), run.progress(), len(run.rows()), 'torch' in sys.modules, 'numpy' in sys.modules)"
    assert fresh_python(look).stdout.split() == ["done", "None", "0", "False", "False"]
