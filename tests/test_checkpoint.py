"""checkpoint.py: what is saved comes back bit for bit; damage, faults of the disk and foreign files are named."""

import errno
import os
import pickle
import random
import resource
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from emabank import EMA, EMABank, PowerEMA, Uniform, recalibrate_batchnorm
from emabank import checkpoint as files
from emabank.atomic import write_atomically
from emabank.checkpoint import (
    SAFETENSORS_DTYPES,
    export,
    load,
    read_state,
    save,
    write_safetensors,
    write_state,
    write_torch,
)
from tests.support.oracle import states_equal

SUFFIXES = (".pt", ".safetensors")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def bank_of(model: nn.Module, **options: Any) -> EMABank:
    averages = [0.96, EMA(half_life=17, warmup="updates"), Uniform(), PowerEMA(0.1)]
    return EMABank(model, averages, **{"every": 3, **options})


def train(model: nn.Module, bank: EMABank, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()


def everything(bank: EMABank) -> dict[str, dict[str, Tensor]]:
    return {name: bank.weights(name) for name in bank.names}


assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


# A whole bank --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [0, 1, 3, 7, 12])
def test_trap40_a_run_split_anywhere_equals_the_whole_run(tmp_path: Path, split: int) -> None:
    whole = network()
    bank = bank_of(whole)
    train(whole, bank, range(14))

    first = network()
    first_bank = bank_of(first)
    train(first, first_bank, range(split))
    save(first_bank, tmp_path / "bank.pt")
    second = network()
    second.load_state_dict(first.state_dict())
    second_bank = bank_of(second)
    load(second_bank, tmp_path / "bank.pt")
    train(second, second_bank, range(split, 14))

    assert_same(everything(second_bank), everything(bank))
    assert (second_bank.num_steps, second_bank.num_updates) == (bank.num_steps, bank.num_updates)


@pytest.mark.parametrize(
    "other",
    [
        lambda: EMABank(network(), [0.96], every=3),
        lambda: bank_of(network(), every=4),
        lambda: bank_of(nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2))),
        lambda: bank_of(nn.Sequential(nn.Linear(4, 6))),
    ],
    ids=["averages", "period", "shapes", "keys"],
)
def test_trap41_a_bank_that_does_not_fit_is_refused_unchanged(tmp_path: Path, other: Callable[[], EMABank]) -> None:
    model = network()
    bank = bank_of(model)
    train(model, bank, range(5))
    save(bank, tmp_path / "bank.pt")
    target = other()
    before = everything(target)
    with pytest.raises(ValueError, match=r"\w"):
        load(target, tmp_path / "bank.pt")
    assert_same(everything(target), before)
    assert target.num_steps == 0


