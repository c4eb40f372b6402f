"""What is written: whole or not at all, never over something without being asked, and never over what it is made of."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from averaging.made import assert_same, everything_in, mean, read, state, write

from emabank.averaging import average_checkpoints, formats
from emabank.averaging.formats import SafetensorsFile


def files(folder: Path, suffix: str = ".pt") -> list[Path]:
    return [write(folder / f"{at}{suffix}", state(at)) for at in (1, 2)]


def folders(folder: Path) -> list[Path]:
    for at in (1, 2):
        write(folder / f"checkpoint-{at}" / "model.safetensors", state(at))
        (folder / f"checkpoint-{at}" / "config.json").write_text(str(at))
    return [folder / f"checkpoint-{at}" for at in (1, 2)]


AVERAGE = mean([state(1), state(2)], [0.5, 0.5])


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_that_is_there_is_replaced_only_when_asked(tmp_path: Path, suffix: str):
    paths, out = files(tmp_path, suffix), tmp_path / f"average{suffix}"
    out.write_text("precious")
    with pytest.raises(FileExistsError, match="There is something already; give another name"):
        average_checkpoints(paths, out)
    assert out.read_text() == "precious"
    average_checkpoints(paths, out, replace_out=True)
    assert_same(read(out), AVERAGE)
    assert len(everything_in(tmp_path)) == 3


def test_a_folder_that_is_there_is_replaced_only_when_asked_and_a_checkpoint(tmp_path: Path):
    paths, out = folders(tmp_path), tmp_path / "average"
    write(out / "model.safetensors", state(5))
    (out / "old.json").touch()
    with pytest.raises(FileExistsError):
        average_checkpoints(paths, out)
    average_checkpoints(paths, out, replace_out=True)
    assert everything_in(out) == ["config.json", "model.safetensors"]
    assert_same(read(out / "model.safetensors"), AVERAGE)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["average", "checkpoint-1", "checkpoint-2"]
    (out / "photos").mkdir()
    with pytest.raises(ValueError, match="holds other things than one checkpoint, so it is not replaced"):
        average_checkpoints(paths, out, replace_out=True)
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(ValueError, match="holds other things"):
        average_checkpoints(paths, home, replace_out=True)


def test_missing_folders_are_made(tmp_path: Path):
    average_checkpoints(files(tmp_path), tmp_path / "a/b/average.pt")
    average_checkpoints(folders(tmp_path), tmp_path / "c/d/average")
    assert (tmp_path / "a/b/average.pt").is_file() and (tmp_path / "c/d/average/config.json").read_text() == "2"


def test_what_it_is_made_of_is_never_replaced(tmp_path: Path):
    paths = files(tmp_path / "files")
    for out in (paths[0], tmp_path / "files" / ".." / "files" / "2.pt"):
        with pytest.raises(ValueError, match="is there, which it is made of"):
            average_checkpoints(paths, out, replace_out=True)
    made_of = folders(tmp_path / "folders")
    for out in (made_of[0], made_of[1] / "average", tmp_path / "folders"):
        with pytest.raises(ValueError, match="is there, which it is made of"):
            average_checkpoints(made_of, out, replace_out=True)
    (tmp_path / "link.pt").symlink_to(paths[0])
    with pytest.raises(ValueError, match="is there, which it is made of"):
        average_checkpoints(paths, tmp_path / "link.pt", replace_out=True)


def test_the_name_has_to_fit_the_layout(tmp_path: Path):
    for out in ("average.safetensors", "average"):
        with pytest.raises(ValueError, match=r"has to end in \.pt or \.pth"):
            average_checkpoints(files(tmp_path), tmp_path / out)
    with pytest.raises(ValueError, match=r"has to end in \.safetensors"):
        average_checkpoints(files(tmp_path, ".safetensors"), tmp_path / "average.pt")
    with pytest.raises(ValueError, match=r"is a folder; average\.pt is the name of a file"):
        average_checkpoints(folders(tmp_path), tmp_path / "average.pt")
    (tmp_path / "average").touch()
    with pytest.raises(ValueError, match="average is a file and the average is none"):
        average_checkpoints(folders(tmp_path), tmp_path / "average", replace_out=True)


def interrupted_after(at: int, error: BaseException):
    count = 0

    def tell(done: int, total: int) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise error

    return tell


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=["^C", "full"]
)
@pytest.mark.parametrize("kind", [".pt", ".safetensors", "folder"])
@pytest.mark.parametrize("there", [False, True])
def test_an_interrupt_or_a_full_disk_leaves_nothing_and_destroys_nothing(tmp_path: Path, error, kind: str, there: bool):
    paths = folders(tmp_path) if kind == "folder" else files(tmp_path, kind)
    out = tmp_path / ("average" if kind == "folder" else f"average{kind}")
    if there:
        write(out / "model.safetensors" if kind == "folder" else out, state(5))
    before = everything_in(tmp_path)
    with pytest.raises(type(error)) as caught:
        average_checkpoints(paths, out, replace_out=True, tell=interrupted_after(3, error))
    assert everything_in(tmp_path) == before
    if isinstance(error, OSError):
        assert caught.value.filename == str(out) and "what was there before is unchanged" in caught.value.strerror
    if there:
        assert_same(read(out / "model.safetensors" if kind == "folder" else out), state(5))


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, out = folders(tmp_path), tmp_path / "average"
    write(out / "model.safetensors", state(5))
    before = everything_in(tmp_path)
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).suffix == ".tmp":
            raise OSError(errno.EACCES, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(formats.os, "rename", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        average_checkpoints(paths, out, replace_out=True)
    assert everything_in(tmp_path) == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs a disk that can be full")
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_disk_that_is_really_full(tmp_path: Path, suffix: str):
    for at in (1, 2):
        write(tmp_path / f"{at}{suffix}", {"weight": torch.full((100_000,), float(at))})
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from emabank.averaging import average_checkpoints
folder = {str(tmp_path)!r}
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    average_checkpoints([folder + '/1{suffix}', folder + '/2{suffix}'], folder + '/average{suffix}')
except OSError as error:
    print(error.errno, error.filename)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(errno.EFBIG), str(tmp_path / f"average{suffix}")], done.stderr
    assert everything_in(tmp_path) == [f"1{suffix}", f"2{suffix}"]


def test_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path):
    before = os.umask(0o022)
    try:
        average_checkpoints(files(tmp_path), tmp_path / "average.pt")
        average_checkpoints(folders(tmp_path), tmp_path / "average")
    finally:
        os.umask(before)
    assert (tmp_path / "average.pt").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "average").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "average/model.safetensors").stat().st_mode & 0o777 == 0o644


def test_what_was_opened_is_what_is_read(tmp_path: Path):
    """A checkpoint of the older layout under an upper-case suffix is still one."""
    paths = [
        write(tmp_path / "1.safetensors", state(1)).rename(tmp_path / "1.SAFETENSORS"),
        *files(tmp_path, ".safetensors"),
    ]
    assert SafetensorsFile(paths[0]).specs
    average_checkpoints([paths[0], tmp_path / "2.safetensors"], tmp_path / "average.safetensors")
    assert_same(read(tmp_path / "average.safetensors"), AVERAGE)


def test_killed_in_the_middle_leaves_no_checkpoint_with_the_name(tmp_path: Path):
    for at in (1, 2):
        write(tmp_path / f"{at}.safetensors", {"weight": torch.full((100_000,), float(at))})
    code = f"""
import os, signal
from emabank.averaging import average_checkpoints
folder = {str(tmp_path)!r}
average_checkpoints([folder + '/1.safetensors', folder + '/2.safetensors'], folder + '/average.safetensors',
                    tell=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "average.safetensors").exists()
