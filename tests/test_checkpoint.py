"""checkpoint.py: states are restored bit for bit; damaged files, foreign files and disk errors are named."""

import errno
import os
import pickle
import random
import resource
import shutil
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from emabank import EMA, EMABank, recalibrate_batchnorm
from emabank.atomic import write_atomically
from emabank.checkpoint import (
    SAFETENSORS_DTYPES,
    export,
    load,
    read_state,
    save,
    write_safetensors,
    write_state,
)
from tests.support.files import everything_in, read
from tests.support.models import Tied, build, small_bank, train
from tests.support.oracle import AVERAGES, states_equal

SUFFIXES = (".pt", ".safetensors")


# A whole bank --------------------------------------------------------------------------------------------------------


def test_trap34_trap40_trap44_a_saved_bank_is_restored_exactly(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bank.pt"
    model, bank = small_bank(AVERAGES, every=3)
    train(model, 7, bank.update)
    with bank.applied("plain"), pytest.raises(RuntimeError, match="applied"):
        save(bank, path)
    assert everything_in(tmp_path) == []
    save(bank, path)
    _, loaded = small_bank(AVERAGES, every=3)
    load(loaded, path)
    assert states_equal(loaded.state_dict(), bank.state_dict())
    assert states_equal(torch.load(path, weights_only=True)["state"], bank.state_dict())  # without emabank
    assert everything_in(tmp_path / "new") == ["bank.pt"]


def test_trap41_files_without_a_bank_are_refused(tmp_path: Path) -> None:
    _, bank = small_bank()
    torch.save(bank.state_dict(), tmp_path / "own.pt")
    with pytest.raises(ValueError, match=r"own\.pt was not written by emabank\.checkpoint.*bank\.load_state_dict"):
        load(bank, tmp_path / "own.pt")
    write_state(tmp_path / "snapshot.pt", {}, kind="snapshot")
    with pytest.raises(ValueError, match="holds an emabank snapshot, not a bank"):
        load(bank, tmp_path / "snapshot.pt")
    with pytest.raises(FileNotFoundError, match="none"):
        load(bank, tmp_path / "none.pt")
    with pytest.raises(ValueError, match=r"^path must .* got .*f\.safetensors"):
        save(bank, tmp_path / "f.safetensors")


# One average ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", [0.9, "live"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_trap45_one_average_loads_into_the_users_model(
    tmp_path: Path, suffix: str, name: str | float, dtype: torch.dtype | None
) -> None:
    model = build("mlp").bfloat16() if dtype is None else build("mlp")
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    with torch.no_grad():
        model[0].weight += 1
    bank.update()
    export(bank, name, tmp_path / f"average{suffix}", dtype=dtype)
    content, expected = read(tmp_path / f"average{suffix}"), bank.weights(name)
    assert {key: value.dtype for key, value in content.items()} == {
        key: dtype if dtype and value.is_floating_point() else value.dtype for key, value in expected.items()
    }
    fresh = build("mlp", seed=1)
    fresh.load_state_dict(content)
    for key, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, expected[key].to(content[key].dtype).to(tensor.dtype)), key


def test_invalid_exports_write_nothing(tmp_path: Path) -> None:
    _, bank = small_bank()
    with pytest.raises(KeyError, match=r"ema-0\.9"):
        export(bank, 0.5, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="^dtype must .* got torch.int8"):
        export(bank, 0.9, tmp_path / "int.pt", dtype=torch.int8)
    with pytest.raises(ValueError, match="is torch.complex128, which"):
        export(EMABank(nn.Linear(2, 1, dtype=torch.complex128), [0.9]), 0.9, tmp_path / "complex.safetensors")
    assert everything_in(tmp_path) == []


def test_recomputed_statistics_are_exported_by_default(tmp_path: Path) -> None:
    _, bank = small_bank()
    recalibrate_batchnorm(bank, [torch.randn(9, 6)])
    export(bank, 0.9, tmp_path / "averaged.pt", batchnorm="averaged")
    export(bank, 0.9, tmp_path / "recomputed.pt")
    for kind in ("averaged", "recomputed"):
        assert states_equal(dict(read(tmp_path / f"{kind}.pt")), bank.weights(0.9, batchnorm=kind))
    assert not states_equal(read(tmp_path / "averaged.pt"), read(tmp_path / "recomputed.pt"))


