"""Files: what is written comes back bit for bit; what is damaged, foreign or hostile is refused and never executed."""

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
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emabank import files
from emabank.files import read_state, write_atomically, write_state, write_torch

SUFFIXES = (".pt", ".safetensors")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)  # so that NaN equals NaN


def example() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "steps": 17,
        "decay": 0.998,
        "none": None,
        "averages": {"ema-0.998": {"layer.weight": torch.randn(70, 50), "mask": torch.tensor([True, False])}},
        "list": [1, "two", [torch.arange(3)], {}],
    }


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


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(deadline=None, max_examples=60)
@given(state=STATES)
def test_trap44_any_state_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, state: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("state") / f"file{suffix}"
    write_state(path, state, kind="test")
    assert same(read_state(path, kind="test"), state)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap07_odd_tensors_come_back(tmp_path: Path, suffix: str) -> None:
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
    write_state(tmp_path / f"f{suffix}", state, kind="test")
    loaded = read_state(tmp_path / f"f{suffix}", kind="test")
    for key, tensor in state.items():
        assert torch.equal(loaded[key], tensor), key
        assert not loaded[key].requires_grad


def test_a_window_into_a_large_storage_is_written_alone(tmp_path: Path) -> None:
    write_state(tmp_path / "f.pt", {"window": torch.zeros(1_000_000)[:3]}, kind="test")
    assert (tmp_path / "f.pt").stat().st_size < 10_000


def test_subclasses_of_plain_types_load_safely(tmp_path: Path) -> None:
    import numpy as np

    write_state(tmp_path / "f.pt", {"value": np.float64(0.5), "pair": (1, 2)}, kind="test")
    assert same(read_state(tmp_path / "f.pt", kind="test"), {"value": 0.5, "pair": [1, 2]})


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": {1: 2}}, "the key 1 in /a is not a string"),
        ({"a": {3}}, "a set at /a"),
        ({"a": torch.zeros(2).to_sparse()}, "/a is a Tensor of layout torch.sparse_coo"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path: Path, state: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_state(tmp_path / "f.pt", state, kind="test")
    assert not list(tmp_path.iterdir())


def test_safetensors_says_what_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"complex128; use a '\.pt' file"):
        write_state(tmp_path / "f.safetensors", {"a": torch.zeros(2, dtype=torch.complex128)}, kind="test")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_safetensors_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_state(path, example(), kind="test")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    if suffix == ".pt":
        assert same(read_state(path, kind="test"), example())
        return
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_state(path, kind="test")
    with pytest.raises(ImportError, match="pip install safetensors"):
        write_state(path, example(), kind="test")


# Damaged, foreign, hostile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap41_cut_short_anywhere_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_state(path, example(), kind="test")
    whole = path.read_bytes()
    lengths = sorted({*range(0, len(whole), max(1, len(whole) // 300)), 1, 7, 8, 9, len(whole) - 1})
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=path.name):
            read_state(path, kind="test")
    path.write_bytes(whole)
    assert same(read_state(path, kind="test"), example())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap41_a_flipped_bit_is_refused_or_harmless(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_state(path, example(), kind="test")
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), max(1, len(whole) // 400)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            loaded = read_state(path, kind="test")
        except ValueError:
            refused += 1
        else:
            assert same(loaded, example()), place  # a zip file's padding and dates carry nothing
    assert refused > 50


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap41_a_flipped_bit_in_a_tensor_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_state(path, {"weight": torch.full((64,), 1.2345)}, kind="test")
    whole = bytearray(path.read_bytes())
    whole[whole.index(bytes(torch.full((1,), 1.2345).view(torch.uint8).tolist())) + 80] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="checksum"):
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
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap41_foreign_files_are_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"f{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"f{suffix} is damaged, cut short or not a file of emabank"):
        read_state(tmp_path / f"f{suffix}", kind="test")


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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap41_newer_versions_and_other_kinds_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"f{suffix}"
    write_state(path, example(), kind="bank")
    with pytest.raises(ValueError, match=r"holds an emabank bank, not a snapshot"):
        read_state(path, kind="snapshot")
    monkeypatch.setattr(files, "VERSION", 2)
    write_state(path, example(), kind="bank")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"format version 2 and this emabank reads up to 1; upgrade emabank"):
        read_state(path, kind="bank")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_stays_a_file_not_found(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        read_state(tmp_path / f"none{suffix}", kind="test")


# Atomic writing ------------------------------------------------------------------------------------------------------


def only(folder: Path, *names: str) -> bool:
    return sorted(entry.name for entry in folder.iterdir()) == sorted(names)


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "f.txt", lambda temporary: temporary.write_text("new"))
    assert (tmp_path / "a" / "b" / "f.txt").read_text() == "new"
    assert only(tmp_path / "a" / "b", "f.txt")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"the folder for f.pt cannot be made.*file/below"):
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
    (tmp_path / "there").mkdir()
    (tmp_path / "latest.pt").symlink_to(tmp_path / "there" / "f.pt")
    write_state(tmp_path / "latest.pt", example(), kind="test")
    assert (tmp_path / "latest.pt").is_symlink()
    assert same(read_state(tmp_path / "there" / "f.pt", kind="test"), example())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "plain").write_text("")
    write_state(tmp_path / f"f{suffix}", example(), kind="test")
    assert (tmp_path / f"f{suffix}").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="only a regular file can be replaced"):
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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_state(path, example(), kind="test")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"f{suffix}") as caught:
            write_state(path, {"large": torch.zeros(100_000)}, kind="test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert "what was there before is unchanged" in str(caught.value)
    assert same(read_state(path, kind="test"), example())
    assert only(tmp_path, path.name)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_torch_on_a_full_device_says_so() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_torch(Path("/dev/full"), {"large": torch.zeros(100_000)})


ON_A_FULL_DISK = """
import errno, sys, torch
from pathlib import Path
from emabank.files import read_state, write_state
for suffix in (".pt", ".safetensors"):
    path = Path(sys.argv[1], "f" + suffix)
    write_state(path, {"old": torch.ones(3)}, kind="test")
    try:
        write_state(path, {"large": torch.zeros(1_000_000)}, kind="test")
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise AssertionError("it fitted")
    assert torch.equal(read_state(path, kind="test")["old"], torch.ones(3))
assert sorted(entry.name for entry in Path(sys.argv[1]).iterdir()) == ["f.pt", "f.safetensors"]
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
