"""Tiny-ImageNet-200 in its published folder layout, decoded once; its test part is the folder `val`. No torch.

The complete set and a sample of it are read alike; `check` says what a sample lacks.
"""

import os
from pathlib import Path
from typing import Literal

from emabank.study.data.catalogue import advice
from emabank.study.data.decoded import CACHE, load_decoded
from emabank.study.data.labelled import LabelledImages, Tell
from emabank.study.data.pixels import Shape

FOLDER = "tiny-imagenet-200"
_SIDE = 64
_MOST_TEXT = 16 * 2**20  # bytes; words.txt, the largest, has 2.7 MB


def load_tiny_imagenet(
    folder: str | os.PathLike[str],
    *,
    split: Literal["train", "test"],
    cache: str | os.PathLike[str] | None = None,
    tell: Tell | None = None,
) -> LabelledImages:
    """Read one part of Tiny-ImageNet; the first time the images are decoded, which `tell` is told of.

    Args:
        folder: the data folder, with `tiny-imagenet-200/` in it.
        split: `"train"`, or `"test"` for the published `val` folder: the published `test` folder has no labels.
        cache: where the decoded images are kept; default `.emabank-cache` in the data folder.
        tell: is told how many of how many images are decoded.

    Returns:
        Images of 64 x 64 pixels; class 0 is the first line of `wnids.txt`. A part is mapped from the cache.

    >>> load_tiny_imagenet("/no/such/folder", split="test")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    FileNotFoundError: /no/such/folder holds no tiny-imagenet-200/wnids.txt; ...
    """
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}; give 'train' or 'test'")
    folder = Path(folder)
    root = folder / FOLDER
    wnids = read_wnids(folder)
    files = train_files(root, wnids) if split == "train" else val_files(root, wnids)
    if not files:
        raise FileNotFoundError(f"{root} holds no images to {split} with; {advice('tiny-imagenet', folder)}")
    found = load_decoded(
        root,
        files,
        name=f"tiny-imagenet-{split}",
        shape=Shape(_SIDE),
        cache=folder / CACHE if cache is None else Path(cache),
        tell=tell,
    )
    return LabelledImages(found.images, found.labels, _class_names(root, wnids))


def read_wnids(folder: Path) -> list[str]:
    """The classes, in the order of their labels.

    >>> read_wnids(Path("/no/such/folder"))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    FileNotFoundError: /no/such/folder holds no tiny-imagenet-200/wnids.txt; ...
    """
    path = folder / FOLDER / "wnids.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {FOLDER}/wnids.txt; {advice('tiny-imagenet', folder)}")
    wnids = [line.strip() for line in _lines(path) if line.strip()]
    # As a plain word, a class cannot name a folder elsewhere.
    if len(set(wnids)) != len(wnids) or not all(wnid.isalnum() for wnid in wnids):
        raise ValueError(f"{path} is damaged: it should hold 200 different words like n01443537, one a line")
    return wnids


def train_files(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """Paths below `root` and labels of the images to train with; a class whose folder is missing has none.

    >>> train_files(Path("/no/such/folder"), ["n01443537"])
    []
    """
    return [
        (f"train/{wnid}/images/{name}", label)
        for label, wnid in enumerate(wnids)
        for name in _images(root / "train" / wnid / "images")
    ]


def val_files(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """Paths below `root` and labels of the images to test with, in the order of `val_annotations.txt`.

    >>> val_files(Path("/no/such/folder"), ["n01443537"])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    FileNotFoundError: /no/such/folder holds no val/val_annotations.txt; ...
    """
    path = root / "val" / "val_annotations.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{root} holds no val/{path.name}; {advice('tiny-imagenet', root.parent)}")
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    there = set(_images(root / "val" / "images"))
    files: list[tuple[str, int]] = []
    for number, line in enumerate(_lines(path), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        if not line.strip():
            continue
        if wnid not in labels:
            raise ValueError(f"{path} names the class {wnid!r} in line {number}, which wnids.txt does not have")
        if name not in there:
            raise FileNotFoundError(f"{root} holds no val/images/{name}; {advice('tiny-imagenet', root.parent)}")
        files.append((f"val/images/{name}", labels[wnid]))
    return files


def _images(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith((".JPEG", ".jpeg", ".jpg")))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _class_names(root: Path, wnids: list[str]) -> tuple[str, ...]:
    """The words for the classes where `words.txt` is there and has them, else the classes as `wnids.txt` has them."""
    path = root / "words.txt"
    words = dict(line.rstrip("\n").split("\t", 1) for line in _lines(path) if "\t" in line) if path.is_file() else {}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def _lines(path: Path) -> list[str]:
    if path.stat().st_size > _MOST_TEXT:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, far too many; use the published file")
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
