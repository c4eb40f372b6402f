"""Fetching from a server of our own: verified, unpacked, only what is needed; whatever fails leaves nothing behind."""

import hashlib
import http.server
import io
import os
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emabank.study.data.catalogue import DATASETS, Download, File, ImageFolders, Published
from emabank.study.data.fetch import fetch
from tests.study.data.made_up import tar_gz, tar_member, write_files

FILES = {"set/first": os.urandom(100_000), "set/second": b"second"}
ARCHIVE = tar_gz({**FILES, "set/readme.html": b"<html>"})
LABELS = b"labels" * 1000


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


TINY_FILES = {
    "tiny-imagenet-200/wnids.txt": b"n1\n",
    "tiny-imagenet-200/train/n1/images/0.JPEG": b"train",
    "tiny-imagenet-200/val/images/0.JPEG": b"val",
    "tiny-imagenet-200/val/val_annotations.txt": b"0.JPEG\tn1\t0\n",
}
TINY = zipped(TINY_FILES)


@dataclass
class Server:
    """What lies where, what was asked for, and how many bytes less (or more) are sent than promised."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    cut: int = 0
    endless: bool = False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server(files={"/set.tar.gz": ARCHIVE, "/labels.pt": LABELS, "/tiny.zip": TINY})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            content = state.files.get(self.path)
            self.send_response(404 if content is None else 200)
            content = content or b""
            if not state.endless:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                while state.endless:
                    self.wfile.write(bytes(100_000))
                self.wfile.write(content[: len(content) - state.cut])
            except OSError:  # the other side has had enough
                pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{made.server_port}"
        publish(monkeypatch, state.address)
        yield state
        made.shutdown()
        thread.join()


def known(path: str, content: bytes, **more: str) -> File:
    return File(path, len(content), f"md5:{hashlib.md5(content).hexdigest()}", **more)


def publish(monkeypatch: pytest.MonkeyPatch, address: str, archive: bytes = ARCHIVE) -> None:
    contents = tuple(known(*item) for item in FILES.items())
    packed = Download(f"{address}/set.tar.gz", known("set.tar.gz", archive), contents)
    labels = Download(f"{address}/labels.pt", known("deep/labels.pt", LABELS, elsewhere="labels.pt"))
    tiny = Download(f"{address}/tiny.zip", known("tiny.zip", TINY), image_folders=ImageFolders(1, 1, 1))
    monkeypatch.setitem(DATASETS, "packed", Published("packed", "Packed", "we", "none", (packed,)))
    monkeypatch.setitem(DATASETS, "labels", Published("labels", "Labels", "we", "none", (labels,), ("packed",)))
    monkeypatch.setitem(DATASETS, "tiny", Published("tiny", "Tiny", "we", "none", (tiny,)))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_missing_is_fetched_and_unpacked(server: Server, tmp_path: Path):
    told: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "data"
    findings = fetch("labels", folder, tell=lambda done, total: told.append((done, total)))
    assert all(finding.state == "ok" for finding in findings)
    unpacked = {**FILES, "set/readme.html": b"<html>"}
    assert everything_in(folder) == {"set.tar.gz": ARCHIVE, "deep/labels.pt": LABELS, **unpacked}
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "set", "set.tar.gz"]
    whole = len(ARCHIVE) + len(LABELS)
    assert told[0] == (0, whole) and told[-1] == (whole, whole) and {total for _, total in told} == {whole}
    assert len({done for done, _ in told}) > 3
    assert server.asked == ["/set.tar.gz", "/labels.pt"]


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path):
    fetch("labels", tmp_path)
    server.asked.clear()
    fetch("labels", tmp_path)
    assert server.asked == []
    (tmp_path / "deep/labels.pt").write_bytes(b"wrong")
    fetch("labels", tmp_path)
    assert server.asked == ["/labels.pt"] and (tmp_path / "deep/labels.pt").read_bytes() == LABELS


def test_an_archive_that_is_there_is_only_unpacked(server: Server, tmp_path: Path):
    write_files(tmp_path, {"set.tar.gz": ARCHIVE, "set/first": b"wrong", "set/mine": b"stays"})
    fetch("packed", tmp_path)
    assert server.asked == []
    unpacked = {**FILES, "set/readme.html": b"<html>", "set/mine": b"stays"}
    assert everything_in(tmp_path) == {"set.tar.gz": ARCHIVE, **unpacked}


def test_a_wrong_archive_is_replaced(server: Server, tmp_path: Path):
    write_files(tmp_path, {"set.tar.gz": ARCHIVE[:-1] + b"x"})
    fetch("packed", tmp_path)
    assert (tmp_path / "set.tar.gz").read_bytes() == ARCHIVE


def test_a_wrong_file_elsewhere_is_replaced_where_it_lies(server: Server, tmp_path: Path):
    write_files(tmp_path, {**FILES, "labels.pt": b"wrong"})
    fetch("labels", tmp_path)
    assert everything_in(tmp_path) == {**FILES, "labels.pt": LABELS}


def test_folders_of_images_are_completed(server: Server, tmp_path: Path):
    write_files(tmp_path, {"tiny-imagenet-200/wnids.txt": b"n1\n", "tiny-imagenet-200/train/n1/boxes.txt": b"mine"})
    fetch("tiny", tmp_path)
    mine = {"tiny-imagenet-200/train/n1/boxes.txt": b"mine"}
    assert everything_in(tmp_path) == {**TINY_FILES, **mine, "tiny.zip": TINY}


# What fails ----------------------------------------------------------------------------------------------------------


def test_without_a_server_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    publish(monkeypatch, address)
    with pytest.raises(ConnectionError) as caught:
        fetch("packed", tmp_path)
    assert str(caught.value) == (
        f"{address}/set.tar.gz could not be reached or broke off; where there is no network, put set.tar.gz into "
        f"{tmp_path} by hand, and `emabank data check packed --data {tmp_path}` will verify it"
    )
    assert everything_in(tmp_path) == {} and list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_is_not_kept(server: Server, tmp_path: Path):
    server.files["/set.tar.gz"] = ARCHIVE[:-1] + b"x"
    with pytest.raises(ValueError, match=r"set.tar.gz gave has another checksum than md5:.* and was not kept"):
        fetch("packed", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_breaks_off_is_not_kept(server: Server, tmp_path: Path):
    server.cut = 1000
    write_files(tmp_path, {"set.tar.gz": b"old"})
    with pytest.raises((ConnectionError, ValueError), match=r"set.tar.gz (could not be reached or broke off|gave has)"):
        fetch("packed", tmp_path)
    assert everything_in(tmp_path) == {"set.tar.gz": b"old"} and len(list(tmp_path.iterdir())) == 1


def test_a_download_without_end_is_stopped(server: Server, tmp_path: Path):
    server.endless = True
    with pytest.raises(ValueError, match="set.tar.gz gave has another checksum"):
        fetch("packed", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_told(server: Server, tmp_path: Path):
    del server.files["/set.tar.gz"]
    with pytest.raises(
        ConnectionError, match=r"set.tar.gz could not be fetched \(it answered 404\); where there is no"
    ):
        fetch("packed", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["above", "link"])
def test_an_archive_that_wants_out_is_not_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    folder = tmp_path / "data"
    bad = tar_gz({"../out": b"out"}) if kind == "above" else tar_gz(FILES, tar_member("set/link", b"2", "/etc"))
    server.files["/set.tar.gz"] = bad
    publish(monkeypatch, server.address, bad)
    with pytest.raises(ValueError, match="a link or a place outside of its folder: it was not unpacked"):
        fetch("packed", folder)
    assert everything_in(tmp_path) == {"data/set.tar.gz": bad}


def test_an_archive_without_the_files_is_told(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tar_gz({"set/first": b"another"})
    server.files["/set.tar.gz"] = other
    publish(monkeypatch, server.address, other)
    with pytest.raises(ValueError, match="set/first is damaged: .*: still so after fetching it"):
        fetch("packed", tmp_path)


def test_a_folder_that_cannot_be_made_is_told(server: Server, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"packed could not be put there \(.*\); nothing half-written is left"):
        fetch("packed", tmp_path / "file" / "data")


def test_what_a_killed_process_left_is_removed_after_a_day(server: Server, tmp_path: Path):
    old, new = tmp_path / ".emabank-fetch-old", tmp_path / ".emabank-fetch-new"
    write_files(tmp_path, {".emabank-fetch-old/part": b"x", ".emabank-fetch-new/part": b"x"})
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    fetch("packed", tmp_path)
    assert not old.exists() and new.exists()


def test_what_is_embedded_needs_no_folder(tmp_path: Path):
    assert [finding.state for finding in fetch("digits", tmp_path / "none")] == ["ok"]
    assert not (tmp_path / "none").exists()
