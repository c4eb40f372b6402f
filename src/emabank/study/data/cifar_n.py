"""The labels of CIFAR-10N and CIFAR-100N, given by people. The only source that needs torch: the files are torch's."""

import os
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from emabank.study.data.catalogue import advice, find_dataset
from emabank.study.data.labelled import checked_labels
from emabank.study.data.pickles import STAND_INS, ArrayStandIn, DtypeStandIn

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
_LARGEST = 64 * 2**20  # the larger of the two files has 2.4 MB


class HumanLabels(NamedTuple):
    """The labels that people gave and the file's own copy of the official ones: int64 `[50000]`, official order."""

    labels: NDArray[np.int64]
    clean: NDArray[np.int64]
    source: str


def load_cifar_n(name: str, folder: str | os.PathLike[str], *, labels: str) -> HumanLabels:
    """Read the human labels of CIFAR-10N or CIFAR-100N; `check_alignment` holds them against the official ones.

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
    path = file.found(folder)
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
    # The names as the file has them, each with its stand-in; the classes once more by their own names, since torch
    # lets a state be set only on instances of what is listed.
    listed = [(stand_in, name) for name, stand_in in STAND_INS.items()]
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST:
                raise ValueError("far too large")
        with torch.serialization.safe_globals([*listed, ArrayStandIn, DtypeStandIn]):
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
    array = value.array if isinstance(value, ArrayStandIn) else None
    source = f"{key} in {path}"
    return checked_labels(array, count=_IMAGES, classes=_CLASSES[name], source=source).copy()
