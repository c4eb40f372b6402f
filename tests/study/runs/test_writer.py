"""Writing a run: one process at a time, and every file is whole whatever happens to the process."""

import errno
import getpass
import json
import os
import platform
import resource
import socket
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import emabank
from emabank.study.runs import writer
from emabank.study.runs.environment import environment
from emabank.study.runs.rows import Row
from emabank.study.runs.writer import RunFolder, RunWriter, mark_failed, open_run
from emabank.study.serialize import run_id

CONFIG = {"network": "resnet8", "rates": (0.1, 1.0), "epochs": 2}


def make_row(run: str, **changes: Any) -> Row:
    fields: dict[str, Any] = {
        "dataset": "digits", "network": "resnet8", "trained_on": "80%", "seed": 0, "weights": "live",
        "batchnorm": "own", "selected_by": None, "epoch": 1, "split": "val", "metric": "loss", "value": 1.5,
        "other": None,
    }  # fmt: skip
    return Row(run=run, **(fields | changes))


WRITERS: dict[str, Callable[[RunWriter, int], None]] = {
    "checkpoint.pt": lambda run, size: run.save_checkpoint({"large": torch.zeros(size)}),
    "forks/epoch-1.pt": lambda run, size: run.save_fork(1, {"large": torch.zeros(size)}),
    "history.json": lambda run, size: run.save_history([0.5] * size),
    "snapshots/live.safetensors": lambda run, size: run.save_snapshot("live", {"large": torch.zeros(size)}),
    "predictions/live.npz": lambda run, size: run.save_predictions(
        "live", {"val": (np.zeros((size, 2)), np.zeros(size, int))}
    ),
    "rows.jsonl": lambda run, size: run.write_rows([make_row(run.id)] * size),
    "test_curves.jsonl": lambda run, size: run.write_test_curves([make_row(run.id, split="test")] * size),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "failed.json")
    }


# Opening -------------------------------------------------------------------------------------------------------------


def test_states_of_a_run_from_waiting_to_done(tmp_path: Path):
    folder = RunFolder.of(tmp_path / "all" / "runs", CONFIG)
    assert folder.path == tmp_path / "all" / "runs" / run_id(CONFIG)
    assert folder.state() == "waiting"
    with pytest.raises(KeyError), open_run(tmp_path / "all" / "runs", CONFIG, threads=1):
        assert folder.state() == "running"
        raise KeyError("no such layer")
    assert folder.state() == "failed"
    assert folder.failure() == "KeyError: 'no such layer'"
    with pytest.raises(KeyboardInterrupt), open_run(tmp_path / "all" / "runs", CONFIG, threads=1) as run:
        assert folder.failure() is None
        run.write_progress(1, 2, "live 50%")
        raise KeyboardInterrupt
    assert folder.state() == "waiting"
    progress = folder.progress()
    assert progress is not None
    assert (progress.epoch, progress.epochs, progress.words, progress.seconds_left) == (1, 2, "live 50%", None)
    with open_run(tmp_path / "all" / "runs", CONFIG, threads=1) as run:
        run.mark_done()
    assert folder.state() == "done"


@pytest.mark.parametrize(
    "content",
    [
        '{"format": 1, "config": {"network": "vgg", "rates": [0.1, 1], "epochs": 2}}',
        '{"format": 2, "config": {"network": "resnet8", "rates": [0.1, 1], "epochs": 2}}',
        '{"format": 1, "config": {"network": "resnet8", "rates": [0.1, NaN], "epochs": 2}}',
        '{"format": 1',
    ],
)
def test_an_edited_configuration_is_refused_and_nothing_changes(tmp_path: Path, content: str):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        run.save_checkpoint({"epoch": 1})
    (run.path / "config.json").write_text(content)
    before = contents(run.path)
    with pytest.raises(ValueError, match=rf"config.json .* is not the configuration of run {run.id}; restore it"):
        open_run(tmp_path, CONFIG, threads=1).__enter__()
    assert contents(run.path) == before
    assert run.state() == "waiting"


def test_every_start_is_recorded_in_the_environment_until_the_run_is_done(tmp_path: Path):
    for threads in (1, 2):
        with open_run(tmp_path, CONFIG, threads=threads, also={"device": "cpu"}) as run:
            pass
    with open_run(tmp_path, CONFIG, threads=3) as run:
        run.mark_done()
    with open_run(tmp_path, CONFIG, threads=4) as run:
        assert run.is_done(contents=True)
    assert [session["threads"] for session in run.environment()] == [1, 2, 3]


