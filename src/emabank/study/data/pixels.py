"""From image files to blocks of uint8 pixels, decoded in parallel, in order; no torch, nothing is written.

Threads, since Pillow decodes without Python's lock: they start at once, ask nothing of the caller's script, and were
about as fast as processes when measured on Tiny-ImageNet.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

_TOGETHER = 128  # images that one task decodes
# Pillow reads more formats than these, one of them by starting another program (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_Taken = TypeVar("_Taken")


class Shape(NamedTuple):
    """How images get their size: `side` pixels square or, when None, that of the first one.

    With `fit`, others are scaled and cut to it around their centre; without, others are refused.
    """

    side: int | None = None
    fit: bool = False


def height_and_width(first: Path, shape: Shape) -> tuple[int, int]:
    """The size of all images, given the first of them.

    >>> height_and_width(Path("not needed"), Shape(64))
    (64, 64)
    """
    if shape.side is not None:
        return shape.side, shape.side
    width, height = _read(first, lambda image: image.size)
    return height, width


def decoded_blocks(
    paths: Sequence[Path], size: tuple[int, int], *, fit: bool
) -> Generator[NDArray[np.uint8], None, None]:
    """The images in order, some at a time, as `[k, 3, height, width]`; grey ones become RGB.

    Never more than a few blocks ahead of who takes them. `ValueError` names a file that is damaged or does not fit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (6, 4), 200).save(Path(folder, "grey.png"))
    ...     [block.shape for block in decoded_blocks([Path(folder, "grey.png")], (4, 6), fit=False)]
    [(1, 3, 4, 6)]
    """
    workers = min(32, os.cpu_count() or 1)
    starts = iter(range(0, len(paths), _TOGETHER))
    ahead: deque[Future[NDArray[np.uint8]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            while len(ahead) < 2 * workers and (start := next(starts, None)) is not None:
                ahead.append(pool.submit(_block, paths[start : start + _TOGETHER], size, fit))
            if not ahead:
                return
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _block(paths: Sequence[Path], size: tuple[int, int], fit: bool) -> NDArray[np.uint8]:
    block = np.empty((len(paths), 3, *size), dtype=np.uint8)
    for index, path in enumerate(paths):
        block[index] = _read(path, lambda image: _pixels(image, size, fit=fit))
    return block


def _pixels(image: Image.Image, size: tuple[int, int], *, fit: bool) -> NDArray[np.uint8]:
    height, width = size
    if image.size != (width, height) and not fit:
        raise _UnfitError(
            f"has {image.width} x {image.height} pixels, where {width} x {height} belong; give images of one size, or "
            f"a size to bring them to"
        )
    if image.mode.startswith(("I", "F")):  # converting would cut off what is above 255
        raise _UnfitError(f"has more than 8 bits a channel ({image.mode}); convert it to 8 bits")
    image = image.convert("RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), method=Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


class _UnfitError(ValueError):
    pass


def _read(path: Path, take: Callable[[Image.Image], _Taken]) -> _Taken:
    try:
        with Image.open(path, formats=_FORMATS) as image:
            return take(image)
    except _UnfitError as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # Pillow's readers raise what they like on damaged files
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is damaged or no image"
        raise ValueError(f"{path} cannot be read as an image ({reason}); replace it or remove it") from error
