"""Snapshots on disk: one file each, whatever the average is called, damaged files and full disks told."""

from pathlib import Path
from typing import Any

import pytest
from observing import Run, assert_equal, assert_same_state, numbers
from torch import nn

import emabank.selection
from emabank import BestTracker, EMABank


def test_files_are_one_each_and_the_old_one_goes(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    run.epoch(1, {"live": numbers(0.5, 0.5)})
    run.epoch(2, {"live": numbers(0.6, 0.6), 0.9: numbers(0.6, 0.6)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live-epoch-1.pt", "live-epoch-2.pt"]
    run.epoch(3, {"live": numbers(0.6, 0.6), 0.9: numbers(0.7, 0.4)})
    assert [path.name for path in tmp_path.iterdir()] == ["ema-0.9-epoch-3.pt"]


def test_any_name_of_an_average_makes_a_file(tmp_path: Path) -> None:
    names = ["a/b", "A/b", "../up", "slow", "Slow", "über", "x" * 300, "x" * 301]
    bank = EMABank(nn.Linear(2, 1), {name: 0.9 - 0.1 * i for i, name in enumerate(names)})
    tracker = BestTracker(bank, {"loss": "min"}, snapshots="each", folder=tmp_path / "in")
    tracker.observe(1, {name: {"loss": 1.0} for name in names})
    files = {path.name.lower() for path in (tmp_path / "in").iterdir()}
    assert len(files) == len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    for name in names:
        tracker.weights("loss", name)


def test_trap41_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    run.epoch(1, {0.9: numbers(0.5)})
    path = tmp_path / "ema-0.9-epoch-1.pt"
    intact = path.read_bytes()
    path.write_bytes(intact[:-10])
    with pytest.raises(ValueError, match=r"ema-0\.9-epoch-1\.pt is damaged"):
        run.tracker.weights("accuracy")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"The snapshot of 'ema-0\.9' at epoch 1 is gone.*ema-0\.9-epoch-1\.pt"):
        run.tracker.weights("accuracy")
    path.write_bytes(intact)
    assert_equal(run.tracker.weights("accuracy"), run.weights["ema-0.9", 1])


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(snapshots="each", folder=tmp_path)
    run.epoch(1, {"live": numbers(0.5), 0.9: numbers(0.5)})
    before, files = run.tracker.state_dict(), sorted(tmp_path.iterdir())
    written: list[Path] = []
    write_state = emabank.selection.write_state

    def second_fails(path: Path, state: Any, *, kind: str) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_state(path, state, kind=kind)

    monkeypatch.setattr(emabank.selection, "write_state", second_fails)
    with pytest.raises(OSError, match="No space left"):
        run.epoch(2, {"live": numbers(0.6), 0.9: numbers(0.6)})
    assert written
    assert sorted(tmp_path.iterdir()) == files
    assert_same_state(run.tracker.state_dict(), before)
