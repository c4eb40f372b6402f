"""CIFAR-10 and CIFAR-100 in their published python layout, unpacked or straight from the archive; no torch."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from emabank.study.data.archives import read_members
from emabank.study.data.catalogue import advice, find_dataset
from emabank.study.data.labelled import LabelledImages, checked_labels
from emabank.study.data.pickles import read_pickle

Split = Literal["train", "test"]


class _Layout(NamedTuple):
    folder: str
    train: Mapping[str, int]  # file and images in it, in the official order
    test: Mapping[str, int]
    labels: str  # the keys, as the files have them
    classes: int
    meta: str
    names: str


_LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        train={f"data_batch_{number}": 10_000 for number in range(1, 6)},
        test={"test_batch": 10_000},
        labels="labels",
        classes=10,
        meta="batches.meta",
        names="label_names",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        train={"train": 50_000},
        test={"test": 10_000},
        labels="fine_labels",
        classes=100,
        meta="meta",
        names="fine_label_names",
    ),
}
_LARGEST = 256 * 2**20  # CIFAR-100's training file, the largest, has 155 MB


def load_cifar(name: str, folder: str | os.PathLike[str], *, split: Split) -> LabelledImages:
    """Read one part of CIFAR-10 or CIFAR-100 (fine labels), in the official order.

    Only the files of this part are needed: unpacked (`cifar-10-batches-py/`, `cifar-100-python/`), or the archive
    (`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`), which is read where it lies.

    Args:
        name: `"cifar10"` or `"cifar100"`.
        folder: the data folder.
        split: `"train"` or `"test"`.

    >>> load_cifar("cifar10", "/no/such/folder", split="test")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    FileNotFoundError: /no/such/folder holds neither cifar-10-batches-py/test_batch nor cifar-10-python.tar.gz; ...
    """
    if name not in _LAYOUTS:
        raise ValueError(f"name is {name!r}; give one of {', '.join(_LAYOUTS)}")
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}; give 'train' or 'test'")
    layout = _LAYOUTS[name]
    counts = layout.train if split == "train" else layout.test
    starts = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    images = np.empty((sum(counts.values()), 3, 32, 32), dtype=np.uint8)
    labels = np.empty(len(images), dtype=np.int64)
    classes: tuple[str, ...] = ()
    missing = set(counts)
    for file, source, content in _contents(name, Path(folder), layout, list(counts)):
        stored = read_pickle(content, source=source)
        if file == layout.meta:
            classes = _class_names(stored, layout, source)
            continue
        part = slice(starts[file], starts[file] + counts[file])
        images[part] = _pixels(stored, counts[file], source).reshape(-1, 3, 32, 32)
        labels[part] = checked_labels(
            stored.get(layout.labels), count=counts[file], classes=layout.classes, source=source
        )
        missing.remove(file)
    if missing:
        raise ValueError(f"{_archive(name, Path(folder))} lacks {', '.join(sorted(missing))}; use the published file")
    return LabelledImages(images, labels, classes)


def _contents(name: str, folder: Path, layout: _Layout, files: list[str]) -> Iterator[tuple[str, str, bytes]]:
    """Each file with what to call it and its content, one at a time; the names of the classes where they are known."""
    unpacked, archive = folder / layout.folder, _archive(name, folder)
    if all((unpacked / file).is_file() for file in files):
        for file in [*files, *([layout.meta] if (unpacked / layout.meta).is_file() else [])]:
            path = unpacked / file
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"{path} has {path.stat().st_size:,} bytes, far too many; use the published file")
            yield file, str(path), path.read_bytes()
    elif archive.is_file():
        wanted = {f"{layout.folder}/{file}": file for file in [*files, layout.meta]}
        for member, content in read_members(archive, wanted, largest=_LARGEST):
            yield wanted[member], f"{member} in {archive}", content
    else:
        absent = [f"{layout.folder}/{file}" for file in files if not (unpacked / file).is_file()]
        raise FileNotFoundError(
            f"{folder} holds neither {', '.join(absent)} nor {archive.name}; {advice(name, folder)}"
        )


def _archive(name: str, folder: Path) -> Path:
    return folder / find_dataset(name).downloads[0].file.path


def _pixels(stored: Mapping[str, Any], count: int, source: str) -> np.ndarray:
    data = stored.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (count, 3072):
        found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(
            f"{source} holds images as {found}, where uint8 [{count}, 3072] belongs; use the published file"
        )
    return data


def _class_names(stored: Mapping[str, Any], layout: _Layout, source: str) -> tuple[str, ...]:
    names = stored.get(layout.names)
    if not isinstance(names, list) or len(names) != layout.classes or not all(type(each) is bytes for each in names):
        raise ValueError(f"{source} does not hold {layout.classes} names of classes; use the published file")
    return tuple(each.decode("utf-8", "replace") for each in names)
