"""Checking a data folder: each file whole, missing, damaged or another; images counted."""

import hashlib
import os
from pathlib import Path

import pytest

from emabank.study.data import catalogue
from emabank.study.data.catalogue import DATASETS, Download, File, ImageFolders, Published
from emabank.study.data.check import check, file_hash, is_complete, origin
from tests.study.data.made_up import write_files

PUBLISHED = pytest.mark.skipif(
    "EMABANK_DATA" not in os.environ, reason="EMABANK_DATA names no folder of published data"
)
FILES = {"set/first": b"first", "set/second": b"second"}
ARCHIVE = b"an archive"
LABELS = b"labels"


def known(path: str, content: bytes, kind: str = "md5", **more: str) -> File:
    return File(path, len(content), f"{kind}:{hashlib.new(kind, content).hexdigest()}", **more)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    packed = Download(
        "http://x/set.tar.gz", known("set.tar.gz", ARCHIVE), tuple(known(*item) for item in FILES.items())
    )
    labels = Download("http://x/labels.pt", known("deep/labels.pt", LABELS, "sha256", elsewhere="labels.pt"))
    folders = ImageFolders(classes=2, train=3, test=1)
    tiny = Download("http://x/tiny.zip", known("tiny.zip", ARCHIVE), image_folders=folders)
    entries = [
        Published("packed", "Packed", "someone", "none", (packed,)),
        Published("labels", "Labels", "someone", "none", (labels,), ("packed",)),
        Published("tiny", "Tiny", "someone", "none", (tiny,)),
    ]
    for entry in entries:
        monkeypatch.setitem(DATASETS, entry.name, entry)


def states(name: str, folder: Path) -> dict[str, str]:
    return {finding.path.relative_to(folder).as_posix(): finding.state for finding in check(name, folder)}


# Files ---------------------------------------------------------------------------------------------------------------


def test_unpacked_files_are_enough(tmp_path: Path):
    write_files(tmp_path, FILES)
    assert states("packed", tmp_path) == {"set/first": "ok", "set/second": "ok"}
    assert is_complete(check("packed", tmp_path))


def test_the_archive_is_enough(tmp_path: Path):
    write_files(tmp_path, {"set.tar.gz": ARCHIVE})
    assert states("packed", tmp_path) == {"set.tar.gz": "ok"}


def test_each_kind_of_fault_is_told_apart(tmp_path: Path):
    assert states("packed", tmp_path / "none") == {"set/first": "missing", "set/second": "missing"}
    write_files(tmp_path, {"set/first": b"First", "set/second": b"sec"})
    assert states("packed", tmp_path) == {"set/first": "wrong checksum", "set/second": "damaged"}
    first, second = check("packed", tmp_path)
    assert first.sentence == (
        f"{tmp_path}/set/first has the wrong checksum md5:{hashlib.md5(b'First').hexdigest()}; "
        f"md5:{hashlib.md5(b'first').hexdigest()} is the one published; it comes from http://x/set.tar.gz"
    )
    assert second.sentence == (
        f"{tmp_path}/set/second is damaged: 3 bytes, where 6 belong; it comes from http://x/set.tar.gz"
    )
    assert first.download is not None and not is_complete([first])


def test_a_wrong_file_is_told_though_the_archive_is_right_since_it_would_be_read(tmp_path: Path):
    write_files(tmp_path, {"set.tar.gz": ARCHIVE, "set/first": b"First"})
    assert states("packed", tmp_path) == {"set.tar.gz": "ok", "set/first": "wrong checksum"}


def test_a_wrong_archive_is_told_when_it_is_needed(tmp_path: Path):
    write_files(tmp_path, {"set.tar.gz": ARCHIVE[:-1], "set/first": FILES["set/first"]})
    assert states("packed", tmp_path) == {"set.tar.gz": "damaged", "set/first": "ok", "set/second": "missing"}
    write_files(tmp_path, FILES)
    assert is_complete(check("packed", tmp_path))


def test_what_a_set_needs_is_checked_too(tmp_path: Path):
    write_files(tmp_path, {"labels.pt": LABELS, "set/first": FILES["set/first"]})
    assert states("labels", tmp_path) == {"set/first": "ok", "set/second": "missing", "labels.pt": "ok"}
    write_files(tmp_path, {"labels.pt": b"LABELS"})
    assert "is the one recorded by emabank (nobody publishes one)" in check("labels", tmp_path)[-1].sentence


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_files(tmp_path, FILES)

    def refused(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("emabank.study.data.check.file_hash", refused)
    finding = check("packed", tmp_path)[0]
    assert finding.state == "damaged" and "set/first cannot be read (Permission denied)" in finding.sentence


def test_an_unknown_name_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="there is no data set 'mnist'; there are digits,"):
        check("mnist", tmp_path)


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_the_checksum_is_that_of_the_whole_file(tmp_path: Path, kind: str):
    content = os.urandom(3_000_000)
    write_files(tmp_path, {"file": content})
    assert file_hash(tmp_path / "file", kind) == hashlib.new(kind, content).hexdigest()


