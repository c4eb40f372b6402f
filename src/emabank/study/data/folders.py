"""Data sets of image folders: Tiny-ImageNet-200 in its published layout, and a user's own. Without torch.

Images are decoded once, into a `.npy` cache that is renamed into place when complete and memory-mapped from then on.
Its name has a digest of the files' names, sizes and times, not of their content; a run notices changed pixels by the
fingerprint of its data.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from emabank.atomic import write_atomically
from emabank.study.data.catalogue import advice

ProgressCallback = Callable[[int, int], None]
"""Called with the amount done and the total."""
CACHE = ".emabank-cache"
"""The default cache folder, inside the data folder."""
_VERSION = 3
_OLD = 24 * 3600  # seconds; an older unfinished cache was left by a killed process


class LabelledImages(NamedTuple):
    """Images uint8 `[n, channels, height, width]`, labels int64 `[n]`, and the names of the classes."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


# Tiny-ImageNet -------------------------------------------------------------------------------------------------------

FOLDER = "tiny-imagenet-200"
_SIDE = 64
_MOST_TEXT = 16 * 2**20  # bytes; val_annotations.txt, the larger of two, has 0.4 MB


def load_tiny_imagenet(
    folder: str | os.PathLike[str],
    *,
    split: Literal["train", "test"],
    cache: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> LabelledImages:
    """Read one part of Tiny-ImageNet. The test images are those of `val`, because the `test` folder has no labels.

    The images are decoded once, by default into `.emabank-cache` in the data folder, and memory-mapped from there.
    Class 0 is the first line of `wnids.txt`.
    """
    folder = Path(folder)
    root = folder / FOLDER
    wnids = read_wnids(folder)
    files = train_files(root, wnids) if split == "train" else val_files(root, wnids)
    if not files:
        raise FileNotFoundError(f"{root} holds no images to {split} with; {advice('tiny-imagenet', folder)}")
    name, cache = f"tiny-imagenet-{split}", folder / CACHE if cache is None else Path(cache)
    return _load(root, files, wnids, name=name, side=_SIDE, fit=False, cache=cache, progress=progress)


def read_wnids(folder: Path) -> list[str]:
    """The WordNet ids of the classes, in the order of their labels."""
    path = folder / FOLDER / "wnids.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {FOLDER}/wnids.txt; {advice('tiny-imagenet', folder)}")
    wnids = [line.strip() for line in _lines(path) if line.strip()]
    # An alphanumeric name cannot lead to another folder.
    if len(set(wnids)) != len(wnids) or not all(wnid.isalnum() for wnid in wnids):
        raise ValueError(f"{path} is damaged: it should hold 200 different words like n01443537, one a line")
    return wnids