def test_only_the_runs_own_leftovers_are_removed(tmp_path: Path):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        run.save_snapshot("live", {"a": torch.ones(2)})
    own = [".0123456789abcdef.tmp", "snapshots/.fedcba9876543210.tmp", "snapshots/.tmpAb3dEf"]
    foreign = [".mine.tmp", ".nfs0001", "notes.txt", "snapshots/.tmp", "snapshots/.tmpAb3dEf.txt"]
    for name in (*own, *foreign):
        (run.path / name).write_text("x")
    with open_run(tmp_path, CONFIG, threads=1):
        assert not [name for name in own if (run.path / name).exists()]
    assert all((run.path / name).exists() for name in foreign)


# Ending --------------------------------------------------------------------------------------------------------------


def test_a_done_run_keeps_its_results_and_removes_its_checkpoints(tmp_path: Path):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        for _ in range(2):
            for write in WRITERS.values():
                write(run, 3)
        run.mark_done({"nan": float("nan")})
    assert set(contents(run.path)) == {"config.json", "environment.json", "done.json", *WRITERS} - {"checkpoint.pt"}
    assert run.summary() == {"nan": None}
    assert run.is_done(contents=True)


def test_nothing_can_be_written_to_a_done_run(tmp_path: Path):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        run.mark_done()
    with open_run(tmp_path, CONFIG, threads=1) as run:
        for write in WRITERS.values():
            with pytest.raises(ValueError, match=f"run {run.id} is done, and nothing can be written"):
                write(run, 1)


def test_a_done_run_that_lost_a_file_is_trained_again(tmp_path: Path):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        run.save_snapshot("live", {"a": torch.ones(2)})
        run.mark_done()
    (run.path / "snapshots" / "live.safetensors").unlink()
    opening = open_run(tmp_path, CONFIG, threads=1)
    with pytest.warns(RuntimeWarning, match=r"was done, but .*live.safetensors is missing; it is trained again"):
        run = opening.__enter__()
    assert not run.is_done()
    run.save_snapshot("live", {"a": torch.ones(2)})
    opening.__exit__(None, None, None)


def test_a_run_in_use_is_not_marked_as_failed_by_another_process(tmp_path: Path):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        mark_failed(run.path, "killed")
        assert run.failure() is None
    mark_failed(run.path, "killed")
    assert run.failure() == "killed"


def test_progress_is_written_about_once_a_second_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seconds, written = 100.0, []
    monkeypatch.setattr(writer.time, "monotonic", lambda: seconds)
    run = RunWriter(tmp_path)
    monkeypatch.setattr(writer, "write_json", lambda path, data: written.append((seconds, data["epoch"])))
    for tick in range(50):
        seconds = 100 + tick / 10
        run.write_progress(tick // 5 + 1, 10, "words", seconds_left=3.5)
    assert [when for when, _ in written[:5]] == pytest.approx([100, 101, 102, 103, 104])
    assert written[-1] == (pytest.approx(104.9), 10)
    monkeypatch.setattr(writer, "write_json", lambda path, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    run.write_progress(10, 10, "a full disk does not stop the training")


# Full disks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_a_clear_error_and_leaves_old_files_unchanged(tmp_path: Path, name: str):
    with open_run(tmp_path, CONFIG, threads=1) as run:
        WRITERS[name](run, 3)
        before = contents(run.path)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(
                OSError, match=r"[Cc]ould not be written .*what was there before is unchanged"
            ) as caught:
                WRITERS[name](run, 20_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert Path(caught.value.filename).parent == (run.path / name).parent
        assert contents(run.path) == before
        WRITERS[name](run, 3)  # works again once there is space


# The recorded conditions ---------------------------------------------------------------------------------------------


def test_the_environment_has_the_versions_and_settings_of_this_system():
    conditions = environment(threads=3, also={"device": "cpu"})
    assert conditions["emabank"] == emabank.__version__
    assert all(conditions[package] == metadata.version(package) for package in ("torch", "numpy"))
    assert conditions["python"] == platform.python_version()
    assert (conditions["threads"], conditions["device"]) == (3, "cpu")
    assert 1 <= conditions["cores"] <= (os.cpu_count() or 1)
    started = datetime.strptime(conditions["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert abs((datetime.now(timezone.utc) - started).total_seconds()) < 60
    assert json.loads(json.dumps(conditions)) == conditions


def test_the_environment_names_no_machine_user_or_folder():
    text = json.dumps(environment(threads=1))
    assert str(Path.cwd()) not in text
    assert str(Path.home()) not in text or len(str(Path.home())) < 4
    if len(socket.gethostname()) > 6:
        assert socket.gethostname() not in text
    if len(getpass.getuser()) > 6:
        assert getpass.getuser() not in text
