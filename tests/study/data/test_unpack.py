"""Unpacking: what is damaged, hostile or far too large is refused, and nothing lands outside of the folder."""

import io
import os
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from emabank.study.data import download
from emabank.study.data.download import unpack
from tests.study.data.made_up import tar_gz, tar_member

FILES = {"set/first": b"1" * 1000, "set/second": b"2" * 2000, "set/deep/third": b"3"}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "into"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_everything_is_unpacked(tmp_path: Path, into: Path, name: str, make):
    path = tmp_path / name
    path.write_bytes(make(FILES))
    unpack(path, into)
    assert everything_in(into) == FILES


@pytest.mark.parametrize("bad", ["../out", "set/../../out", "/out", ".."])
def test_no_member_leaves_the_folder(tmp_path: Path, into: Path, bad: str):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({bad: b"out"}))
    with pytest.raises(ValueError, match=r"holds '.*', a link or a place outside of its folder; not unpacked"):
        unpack(path, into)
    (tmp_path / "a.zip").write_bytes(zipped({bad: b"out"}))
    with suppress(OSError):  # zipfile drops what leads outside, which may leave a name that is a folder's
        unpack(tmp_path / "a.zip", into)
    inside = (into.relative_to(tmp_path).as_posix(), "a.zip", "a.tar.gz")
    assert all(name.startswith(inside) for name in everything_in(tmp_path))
    assert not Path("/out").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_unpacked(tmp_path: Path, into: Path, kind: bytes):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"link/evil": b"out"}, tar_member("link", kind, str(tmp_path))))
    with pytest.raises(ValueError, match="holds 'link', a link"):
        unpack(path, into)
    assert not (tmp_path / "evil").exists() and list(into.iterdir()) == []


def test_links_in_a_zip_become_files(tmp_path: Path, into: Path):
    path = tmp_path / "a.zip"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, str(tmp_path))
    unpack(path, into)
    assert not (into / "link").is_symlink()


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_too_much_is_not_unpacked(tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch, name: str, make):
    monkeypatch.setattr(download, "MOST_BYTES", 100_000)
    path = tmp_path / name
    path.write_bytes(make({"zeros": bytes(1_000_000)}))
    with pytest.raises(ValueError, match=f"{name} unpacks to 1,000,000 bytes or more, far too many"):
        unpack(path, into)


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_damage_is_said_in_a_sentence(tmp_path: Path, into: Path, name: str, make):
    path = tmp_path / name
    whole = make({"noise": os.urandom(5000)})
    for content in (b"", b"garbage" * 100, whole[:10], whole[:3000]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is damaged or cut short"):
            unpack(path, into)
