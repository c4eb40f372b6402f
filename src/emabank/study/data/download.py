"""The files of a data set: checked against the catalogue, downloaded with pooch, unpacked; no torch."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from emabank.study.data.catalogue import Download, File, ImageFolders, find_dataset
from emabank.study.data.folders import FOLDER, ProgressCallback, read_wnids, train_files, val_files

State = Literal["ok", "missing", "damaged", "wrong checksum", "incomplete"]


class Finding(NamedTuple):
    """The state of one file (or image folder) of a data set, in a sentence, and its source."""

    path: Path
    state: State
    sentence: str
    download: Download | None = None  # None: nothing to fetch


def check(name: str, folder: str | os.PathLike[str]) -> list[Finding]:
    """Check a data set's files, and those of the data sets that it needs, against known checksums and counts."""
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
    return all(finding.state == "ok" for finding in findings)


# Files ---------------------------------------------------------------------------------------------------------------


def _check_contents(folder: Path, download: Download) -> list[Finding]:
    """Check an archive's unpacked files. Missing ones are fine if the archive itself is there and intact."""
    findings = [_check_file(folder, file, download) for file in download.contents]
    if all(finding.state != "missing" for finding in findings) or download.file.find(folder) is None:
        return findings
    archive = _check_file(folder, download.file, download)
    if archive.state != "ok":
        return [archive, *findings]
    return [archive, *(finding for finding in findings if finding.state != "missing")]


def _check_file(folder: Path, file: File, download: Download) -> Finding:
    path = file.find(folder)
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
        checksum = f"{kind}:{file_hash(path, kind)}"
    except OSError as error:
        return Finding(path, "damaged", f"{path} cannot be read ({error.strerror}); {source}", download)
    # Only the CIFAR-N files have a SHA-256 in the catalogue.
    whose = "published" if kind == "md5" else "recorded by emabank (nobody publishes one)"
    if checksum != file.checksum:
        sentence = f"{path} has the wrong checksum {checksum}; {file.checksum} is the one {whose}; {source}"
        return Finding(path, "wrong checksum", sentence, download)
    return Finding(path, "ok", f"{path} is whole; its checksum is the one {whose}")


def file_hash(path: Path, kind: str) -> str:
    """The checksum of a file: `md5` or `sha256`."""
    total = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


# Folders of images ---------------------------------------------------------------------------------------------------


def _check_image_folders(folder: Path, download: Download, published: ImageFolders) -> list[Finding]:
    """Compare the numbers of classes and images with the published ones; single images have no checksums."""
    root = folder / FOLDER
    path = root / "wnids.txt"
    try:
        wnids = read_wnids(folder)
    except FileNotFoundError:
        packed = download.file.find(folder)
        if packed is None:
            return [_wrong(path, "missing", f"{path} is missing", download)]
        sentence = f"{path} is missing; {packed} is there and not unpacked"
        return [Finding(path, "missing", sentence, download)]
    except (OSError, ValueError) as error:
        return [_wrong(path, "damaged", str(error), download)]
    if len(wnids) != published.classes:
        sentence = f"{path} names {len(wnids)} classes, where {published.classes} belong"
        return [_wrong(path, "damaged", sentence, download)]
    findings = [Finding(path, "ok", f"{path} names the {len(wnids)} classes")]
    findings.append(_count(root / "train", train_files(root, wnids), wnids, published.train, download))
    val = root / "val"
    try:
        findings.append(_count(val, val_files(root, wnids), wnids, published.test, download))
    except FileNotFoundError as error:
        findings.append(_wrong(val, "missing", str(error).partition(";")[0], download))
    except (OSError, ValueError) as error:
        findings.append(_wrong(val, "damaged", str(error), download))
    return findings


def _wrong(place: Path, state: State, sentence: str, download: Download) -> Finding:
    return Finding(place, state, f"{sentence}; the complete set comes from {download.url}", download)


def _count(place: Path, files: list[tuple[str, int]], wnids: list[str], per_class: int, download: Download) -> Finding:
    empty = next((place.parent / path for path, _ in files if (place.parent / path).stat().st_size == 0), None)
    if empty is not None:
        return _wrong(place, "damaged", f"{empty} is damaged: it is empty", download)
    counts = Counter(label for _, label in files)
    wrong_classes = [label for label in range(len(wnids)) if counts[label] != per_class]
    if wrong_classes:
        sentence = (
            f"{place} is incomplete: {len(files):,} of {per_class * len(wnids):,} images, and {len(wrong_classes)} of "
            f"{len(wnids)} classes do not have {per_class} "
            f"(first {wnids[wrong_classes[0]]} with {counts[wrong_classes[0]]})"
        )
        return _wrong(place, "incomplete", sentence, download)
    return Finding(place, "ok", f"{place} holds {per_class} images in each of {len(wnids)} classes")


# Fetching ------------------------------------------------------------------------------------------------------------

_TIMEOUT = 30  # seconds without an answer
_CHUNK = 1 << 16
_TEMPORARY = ".emabank-fetch-"
_OLD = 24 * 3600  # seconds; an older temporary folder was left by a killed process


