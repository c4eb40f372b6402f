"""safetensors without the package: its files are read, it reads what is written, and damage is named."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from averaging.made import everything_in, state, write
from interpreter import run
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from emabank.averaging import average_checkpoints, fit_together
from emabank.averaging.formats import SafetensorsFile, pieces

EVERY = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32]
EVERY += [torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool]


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_the_package_wrote_is_read(tmp_path: Path):
    tensors = {str(dtype): torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype) for dtype in EVERY}
    tensors |= {"empty": torch.zeros(0, 2), 'ümlaut / "quoted"': torch.ones(())}
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert set(file.specs) == set(tensors) and file.metadata == {"format": "pt"}
    for name, tensor in tensors.items():
        parts = [file.read(name, piece) for piece in pieces(file.specs[name].shape, 2)]
        assert file.specs[name].dtype == tensor.dtype
        assert torch.cat(parts).view(tensor.shape).equal(tensor) if parts else not tensor.numel()


def test_the_package_reads_what_is_written_byte_for_byte(tmp_path: Path):
    tensors = {str(dtype): torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype) for dtype in EVERY}
    tensors["größe"] = torch.ones(3)
    metadata = {"format": "pt", "note": "größe\n"}
    for at in (1, 2):
        save_file(tensors, tmp_path / f"{at}.safetensors", metadata)
    average_checkpoints([tmp_path / "1.safetensors", tmp_path / "2.safetensors"], tmp_path / "average.safetensors")
    made = load_file(tmp_path / "average.safetensors")
    assert set(made) == set(tensors) and all(made[name].equal(tensors[name]) for name in tensors)
    with safe_open(tmp_path / "average.safetensors", framework="pt") as file:
        assert file.metadata() == metadata


def test_it_works_without_the_package(tmp_path: Path):
    for at in (1, 2):
        write(tmp_path / f"{at}.safetensors", {"weight": torch.full((2,), float(at))})
    done = run(
        f"from emabank.averaging import average_checkpoints as average\nfolder = {str(tmp_path)!r}\n"
        "average([folder + '/1.safetensors', folder + '/2.safetensors'], folder + '/average.safetensors')",
        blocked=("safetensors", "numpy", "rich", "tyro"),
    )
    assert done.returncode == 0, done.stderr
    assert load_file(tmp_path / "average.safetensors")["weight"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("keep", [0, 5, 8, 60, 0.5, -1])
def test_a_file_cut_short_is_named(tmp_path: Path, keep: float):
    whole = write(tmp_path / "1.safetensors", state(1)).read_bytes()
    cut = whole[: int(keep * len(whole)) if isinstance(keep, float) else keep]
    (tmp_path / "2.safetensors").write_bytes(cut)
    with pytest.raises(ValueError, match=r"2\.safetensors is damaged"):
        fit_together([tmp_path / "2.safetensors", tmp_path / "1.safetensors"])


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"not JSON", b""),
        (b"[" * 50_000, b""),
        ([1], b""),
        ({"a": 3}, b""),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
        ({"a": entry("F32", [1], 0, 8)}, b"12345678"),
        ({"a": entry("F32", [2], 0, 4)}, b"1234"),
        ({"a": entry("F32", [1], 4, 8)}, b"12345678"),
        ({"a": entry("F32", [-1], 0, -4)}, b""),
        ({"a": entry("F32", [2**62, 2**62], 0, 4)}, b"1234"),
        ({"a": entry("F32", [True], 0, 4)}, b"1234"),
        ({"a": entry("F32", [1], 0, 4)}, b"12345"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"1234"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, b"123456"),
        ({"__metadata__": [1], "a": entry("F32", [1], 0, 4)}, b"1234"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, data: bytes):
    path = raw_file(tmp_path / "1.safetensors", header, data)
    with pytest.raises(ValueError, match=r"1\.safetensors is damaged"):
        average_checkpoints([path, path], tmp_path / "average.safetensors")
    assert everything_in(tmp_path) == ["1.safetensors"]


def test_a_header_longer_than_the_file_is_refused_without_reading_it(tmp_path: Path):
    (tmp_path / "1.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(ValueError, match="damaged"):
        SafetensorsFile(tmp_path / "1.safetensors")


def test_an_unknown_type_is_named(tmp_path: Path):
    path = raw_file(tmp_path / "1.safetensors", {"a": entry("F4", [2], 0, 1)}, b"1")
    with pytest.raises(ValueError, match="the tensor 'a' is F4, which cannot be averaged; convert it first"):
        fit_together([path, path])


def test_a_file_that_shrinks_meanwhile_is_named(tmp_path: Path):
    path = write(tmp_path / "1.safetensors", {"weight": torch.ones(100)})
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-40])
    (piece,) = pieces((100,))
    with pytest.raises(ValueError, match="has become shorter while it was read"):
        file.read("weight", piece)
