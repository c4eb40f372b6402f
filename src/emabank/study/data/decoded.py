"""Image files decoded once, into a cache that is mapped into memory at every later start; no torch.

A cache is a folder with `images.npy`, `labels.npy` and `manifest.json`. It is made under another name and renamed when
it is whole, and its name holds a digest of what it was made from: what is there under that name is whole and current.
The manifest has checksums of both arrays; a cache that has changed since it was made is made again.
"""

import hashlib
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emabank.study.data.labelled import Tell
from emabank.study.data.pixels import Shape, decoded_blocks, height_and_width
from emabank.study.locks import LockedError, locked

CACHE = ".emabank-cache"
"""The name of the default cache, in the data folder."""
_VERSION = 2


class Decoded(NamedTuple):
    """Images uint8 `[n, 3, height, width]`, mapped from a file and copied where written to; labels int64 `[n]`."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def load_decoded(
    root: Path, files: Sequence[tuple[str, int]], *, name: str, shape: Shape, cache: Path, tell: Tell | None = None
) -> Decoded:
    """The images of these files as one array, from the cache where it holds them, else decoded into it.

    Args:
        root: the folder that the files are in.
        files: paths below `root` and labels, one or more; their order is that of the images.
        name: what the cache is called, in letters, digits and hyphens; when files, their sizes, times of change,
            labels or the shape change, a new one takes the place of the old one of that name and root.
        shape: which size the images have or get.
        cache: the folder of caches; made when it is not there.
        tell: is told how many of how many images are decoded.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     root = Path(folder)
    ...     Image.new("L", (4, 4), 200).save(root / "grey.png")
    ...     found = load_decoded(root, [("grey.png", 7)], name="example", shape=Shape(4), cache=root / "cache")
    ...     found.images.shape, int(found.images.max()), found.labels
    ((1, 3, 4, 4), 200, array([7]))
    """
    place = cache / f"{name}.{_digest(root, files, shape)}"
    found = _opened(place)
    if found is not None:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            is_alone = _locked(stack, cache / f".{name}.lock")
            found = _opened(place)  # another process may have made it while this one waited
            if found is None:
                _remove(cache, name, root, leftovers=is_alone)
                found = _made(place, root, files, name=name, shape=shape, tell=tell or (lambda done, total: None))
            return found
    except OSError as error:  # files that cannot be read are ValueErrors by now, so this is about writing
        reason = f"the decoded images could not be kept there ({error.strerror or error}); choose another cache folder"
        raise OSError(error.errno, reason, str(cache)) from error


def _digest(root: Path, files: Sequence[tuple[str, int]], shape: Shape) -> str:
    total = hashlib.sha256(json.dumps([_VERSION, shape.side, shape.fit]).encode())
    start = str(root)
    for path, label in files:
        status = os.stat(f"{start}/{path}")
        total.update(f"{path}\0{label}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:20]


def _opened(place: Path) -> Decoded | None:
    """The cache at this place; None when there is none, or it was damaged after it was made."""
    try:
        manifest = json.loads((place / "manifest.json").read_bytes())
        # Not np.load: it would open archives as well.
        images = np.lib.format.open_memmap(place / "images.npy", mode="c")
        with open(place / "labels.npy", "rb") as file:
            labels = np.lib.format.read_array(file, allow_pickle=False)
        whole = list(images.shape) == manifest["shape"] and images.dtype == np.uint8
        whole = whole and labels.shape == images.shape[:1] and labels.dtype == np.int64
        whole = whole and [zlib.crc32(images.data), zlib.crc32(labels.data)] == manifest["checksums"]
    except (OSError, ValueError, LookupError, TypeError, EOFError, AttributeError, RecursionError, MemoryError):
        return None
    return Decoded(images, labels) if whole else None


def _locked(stack: ExitStack, path: Path) -> bool:
    """Wait until no other process decodes under this name and keep others waiting; False where nothing can be locked.

    Without a lock two processes do the same work twice, and the renaming still keeps each cache whole.
    """
    while True:
        try:
            stack.enter_context(locked(path, what="the cache"))
        except LockedError:
            continue  # it has waited a while
        except OSError:
            return False
        return True


def _made(place: Path, root: Path, files: Sequence[tuple[str, int]], *, name: str, shape: Shape, tell: Tell) -> Decoded:
    temporary = place.with_name(f".{name}.{secrets.token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        _decode_into(temporary, root, files, name=name, shape=shape, tell=tell)
        if place.exists() and _opened(place) is None:
            shutil.rmtree(place)  # damaged after it was made
        with suppress(OSError):  # without a lock, another process may have been quicker
            temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    found = _opened(place)
    if found is None:
        raise OSError("what was written cannot be read back")
    return found


def _decode_into(
    folder: Path, root: Path, files: Sequence[tuple[str, int]], *, name: str, shape: Shape, tell: Tell
) -> None:
    paths = [root / path for path, _ in files]
    size = height_and_width(paths[0], shape)
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), 3, *size)}
    done = checksum = 0
    tell(done, len(paths))
    # Written as a file and mapped later: on a full disk, writing to a mapped file would end the process.
    with open(folder / "images.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        with closing(decoded_blocks(paths, size, fit=shape.fit)) as blocks:
            for block in blocks:
                file.write(block.data)
                checksum = zlib.crc32(block.data, checksum)
                done += len(block)
                tell(done, len(paths))
        file.flush()
        os.fsync(file.fileno())
    labels = np.array([label for _, label in files], dtype=np.int64)
    np.save(folder / "labels.npy", labels)
    manifest = {
        "version": _VERSION,
        "name": name,
        "root": str(root.resolve()),
        "shape": header["shape"],
        "checksums": [checksum, zlib.crc32(labels.data)],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def _remove(cache: Path, name: str, root: Path, *, leftovers: bool) -> None:
    """Remove what killed processes left half-made, and the caches of this name and root: they are out of date."""
    if leftovers:
        for path in cache.glob(f".{name}.*.tmp"):
            shutil.rmtree(path, ignore_errors=True)
    for path in cache.glob(f"{name}.*"):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            manifest = json.loads((path / "manifest.json").read_bytes())
            if (manifest["name"], manifest["root"]) == (name, str(root.resolve())):
                shutil.rmtree(path)
