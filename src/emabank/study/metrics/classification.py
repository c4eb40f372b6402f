"""Accuracy, loss and memorisation of a classifier, from its logits; what all metrics accept is checked here.

Arrays are checked once and used in float64 and int64, whatever they came in.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SUM_TOLERANCE = 1e-3  # what is left of "sums to 1" after a softmax over many classes in half precision


def accuracy(logits: ArrayLike, labels: ArrayLike) -> float:
    """The share of samples whose largest logit is that of the label; of equal logits the first counts.

    >>> accuracy([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [1.0, 0.0]], [0, 1, 1, 0])
    0.75
    """
    table = check_logits(logits)
    return float(np.mean(table.argmax(axis=1) == check_labels(labels, like=table)))


def loss(logits: ArrayLike, labels: ArrayLike) -> float:
    """The mean cross entropy, natural logarithm.

    >>> round(loss([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 6)  # ln 2: two classes, both as probable
    0.693147
    """
    table = check_logits(logits)
    right = check_labels(labels, like=table)
    return float(-log_softmax(table)[np.arange(len(right)), right].mean())


def log_softmax(logits: ArrayLike) -> Floats:
    """The logarithms of the probabilities, `[samples, classes]`, without overflow and without log(0)."""
    table = check_logits(logits)
    shifted = table - table.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax(logits: ArrayLike) -> Floats:
    """The probabilities, `[samples, classes]`; each sample's sum is 1."""
    table = check_logits(logits)
    powers = np.exp(table - table.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


# Training examples with wrong labels ---------------------------------------------------------------------------------
#
# `given` are the labels a model was trained with, `clean` the true ones; the logits are of the training examples,
# without augmentation. A share of no examples is None: NaN is not JSON.


def memorised(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """Among the examples whose given label is wrong, the share predicted as that label; None if no label is wrong.

    >>> memorised([[3.0, 0.0], [0.0, 3.0], [0.0, 3.0]], given=[0, 1, 0], clean=[0, 0, 1])
    0.5
    """
    as_given, is_right = _compared(logits, given, clean)
    return None if is_right.all() else float(as_given[~is_right].mean())


def clean_accuracy(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """The accuracy on the examples whose given label is right; None if no label is right."""
    as_given, is_right = _compared(logits, given, clean)
    return float(as_given[is_right].mean()) if is_right.any() else None


def _compared(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Where the prediction is the given label, and where that is the true one."""
    table = check_logits(logits)
    labels = check_labels(given, like=table, name="given labels")
    return table.argmax(axis=1) == labels, labels == check_labels(clean, like=table, name="clean labels")


# Checks --------------------------------------------------------------------------------------------------------------


def check_logits(logits: ArrayLike, *, name: str = "logits") -> Floats:
    """The logits `[samples, classes]` in float64; anything but finite numbers is refused."""
    table = _table(logits, name)
    if not np.isfinite(table).all():
        rows = np.flatnonzero(~np.isfinite(table).all(axis=1))
        raise ValueError(
            f"{name} hold NaN or infinity in {len(rows)} of {len(table)} samples, first in sample {rows[0]}; "
            "give finite logits, and look at the weights that made these"
        )
    return table


def check_probabilities(probabilities: ArrayLike, *, name: str = "probabilities") -> Floats:
    """The probabilities `[samples, classes]` in float64; each in [0, 1], each sample's sum 1 within rounding."""
    table = _table(probabilities, name)
    bad = ~((table >= 0) & (table <= 1 + _SUM_TOLERANCE)).all(axis=1)  # so written that NaN is bad
    bad |= ~(np.abs(table.sum(axis=1) - 1) <= _SUM_TOLERANCE)
    if bad.any():
        raise ValueError(
            f"{name} of {np.count_nonzero(bad)} of {len(table)} samples, first of sample {np.flatnonzero(bad)[0]}, "
            "are not all from 0 to 1 with the sum 1; give softmax(logits), not logits"
        )
    return table


def check_labels(labels: ArrayLike, *, like: Floats, name: str = "labels") -> Integers:
    """The labels `[samples]` in int64: one for each sample of `like`, `[samples, classes]`, and a class it has."""
    array = np.asarray(labels)
    samples, classes = like.shape
    is_whole = array.dtype.kind in "iu" and array.size > 0
    if array.shape != (samples,) or not is_whole or array.min() < 0 or array.max() >= classes:
        bounds = f" from {array.min()} to {array.max()}" if is_whole else ""
        raise ValueError(
            f"{name} must be {samples} whole numbers from 0 to {classes - 1}, one a sample; got {array.dtype} "
            f"{array.shape}{bounds}"
        )
    return array.astype(np.int64)


def check_same_shape(a: Floats, b: Floats, *, names: tuple[str, str]) -> None:
    """Refuse two tables that cannot be of the same samples and classes."""
    if a.shape != b.shape:
        raise ValueError(
            f"{names[0]} have the shape {a.shape} and {names[1]} {b.shape}; "
            "give two predictions of the same samples and classes"
        )


def _table(values: ArrayLike, name: str) -> Floats:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must be real numbers [samples, classes], at least one of each; got {array.dtype} {array.shape}"
        )
    return array.astype(np.float64, copy=False)
