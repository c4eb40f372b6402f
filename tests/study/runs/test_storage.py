"""Files of a run: read back unchanged, damage is detected, a kill never leaves a run without a checkpoint."""

import errno
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from emabank import checkpoint as files
from emabank.study.runs import storage
from emabank.study.runs.storage import (
    read_checked,
    read_predictions,
    read_weights,
    with_checksum,
    write_predictions,
    write_weights,
)
from tests.support.oracle import states_equal as same

# JSON ----------------------------------------------------------------------------------------------------------------

CONTENT = {"time": "now", "summary": {"chosen": [1, 2.5, None, True], "é": "ß"}, "files": {"a": [3, 4]}}


def test_every_flipped_bit_is_detected_or_harmless(tmp_path: Path):
    path = tmp_path / "file.json"
    whole = (json.dumps(with_checksum(CONTENT), indent=1, ensure_ascii=False) + "\n").encode()
    path.write_bytes(whole)
    assert read_checked(path) == CONTENT
    detected = 0
    for place in range(len(whole)):
        for bit in (0, 3, 6):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                assert read_checked(path) == CONTENT, (place, bit)  # such as a space that became a newline
            except ValueError:
                detected += 1
    assert detected > 0.8 * 3 * len(whole)


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", "[" * 100_000, '{"checksum": 3}', '{"checksum": "crc32:0"}'])
def test_json_that_is_no_object_or_has_a_wrong_checksum_is_refused(tmp_path: Path, content: str):
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(ValueError, match="it is not JSON|it is no JSON object|does not match its checksum"):
        read_checked(tmp_path / "file.json")


# Weights and predictions ----------------------------------------------------------------------------------------------


def test_weights_are_a_plain_safetensors_file_with_notes(tmp_path: Path):
    torch.manual_seed(0)
    shared = torch.randn(3, 4, requires_grad=True)
    weights = {"a.weight": shared, "tied": shared, "transposed": shared.t(), "count": torch.tensor(7)}
    write_weights(tmp_path / "f.safetensors", weights, {"epoch": 3, "selected_by": None, "mean": [0.5]})
    for tensors in (load_file(tmp_path / "f.safetensors"), read_weights(tmp_path / "f.safetensors")[0]):
        assert set(tensors) == set(weights)
        assert all(torch.equal(tensors[key], weights[key]) for key in weights)
    assert read_weights(tmp_path / "f.safetensors")[1] == {"epoch": 3, "selected_by": None, "mean": [0.5]}


def test_predictions_are_read_back_by_split(tmp_path: Path):
    random = np.random.default_rng(0)
    logits = {"val": random.normal(size=(5, 3)), "test": torch.randn(4, 3)}
    labels = {"val": np.array([0, 1, 2, 1, 0], dtype=np.uint8), "test": torch.tensor([0, 1, 2, 1])}
    write_predictions(tmp_path / "f.npz", {part: (logits[part], labels[part]) for part in ("val", "test")})
    read = read_predictions(tmp_path / "f.npz")
    assert list(read) == ["val", "test"]
    for part, predictions in read.items():
        assert (predictions.logits.dtype, predictions.labels.dtype) == (np.float32, np.int64)
        assert np.array_equal(predictions.logits, np.asarray(logits[part], dtype=np.float32))
        assert np.array_equal(predictions.labels, np.asarray(labels[part]))
    with np.load(tmp_path / "f.npz", allow_pickle=False) as plain:
        assert sorted(plain.files) == ["labels_test", "labels_val", "logits_test", "logits_val"]


# Checkpoints ----------------------------------------------------------------------------------------------------------


def flip_bit(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    place = whole.index(bytes(torch.full((4,), 1.2345).view(torch.uint8).tolist()))
    whole[place + 2] ^= 1
    path.write_bytes(whole)


def make_state(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "weights": torch.full((64,), 1.2345)}


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_training_state_is_restored_exactly(tmp_path: Path):
    saved = {
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
    assert loaded["tuple"] == saved["tuple"]
    for key in saved.keys() - {"tuple"}:
        assert same(loaded[key], saved[key]), key


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path):
    assert storage.load_checkpoint(tmp_path) is None
    for epoch in range(1, 5):
        storage.save_checkpoint(tmp_path, make_state(epoch))
    assert names_in(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert storage.read_state(tmp_path / "checkpoint.pt")["epoch"] == 4
    assert storage.read_state(tmp_path / "checkpoint.previous.pt")["epoch"] == 3
    storage.remove_checkpoints(tmp_path)
    assert names_in(tmp_path) == []


def test_a_damaged_checkpoint_is_put_aside_and_the_previous_one_is_used(tmp_path: Path):
    for epoch in (1, 2):
        storage.save_checkpoint(tmp_path, make_state(epoch))
    flip_bit(tmp_path / "checkpoint.pt")
    message = r"^damaged, and put aside.*/checkpoint.pt; training resumes from checkpoint.previous.pt$"
    with pytest.warns(RuntimeWarning, match=message):
        loaded = storage.load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded["epoch"] == 1
    storage.save_checkpoint(tmp_path, make_state(2))
    assert storage.read_state(tmp_path / "checkpoint.previous.pt")["epoch"] == 1, "the good checkpoint must not be lost"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert storage.load_checkpoint(tmp_path) is not None
    flip_bit(tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.previous.pt").write_bytes(b"PK\x03\x04")
    message = r"checkpoint.pt, .*checkpoint.previous.pt; training starts from the beginning"
    with pytest.warns(RuntimeWarning, match=message):
        assert storage.load_checkpoint(tmp_path) is None
    assert names_in(tmp_path) == ["checkpoint.previous.pt.damaged", "checkpoint.pt.damaged"]


def test_a_checkpoint_of_a_newer_emabank_is_not_treated_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage.save_checkpoint(tmp_path, make_state(1))
    monkeypatch.setattr(files, "VERSION", files.VERSION + 1)
    storage.save_checkpoint(tmp_path, make_state(2))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="upgrade emabank"):
        storage.load_checkpoint(tmp_path)
    assert names_in(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_the_newest_whole_checkpoint_is_found_after_a_stop_between_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
):
    for epoch in (1, 2):
        storage.save_checkpoint(tmp_path, make_state(epoch))
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
            storage.save_checkpoint(tmp_path, make_state(3))
        except OSError:
            assert renames < 3
    expected = 2 if renames == 0 else 3  # the first rename completes the new checkpoint
    for _ in range(2):
        loaded = storage.load_checkpoint(tmp_path)
        assert loaded is not None
        assert loaded["epoch"] == expected
        storage.finish_checkpoint(tmp_path)
    assert names_in(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert storage.read_state(tmp_path / "checkpoint.previous.pt")["epoch"] == expected - 1


def test_a_state_that_cannot_be_saved_is_refused_and_the_old_checkpoint_stays(tmp_path: Path):
    storage.save_checkpoint(tmp_path, make_state(1))
    with pytest.raises(ValueError, match="'/state/a' must be .* got a set"):
        storage.save_checkpoint(tmp_path, {"a": {1, 2}})
    assert names_in(tmp_path) == ["checkpoint.pt"]
