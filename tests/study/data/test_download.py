"""The files of a data set: checked, fetched from a local server, unpacked; a failure leaves nothing behind."""

import hashlib
import http.server
import io
import os
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emabank.study.data import download
from emabank.study.data.catalogue import DATASETS, DatasetInfo, Download, File, ImageFolders
from emabank.study.data.download import check, fetch, is_complete, unpack
from tests.study.data.made_up import tar_gz, tar_member, write_files

PUBLISHED = pytest.mark.skipif(
    "EMABANK_DATA" not in os.environ, reason="EMABANK_DATA names no folder of published data"
)
TINY = "tiny-imagenet-200"


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tiny_files(train: dict[str, int], val: dict[str, int]) -> dict[str, bytes]:
    """Tiny-ImageNet of two classes, with the number of images of each."""
    images = {f"{TINY}/train/{wnid}/images/{n}.JPEG": b"x" for wnid, count in train.items() for n in range(count)}
    names = [(f"{wnid}_{n}.JPEG", wnid) for wnid, count in val.items() for n in range(count)]
    annotations = "".join(f"{name}\t{wnid}\t0\n" for name, wnid in names).encode()
    tested = {f"{TINY}/val/images/{name}": b"x" for name, _ in names}
    return {f"{TINY}/wnids.txt": b"n2\nn1\n", f"{TINY}/val/val_annotations.txt": annotations, **images, **tested}


FILES = {"set/first": os.urandom(100_000), "set/second": b"second"}
ARCHIVE = tar_gz({**FILES, "set/readme.html": b"<html>"})
UNPACKED = {**FILES, "set/readme.html": b"<html>"}
LABELS = b"labels" * 1000
COMPLETE = tiny_files({"n1": 3, "n2": 3}, {"n1": 1, "n2": 1})
TINY_ZIP = zipped(COMPLETE)


def make_file(path: str, content: bytes, kind: str = "md5", **more: str) -> File:
    return File(path, len(content), f"{kind}:{hashlib.new(kind, content).hexdigest()}", **more)


def publish(monkeypatch: pytest.MonkeyPatch, address: str, archive: bytes = ARCHIVE) -> None:
    """Add three data sets: an archive, labels that need it, folders of images."""
    unpacked = tuple(make_file(*item) for item in FILES.items())
    packed = Download(f"{address}/set.tar.gz", make_file("set.tar.gz", archive), unpacked)
    labels = Download(f"{address}/labels.pt", make_file("deep/labels.pt", LABELS, "sha256", elsewhere="labels.pt"))
    tiny = Download(f"{address}/tiny.zip", make_file("tiny.zip", TINY_ZIP), image_folders=ImageFolders(2, 3, 1))
    monkeypatch.setitem(DATASETS, "packed", DatasetInfo("packed", "Packed", "we", "none", (packed,)))
    monkeypatch.setitem(DATASETS, "labels", DatasetInfo("labels", "Labels", "we", "none", (labels,), ("packed",)))
    monkeypatch.setitem(DATASETS, "tiny", DatasetInfo("tiny", "Tiny", "we", "none", (tiny,)))


# Checking ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "http://x")


def states(name: str, folder: Path) -> dict[str, str]:
    return {finding.path.relative_to(folder).as_posix(): finding.state for finding in check(name, folder)}


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (FILES, {"set/first": "ok", "set/second": "ok"}),
        ({"set.tar.gz": ARCHIVE}, {"set.tar.gz": "ok"}),
        ({}, {"set/first": "missing", "set/second": "missing"}),
        (
            {"set/first": FILES["set/first"][::-1], "set/second": b"sec"},
            {"set/first": "wrong checksum", "set/second": "damaged"},
        ),
        # The wrong file would be read, even though the archive is right.
        ({"set.tar.gz": ARCHIVE, "set/first": b"1"}, {"set.tar.gz": "ok", "set/first": "damaged"}),
        (
            {"set.tar.gz": ARCHIVE[:-1], "set/first": FILES["set/first"]},
            {"set.tar.gz": "damaged", "set/first": "ok", "set/second": "missing"},
        ),
        ({"set.tar.gz": ARCHIVE[:-1], **FILES}, {"set/first": "ok", "set/second": "ok"}),
    ],
)
def test_check_finds_missing_damaged_and_wrong_files(tmp_path: Path, files: dict[str, bytes], expected: dict[str, str]):
    write_files(tmp_path, files)
    assert states("packed", tmp_path) == expected
    assert is_complete(check("packed", tmp_path)) == (set(expected.values()) == {"ok"})
    for finding in check("packed", tmp_path):
        assert str(finding.path) in finding.sentence
        assert ("http://x/set.tar.gz" in finding.sentence) == (finding.state != "ok") == (finding.download is not None)


