"""CIFAR-10 and CIFAR-100 in their published python layout, unpacked or packed, and the human labels of CIFAR-N.

The files are pickles, and nothing in them can run code: only the types in the published files can be read.
torch is imported only to read CIFAR-N, whose files torch wrote.
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


class _Layout(NamedTuple):
    folder: str
    train: Mapping[str, int]  # images per file, in the official order
    test: Mapping[str, int]
    labels: str  # the key in the files
    classes: int


_LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        train={f"data_batch_{number}": 10_000 for number in range(1, 6)},
        test={"test_batch": 10_000},
        labels="labels",
        classes=10,
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        train={"train": 50_000},
        test={"test": 10_000},
        labels="fine_labels",
        classes=100,
    ),
}
_LARGEST = 256 * 2**20  # bytes; the largest file, CIFAR-100's training set, has 155 MB


def load_cifar(
    name: str, folder: str | os.PathLike[str], *, split: Literal["train", "test"]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 `[n, 3, 32, 32]` and (fine) labels of one part of CIFAR-10 or CIFAR-100, in the official order.

    Those of CIFAR-10N and CIFAR-100N are the same. Only the files of this part are needed: unpacked
    (`cifar-10-batches-py/`, `cifar-100-python/`), or the archive (`cifar-10-python.tar.gz`,
    `cifar-100-python.tar.gz`), which is read without unpacking it.
    """
    layout = _LAYOUTS[name.removesuffix("n")]
    counts = layout.train if split == "train" else layout.test
    images: dict[str, NDArray[np.uint8]] = {}
    labels: dict[str, NDArray[np.int64]] = {}
    for file, source, content in _contents(name, Path(folder), layout, list(counts)):
        stored, count = read_pickle(content, source=source), counts[file]
        pixels = stored.get("data")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, 3072):
            raise ValueError(f"{source} does not hold images as uint8 [{count}, 3072]; use the published file")
        images[file] = pixels.reshape(-1, 3, 32, 32)
        labels[file] = check_labels(stored.get(layout.labels), count=count, classes=layout.classes, source=source)
    return np.concatenate([images[file] for file in counts]), np.concatenate([labels[file] for file in counts])


def _contents(name: str, folder: Path, layout: _Layout, files: list[str]) -> Iterator[tuple[str, str, bytes]]:
    """The name, the description for errors and the content of each file, one at a time."""
    unpacked, archive = folder / layout.folder, folder / find_dataset(name.removesuffix("n")).downloads[0].file.path
    absent = [f"{layout.folder}/{file}" for file in files if not (unpacked / file).is_file()]
    if not absent:
        for path in (unpacked / file for file in files):
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"{path} has {path.stat().st_size:,} bytes, far too many; use the published file")
            yield path.name, str(path), path.read_bytes()
    elif archive.is_file():
        for member, content in read_members(archive, [f"{layout.folder}/{file}" for file in files], largest=_LARGEST):
            yield Path(member).name, f"{member} in {archive}", content
    else:
        others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        missing = f"neither {absent[0]}{others} nor {archive.name}"
        raise FileNotFoundError(f"{folder} holds {missing}; {advice(name, folder)}")


def read_members(path: Path, names: Collection[str], *, largest: int) -> Iterator[tuple[str, bytes]]:
    """The named files of a `.tar.gz`, in the archive's order; reading stops after the last of them.

    Links and devices with such a name are skipped; a file above `largest` bytes raises `ValueError`.
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
    raise ValueError(f"{path} lacks {', '.join(sorted(missing))}; use the published file")


def check_labels(stored: Any, *, count: int, classes: int, source: str) -> NDArray[np.int64]:
    """The labels as int64; `ValueError` unless they are `count` whole numbers from 0 to `classes - 1`."""
    labels: Any = stored
    if isinstance(stored, list) and all(type(label) is int and 0 <= label < classes for label in stored):  # pyright: ignore
        labels = np.array(stored, dtype=np.int64)
    is_array = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.shape == (count,)
    if not is_array or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"{source} does not hold {count:,} labels from 0 to {classes - 1}; use the published file")
    return labels.astype(np.int64)


# The pickles ---------------------------------------------------------------------------------------------------------

# Stand-ins for the numpy names in a pickled array: they accept bytes and 64-bit integers only, and run no numpy code.
# numpy itself would take flags from the file that make it free memory at addresses in the file.
_DTYPES = {"u1": np.uint8, "i8": np.int64}


class _Dtype:
    """Stands in for `numpy.dtype`."""

    def __init__(self, code: Any, align: Any = 0, copy: Any = 1) -> None:
        self.dtype = np.dtype(_DTYPES[code.decode("ascii") if isinstance(code, bytes) else code])

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("|", "<", b"|", b"<"):
            raise ValueError(f"an array of byte order {state[1]!r}")


class _Array:
    """Stands in for `numpy.ndarray`; `array` is a view of bytes in the file."""

    array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran_order, content = state
        if not isinstance(kind, _Dtype) or not isinstance(content, bytes) or fortran_order:
            raise ValueError("an array in a form that the published files do not have")
        if len(shape) > 4 or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"an array of shape {shape!r}")
        # A view must fit the bytes, so no shape in a file can allocate memory.
        self.array = np.frombuffer(content, dtype=kind.dtype).reshape(shape)


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    """Stands in for numpy's function of this name: an empty array that `__setstate__` fills."""
    if kind is not _Array or shape != (0,) or code not in ("b", b"b"):
        raise ValueError("an array in a form that the published files do not have")
    return _Array()


