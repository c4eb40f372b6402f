"""CIFAR-10 and CIFAR-100 in their published python layout, unpacked or packed, and the human labels of CIFAR-N.

The files are pickles. Only what the published ones hold can be read from them: nothing in a file can run anything.
torch is imported only to read CIFAR-N, whose files are torch's.
"""

import io
import os
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from emabank.study.data.catalogue import advice, find_dataset
from emabank.study.data.labelled import LabelledImages

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
        labels[part] = check_labels(
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
        form = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(
            f"{source} holds images as {form}, where uint8 [{count}, 3072] belongs; use the published file"
        )
    return data


def _class_names(stored: Mapping[str, Any], layout: _Layout, source: str) -> tuple[str, ...]:
    names = stored.get(layout.names)
    if not isinstance(names, list) or len(names) != layout.classes or not all(type(name) is bytes for name in names):
        raise ValueError(f"{source} does not hold {layout.classes} names of classes; use the published file")
    return tuple(name.decode("utf-8", "replace") for name in names)


def read_members(path: Path, names: Collection[str], *, largest: int) -> Iterator[tuple[str, bytes]]:
    """The named files of a `.tar.gz`, in the archive's order; reading ends with the last of them.

    Links and devices of such a name are skipped; a file above `largest` bytes is refused.
    """
    missing = set(names)
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if member.name not in missing or not member.isreg():
                    continue
                if member.size > largest:
                    raise ValueError(f"{path} holds {member.name} of {member.size:,} bytes, far too many to be true")
                missing.remove(member.name)
                yield member.name, cast("IO[bytes]", archive.extractfile(member)).read()
                if not missing:
                    return
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); delete it and get it again") from error


def check_labels(labels: Any, *, count: int, classes: int, source: str) -> NDArray[np.int64]:
    """The labels as int64, when they are `count` whole numbers from 0 to `classes - 1`; else a `ValueError`."""
    if isinstance(labels, list):
        is_integer = all(type(label) is int and abs(label) < 2**62 for label in labels)
    else:
        is_integer = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu"
    if not is_integer:
        raise ValueError(f"{source} holds labels that are not a list of whole numbers; use the file as published")
    array = np.asarray(labels, dtype=np.int64)
    if len(array) != count:
        raise ValueError(f"{source} holds {len(array):,} labels, where {count:,} belong; use the file as published")
    if count and not (int(array.min()) >= 0 and int(array.max()) < classes):
        raise ValueError(
            f"{source} holds labels from {int(array.min())} to {int(array.max())}, where 0 to {classes - 1} belong; "
            f"use the file as published"
        )
    return array


# The pickles ---------------------------------------------------------------------------------------------------------

# Stand-ins for the numpy names of a pickled array: bytes and 64-bit integers only, and no code of numpy's.
_DTYPES = {"u1": np.uint8, "i8": np.int64}


class _Dtype:
    """Takes the place of `numpy.dtype`: bytes and little-endian 64-bit integers only, so never objects."""

    def __init__(self, code: Any, align: Any = 0, copy: Any = 1) -> None:
        name = code.decode("ascii") if isinstance(code, bytes) else code
        if name not in _DTYPES:
            raise ValueError(f"an array of type {name!r}")
        self.dtype = np.dtype(_DTYPES[name])

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("|", "<", b"|", b"<"):
            raise ValueError(f"an array of byte order {state[1]!r}")


class _Array:
    """Takes the place of `numpy.ndarray`: `array` is a view of bytes that the file holds."""

    array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran_order, content = state
        if not isinstance(kind, _Dtype) or not isinstance(content, bytes) or fortran_order:
            raise ValueError("an array in a form that the published files do not have")
        if len(shape) > 4 or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"an array of shape {shape!r}")
        # A view that must fit the bytes: no shape can ask for memory.
        self.array = np.frombuffer(content, dtype=kind.dtype).reshape(shape)


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    """Takes the place of numpy's function of this name: an array whose content follows."""
    if kind is not _Array or shape != (0,) or code not in ("b", b"b"):
        raise ValueError("an array in a form that the published files do not have")
    return _Array()


