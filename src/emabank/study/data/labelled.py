"""What every source of images gives, and what is checked of labels whatever the source; imports numpy alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tell = Callable[[int, int], None]
"""Is told how much is done, and of how much."""


class LabelledImages(NamedTuple):
    """Images uint8 `[n, channels, height, width]`, labels int64 `[n]`, and the names of the classes where known."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def checked_labels(labels: Any, *, count: int, classes: int, source: str) -> NDArray[np.int64]:
    """The labels as int64, when they are `count` whole numbers from 0 to `classes - 1`; else a `ValueError`.

    >>> checked_labels([2, 0, 1], count=3, classes=3, source="a file")
    array([2, 0, 1])
    """
    if isinstance(labels, list):
        whole = all(type(label) is int and abs(label) < 2**62 for label in labels)
    else:
        whole = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu"
    if not whole:
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