# Folders of images ---------------------------------------------------------------------------------------------------


def tiny_files(train: dict[str, int], val: dict[str, int]) -> dict[str, bytes]:
    root = "tiny-imagenet-200"
    images = {f"{root}/train/{wnid}/images/{n}.JPEG": b"x" for wnid, count in train.items() for n in range(count)}
    names = [(f"{wnid}_{n}.JPEG", wnid) for wnid, count in val.items() for n in range(count)]
    annotations = "".join(f"{name}\t{wnid}\t0\n" for name, wnid in names).encode()
    tested = {f"{root}/val/images/{name}": b"x" for name, _ in names}
    return {f"{root}/wnids.txt": b"n2\nn1\n", f"{root}/val/val_annotations.txt": annotations, **images, **tested}


def test_the_complete_numbers_are_right(tmp_path: Path):
    write_files(tmp_path, tiny_files({"n1": 3, "n2": 3}, {"n1": 1, "n2": 1}))
    found = states("tiny", tmp_path)
    root = "tiny-imagenet-200"
    assert found == {f"{root}/wnids.txt": "ok", f"{root}/train": "ok", f"{root}/val": "ok"}


def test_a_sample_is_incomplete(tmp_path: Path):
    write_files(tmp_path, tiny_files({"n1": 3}, {"n1": 1, "n2": 2}))
    _, train, val = check("tiny", tmp_path)
    assert train.sentence == (
        f"{tmp_path}/tiny-imagenet-200/train is incomplete: 3 of 6 images, and 1 of 2 classes do not have 3 (first n2 "
        f"with 0); the complete set comes from http://x/tiny.zip"
    )
    assert train.state == val.state == "incomplete" and "1 of 2 classes do not have 1 (first n2 with 2)" in val.sentence


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"wnids.txt": b"n1\n"}, "damaged", "wnids.txt names 1 classes, where 2 belong"),
        ({"wnids.txt": b"n1\nn1\n"}, "damaged", "wnids.txt is damaged"),
        ({"train/n1/images/0.JPEG": b""}, "damaged", "train/n1/images/0.JPEG is damaged: it is empty"),
        ({"val/val_annotations.txt": b"n1_0.JPEG\tn9\n"}, "damaged", "names the class 'n9'"),
        (
            {"val/val_annotations.txt": b"other.JPEG\tn1\n"},
            "missing",
            "holds no val/images/other.JPEG; the complete set",
        ),
    ],
)
def test_damaged_folders_are_told(tmp_path: Path, change: dict[str, bytes], state: str, said: str):
    write_files(tmp_path, tiny_files({"n1": 3, "n2": 3}, {"n1": 1, "n2": 1}))
    write_files(tmp_path / "tiny-imagenet-200", change)
    wrong = [finding for finding in check("tiny", tmp_path) if finding.state != "ok"]
    assert [finding.state for finding in wrong] == [state] and said in wrong[0].sentence


def test_an_archive_that_is_not_unpacked_is_told(tmp_path: Path):
    assert "wnids.txt is missing; the complete set comes from http://x/tiny.zip" in check("tiny", tmp_path)[0].sentence
    write_files(tmp_path, {"tiny.zip": ARCHIVE})
    finding = check("tiny", tmp_path)[0]
    assert finding.state == "missing" and f"{tmp_path}/tiny.zip is there and not unpacked" in finding.sentence


def test_every_origin_is_a_sentence():
    for dataset in DATASETS.values():
        assert "published by" in origin(dataset) and "terms:" in origin(dataset)


@PUBLISHED
def test_the_published_files_have_the_published_checksums():
    folder = Path(os.environ["EMABANK_DATA"])
    for name in ("cifar10", "cifar100", "cifar10n", "cifar100n"):
        findings = check(name, folder)
        assert {finding.state for finding in findings} <= {"ok", "missing"}
        assert [finding.path.name for finding in findings if finding.state == "missing"] in ([], ["train"])
    assert is_complete(check("cifar10n", folder))
    assert catalogue.find_dataset("cifar10n").needs == ("cifar10",)