# The published files say numpy.core; what numpy 2 writes says numpy._core.
_STAND_INS: Mapping[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _STAND_INS:
            raise _RefusedError(f"{module}.{name}")
        return _STAND_INS[f"{module}.{name}"]


class _RefusedError(Exception):
    pass


def read_pickle(content: bytes, *, source: str) -> dict[str, Any]:
    """The dict that a CIFAR file holds; its strings are bytes.

    `ValueError` when it is damaged, or names anything but the parts of a numpy array.
    """
    try:
        stored = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if type(stored) is not dict:
            raise ValueError("not a dict")
        items = cast("dict[bytes, Any]", stored).items()
        return {key.decode("ascii"): item.array if isinstance(item, _Array) else item for key, item in items}
    except _RefusedError as refused:
        raise ValueError(
            f"{source} asks for the global {refused}, which no CIFAR file needs: nothing was run; use the published "
            "file"
        ) from None
    except Exception as error:  # whatever wrong bytes lead to; the reason is for whoever debugs
        raise ValueError(f"{source} is damaged, cut short or no CIFAR file; use the published file") from error


# CIFAR-N -------------------------------------------------------------------------------------------------------------

NOISES = {
    "cifar10n": {
        "aggregate": "aggre_label",
        "worse": "worse_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
    },
    "cifar100n": {"noisy": "noisy_label"},
}
_CLASSES = {"cifar10n": 10, "cifar100n": 100}
_IMAGES = 50_000
_LARGEST_LABELS = 64 * 2**20  # bytes; the larger of the two files has 2.4 MB


class HumanLabels(NamedTuple):
    """The labels that people gave and the file's own copy of the official ones: int64 `[50000]`, official order."""

    labels: NDArray[np.int64]
    clean: NDArray[np.int64]
    source: str


def load_cifar_n(name: str, folder: str | os.PathLike[str], *, labels: str) -> HumanLabels:
    """Read the human labels of CIFAR-10N or CIFAR-100N; `check_alignment` compares them with the official ones.

    Args:
        name: `"cifar10n"` or `"cifar100n"`.
        folder: the data folder, with `cifar-n/CIFAR-10_human.pt` or `CIFAR-10_human.pt` in it (or the same for 100).
        labels: `"aggregate"`, `"worse"`, `"random1"`, `"random2"` or `"random3"`; for CIFAR-100N `"noisy"`.

    >>> load_cifar_n("cifar10n", "data", labels="worst")
    Traceback (most recent call last):
    ValueError: labels is 'worst'; cifar10n has aggregate, worse, random1, random2, random3
    """
    if name not in NOISES:
        raise ValueError(f"name is {name!r}; give one of {', '.join(NOISES)}")
    if labels not in NOISES[name]:
        raise ValueError(f"labels is {labels!r}; {name} has {', '.join(NOISES[name])}")
    folder, file = Path(folder), find_dataset(name).downloads[0].file
    path = file.find(folder)
    if path is None:
        raise FileNotFoundError(f"{folder} holds neither {file.path} nor {file.elsewhere}; {advice(name, folder)}")
    stored = _read(path)
    noisy, clean = (_labels(stored, key, name, path) for key in (NOISES[name][labels], "clean_label"))
    return HumanLabels(noisy, clean, str(path))


def check_alignment(human: HumanLabels, official: NDArray[np.int64]) -> None:
    """`ValueError` unless the clean labels of a label file are the official ones, place by place.

    >>> human = HumanLabels(np.array([0, 0, 0]), np.array([1, 2, 3]), source="CIFAR-10_human.pt")
    >>> check_alignment(human, np.array([1, 5, 5]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: the clean labels of CIFAR-10_human.pt differ from the official ones at 2 of 3 places, first at 1 ...
    """
    if len(human.clean) != len(official):
        raise ValueError(
            f"{human.source} has {len(human.clean):,} labels and the official files have {len(official):,}; "
            f"use both as published"
        )
    differ = np.flatnonzero(human.clean != official)
    if len(differ):
        first = int(differ[0])
        raise ValueError(
            f"the clean labels of {human.source} differ from the official ones at {len(differ):,} of "
            f"{len(official):,} places, first at {first} ({human.clean[first]} there, {official[first]} officially), "
            f"so its noisy labels would go to the wrong images; use both as published"
        )


def _read(path: Path) -> dict[str, Any]:
    import torch

    # The names as the file has them, each with its stand-in; the classes once more by their own names, since torch
    # lets a state be set only on instances of what is listed.
    listed = [(stand_in, name) for name, stand_in in _STAND_INS.items()]
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST_LABELS:
                raise ValueError("far too large")
        with torch.serialization.safe_globals([*listed, _Array, _Dtype]):
            stored: Any = torch.load(path, map_location="cpu", weights_only=True)
        if type(stored) is not dict:
            raise ValueError("not a dict")
    except Exception as error:  # whatever torch's readers raise on bytes that are not theirs
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            raise ValueError(
                f"{path} asks for the global {refused[1]}, which no CIFAR-N file needs: nothing was run; "
                f"use the published file"
            ) from error
        raise ValueError(f"{path} is damaged, cut short or no CIFAR-N file; use the published file") from error
    return cast("dict[str, Any]", stored)


def _labels(stored: dict[str, Any], key: str, name: str, path: Path) -> NDArray[np.int64]:
    value = stored.get(key)
    array = value.array if isinstance(value, _Array) else None
    source = f"{key} in {path}"
    return check_labels(array, count=_IMAGES, classes=_CLASSES[name], source=source).copy()
