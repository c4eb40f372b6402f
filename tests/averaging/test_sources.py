"""Folders and shards: what makes a checkpoint, what is copied beside the weights, and an index that lies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from averaging.made import assert_same, everything_in, mean, read, state, write

from emabank.averaging import average_checkpoints, fit_together


def sharded(folder: Path, tensors: dict[str, torch.Tensor], suffix: str = ".safetensors", **index: Any) -> Path:
    """A checkpoint in two files, with an index as transformers has it."""
    base = "model" if suffix == ".safetensors" else "pytorch_model"
    names = [f"{base}-0000{at}-of-00002{suffix}" for at in (1, 2)]
    parts = {name: {key: tensors[key] for key in list(tensors)[at::2]} for at, name in enumerate(names)}
    for name, part in parts.items():
        write(folder / name, part)
    placed = {key: name for name, part in parts.items() for key in part}
    content = {"metadata": {"total_size": 1}, "weight_map": placed} | index
    (folder / f"{base}{suffix}.index.json").write_text(json.dumps(content))
    return folder


def whole(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*-of-*")):
        found |= read(path)
    return found


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("by_index", [False, True])
def test_shards(tmp_path: Path, suffix: str, by_index: bool):
    folders = [sharded(tmp_path / f"checkpoint-{at}", state(at), suffix) for at in (1, 2)]
    (index,) = folders[1].glob("*.index.json")
    given = [next(each.glob("*.index.json")) for each in folders] if by_index else folders
    average_checkpoints(given, tmp_path / "average")
    assert everything_in(tmp_path / "average") == everything_in(folders[1])
    assert (tmp_path / "average" / index.name).read_bytes() == index.read_bytes()
    assert_same(whole(tmp_path / "average"), mean([state(1), state(2)], [0.5, 0.5]))


def test_shards_and_a_single_file_fit_together(tmp_path: Path):
    folders = [sharded(tmp_path / "1", state(1)), tmp_path / "2"]
    write(folders[1] / "model.safetensors", state(2))
    average_checkpoints(folders, tmp_path / "average")
    assert everything_in(tmp_path / "average") == ["model.safetensors"]
    assert_same(read(tmp_path / "average/model.safetensors"), mean([state(1), state(2)], [0.5, 0.5]))


def test_a_folder_takes_along_what_belongs_to_the_model(tmp_path: Path):
    for at in (1, 2):
        write(tmp_path / str(at) / "model.safetensors", state(at))
    kept = {"config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "README.md"}
    dropped = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "trainer_state.json", "model.onnx"}
    dropped |= {"pytorch_model.bin.index.json", "tf_model.h5", ".hidden", "random_states_0.pkl"}
    for name in kept | dropped:
        (tmp_path / "2" / name).write_text(name)
    with open(tmp_path / "2" / "corpus.txt", "wb") as large:
        large.truncate(65 * 2**20)
    (tmp_path / "2" / "global_step5").mkdir()
    average_checkpoints([tmp_path / "1", tmp_path / "2"], tmp_path / "average")
    assert set(everything_in(tmp_path / "average")) == kept | {"model.safetensors"}
    assert all((tmp_path / "average" / name).read_text() == name for name in kept)


@pytest.mark.parametrize("name", ["../1/secret.safetensors", "/etc/passwd", "..", ".", "a\\b.safetensors", "", 3, None])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: Any):
    write(tmp_path / "1/secret.safetensors", state(1))
    sharded(tmp_path / "2", state(2))
    (tmp_path / "2/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"scale": name}}))
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json is no index|is no checkpoint"):
        fit_together([tmp_path / "2", tmp_path / "2"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 50_000, "\ufeff{"])
def test_an_index_that_is_none_is_named(tmp_path: Path, text: str):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json is no index of a checkpoint in shards"):
        fit_together([tmp_path, tmp_path])


def test_an_index_and_its_files_have_to_agree(tmp_path: Path):
    folder = sharded(tmp_path / "1", state(1))
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="says that 'ghost' is in model-00001-of-00002.safetensors, where it is not"):
        fit_together([folder, folder])
    content["weight_map"] = {"conv.weight": "model-00003-of-00003.safetensors"}
    index.write_text(json.dumps(content))
    with pytest.raises(FileNotFoundError):
        fit_together([folder, folder])


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    folder = sharded(tmp_path / "1", state(1))
    write(folder / "model-00002-of-00002.safetensors", state(1))
    with pytest.raises(ValueError, match="has the tensor 'conv.weight' twice"):
        fit_together([folder, folder])


def test_what_is_no_checkpoint_is_named(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ValueError, match=r"notes\.txt is no checkpoint: give a \.safetensors, \.pt"):
        fit_together([tmp_path / "notes.txt"] * 2)
    with pytest.raises(ValueError, match="there is not one file of weights in it, such as model.safetensors"):
        fit_together([tmp_path] * 2)
    torch.save({"a": torch.ones(1)}, tmp_path / "missing.pt")
    (tmp_path / "missing.pt").unlink()
    with pytest.raises(FileNotFoundError):
        fit_together([tmp_path / "missing.pt"] * 2)
