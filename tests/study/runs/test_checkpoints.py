"""The last two checkpoints: what is saved comes back, a damaged one is noticed, no kill leaves the run without one."""

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from emabank import checkpoint as files
from emabank.study.runs import storage
from tests.support.oracle import states_equal as same


def damage(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    place = whole.index(bytes(torch.full((4,), 1.2345).view(torch.uint8).tolist()))
    whole[place + 2] ^= 1
    path.write_bytes(whole)


def state(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "weights": torch.full((64,), 1.2345)}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_training_comes_back_as_it_was(tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.8, 0.9))
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    saved = {
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "tuple": (1, (2.5, None), []),
        "mixed": {1: "int", "1": "text", None: 0},
        "tagged": {"__tuple__": [1], "__mapping__": {"a": 1}},
        "nan": float("nan"),
        "float": 0.1 + 0.2,
    }
    storage.save_checkpoint(tmp_path, saved)
    loaded = storage.load_checkpoint(tmp_path)
    assert loaded is not None
    for key, value in saved.items():
        if key not in ("tuple", "optimizer"):
            assert same(loaded[key], value), key
    assert loaded["tuple"] == saved["tuple"]
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    other.load_state_dict(loaded["optimizer"])
    assert other.param_groups[0]["betas"] == (0.8, 0.9)
    for mine, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])


def test_the_last_two_are_kept_and_nothing_else(tmp_path: Path):
    assert storage.load_checkpoint(tmp_path) is None
    for epoch in range(1, 5):
        storage.save_checkpoint(tmp_path, state(epoch))
    assert names(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert storage.read_state(tmp_path / "checkpoint.pt")["epoch"] == 4
    assert storage.read_state(tmp_path / "checkpoint.previous.pt")["epoch"] == 3
    storage.remove_checkpoints(tmp_path)
    assert names(tmp_path) == []


def test_a_damaged_one_is_named_and_the_previous_one_used(tmp_path: Path):
    for epoch in (1, 2):
        storage.save_checkpoint(tmp_path, state(epoch))
    damage(tmp_path / "checkpoint.pt")
    said = r"^damaged, and put aside.*/checkpoint.pt; training resumes from checkpoint.previous.pt$"
    with pytest.warns(RuntimeWarning, match=said):
        loaded = storage.load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded["epoch"] == 1
    storage.save_checkpoint(tmp_path, state(2))
    assert storage.read_state(tmp_path / "checkpoint.previous.pt")["epoch"] == 1, "the good one must not be lost"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert storage.load_checkpoint(tmp_path) is not None


def test_with_both_damaged_training_starts_from_the_beginning(tmp_path: Path):
    for epoch in (1, 2):
        storage.save_checkpoint(tmp_path, state(epoch))
    damage(tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.previous.pt").write_bytes(b"PK\x03\x04")
    said = r"checkpoint.pt, .*checkpoint.previous.pt; training starts from the beginning"
    with pytest.warns(RuntimeWarning, match=said):
        assert storage.load_checkpoint(tmp_path) is None
    assert names(tmp_path) == ["checkpoint.previous.pt.damaged", "checkpoint.pt.damaged"]


def test_a_checkpoint_of_a_newer_emabank_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    storage.save_checkpoint(tmp_path, state(1))
    monkeypatch.setattr(files, "VERSION", files.VERSION + 1)
    storage.save_checkpoint(tmp_path, state(2))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="upgrade emabank"):
        storage.load_checkpoint(tmp_path)
    assert names(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_stopped_between_any_two_renames_the_newest_whole_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
):
    for epoch in (1, 2):
        storage.save_checkpoint(tmp_path, state(epoch))
    done, replace = 0, os.replace

    def stop_at(*paths: Any) -> None:
        nonlocal done
        if done == renames:
            raise OSError(errno.EIO, "stopped here")
        done += 1
        replace(*paths)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stop_at)
        try:
            storage.save_checkpoint(tmp_path, state(3))
        except OSError:
            assert renames < 3
    expected = 2 if renames == 0 else 3  # the first rename makes the new one whole
    for _ in range(2):
        loaded = storage.load_checkpoint(tmp_path)
        assert loaded is not None
        assert loaded["epoch"] == expected
        storage.finish_checkpoint(tmp_path)
    assert names(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert storage.read_state(tmp_path / "checkpoint.previous.pt")["epoch"] == expected - 1


def test_what_cannot_be_saved_is_refused_and_the_old_one_stays(tmp_path: Path):
    storage.save_checkpoint(tmp_path, state(1))
    with pytest.raises(ValueError, match="'/state/a' must be .* got a set"):
        storage.save_checkpoint(tmp_path, {"a": {1, 2}})
    assert names(tmp_path) == ["checkpoint.pt"]