@pytest.mark.usefixtures("published")
def test_data_sets_that_another_needs_are_checked_too(tmp_path: Path):
    write_files(tmp_path, {"labels.pt": LABELS, "set/first": FILES["set/first"]})
    assert states("labels", tmp_path) == {"set/first": "ok", "set/second": "missing", "labels.pt": "ok"}
    write_files(tmp_path, {"labels.pt": LABELS[::-1]})
    assert "is the one recorded by emabank (nobody publishes one)" in check("labels", tmp_path)[-1].sentence
    with pytest.raises(ValueError, match="there is no data set 'mnist'; there are digits,"):
        check("mnist", tmp_path)


@pytest.mark.usefixtures("published")
def test_a_file_that_cannot_be_read_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    write_files(tmp_path, FILES)
    monkeypatch.setattr(download, "file_hash", refused)
    finding = check("packed", tmp_path)[0]
    assert finding.state == "damaged" and "set/first cannot be read (Permission denied)" in finding.sentence


@pytest.mark.usefixtures("published")
def test_image_folders_are_checked_by_counting_images(tmp_path: Path):
    write_files(tmp_path, COMPLETE)
    assert states("tiny", tmp_path) == {f"{TINY}/wnids.txt": "ok", f"{TINY}/train": "ok", f"{TINY}/val": "ok"}
    sample = tmp_path / "sample"
    write_files(sample, tiny_files({"n1": 3}, {"n1": 1, "n2": 2}))
    _, train, val = check("tiny", sample)
    assert train.state == val.state == "incomplete"
    assert "3 of 6 images, and 1 of 2 classes do not have 3 (first n2 with 0)" in train.sentence
    assert "1 of 2 classes do not have 1 (first n2 with 2)" in val.sentence


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("change", "state", "message"),
    [
        ({"wnids.txt": b"n1\n"}, "damaged", "wnids.txt names 1 classes, where 2 belong"),
        ({"wnids.txt": b"n1\nn1\n"}, "damaged", "wnids.txt is damaged"),
        ({"train/n1/images/0.JPEG": b""}, "damaged", "train/n1/images/0.JPEG is damaged: it is empty"),
        ({"val/val_annotations.txt": b"n1_0.JPEG\tn9\n"}, "damaged", "names the class 'n9'"),
        ({"val/val_annotations.txt": b"other.JPEG\tn1\n"}, "missing", "holds no val/images/other.JPEG; the complete"),
    ],
)
def test_damaged_image_folders_are_named(tmp_path: Path, change: dict[str, bytes], state: str, message: str):
    write_files(tmp_path, COMPLETE)
    write_files(tmp_path / TINY, change)
    wrong = [finding for finding in check("tiny", tmp_path) if finding.state != "ok"]
    assert [finding.state for finding in wrong] == [state] and message in wrong[0].sentence


@PUBLISHED
def test_the_published_files_have_the_published_checksums():
    folder = Path(os.environ["EMABANK_DATA"])
    for name in ("cifar10", "cifar100", "cifar10n", "cifar100n"):
        findings = check(name, folder)
        assert {finding.state for finding in findings} <= {"ok", "missing"}
        assert [finding.path.name for finding in findings if finding.state == "missing"] in ([], ["train"])
    assert is_complete(check("cifar10n", folder))


