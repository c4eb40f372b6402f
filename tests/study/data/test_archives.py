"""Archives: what is asked for is read; what is damaged, hostile or far too large is refused, and nothing gets out."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from emabank.study.data import archives
from emabank.study.data.archives import read_members, unpack
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


# Members -------------------------------------------------------------------------------------------------------------


def test_members_come_in_the_order_of_the_archive(tmp_path: Path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz(FILES))
    found = list(read_members(path, ["set/second", "set/first", "set/none"], largest=5000))
    assert found == [("set/first", FILES["set/first"]), ("set/second", FILES["set/second"])]


def test_links_devices_and_other_names_are_passed_over(tmp_path: Path):
    path = tmp_path / "a.tar.gz"
    special = [
        tar_member("set/first", tarfile.SYMTYPE, "/etc/passwd"),
        tar_member("set/first", tarfile.LNKTYPE, "/etc/passwd"),
        tar_member("set/first", tarfile.CHRTYPE),
        tar_member("set/first", tarfile.FIFOTYPE),
        tar_member("set/first", tarfile.DIRTYPE),
    ]
    path.write_bytes(tar_gz({"/set/first": b"absolute", "../set/first": b"above", **FILES}, *special))
    assert list(read_members(path, ["set/first"], largest=5000)) == [("set/first", FILES["set/first"])]


def test_reading_ends_with_the_last_wanted_member(tmp_path: Path):
    path = tmp_path / "a.tar.gz"
    noise = os.urandom(100_000)
    path.write_bytes(tar_gz({"first": b"1", "noise": noise})[:50_000])
    assert list(read_members(path, ["first"], largest=10)) == [("first", b"1")]
    with pytest.raises(ValueError, match="a.tar.gz is damaged or cut short"):
        list(read_members(path, ["first", "noise"], largest=200_000))


def test_a_member_that_is_far_too_large_is_refused(tmp_path: Path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz(FILES))
    with pytest.raises(ValueError, match="a.tar.gz holds set/second of 2,000 bytes, far too many"):
        list(read_members(path, ["set/second"], largest=1999))


def test_an_archive_that_grows_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 100_000)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"zeros": bytes(1_000_000), "first": b"1"}))
    with pytest.raises(ValueError, match="unpacks to more than 100,000 bytes"):
        list(read_members(path, ["first"], largest=10))


# Unpacking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_everything_is_unpacked(tmp_path: Path, into: Path, name: str, make):
    path = tmp_path / name
    path.write_bytes(make(FILES))
    unpack(path, into)
    assert everything_in(into) == FILES


@pytest.mark.parametrize("bad", ["../out", "set/../../out", "/out", "..", "C:\\out", "set\\..\\..\\out"])
@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_no_member_leaves_the_folder(tmp_path: Path, into: Path, bad: str, name: str, make):
    path = tmp_path / name
    path.write_bytes(make({bad: b"out"}))
    with pytest.raises(ValueError, match=r"holds '.*', a link or a place outside of its folder: it was not unpacked"):
        unpack(path, into)
    assert everything_in(tmp_path) == {name: path.read_bytes()}
    assert not Path("/out").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_unpacked(tmp_path: Path, into: Path, kind: bytes):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"link/evil": b"out"}, tar_member("link", kind, str(tmp_path))))
    with pytest.raises(ValueError, match="holds 'link', a link"):
        unpack(path, into)
    assert not (tmp_path / "evil").exists() and list(into.iterdir()) == []


def test_links_in_a_zip_are_not_unpacked(tmp_path: Path, into: Path):
    path = tmp_path / "a.zip"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, str(tmp_path))
    with pytest.raises(ValueError, match="holds 'link', a link"):
        unpack(path, into)


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_too_much_is_not_unpacked(tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch, name: str, make):
    monkeypatch.setattr(archives, "MOST_BYTES", 100_000)
    path = tmp_path / name
    path.write_bytes(make({"zeros": bytes(1_000_000)}))
    with pytest.raises(ValueError, match="is damaged or cut short .*more than 100,000 bytes"):
        unpack(path, into)


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])
def test_damage_is_said_in_a_sentence(tmp_path: Path, into: Path, name: str, make):
    path = tmp_path / name
    whole = make({"noise": os.urandom(5000)})
    for content in (b"", b"garbage" * 100, whole[:10], whole[:3000]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is damaged or cut short"):
            unpack(path, into)