# The published files say numpy.core; numpy 2 writes numpy._core.
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
    """The dict in a CIFAR file, with str keys; other strings in it stay bytes.

    `ValueError` if the file is damaged, or names anything but the parts of a numpy array.
    """
    try:
        items = _Unpickler(io.BytesIO(content), encoding="bytes").load().items()
        return {key.decode("ascii"): item.array if isinstance(item, _Array) else item for key, item in items}
    except _RefusedError as refused:
        raise ValueError(_refusal(source, str(refused))) from None
    except Exception as error:  # damaged bytes can raise anything; the cause is kept for debugging
        raise ValueError(f"{source} is damaged, cut short or no CIFAR file; use the published file") from error


def _refusal(source: str, name: str) -> str:
    return f"{source} asks for the global {name}, which no CIFAR file needs: nothing was run; use the published file"


# CIFAR-N -------------------------------------------------------------------------------------------------------------

LABEL_SETS = {
    "cifar10n": {
        "aggregate": "aggre_label",
        "worse": "worse_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
    },
    "cifar100n": {"noisy": "noisy_label"},
}
_LARGEST_LABELS = 64 * 2**20  # bytes; the larger of the two files has 2.4 MB


def load_cifar_n(
    name: str, folder: str | os.PathLike[str], *, labels: str, official: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The human labels of the training images of CIFAR-10N or CIFAR-100N, in the official order.

    `labels` is a key of `LABEL_SETS[name]`. The file has its own copy of the `official` labels, which must match them.
    """
    folder, file = Path(folder), find_dataset(name).downloads[0].file
    path = file.find(folder)
    if path is None:
        raise FileNotFoundError(f"{folder} holds neither {file.path} nor {file.elsewhere}; {advice(name, folder)}")
    stored, classes = _read_torch(path), _LAYOUTS[name.removesuffix("n")].classes
    human, clean = (
        check_labels(
            getattr(stored.get(key), "array", None), count=len(official), classes=classes, source=f"{key} in {path}"
        )
        for key in (LABEL_SETS[name][labels], "clean_label")
    )
    differ = np.flatnonzero(clean != official)
    if len(differ):
        first = int(differ[0])
        raise ValueError(
            f"the clean labels of {path} differ from the official ones at {len(differ):,} of {len(official):,} places, "
            f"first at {first} ({clean[first]} there, {official[first]} officially), so its noisy labels would go to "
            f"the wrong images; use both as published"
        )
    return human


def _read_torch(path: Path) -> dict[str, Any]:
    import torch

    # Each name in the file with its stand-in; then the stand-in classes themselves, because torch sets a state only on
    # instances of listed classes.
    listed = [(stand_in, name) for name, stand_in in _STAND_INS.items()]
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST_LABELS:
                raise ValueError("far too large")
        with torch.serialization.safe_globals([*listed, _Array, _Dtype]):
            stored: Any = torch.load(path, map_location="cpu", weights_only=True)
        return dict(stored)
    except Exception as error:  # torch raises many types on damaged files
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            raise ValueError(_refusal(str(path), refused[1])) from error
        raise ValueError(f"{path} is damaged, cut short or no CIFAR-N file; use the published file") from error
