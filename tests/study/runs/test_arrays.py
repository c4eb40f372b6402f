"""Weights and predictions as files that others can read, and that say so when they are damaged."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from emabank.study.runs.storage import read_predictions, read_weights, write_predictions, write_weights


def test_weights_are_a_plain_safetensors_file_with_notes(tmp_path: Path):
    torch.manual_seed(0)
    shared = torch.randn(3, 4, requires_grad=True)
    weights = {"a.weight": shared, "tied": shared, "transposed": shared.t(), "count": torch.tensor(7)}
    write_weights(tmp_path / "f.safetensors", weights, {"epoch": 3, "selected_by": None, "mean": [0.5]})
    for tensors in (load_file(tmp_path / "f.safetensors"), read_weights(tmp_path / "f.safetensors")[0]):
        assert list(tensors) == sorted(weights) or set(tensors) == set(weights)
        assert all(torch.equal(tensors[key], weights[key]) for key in weights)
    assert read_weights(tmp_path / "f.safetensors")[1] == {"epoch": 3, "selected_by": None, "mean": [0.5]}


def test_predictions_come_back_by_part(tmp_path: Path):
    random = np.random.default_rng(0)
    logits = {"val": random.normal(size=(5, 3)), "test": torch.randn(4, 3)}
    labels = {"val": np.array([0, 1, 2, 1, 0], dtype=np.uint8), "test": torch.tensor([0, 1, 2, 1])}
    write_predictions(tmp_path / "f.npz", {part: (logits[part], labels[part]) for part in ("val", "test")})
    read = read_predictions(tmp_path / "f.npz")
    assert list(read) == ["val", "test"]
    for part, (found, right) in read.items():
        assert found.dtype == np.float32
        assert right.dtype == np.int64
        assert np.array_equal(found, np.asarray(logits[part], dtype=np.float32))
        assert np.array_equal(right, np.asarray(labels[part]))
    with np.load(tmp_path / "f.npz", allow_pickle=False) as plain:
        assert sorted(plain.files) == ["labels_test", "labels_val", "logits_test", "logits_val"]


def test_the_same_predictions_give_the_same_bytes(tmp_path: Path):
    for name in ("a.npz", "b.npz"):
        write_predictions(tmp_path / name, {"val": (np.ones((2, 3)), np.array([0, 1]))})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize(
    ("part", "logits", "labels", "said"),
    [
        ("validation", np.ones((2, 3)), np.zeros(2, int), "predictions for 'validation'.*the parts are 'train', 'val'"),
        ("val", np.ones(2), np.zeros(2, int), r"val predictions are logits of shape \(2,\)"),
        ("val", np.ones((2, 3)), np.zeros(3, int), r"labels of shape \(3,\); give one line of logits"),
        ("val", np.ones((2, 3)), np.zeros(2), "float64 labels"),
    ],
)
def test_what_are_no_predictions_is_refused(
    tmp_path: Path, part: str, logits: np.ndarray, labels: np.ndarray, said: str
):
    with pytest.raises(ValueError, match=said):
        write_predictions(tmp_path / "f.npz", {part: (logits, labels)})
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_named(tmp_path: Path):
    write_weights(tmp_path / "f.safetensors", {"a": torch.ones(50)}, {})
    write_predictions(tmp_path / "f.npz", {"val": (np.full((20, 3), 1.5), np.zeros(20, int))})
    for path, read in ((tmp_path / "f.safetensors", read_weights), (tmp_path / "f.npz", read_predictions)):
        whole = path.read_bytes()
        for length in (0, 5, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=f"{path.name} is damaged"):
                read(path)
    flipped = bytearray(whole)
    flipped[whole.index(np.float32(1.5).tobytes()) + 40] ^= 1
    (tmp_path / "f.npz").write_bytes(flipped)
    with pytest.raises(ValueError, match="f.npz is damaged"):  # the zip format has a checksum
        read_predictions(tmp_path / "f.npz")


def test_a_hostile_array_is_refused_and_not_executed(tmp_path: Path):
    class Hostile:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "executed"),)

    hostile = np.empty((), dtype=object)
    hostile[()] = Hostile()
    np.savez(tmp_path / "f.npz", logits_val=hostile, labels_val=np.zeros(1))
    with pytest.raises(ValueError, match="f.npz is damaged"):
        read_predictions(tmp_path / "f.npz")
    assert not (tmp_path / "executed").exists()