# Fetching ------------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """Its files, the requests so far, and how many bytes it leaves off (or whether it never stops)."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    cut: int = 0
    endless: bool = False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server(files={"/set.tar.gz": ARCHIVE, "/labels.pt": LABELS, "/tiny.zip": TINY_ZIP})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            content = state.files.get(self.path)
            self.send_response(404 if content is None else 200)
            content = content or b""
            if not state.endless:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):  # the client has closed the connection
                while state.endless:
                    self.wfile.write(bytes(100_000))
                self.wfile.write(content[: len(content) - state.cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{listening.server_port}"
        publish(monkeypatch, state.address)
        yield state
        listening.shutdown()
        thread.join()


def test_missing_files_are_fetched_and_unpacked_once(server: Server, tmp_path: Path):
    counts: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "data"
    findings = fetch("labels", folder, progress=lambda done, total: counts.append((done, total)))
    assert all(finding.state == "ok" for finding in findings)
    assert contents(folder) == {"set.tar.gz": ARCHIVE, "deep/labels.pt": LABELS, **UNPACKED}
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "set", "set.tar.gz"]
    total = len(ARCHIVE) + len(LABELS)
    assert counts[0] == (0, total) and counts[-1] == (total, total) and counts == sorted(counts)
    assert len({done for done, _ in counts}) > 3
    assert server.requests == ["/set.tar.gz", "/labels.pt"]
    fetch("labels", folder)
    (folder / "deep/labels.pt").write_bytes(b"wrong")
    fetch("labels", folder)
    assert server.requests[2:] == ["/labels.pt"] and (folder / "deep/labels.pt").read_bytes() == LABELS


def test_an_existing_archive_is_unpacked_without_fetching(server: Server, tmp_path: Path):
    write_files(tmp_path, {"set.tar.gz": ARCHIVE, "set/first": b"wrong", "set/mine": b"stays"})
    fetch("packed", tmp_path)
    assert server.requests == []
    assert contents(tmp_path) == {"set.tar.gz": ARCHIVE, **UNPACKED, "set/mine": b"stays"}


def test_a_wrong_file_that_lies_elsewhere_is_replaced_there(server: Server, tmp_path: Path):
    write_files(tmp_path, {**FILES, "labels.pt": b"wrong"})
    fetch("labels", tmp_path)
    assert contents(tmp_path) == {**FILES, "labels.pt": LABELS}


def test_incomplete_image_folders_are_filled(server: Server, tmp_path: Path):
    own = {f"{TINY}/train/n1/boxes.txt": b"own"}
    write_files(tmp_path, {f"{TINY}/wnids.txt": b"n2\nn1\n", **own})
    fetch("tiny", tmp_path)
    assert contents(tmp_path) == {**COMPLETE, **own, "tiny.zip": TINY_ZIP}


def test_an_unreachable_server_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    publish(monkeypatch, address)
    with pytest.raises(ConnectionError, match=f"^{address}/set.tar.gz could not be reached .* put set.tar.gz into"):
        fetch("packed", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("another", ValueError, r"set.tar.gz gave has another checksum than md5:.* and was not kept"),
        ("cut", (ConnectionError, ValueError), r"set.tar.gz (could not be reached or broke off|gave has)"),
        ("endless", ValueError, "set.tar.gz gave has another checksum"),
        ("gone", ConnectionError, r"set.tar.gz could not be fetched \(it answered 404\); where there is no"),
    ],
)
def test_a_wrong_answer_of_the_server_is_not_kept(
    server: Server, tmp_path: Path, fault: str, error: type[Exception], message: str
):
    write_files(tmp_path, {"set.tar.gz": b"old"})
    server.cut, server.endless = 1000 if fault == "cut" else 0, fault == "endless"
    if fault == "another":
        server.files["/set.tar.gz"] = ARCHIVE[:-1] + b"x"
    if fault == "gone":
        del server.files["/set.tar.gz"]
    with pytest.raises(error, match=message):
        fetch("packed", tmp_path)
    assert contents(tmp_path) == {"set.tar.gz": b"old"} and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["above", "link", "device", "without the files"])
def test_a_hostile_or_wrong_archive_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    bad, message = {
        "above": (tar_gz({"../out": b"out"}), "holds what leads outside of its folder"),
        "link": (tar_gz(FILES, tar_member("set/link", b"2", "/etc")), "holds what leads outside of its folder"),
        "device": (tar_gz(FILES, tar_member("set/null", tarfile.CHRTYPE)), "holds what leads outside of its folder"),
        "without the files": (tar_gz({"set/first": b"another"}), "set/first is damaged: .*: still so after fetching"),
    }[kind]
    server.files["/set.tar.gz"] = bad
    publish(monkeypatch, server.address, bad)
    with pytest.raises(ValueError, match=message):
        fetch("packed", tmp_path / "data")
    assert set(contents(tmp_path)) <= {"data/set.tar.gz", "data/set/first"}


def test_a_folder_that_cannot_be_created_is_a_clear_error(server: Server, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"packed could not be put there \(.*\); nothing half-written is left"):
        fetch("packed", tmp_path / "file" / "data")
    assert [finding.state for finding in fetch("digits", tmp_path / "none")] == ["ok"], "digits need no folder"
    assert not (tmp_path / "none").exists()


def test_leftovers_of_a_killed_process_are_removed_after_a_day(server: Server, tmp_path: Path):
    old, new = tmp_path / ".emabank-fetch-old", tmp_path / ".emabank-fetch-new"
    write_files(tmp_path, {".emabank-fetch-old/part": b"x", ".emabank-fetch-new/part": b"x"})
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    fetch("packed", tmp_path)
    assert not old.exists() and new.exists()


# Unpacking -----------------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize(("name", "make"), [("a.tar.gz", tar_gz), ("a.zip", zipped)])


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "into"
    folder.mkdir(parents=True)
    return folder


@BOTH
def test_too_large_archives_are_refused(tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch, name: str, make):
    monkeypatch.setattr(download, "MOST_BYTES", 100_000)
    path = tmp_path / name
    path.write_bytes(make({"zeros": bytes(1_000_000)}))
    with pytest.raises(ValueError, match=f"{name} unpacks to 1,000,000 bytes or more, far too many"):
        unpack(path, into)


@BOTH
def test_an_archive_is_unpacked_completely_or_reported_as_damaged(tmp_path: Path, into: Path, name: str, make):
    path, files = tmp_path / name, {"noise": os.urandom(5000), "set/deep/third": b"3"}
    whole = make(files)
    for content in (b"", b"garbage" * 100, whole[:10], whole[:3000]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is damaged or cut short"):
            unpack(path, into)
    path.write_bytes(whole)
    unpack(path, into)
    assert contents(into) == files
