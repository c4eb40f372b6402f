"""A data folder against the catalogue: which files are there, whole and the published ones. Reads only; no torch."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from emabank.study.data.catalogue import Download, File, ImageFolders, Published, find_dataset
from emabank.study.data.tiny_imagenet import FOLDER, read_wnids, train_files, val_files

State = Literal["ok", "missing", "damaged", "wrong checksum", "incomplete"]


class Finding(NamedTuple):
    """How one file (or folder of images) of a data set stands, in a sentence, and where it comes from."""

    path: Path
    state: State
    sentence: str
    download: Download | None = None  # None: nothing has to be fetched


def check(name: str, folder: str | os.PathLike[str]) -> list[Finding]:
    """Verify the files of a data set, and of those that it needs, against published checksums and numbers.

    >>> [finding.state for finding in check("digits", "data")]
    ['ok']
    >>> print(check("cifar10n", "/no/such/folder")[-1].sentence)
    /no/such/folder/cifar-n/CIFAR-10_human.pt is missing; it comes from \
https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/CIFAR-10_human.pt
    """
    dataset, folder = find_dataset(name), Path(folder)
    findings = [finding for other in dataset.needs for finding in check(other, folder)]
    if not dataset.downloads:
        findings.append(Finding(Path(), "ok", f"{dataset.title}: embedded in emabank, nothing to fetch"))
    for download in dataset.downloads:
        if download.image_folders is not None:
            findings += _check_image_folders(folder, download, download.image_folders)
        elif download.contents:
            findings += _check_contents(folder, download)
        else:
            findings.append(_check_file(folder, download.file, download))
    return findings


def is_complete(findings: Iterable[Finding]) -> bool:
    """Whether nothing is missing or wrong: then the command ends with 0.

    >>> is_complete(check("digits", "data")), is_complete(check("cifar10", "/no/such/folder"))
    (True, False)
    """
    return all(finding.state == "ok" for finding in findings)


def origin(dataset: Published) -> str:
    """Who publishes a data set and under which terms, in a sentence.

    >>> origin(find_dataset("digits")).partition(":")[0]
    'Optical Recognition of Handwritten Digits, test set'
    """
    return f"{dataset.title}: published by {dataset.publisher}; terms: {dataset.terms}"


# Files ---------------------------------------------------------------------------------------------------------------


def _check_contents(folder: Path, download: Download) -> list[Finding]:
    """The files of an archive, unpacked; those that are not are fine when the archive itself is there and right."""
    findings = [_check_file(folder, file, download) for file in download.contents]
    if all(finding.state != "missing" for finding in findings) or download.file.found(folder) is None:
        return findings
    archive = _check_file(folder, download.file, download)
    if archive.state != "ok":
        return [archive, *findings]
    return [archive, *(finding for finding in findings if finding.state != "missing")]


def _check_file(folder: Path, file: File, download: Download) -> Finding:
    path = file.found(folder)
    source = f"it comes from {download.url}"
    if path is None:
        path = folder / file.path
        return Finding(path, "missing", f"{path} is missing; {source}", download)
    try:
        size = path.stat().st_size
        if size != file.size:
            sentence = f"{path} is damaged: {size:,} bytes, where {file.size:,} belong; {source}"
            return Finding(path, "damaged", sentence, download)
        kind = file.checksum.partition(":")[0]
        found = f"{kind}:{file_hash(path, kind)}"
    except OSError as error:
        return Finding(path, "damaged", f"{path} cannot be read ({error.strerror}); {source}", download)
    # Only CIFAR-N is known by SHA-256, and that by emabank alone.
    whose = "published" if kind == "md5" else "recorded by emabank (nobody publishes one)"
    if found != file.checksum:
        sentence = f"{path} has the wrong checksum {found}; {file.checksum} is the one {whose}; {source}"
        return Finding(path, "wrong checksum", sentence, download)
    return Finding(path, "ok", f"{path} is whole; its checksum is the one {whose}")


def file_hash(path: Path, kind: str) -> str:
    """The checksum of a file: `md5` or `sha256`.

    >>> file_hash(Path(os.devnull), "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    total = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


# Folders of images ---------------------------------------------------------------------------------------------------


def _check_image_folders(folder: Path, download: Download, published: ImageFolders) -> list[Finding]:
    """Classes and images counted against the published numbers, since single images have no checksums."""
    root, source = folder / FOLDER, f"the complete set comes from {download.url}"
    path = root / "wnids.txt"
    try:
        wnids = read_wnids(folder)
    except FileNotFoundError:
        packed = download.file.found(folder)
        there = f"{packed} is there and not unpacked" if packed else source
        return [Finding(path, "missing", f"{path} is missing; {there}", download)]
    except (OSError, ValueError) as error:
        return [Finding(path, "damaged", f"{error}; {source}", download)]
    if len(wnids) != published.classes:
        sentence = f"{path} names {len(wnids)} classes, where {published.classes} belong; {source}"
        return [Finding(path, "damaged", sentence, download)]
    findings = [Finding(path, "ok", f"{path} names the {len(wnids)} classes")]
    train = root / "train"
    findings.append(_count(train, train_files(root, wnids), root, wnids, published.train, download))
    val = root / "val"
    try:
        findings.append(_count(val, val_files(root, wnids), root, wnids, published.test, download))
    except FileNotFoundError as error:
        findings.append(Finding(val, "missing", f"{str(error).partition(';')[0]}; {source}", download))
    except (OSError, ValueError) as error:
        findings.append(Finding(val, "damaged", f"{error}; {source}", download))
    return findings


def _count(
    place: Path, files: list[tuple[str, int]], root: Path, wnids: list[str], each: int, download: Download
) -> Finding:
    counts = Counter(label for _, label in files)
    empty = next((root / path for path, _ in files if (root / path).stat().st_size == 0), None)
    if empty is not None:
        sentence = f"{empty} is damaged: it is empty; the complete set comes from {download.url}"
        return Finding(place, "damaged", sentence, download)
    unlike = [label for label in range(len(wnids)) if counts[label] != each]
    if unlike:
        first = unlike[0]
        sentence = (
            f"{place} is incomplete: {len(files):,} of {each * len(wnids):,} images, and {len(unlike)} of {len(wnids)} "
            f"classes do not have {each} (first {wnids[first]} with {counts[first]}); the complete set comes from "
            f"{download.url}"
        )
        return Finding(place, "incomplete", sentence, download)
    return Finding(place, "ok", f"{place} holds {each} images in each of {len(wnids)} classes")