def test_trap41_a_damaged_file_leaves_the_bank_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "bank.pt"
    model = network()
    bank = bank_of(model)
    train(model, bank, range(5))
    save(bank, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    before = everything(bank)
    with pytest.raises(ValueError, match=path.name):
        load(bank, path)
    assert_same(everything(bank), before)


def test_trap42_loading_keeps_dtype_and_device(tmp_path: Path) -> None:
    narrow = bank_of(network())
    wide = bank_of(network(), dtype=torch.float64)
    train(network(), narrow, range(3))
    save(narrow, tmp_path / "bank.pt")
    load(wide, tmp_path / "bank.pt")
    assert wide.weights(0.96)["0.weight"].dtype == torch.float64
    assert wide.weights(0.96)["0.weight"].device == torch.device("cpu")


def test_trap43_a_loaded_bank_is_not_tied_to_the_file(tmp_path: Path) -> None:
    model = network()
    bank = bank_of(model)
    train(model, bank, range(4))
    save(bank, tmp_path / "bank.pt")
    content = (tmp_path / "bank.pt").read_bytes()
    other = bank_of(network())
    load(other, tmp_path / "bank.pt")
    train(network(), other, range(4, 9))
    assert (tmp_path / "bank.pt").read_bytes() == content


def test_trap34_saving_while_an_average_is_applied_is_refused(tmp_path: Path) -> None:
    bank = bank_of(network())
    with bank.applied(0.96), pytest.raises(RuntimeError, match="applied"):
        save(bank, tmp_path / "bank.pt")
    assert not list(tmp_path.iterdir())


def test_trap44_plain_torch_load_reads_it_safely(tmp_path: Path) -> None:
    bank = bank_of(network())
    save(bank, tmp_path / "bank.pt")
    content = torch.load(tmp_path / "bank.pt", weights_only=True)
    other = bank_of(network())
    other.load_state_dict(content["state"])
    assert_same(everything(other), everything(bank))


def test_trap44_a_state_dict_saved_by_hand_is_explained(tmp_path: Path) -> None:
    bank = bank_of(network())
    torch.save(bank.state_dict(), tmp_path / "own.pt")
    with pytest.raises(ValueError, match=r"own\.pt was not written by emabank\.checkpoint.*bank\.load_state_dict"):
        load(bank, tmp_path / "own.pt")
    write_state(tmp_path / "snapshot.pt", {}, kind="snapshot")
    with pytest.raises(ValueError, match="holds an emabank snapshot, not a bank"):
        load(bank, tmp_path / "snapshot.pt")


# One average ---------------------------------------------------------------------------------------------------------


def read_plain(path: Path) -> dict[str, Any]:
    """As a user without emabank would."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", [0.96, "uniform", "live"])
def test_trap45_one_average_loads_into_the_users_model(tmp_path: Path, suffix: str, name: str | float) -> None:
    model = network()
    bank = bank_of(model)
    train(model, bank, range(10))
    path = tmp_path / "new" / f"average{suffix}"
    export(bank, name, path)
    fresh = network()
    fresh.load_state_dict(read_plain(path))
    expected = bank.weights(name)
    for key, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, expected[key].to(tensor.dtype)), key


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap45_dtype_is_for_floating_tensors_only(tmp_path: Path, suffix: str) -> None:
    bank = bank_of(network())
    export(bank, 0.96, tmp_path / f"half{suffix}", dtype=torch.bfloat16)
    loaded = read_plain(tmp_path / f"half{suffix}")
    assert {key for key, tensor in loaded.items() if tensor.dtype != torch.bfloat16} == {"1.num_batches_tracked"}
    assert loaded["1.num_batches_tracked"].dtype == torch.int64
    assert torch.equal(loaded["0.weight"], bank.weights(0.96)["0.weight"].bfloat16())
    with pytest.raises(ValueError, match="^dtype must .* got torch.int8"):
        export(bank, 0.96, tmp_path / f"int{suffix}", dtype=torch.int8)


def test_trap45_without_dtype_the_precision_is_the_stored_one(tmp_path: Path) -> None:
    bank = bank_of(network().bfloat16(), every=1)
    bank.update()
    export(bank, 0.96, tmp_path / "average.pt")
    assert read_plain(tmp_path / "average.pt")["0.weight"].dtype == torch.float32


def test_trap49_a_cast_that_overflows_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 1e5)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    bank = EMABank(model, [0.96])
    with pytest.raises(ValueError, match=r"'weight' holds values that torch\.float16 cannot represent"):
        export(bank, 0.96, tmp_path / "half.pt", dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    export(bank, 0.96, tmp_path / "wide.pt", dtype=torch.float64)
    assert read_plain(tmp_path / "wide.pt")["mask"].tolist() == [0.0, -torch.inf]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 50)
        self.head = nn.Linear(50, 100, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap11_tied_tensors_have_both_keys(tmp_path: Path, suffix: str, dtype: torch.dtype | None) -> None:
    bank = EMABank(Tied(), [0.96])
    export(bank, 0.96, tmp_path / f"tied{suffix}", dtype=dtype)
    loaded = read_plain(tmp_path / f"tied{suffix}")
    assert sorted(loaded) == ["embedding.weight", "head.weight"]
    Tied().load_state_dict(loaded)
    if suffix == ".pt":  # stored once
        assert loaded["embedding.weight"].data_ptr() == loaded["head.weight"].data_ptr()
        assert (tmp_path / "tied.pt").stat().st_size < 1.5 * loaded["head.weight"].nbytes


class WithExtraState(nn.Linear):
    def __init__(self, extra: object) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> object:
        return self.extra

    def set_extra_state(self, state: object) -> None:
        self.extra = state


def test_extra_state_is_kept_where_it_loads_safely(tmp_path: Path) -> None:
    bank = EMABank(WithExtraState({"scale": 3}), [0.96])
    export(bank, 0.96, tmp_path / "extra.pt")
    model = WithExtraState(None)
    model.load_state_dict(torch.load(tmp_path / "extra.pt", weights_only=True))
    assert model.extra == {"scale": 3}
    with pytest.raises(ValueError, match=r"The safetensors format holds tensors only, and _extra_state.*'\.pt'"):
        export(bank, 0.96, tmp_path / "extra.safetensors")
    with pytest.raises(ValueError, match=r"'_extra_state' of the model's state is a .*Path.*get_extra_state"):
        export(EMABank(WithExtraState(Path("x")), [0.96]), 0.96, tmp_path / "unsafe.pt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["extra.pt"]


def test_recomputed_statistics_are_exported_unless_averaged_ones_are_asked_for(tmp_path: Path) -> None:
    bank = bank_of(network())
    recalibrate_batchnorm(bank, [torch.randn(9, 4)])
    export(bank, 0.96, tmp_path / "averaged.pt", batchnorm="averaged")
    export(bank, 0.96, tmp_path / "recomputed.pt")
    assert read_plain(tmp_path / "averaged.pt")["1.running_mean"].tolist() == [0.0] * 6
    recomputed = bank.weights(0.96, batchnorm="recomputed")["1.running_mean"]
    assert recomputed.tolist() != [0.0] * 6
    assert torch.equal(read_plain(tmp_path / "recomputed.pt")["1.running_mean"], recomputed)


def test_an_average_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"ema-0\.9"):
        export(bank_of(network()), 0.5, tmp_path / "none.pt")
    assert not list(tmp_path.iterdir())


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
def test_trap44_any_state_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("state") / "file.pt"
    write_state(path, state, kind="test")
    assert states_equal(read_state(path, kind="test"), state)


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
    assert states_equal(read_state(tmp_path / "f.pt", kind="test"), {"value": 0.5, "pair": [1, 2]})


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


# Writing --------------------------------------------------------------------------------------------------------------


def only(folder: Path, *names: str) -> bool:
    return sorted(entry.name for entry in folder.iterdir()) == sorted(names)


# What is written -----------------------------------------------------------------------------------------------------


def test_a_window_into_a_large_storage_is_written_alone(tmp_path: Path) -> None:
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
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_state(tmp_path / "f.pt", state, kind="test")
    assert not list(tmp_path.iterdir())


def test_a_whole_state_is_not_written_as_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^path must .* got .*f\.safetensors"):
        write_state(tmp_path / "f.safetensors", {"a": torch.zeros(2)}, kind="test")
    assert not list(tmp_path.iterdir())


def test_safetensors_says_what_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a' is torch.complex128"):
        write_safetensors(tmp_path / "f.safetensors", {"a": torch.zeros(2, dtype=torch.complex128)}, {})


# Atomic writing ------------------------------------------------------------------------------------------------------


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "f.txt", lambda temporary: temporary.write_text("new"))
    assert (tmp_path / "a" / "b" / "f.txt").read_text() == "new"
    assert only(tmp_path / "a" / "b", "f.txt")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"The folder for f.pt cannot be made.*file/below"):
        write_atomically(tmp_path / "file" / "below" / "f.pt", Path.touch)


@pytest.mark.parametrize(
    "wrong", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), KeyError("x")]
)
def test_trap30_a_failed_write_leaves_the_old_file(tmp_path: Path, wrong: BaseException) -> None:
    path = tmp_path / "f.txt"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("ne")
        raise wrong

    with pytest.raises(type(wrong)) as caught:
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert only(tmp_path, "f.txt")
    if isinstance(caught.value, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert "No space left on device" in str(caught.value)
        assert str(path) in str(caught.value)


def test_the_file_is_on_the_disk_before_it_takes_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latest.pt").symlink_to(tmp_path / "folder" / "f.pt")
    write_state(tmp_path / "latest.pt", example(), kind="test")
    assert (tmp_path / "latest.pt").is_symlink()
    assert states_equal(read_state(tmp_path / "folder" / "f.pt", kind="test"), example())


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_state(tmp_path / "f.pt", example(), kind="test")
    assert (tmp_path / "f.pt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="Only a regular file can be replaced"):
            write_atomically(path, lambda temporary: temporary.write_text("x"))
    assert only(tmp_path, "pipe")


def test_trap40_files_leave_the_random_state_alone(tmp_path: Path) -> None:
    state = example()
    before, before_torch = random.getstate(), torch.get_rng_state()
    write_state(tmp_path / "f.pt", state, kind="test")
    read_state(tmp_path / "f.pt", kind="test")
    assert random.getstate() == before
    assert torch.equal(torch.get_rng_state(), before_torch)


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
    assert only(tmp_path, path.name)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_torch_on_a_full_device_says_so() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_torch(Path("/dev/full"), {"large": torch.zeros(100_000)})


ON_A_FULL_DISK = """
import errno, sys, torch
from pathlib import Path
from emabank.checkpoint import read_state, write_state
path = Path(sys.argv[1], "f.pt")
write_state(path, {"old": torch.ones(3)}, kind="test")
try:
    write_state(path, {"large": torch.zeros(1_000_000)}, kind="test")
except OSError as error:
    assert error.errno == errno.ENOSPC, error
else:
    raise AssertionError("it fitted")
assert torch.equal(read_state(path, kind="test")["old"], torch.ones(3))
assert [entry.name for entry in Path(sys.argv[1]).iterdir()] == ["f.pt"]
print("as it should be")
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    # A mount of its own name space: nothing of it is seen outside or left behind.
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    ready = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    if not shutil.which("unshare") or subprocess.run([*mount, ready], capture_output=True, check=False).returncode:
        pytest.skip("no name space with a small file system can be made here")
    script = f'{ready}; exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run([*mount, script, sys.executable, ON_A_FULL_DISK], capture_output=True, text=True, check=False)
    assert done.stdout == "as it should be\n", done.stderr
    assert only(tmp_path)


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