def test_trap49_a_cast_that_overflows_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 1e5)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    bank = EMABank(model, [0.96])
    with pytest.raises(ValueError, match=r"'weight' holds values that torch\.float16 cannot represent"):
        export(bank, 0.96, tmp_path / "half.pt", dtype=torch.float16)
    assert everything_in(tmp_path) == []
    export(bank, 0.96, tmp_path / "wide.pt", dtype=torch.float64)
    assert read(tmp_path / "wide.pt")["mask"].tolist() == [0.0, -torch.inf]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap11_tied_tensors_have_both_keys(tmp_path: Path, suffix: str, dtype: torch.dtype | None) -> None:
    bank = EMABank(Tied(), [0.96])
    export(bank, 0.96, tmp_path / f"tied{suffix}", dtype=dtype)
    content = read(tmp_path / f"tied{suffix}")
    assert sorted(content) == ["embed.weight", "out.weight"]
    Tied().load_state_dict(content)
    if suffix == ".pt":  # stored once
        assert content["embed.weight"].data_ptr() == content["out.weight"].data_ptr()


class WithExtraState(nn.Linear):
    def __init__(self, extra: object) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> object:
        return self.extra

    def set_extra_state(self, state: object) -> None:
        self.extra = state


def test_extra_state_is_exported_only_if_it_loads_safely(tmp_path: Path) -> None:
    bank = EMABank(WithExtraState({"scale": 3}), [0.96])
    export(bank, 0.96, tmp_path / "extra.pt")
    model = WithExtraState(None)
    model.load_state_dict(torch.load(tmp_path / "extra.pt", weights_only=True))
    assert model.extra == {"scale": 3}
    with pytest.raises(ValueError, match=r"The safetensors format holds only tensors, but _extra_state.*'\.pt'"):
        export(bank, 0.96, tmp_path / "extra.safetensors")
    with pytest.raises(ValueError, match=r"'_extra_state' of the model's state is a .*Path.*get_extra_state"):
        export(EMABank(WithExtraState(Path("x")), [0.96]), 0.96, tmp_path / "unsafe.pt")
    assert everything_in(tmp_path) == ["extra.pt"]


# Reading --------------------------------------------------------------------------------------------------------------


def example() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "steps": 17,
        "decay": 0.998,
        "none": None,
        "averages": {"ema-0.998": {"layer.weight": torch.randn(70, 50), "mask": torch.tensor([True, False])}},
        "list": [1, "two", [torch.arange(3)], {}],
    }


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
def test_trap44_any_state_is_restored_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("state") / "file.pt"
    random_states = random.getstate(), torch.get_rng_state().tolist()
    write_state(path, state, kind="test")
    assert states_equal(read_state(path, kind="test"), state)
    assert (random.getstate(), torch.get_rng_state().tolist()) == random_states  # trap 40


def test_trap07_odd_tensors_are_restored(tmp_path: Path) -> None:
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


# Damaged, foreign, hostile -------------------------------------------------------------------------------------------


