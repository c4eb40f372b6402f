"""The output is complete or absent, never replaces a file without permission, and never an input."""

import errno
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emabank.averaging import average_checkpoints
from tests.support.files import assert_average, everything_in, mean, read, state, write, write_all
from tests.support.oracle import assert_equal


def write_files(folder: Path, suffix: str = ".pt") -> list[Path]:
    return write_all(folder, suffix, [state(1), state(2)])


def write_folders(folder: Path) -> list[Path]:
    for step in (1, 2):
        write(folder / f"checkpoint-{step}" / "model.safetensors", state(step))
        (folder / f"checkpoint-{step}" / "config.json").write_text(str(step))
    return [folder / f"checkpoint-{step}" for step in (1, 2)]


AVERAGE = mean([state(1), state(2)])


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path, suffix: str):
    paths, out = write_files(tmp_path, suffix), tmp_path / f"average{suffix}"
    out.write_text("precious")
    with pytest.raises(FileExistsError):
        average_checkpoints(paths, out)
    assert out.read_text() == "precious"
    average_checkpoints(paths, out, replace_out=True)
    assert_average(read(out), AVERAGE)
    assert len(everything_in(tmp_path)) == 3


def test_an_existing_folder_is_replaced_only_on_request_and_if_a_checkpoint(tmp_path: Path):
    paths, out = write_folders(tmp_path), tmp_path / "average"
    write(out / "model.safetensors", state(5))
    (out / "old.json").touch()
    with pytest.raises(FileExistsError):
        average_checkpoints(paths, out)
    average_checkpoints(paths, out, replace_out=True)
    assert everything_in(out) == ["config.json", "model.safetensors"]
    assert_average(read(out / "model.safetensors"), AVERAGE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["average", "checkpoint-1", "checkpoint-2"]
    (out / "photos").mkdir()
    (tmp_path / "home").mkdir()
    for other in (out, tmp_path / "home"):
        with pytest.raises(ValueError, match=f"{other.name} is not a folder with just one checkpoint"):
            average_checkpoints(paths, other, replace_out=True)


def test_an_input_is_never_replaced(tmp_path: Path):
    paths, inputs = write_files(tmp_path / "files"), write_folders(tmp_path / "folders")
    (tmp_path / "link.pt").symlink_to(paths[0])
    for out in (paths[0], tmp_path / "files" / ".." / "files" / "step-1.pt", tmp_path / "link.pt"):
        with pytest.raises(ValueError, match="^out must not overwrite an input"):
            average_checkpoints(paths, out, replace_out=True)
    for out in (inputs[0], inputs[1] / "average", tmp_path / "folders"):
        with pytest.raises(ValueError, match="^out must not overwrite an input"):
            average_checkpoints(inputs, out, replace_out=True)


def test_the_name_of_the_output_must_match_the_layout(tmp_path: Path):
    for out in ("average.safetensors", "average"):
        with pytest.raises(ValueError, match=rf"^out must end in \.pt .* got {out}"):
            average_checkpoints(write_files(tmp_path), tmp_path / out)
    with pytest.raises(ValueError, match=r"^out must end in \.safetensors, .* got average\.pt"):
        average_checkpoints(write_files(tmp_path, ".safetensors"), tmp_path / "average.pt")
    with pytest.raises(ValueError, match=r"^out must be a folder, .* average\.pt"):
        average_checkpoints(write_folders(tmp_path), tmp_path / "average.pt")
    (tmp_path / "average").touch()
    with pytest.raises(ValueError, match="average is a file and the average is a folder"):
        average_checkpoints(write_folders(tmp_path), tmp_path / "average", replace_out=True)
    (tmp_path / "average.pt").mkdir()
    with pytest.raises(ValueError, match=r"average\.pt is a folder and the average is a file"):
        average_checkpoints(write_files(tmp_path), tmp_path / "average.pt", replace_out=True)


def raise_at_call(number: int, error: BaseException) -> Callable[[int, int], None]:
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise error

    return progress


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=["^C", "full"]
)
@pytest.mark.parametrize("kind", [".pt", ".safetensors", "folder"])
@pytest.mark.parametrize("exists", [False, True])
def test_an_interrupt_or_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, error: BaseException, kind: str, exists: bool
):
    paths = write_folders(tmp_path) if kind == "folder" else write_files(tmp_path, kind)
    out = tmp_path / ("average" if kind == "folder" else f"average{kind}")
    weights = out / "model.safetensors" if kind == "folder" else out
    if exists:
        write(weights, state(5))
    before = everything_in(tmp_path)
    with pytest.raises(type(error)) as caught:
        average_checkpoints(paths, out, replace_out=True, progress=raise_at_call(3, error))
    assert everything_in(tmp_path) == before
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(out) and caught.value.errno == errno.ENOSPC
    if exists:
        assert_equal(read(weights), state(5))


def test_a_folder_that_cannot_be_renamed_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, out = write_folders(tmp_path), tmp_path / "average"
    write(out / "model.safetensors", state(5))
    before = everything_in(tmp_path)
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).suffix == ".tmp":
            raise OSError(errno.EACCES, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        average_checkpoints(paths, out, replace_out=True)
    assert everything_in(tmp_path) == before
    assert_equal(read(out / "model.safetensors"), state(5))


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_failed_write_names_the_output_and_leaves_no_files(tmp_path: Path, suffix: str):
    paths = write_all(tmp_path, suffix, [{"weight": torch.full((100_000,), float(step))} for step in (0, 1)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"average{suffix}") as caught:
            average_checkpoints(paths, tmp_path / f"average{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert everything_in(tmp_path) == [f"step-0{suffix}", f"step-1{suffix}"]


def test_missing_folders_are_created_and_permissions_follow_the_umask(tmp_path: Path):
    file, folder = tmp_path / "a/b/average.pt", tmp_path / "c/d/average"
    before = os.umask(0o022)
    try:
        average_checkpoints(write_files(tmp_path), file)
        average_checkpoints(write_folders(tmp_path), folder)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (file, folder, folder / "model.safetensors")]
    assert modes == [0o644, 0o755, 0o644]
    assert (folder / "config.json").read_text() == "2"
