"""What a data folder lacks, downloaded with pooch, verified, unpacked, and only then put in its place; no torch."""

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from emabank.study.data.archives import unpack
from emabank.study.data.catalogue import Download
from emabank.study.data.check import Finding, check, file_hash, is_complete
from emabank.study.data.labelled import Tell

_TIMEOUT = 30  # seconds without an answer
_CHUNK = 1 << 16
_TEMPORARY = ".emabank-fetch-"
_OLD = 24 * 3600  # seconds, after which a temporary folder is taken to be left by a killed process


def fetch(name: str, folder: str | os.PathLike[str], *, tell: Tell | None = None) -> list[Finding]:
    """Download what `check` finds missing or wrong; the files appear in the folder whole and verified, or not at all.

    Archives are unpacked and stay beside what they hold. One that is there already and right is not downloaded again.

    Args:
        name: the name of a data set.
        folder: the data folder; made when it is not there.
        tell: is told how many of how many bytes are there.

    Returns:
        What `check` finds afterwards: nothing missing, nothing wrong.

    >>> [finding.state for finding in fetch("digits", "data")]
    ['ok']
    """
    folder = Path(folder)
    findings = check(name, folder)
    downloads = list(dict.fromkeys(finding.download for finding in findings if finding.download is not None))
    if not downloads:
        return findings
    told = _Told(tell or (lambda done, total: None), sum(download.file.size for download in downloads))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in downloads:
            with _temporary_folder(folder) as temporary:
                _fetch_one(name, download, folder, temporary, told)
            told.finish(download.file.size)
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


def _fetch_one(name: str, download: Download, folder: Path, temporary: Path, told: "_Told") -> None:
    present = download.file.found(folder)
    kind, _, expected = download.file.checksum.partition(":")
    if present is None or file_hash(present, kind) != expected:
        file = _download(name, download, folder, temporary, told)
        # A file that lies elsewhere and is wrong is replaced there: there it is found first, or alone.
        present = present or folder / download.file.path
        present.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, present)
    if download.is_archive:
        unpacked = temporary / "unpacked"
        unpacked.mkdir()
        unpack(present, unpacked)
        _move(unpacked, folder)


def _download(name: str, download: Download, folder: Path, temporary: Path, told: "_Told") -> Path:
    pooch: Any = import_module("pooch")
    from requests.exceptions import HTTPError, RequestException

    file = Path(download.file.path).name
    by_hand = (
        f"where there is no network, put {file} into {folder} by hand, and `emabank data check {name} --data {folder}` "
        f"will verify it"
    )
    downloader = pooch.HTTPDownloader(progressbar=told, chunk_size=_CHUNK, timeout=_TIMEOUT)
    told.begin(download)
    try:
        with _quiet(pooch.get_logger()):
            path = pooch.retrieve(
                download.url, download.file.checksum, fname=file, path=temporary, downloader=downloader
            )
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


class _Told:
    """What pooch takes for a progress bar: counts over all downloads, and stops a file that does not end."""

    def __init__(self, tell: Tell, whole: int) -> None:
        self.tell = tell
        self.whole = whole
        self.before = 0  # bytes of the files that are done
        self.most = self.done = self.total = 0

    def begin(self, download: Download) -> None:
        self.most, self.done = download.file.size, 0
        self.tell(self.before, self.whole)

    def update(self, count: int) -> None:
        self.done += count
        if self.done > self.most + 2 * _CHUNK:  # pooch counts the last chunk as a whole one
            raise ValueError("longer than it should be")
        self.tell(self.before + min(self.done, self.most), self.whole)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass

    def finish(self, size: int) -> None:
        self.before += size
        self.tell(self.before, self.whole)


def _move(source: Path, target: Path) -> None:
    """Move what is in one folder to another; folders that are there already get what they lack and what differs."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _move(entry, place)
        else:
            os.replace(entry, place)


@contextmanager
def _temporary_folder(folder: Path) -> Generator[Path]:
    """A folder beside where the files will lie, so that moving them there is one step; it is always removed."""
    for left in folder.glob(f"{_TEMPORARY}*"):
        if time.time() - left.stat().st_mtime > _OLD:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder) as temporary:
        yield Path(temporary)


@contextmanager
def _quiet(logger: Any) -> Generator[None]:
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
