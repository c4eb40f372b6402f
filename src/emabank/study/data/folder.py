"""A user's own images in one folder a class, decoded once; no torch."""

import os
import re
from pathlib import Path

from emabank.study.data.decoded import CACHE, load_decoded
from emabank.study.data.labelled import LabelledImages, Tell
from emabank.study.data.pixels import Shape

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def load_image_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    tell: Tell | None = None,
) -> LabelledImages:
    """Read images that lie in one folder a class; the first time they are decoded, which `tell` is told of.

    Args:
        path: a folder whose subfolders are the classes, sorted by name; images may lie deeper in them.
        size: bring every image to this many pixels square: scaled, and cut around its centre. Without it all images
            must have one size, of any height and width.
        cache: where the decoded images are kept; default `.emabank-cache` in `path`.
        tell: is told how many of how many images are decoded.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for label, name in enumerate(["cats", "dogs"]):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (6 + label, 4)).save(Path(folder, name, "first.png"))
    ...     found = load_image_folder(folder, size=4)
    >>> found.images.shape, found.labels, found.classes
    ((2, 3, 4, 4), array([0, 1]), ('cats', 'dogs'))
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
        found = _images(root / name)
        if not found:
            raise ValueError(f"{root / name} holds no images ({', '.join(_SUFFIXES)}); fill the folder or remove it")
        files += [(f"{name}/{each}", label) for each in found]
    if not files:
        raise ValueError(f"{root} has no subfolders; put the images of each class into a folder of their own")
    decoded = load_decoded(
        root,
        files,
        name=f"{re.sub('[^A-Za-z0-9]+', '-', root.resolve().name) or 'images'}-{size or 'own-size'}",
        shape=Shape(size, fit=size is not None),
        cache=root / CACHE if cache is None else Path(cache),
        tell=tell,
    )
    return LabelledImages(decoded.images, decoded.labels, tuple(classes))


def _images(folder: Path) -> list[str]:
    """The images below a folder, as paths with `/`, sorted; hidden files and folders are left out."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(place).relative_to(folder)
        images = (name for name in names if name.lower().endswith(_SUFFIXES) and not name.startswith("."))
        found += [(here / name).as_posix() for name in images]
    return sorted(found)