def train_files(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """Paths below `root` and labels of the training images; a class whose folder is missing has none."""
    return [
        (f"train/{wnid}/images/{name}", label)
        for label, wnid in enumerate(wnids)
        for name in _jpegs(root / "train" / wnid / "images")
    ]


def val_files(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """Paths below `root` and labels of the test images, in the order of `val_annotations.txt`."""
    path = root / "val" / "val_annotations.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{root} holds no val/{path.name}; {advice('tiny-imagenet', root.parent)}")
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    names = set(_jpegs(root / "val" / "images"))
    files: list[tuple[str, int]] = []
    for number, line in enumerate(_lines(path), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        if not line.strip():
            continue
        if wnid not in labels:
            raise ValueError(f"{path} names the class {wnid!r} in line {number}, which wnids.txt does not have")
        if name not in names:
            raise FileNotFoundError(f"{root} holds no val/images/{name}; {advice('tiny-imagenet', root.parent)}")
        files.append((f"val/images/{name}", labels[wnid]))
    return files


def _jpegs(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith((".JPEG", ".jpeg", ".jpg")))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _lines(path: Path) -> list[str]:
    if path.stat().st_size > _MOST_TEXT:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, far too many; use the published file")
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


# A user's own images -------------------------------------------------------------------------------------------------

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def load_image_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    progress: ProgressCallback | None = None,
) -> LabelledImages:
    """Read images sorted into one folder per class. They are decoded once, into `.emabank-cache` in `path`.

    Args:
        path: a folder whose subfolders are the classes, sorted by name; images may lie deeper in them.
        size: bring every image to this many pixels square: scale it, then crop its centre. By default all images must
            have the same size, of any height and width.
        progress: called with the number of decoded images and the total.
    """
    if size is not None and size < 1:
        raise ValueError(f"size is {size}; give a number of pixels, 1 or more, or None")
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(
            f"there is no folder {root}; give one whose subfolders hold the images of one class each"
        )
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    files: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        paths = _images(root / name)
        if not paths:
            raise ValueError(f"{root / name} holds no images ({', '.join(_SUFFIXES)}); fill the folder or remove it")
        files += [(f"{name}/{path}", label) for path in paths]
    if not files:
        raise ValueError(f"{root} has no subfolders; put the images of each class into a folder of their own")
    name = f"{re.sub('[^A-Za-z0-9]+', '-', root.resolve().name) or 'images'}-{size or 'own-size'}"
    fit, cache = size is not None, root / CACHE
    return _load(root, files, classes, name=name, side=size, fit=fit, cache=cache, progress=progress)


def _images(folder: Path) -> list[str]:
    """The images below a folder, as sorted paths with `/`; hidden files and folders are skipped."""
    paths: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(place).relative_to(folder)
        images = (name for name in names if name.lower().endswith(_SUFFIXES) and not name.startswith("."))
        paths += [(here / name).as_posix() for name in images]
    return sorted(paths)


# The cache -----------------------------------------------------------------------------------------------------------


def _load(root: Path, files: Sequence[tuple[str, int]], classes: Sequence[str], **how: Any) -> LabelledImages:
    images = load_decoded(root, [path for path, _ in files], **how)
    return LabelledImages(images, np.array([label for _, label in files], dtype=np.int64), tuple(classes))


def load_decoded(
    root: Path,
    files: Sequence[str],
    *,
    name: str,
    side: int | None,
    fit: bool,
    cache: Path,
    progress: ProgressCallback | None = None,
) -> NDArray[np.uint8]:
    """The images of these files as uint8 `[n, 3, height, width]`, memory-mapped from a cache that is filled if needed.

    Writing to the array does not change the cache. When files, their sizes or times, `side` or `fit` change, a new
    cache replaces the old one of the same name.

    Args:
        root: the folder of the files.
        files: paths below `root`, one or more, in the order of the images.
        name: of the cache, in letters, digits and hyphens.
        side: height and width of the images in pixels; None: the size of the first image.
        fit: scale images of other sizes and crop their centre; False refuses them.
        cache: the folder of caches; created if missing.
        progress: called with the number of decoded images and the total.
    """
    path = cache / f"{name}.{_digest(root, files, side, fit)}.npy"
    images = _mapped(path, len(files))
    if images is not None:
        return images
    for old in [*cache.glob(f"{name}.*.npy"), *(p for p in cache.glob(".*.tmp") if _is_old(p))]:
        old.unlink(missing_ok=True)
    paths = [root / file for file in files]
    write_atomically(path, lambda draft: _decode_into(draft, paths, side, fit=fit, progress=progress))
    images = _mapped(path, len(files))
    if images is None:
        raise OSError(f"{path} was written and cannot be read back; choose another cache folder")
    return images


def _digest(root: Path, files: Sequence[str], side: int | None, fit: bool) -> str:
    total = hashlib.sha256(json.dumps([_VERSION, side, fit]).encode())
    for file in files:
        status = os.stat(f"{root}/{file}")
        total.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:20]


def _mapped(path: Path, count: int) -> NDArray[np.uint8] | None:
    """The memory-mapped cache; None if it is missing or damaged."""
    try:
        images = np.lib.format.open_memmap(path, mode="c")  # np.load would open archives too
    except (OSError, ValueError):
        return None
    return images if images.dtype == np.uint8 and images.ndim == 4 and len(images) == count else None


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _OLD


# Decoding ------------------------------------------------------------------------------------------------------------

_TOGETHER = 256  # images in memory at a time
# Not all that Pillow reads: for EPS, it starts another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def _decode_into(
    draft: Path, paths: Sequence[Path], side: int | None, *, fit: bool, progress: ProgressCallback | None
) -> None:
    """Write the images as one `.npy` file; `ValueError` names a file that is damaged or does not fit."""
    width, height = _read(paths[0]).size if side is None else (side, side)
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), 3, height, width)}

    def decode(path: Path) -> bytes:
        return _pixels(path, (width, height), fit=fit).tobytes()

    progress = progress or (lambda done, total: None)
    progress(0, len(paths))
    # Write the file now and map it later: on a full disk, writing to a mapped file kills the process. Pillow releases
    # the GIL while decoding, so threads are enough: on Tiny-ImageNet they were about as fast as processes.
    with open(draft, "wb") as file, ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(paths), _TOGETHER):
            file.writelines(pool.map(decode, paths[start : start + _TOGETHER]))
            progress(min(start + _TOGETHER, len(paths)), len(paths))


def _pixels(path: Path, size: tuple[int, int], *, fit: bool) -> NDArray[np.uint8]:
    image = _read(path)
    if image.size != size and not fit:
        raise ValueError(
            f"{path} has {image.width} x {image.height} pixels, where {size[0]} x {size[1]} belong; give images of one "
            "size, or a size to bring them to"
        )
    if image.mode.startswith(("I", "F")):  # converting would clip values above 255
        raise ValueError(f"{path} has more than 8 bits a channel ({image.mode}); convert it to 8 bits")
    image = image.convert("RGB")
    if image.size != size:
        image = ImageOps.fit(image, size, method=Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path, formats=_FORMATS) as image:
            image.load()
            return image
    except Exception as error:  # on damaged files, Pillow's readers raise anything
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is damaged or no image"
        raise ValueError(f"{path} cannot be read as an image ({reason}); replace it or remove it") from error
