"""What is written comes back bit for bit; what is damaged, foreign or hostile is refused and never executed."""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from states import example, same

from emabank import checkpoint as files
from emabank.checkpoint import read_state, write_state

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(
        lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
        shapes, st.sampled_from(DTYPES), st.integers(0, 99),
    )  # fmt: skip


KEYS = st.one_of(st.text(max_size=4), st.sampled_from(["/", "~", "~1", "a/b", "", "0", "__metadata__", "state"]))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), tensors())
STATES = st.dictionaries(
    KEYS,
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)),
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(state=STATES)
def test_trap44_any_state_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("state") / "file.pt"
    write_state(path, state, kind="test")
    assert same(read_state(path, kind="test"), state)


def test_trap07_odd_tensors_come_back(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    state = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "complex": torch.randn(3, dtype=torch.complex64),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "transposed": base.view(4, 6).t(),
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "window": base[3:5],
        "shared": base,
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    write_state(tmp_path / "f.pt", state, kind="test")
    loaded = read_state(tmp_path / "f.pt", kind="test")
    for key, tensor in state.items():
        assert torch.equal(loaded[key], tensor), key
        assert not loaded[key].requires_grad


def test_subclasses_of_plain_types_load_safely(tmp_path: Path) -> None:
    import numpy as np

    write_state(tmp_path / "f.pt", {"value": np.float64(0.5), "pair": (1, 2)}, kind="test")
    assert same(read_state(tmp_path / "f.pt", kind="test"), {"value": 0.5, "pair": [1, 2]})


# Damaged, foreign, hostile -------------------------------------------------------------------------------------------


def test_trap41_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.pt"
    write_state(path, example(), kind="test")
    intact = path.read_bytes()
    lengths = sorted({*range(0, len(intact), max(1, len(intact) // 300)), 1, 7, 8, 9, len(intact) - 1})
    for length in lengths:
        path.write_bytes(intact[:length])
        with pytest.raises(ValueError, match=path.name):
            read_state(path, kind="test")
    path.write_bytes(intact)
    assert same(read_state(path, kind="test"), example())


def test_trap41_a_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "f.pt"
    write_state(path, example(), kind="test")
    intact = path.read_bytes()
    refused = 0
    for position in range(0, len(intact), max(1, len(intact) // 400)):
        flipped = bytearray(intact)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            loaded = read_state(path, kind="test")
        except ValueError:
            refused += 1
        else:
            assert same(loaded, example()), position  # a zip file's padding and dates carry nothing
    assert refused > 50


def test_trap41_a_flipped_bit_in_a_tensor_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "f.pt"
    write_state(path, {"weight": torch.full((64,), 1.2345)}, kind="test")
    intact = bytearray(path.read_bytes())
    intact[intact.index(bytes(torch.full((1,), 1.2345).view(torch.uint8).tolist())) + 80] ^= 1
    path.write_bytes(intact)
    with pytest.raises(ValueError, match="checksum"):
        read_state(path, kind="test")


@pytest.mark.parametrize("view", [torch.zeros(1).expand(3), torch.zeros(9)[:3]], ids=["expanded", "window"])
def test_views_whose_copies_could_take_any_memory_are_refused(tmp_path: Path, view: torch.Tensor) -> None:
    path = tmp_path / "f.pt"
    write_state(path, {"weight": torch.zeros(3)}, kind="test")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "state": {"weight": view}}, path)  # the same values and checksum
    with pytest.raises(ValueError, match=r"f\.pt is damaged"):
        read_state(path, kind="test")


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_trap44_a_malicious_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    hostile = {"format": "emabank", "version": 1, "kind": "test", "checksum": 0, "state": Hostile(marker)}
    torch.save(hostile, tmp_path / "zip.pt")
    torch.save(hostile, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(hostile))
    write_state(tmp_path / "good.pt", example(), kind="test")
    with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(tmp_path / "swapped.pt", "w") as swapped:
        for name in good.namelist():
            swapped.writestr(name, pickle.dumps(hostile) if name.endswith("data.pkl") else good.read(name))
    shutil.copy(tmp_path / "bare.pt", tmp_path / "bare.safetensors")
    pickle.loads(pickle.dumps(Hostile(marker)))
    assert marker.exists()  # so it does run where pickles are trusted
    marker.unlink()
    for name in ("zip.pt", "legacy.pt", "bare.pt", "swapped.pt", "bare.safetensors"):
        with pytest.raises(ValueError, match=name):
            read_state(tmp_path / name, kind="test")
        assert not marker.exists(), name


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"\x80\x04.", bytes(range(256)) * 20])
def test_trap41_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"f\.pt is damaged"):
        read_state(tmp_path / "f.pt", kind="test")


def test_trap41_other_peoples_checkpoints_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.save({"weight": torch.ones(2)}, tmp_path / "theirs.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    save_file({"weight": torch.ones(2)}, tmp_path / "theirs.safetensors")
    shutil.copy(tmp_path / "theirs.safetensors", tmp_path / "renamed.pt")
    with zipfile.ZipFile(tmp_path / "archive.pt", "w") as archive:
        archive.writestr("notes.txt", "no tensors here")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ValueError, match=path.name):
            read_state(path, kind="test")


def test_trap41_newer_versions_and_other_kinds_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.pt"
    write_state(path, example(), kind="bank")
    with pytest.raises(ValueError, match=r"holds an emabank bank, not a snapshot"):
        read_state(path, kind="snapshot")
    monkeypatch.setattr(files, "VERSION", 2)
    write_state(path, example(), kind="bank")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version 2"):
        read_state(path, kind="bank")


def test_a_missing_file_stays_a_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        read_state(tmp_path / "none.pt", kind="test")
