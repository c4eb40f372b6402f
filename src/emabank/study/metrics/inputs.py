"""What the measures accept: arrays checked once, at the door, and handed on in float64 and int64."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SUM_TOLERANCE = 1e-3  # what is left of "sums to 1" after a softmax over many classes in half precision


def checked_logits(logits: ArrayLike, *, name: str = "logits") -> Floats:
    """The logits `[samples, classes]` in float64; anything but finite numbers is refused.

    >>> checked_logits([[1, 2]])
    array([[1., 2.]])
    """
    table = _table(logits, name)
    if not np.isfinite(table).all():
        rows = np.flatnonzero(~np.isfinite(table).all(axis=1))
        raise ValueError(
            f"{name} hold NaN or infinity in {len(rows)} of {len(table)} samples, first in sample {rows[0]}; "
            "give finite logits, and look at the weights that made these"
        )
    return table


def checked_probabilities(probabilities: ArrayLike, *, name: str = "probabilities") -> Floats:
    """The probabilities `[samples, classes]` in float64; each in [0, 1], each sample's sum 1 within rounding.

    >>> checked_probabilities([[0.25, 0.75]])
    array([[0.25, 0.75]])
    """
    table = _table(probabilities, name)
    bad = ~((table >= 0) & (table <= 1 + _SUM_TOLERANCE)).all(axis=1)  # so written that NaN is bad
    bad |= ~(np.abs(table.sum(axis=1) - 1) <= _SUM_TOLERANCE)
    if bad.any():
        raise ValueError(
            f"{name} of {np.count_nonzero(bad)} of {len(table)} samples, first of sample {np.flatnonzero(bad)[0]}, "
            "are not all from 0 to 1 with the sum 1; give softmax(logits), not logits"
        )
    return table


def checked_labels(labels: ArrayLike, *, like: Floats, name: str = "labels") -> Integers:
    """The labels `[samples]` in int64: one for each sample of `like`, `[samples, classes]`, and a class it has.

    >>> checked_labels([0, 1], like=np.zeros((2, 3)))
    array([0, 1])
    """
    array = np.asarray(labels)
    samples, classes = like.shape
    if array.shape != (samples,):
        raise ValueError(f"{name} have the shape {array.shape}; give one label for each of the {samples} samples")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} are of type {array.dtype}; give whole numbers from 0 to {classes - 1}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= classes:
        raise ValueError(f"{name} go from {low} to {high}; with {classes} classes give 0 to {classes - 1}")
    return array.astype(np.int64)


def check_same_shape(a: Floats, b: Floats, *, names: tuple[str, str]) -> None:
    """Refuse two tables that cannot be of the same samples and classes.

    >>> check_same_shape(np.zeros((2, 3)), np.zeros((2, 3)), names=("logits_a", "logits_b"))
    """
    if a.shape != b.shape:
        raise ValueError(
            f"{names[0]} have the shape {a.shape} and {names[1]} {b.shape}; "
            "give two predictions of the same samples and classes"
        )


def _table(values: ArrayLike, name: str) -> Floats:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"{name} have the shape {array.shape}; give [samples, classes], at least one of each")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} are of type {array.dtype}; give real numbers")
    return array.astype(np.float64, copy=False)
