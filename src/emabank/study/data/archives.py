"""Archives that may be damaged or hostile: members read without unpacking, or unpacked inside one folder only.

Imports the standard library alone.
"""

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

# CIFAR's archives unpack to 187 MB and Tiny-ImageNet's to 0.5 GB: more than this is no data set of ours.
MOST_BYTES = 2 * 2**30
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)


def read_members(path: Path, wanted: Collection[str], *, largest: int) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a `.tar.gz`, each once, in the archive's order; reading ends with the last of them.

    Links, devices and whatever else has a wanted name are passed over; a file above `largest` bytes is refused.

    >>> import io, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(Path(folder, "a.tar.gz"), "w:gz") as archive:
    ...         member = tarfile.TarInfo("notes")
    ...         member.size = 4
    ...         archive.addfile(member, io.BytesIO(b"text"))
    ...     list(read_members(Path(folder, "a.tar.gz"), ["notes"], largest=100))
    [('notes', b'text')]
    """
    left = set(wanted)
    with _damage_told(path), _tar(path) as archive:
        for member in archive:
            if member.name not in left or not member.isreg():
                continue
            if member.size > largest:
                raise ValueError(f"{path} holds {member.name} of {member.size:,} bytes, far too many to be true")
            left.remove(member.name)
            yield member.name, cast("IO[bytes]", archive.extractfile(member)).read()
            if not left:
                return


def unpack(path: Path, into: Path) -> None:
    """Unpack a `.tar.gz` or `.zip` into an existing folder; `ValueError` when a member would lie outside of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with zipfile.ZipFile(Path(folder, "a.zip"), "w") as archive:
    ...         archive.writestr("notes/first.txt", "text")
    ...     unpack(Path(folder, "a.zip"), Path(folder))
    ...     Path(folder, "notes", "first.txt").read_text()
    'text'
    """
    with _damage_told(path):
        if path.suffix == ".zip":
            _unpack_zip(path, into)
        else:
            _unpack_tar(path, into)


def _unpack_tar(path: Path, into: Path) -> None:
    with _tar(path) as archive:
        for member in archive:
            if not _stays_inside(member.name) or not (member.isreg() or member.isdir()):
                raise _outside(path, member.name)
            _put(into / member.name, archive.extractfile(member))


def _unpack_zip(path: Path, into: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > MOST_BYTES:
            raise zipfile.BadZipFile(f"unpacks to more than {MOST_BYTES:,} bytes")
        for member in members:
            if not _stays_inside(member.filename) or stat.S_ISLNK(member.external_attr >> 16):
                raise _outside(path, member.filename)
            _put(into / member.filename, None if member.is_dir() else archive.open(member))


def _put(target: Path, source: IO[bytes] | None) -> None:
    """Write a file, or make a folder where there is no source; owners, rights and times of the archive are left out."""
    if source is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, open(target, "wb") as file:
        shutil.copyfileobj(source, file)


def _stays_inside(name: str) -> bool:
    """Whether a member's name is a plain relative one, on any system."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and not set(name) & set("\\:\0")


def _outside(path: Path, name: str) -> ValueError:
    return ValueError(f"{path} holds {name!r}, a link or a place outside of its folder: it was not unpacked")


@contextmanager
def _tar(path: Path) -> Generator[tarfile.TarFile]:
    with (
        gzip.open(path, "rb") as content,
        tarfile.open(fileobj=cast("IO[bytes]", _Limited(content, MOST_BYTES)), mode="r|") as archive,
    ):
        yield archive


class _Limited:
    """A file that ends in an error, so that an archive of a few bytes cannot fill the memory or the disk."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self.file = file
        self.left = most

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError(f"unpacks to more than {MOST_BYTES:,} bytes")
        return content


@contextmanager
def _damage_told(path: Path) -> Generator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); delete it and get it again") from error