def fetch(name: str, folder: str | os.PathLike[str], *, progress: ProgressCallback | None = None) -> list[Finding]:
    """Download the files that `check` finds missing or wrong. A file appears complete and verified, or not at all.

    Archives are unpacked and kept. An intact archive that is already there is not downloaded again. Returns the
    findings of a final `check`, which are all "ok".
    """
    folder = Path(folder)
    findings = check(name, folder)
    downloads = list(dict.fromkeys(finding.download for finding in findings if finding.download is not None))
    if not downloads:
        return findings
    bar = _Bar(progress or (lambda done, total: None), sum(download.file.size for download in downloads))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in downloads:
            with _temporary_folder(folder) as temporary:
                _fetch_one(name, download, folder, temporary, bar)
            bar.finish(download.file.size)
    except ConnectionError:
        raise
    except OSError as error:
        reason = f"the files of {name} could not be put there ({error.strerror or error}); nothing half-written is left"
        raise OSError(error.errno, reason, str(folder)) from error
    findings = check(name, folder)
    if not is_complete(findings):
        wrong = next(finding for finding in findings if finding.state != "ok")
        raise ValueError(f"{wrong.sentence}: still so after fetching it; remove it and fetch again")
    return findings


def _fetch_one(name: str, download: Download, folder: Path, temporary: Path, bar: "_Bar") -> None:
    present = download.file.find(folder)
    kind, _, expected = download.file.checksum.partition(":")
    if present is None or file_hash(present, kind) != expected:
        file = _download(name, download, folder, temporary, bar)
        # Replace a wrong file where `find` finds it, possibly `elsewhere`: readers use `find` too.
        present = present or folder / download.file.path
        present.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, present)
    if download.is_archive:
        unpacked = temporary / "unpacked"
        unpacked.mkdir()
        unpack(present, unpacked)
        # Existing folders are merged: an unpacked file replaces the one of its name.
        shutil.copytree(unpacked, folder, copy_function=os.replace, dirs_exist_ok=True)


def _download(name: str, download: Download, folder: Path, temporary: Path, bar: "_Bar") -> Path:
    pooch: Any = import_module("pooch")
    from requests.exceptions import HTTPError, RequestException

    file = Path(download.file.path).name
    by_hand = (
        f"where there is no network, put {file} into {folder} by hand, and `emabank data check {name} --data {folder}` "
        f"will verify it"
    )
    pooch.get_logger().setLevel("ERROR")  # the progress bar is enough
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK, timeout=_TIMEOUT)
    bar.begin(download)
    try:
        path = pooch.retrieve(download.url, download.file.checksum, fname=file, path=temporary, downloader=downloader)
    except HTTPError as error:
        code = getattr(error.response, "status_code", "an error")
        raise ConnectionError(f"{download.url} could not be fetched (it answered {code}); {by_hand}") from error
    except RequestException as error:
        raise ConnectionError(f"{download.url} could not be reached or broke off; {by_hand}") from error
    except ValueError as error:
        raise ValueError(
            f"what {download.url} gave has another checksum than {download.file.checksum} and was not kept; try again, "
            f"and if it stays so, the file there is no longer the published one"
        ) from error
    return Path(path)


class _Bar:
    """A progress bar for pooch that counts the bytes of all downloads, and aborts a file longer than expected."""

    def __init__(self, progress: ProgressCallback, total_bytes: int) -> None:
        self.progress = progress
        self.total_bytes = total_bytes
        self.before = 0  # bytes of finished files
        self.most = self.done = self.total = 0

    def begin(self, download: Download) -> None:
        self.most, self.done = download.file.size, 0
        self.progress(self.before, self.total_bytes)

    def update(self, count: int) -> None:
        self.done += count
        if self.done > self.most + 2 * _CHUNK:  # pooch counts the last chunk as a full one
            raise ValueError("longer than it should be")
        self.progress(self.before + min(self.done, self.most), self.total_bytes)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass

    def finish(self, size: int) -> None:
        self.before += size
        self.progress(self.before, self.total_bytes)


@contextmanager
def _temporary_folder(folder: Path) -> Generator[Path]:
    """A temporary folder inside the data folder, so that files move into place atomically. It is always removed."""
    for left in folder.glob(f"{_TEMPORARY}*"):
        if time.time() - left.stat().st_mtime > _OLD:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder) as temporary:
        yield Path(temporary)


# Unpacking -----------------------------------------------------------------------------------------------------------

MOST_BYTES = 2 * 2**30  # CIFAR's archives unpack to 187 MB and Tiny-ImageNet's to 0.5 GB


def unpack(path: Path, folder: Path) -> None:
    """Unpack a `.tar.gz` or `.zip` into an existing folder, never outside of it.

    A tar member that leads outside raises `ValueError`; zipfile strips such names. Owners are ignored, and unsafe
    permissions are dropped.
    """
    if not hasattr(tarfile, "data_filter"):
        raise OSError("this Python cannot unpack archives safely; use 3.10.12, 3.11.4, 3.12 or later")
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as zipped:
                _check_size(path, (member.file_size for member in zipped.infolist()))
                zipped.extractall(folder)  # it strips .. and absolute paths from names, and makes no links
        else:
            with tarfile.open(path, "r:gz") as archive:
                _check_size(path, (member.size for member in archive))
                archive.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise ValueError(f"{path} holds what leads outside of its folder ({error}); delete it") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); delete it and get it again") from error


def _check_size(path: Path, sizes: Iterable[int]) -> None:
    total = 0
    for size in sizes:  # summed while reading, so that a far too large archive is not read to its end
        total += size
        if total > MOST_BYTES:
            raise ValueError(f"{path} unpacks to {total:,} bytes or more, far too many; delete it and get it again")
