"""Writing: what cannot be saved is named, a file is whole or the old one, and a full disk changes nothing."""

import errno
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from states import example, same

from emabank.checkpoint import (
    SAFETENSORS_DTYPES,
    read_state,
    write_atomically,
    write_safetensors,
    write_state,
    write_torch,
)


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
    assert same(read_state(tmp_path / "folder" / "f.pt", kind="test"), example())


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
    assert same(read_state(path, kind="test"), example())
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