def test_trap41_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.pt"
    write_state(path, example(), kind="test")
    intact = path.read_bytes()
    lengths = sorted({*range(0, len(intact), max(1, len(intact) // 300)), 1, 7, 8, 9, len(intact) - 1})
    for length in lengths:
        path.write_bytes(intact[:length])
        with pytest.raises(ValueError, match=path.name):
            read_state(path, kind="test")
    path.write_bytes(intact)
    assert states_equal(read_state(path, kind="test"), example())


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
            assert states_equal(loaded, example()), position  # a zip file's padding and dates carry nothing
    assert refused > 50


@pytest.mark.parametrize("view", [torch.zeros(1).expand(3), torch.zeros(9)[:3]], ids=["expanded", "window"])
def test_views_whose_copies_could_be_huge_are_refused(tmp_path: Path, view: torch.Tensor) -> None:
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
    assert marker.exists()  # a trusted pickle does run
    marker.unlink()
    for name in ("zip.pt", "legacy.pt", "bare.pt", "swapped.pt", "bare.safetensors"):
        with pytest.raises(ValueError, match=name):
            read_state(tmp_path / name, kind="test")
        assert not marker.exists(), name


def test_trap41_foreign_files_are_refused(tmp_path: Path) -> None:
    for number, content in enumerate([b"", b"hello", b"PK\x03\x04", b"\x80\x04.", bytes(range(256)) * 20]):
        (tmp_path / f"bytes-{number}.pt").write_bytes(content)
    torch.save({"weight": torch.ones(2)}, tmp_path / "theirs.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    save_file({"weight": torch.ones(2)}, tmp_path / "theirs.safetensors")
    with zipfile.ZipFile(tmp_path / "archive.pt", "w") as archive:
        archive.writestr("notes.txt", "no tensors here")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ValueError, match=path.name):
            read_state(path, kind="test")


def test_trap41_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.pt"
    monkeypatch.setattr("emabank.checkpoint.VERSION", 2)
    write_state(path, example(), kind="bank")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version 2"):
        read_state(path, kind="bank")


# Writing -------------------------------------------------------------------------------------------------------------


def test_a_slice_is_written_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    write_state(tmp_path / "f.pt", {"window": torch.zeros(1_000_000)[:3]}, kind="test")
    assert (tmp_path / "f.pt").stat().st_size < 10_000


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {1: 2}}, "Keys in /a must be strings .* got 1"),
        ({"a": {3}}, "'/a' must be .* got a set"),
        ({"a": torch.zeros(2).to_sparse()}, "'/a' must be .* got a Tensor of layout torch.sparse_coo"),
    ],
)
def test_an_unsupported_value_is_named_and_nothing_is_written(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_state(tmp_path / "f.pt", state, kind="test")
    assert everything_in(tmp_path) == []


# Atomic writing ------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"The folder for f.pt cannot be made.*file/below"):
        write_atomically(tmp_path / "file" / "below" / "f.pt", Path.touch)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), KeyError("x")]
)
def test_trap30_a_failed_write_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "f.txt"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("ne")
        raise error

    with pytest.raises(type(error)) as caught:
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert everything_in(tmp_path) == ["f.txt"]
    if isinstance(caught.value, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert "No space left on device" in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_file_is_synced_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        events.append("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        fsync(descriptor)

    def record_replace(a: Any, b: Any) -> None:
        events.append("replace")
        replace(a, b)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_atomically(tmp_path / "f", lambda temporary: temporary.write_text("x"))
    assert events == ["fsync file", "replace", "fsync folder"]


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latest.pt").symlink_to(tmp_path / "folder" / "f.pt")
    write_state(tmp_path / "latest.pt", example(), kind="test")
    assert (tmp_path / "latest.pt").is_symlink()
    assert states_equal(read_state(tmp_path / "folder" / "f.pt", kind="test"), example())


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="Only a regular file can be replaced"):
            write_atomically(path, lambda temporary: temporary.write_text("x"))
    assert everything_in(tmp_path) == ["pipe"]


# A full disk ---------------------------------------------------------------------------------------------------------


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "f.pt"
    write_state(path, example(), kind="test")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"f.pt") as caught:
            write_state(path, {"large": torch.zeros(100_000)}, kind="test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert "what was there before is unchanged" in str(caught.value)
    assert states_equal(read_state(path, kind="test"), example())
    assert everything_in(tmp_path) == [path.name]


# safetensors ---------------------------------------------------------------------------------------------------------


def test_the_package_safetensors_reads_every_dtype_layout_and_name(tmp_path: Path) -> None:
    tensors = {f"{dtype}": torch.tensor([0, 1, 1]).to(dtype) for dtype in SAFETENSORS_DTYPES.values()}
    tensors |= {'"ü"': torch.arange(6.0).view(2, 3).t(), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    tensors |= {"conjugate": torch.tensor([1 + 2j]).conj(), "window": torch.arange(99)[7:9]}
    write_safetensors(tmp_path / "f.safetensors", tensors, {"format": "pt", "épochs": "3"})
    loaded = load_file(tmp_path / "f.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].tolist() == tensor.tolist(), name
    with safe_open(tmp_path / "f.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "épochs": "3"}


def test_equal_tensors_make_equal_safetensors_files(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(5), "w": torch.ones(2, 2)}
    write_safetensors(tmp_path / "1.safetensors", tensors, {"format": "pt"})
    write_safetensors(tmp_path / "2.safetensors", dict(reversed(tensors.items())), {"format": "pt"})
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()
