"""From logits to probabilities and to the predicted class; in float64, whatever the logits came in."""

import numpy as np
from numpy.typing import ArrayLike

from emabank.study.metrics.inputs import Floats, Integers, checked_logits


def log_softmax(logits: ArrayLike) -> Floats:
    """The logarithms of the probabilities, `[samples, classes]`, without overflow and without log(0).

    >>> log_softmax([[1000.0, 0.0]]).tolist()
    [[0.0, -1000.0]]
    """
    table = checked_logits(logits)
    shifted = table - table.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax(logits: ArrayLike) -> Floats:
    """The probabilities, `[samples, classes]`; each sample's sum is 1.

    >>> softmax([[0.0, 0.0], [1000.0, 0.0]]).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    table = checked_logits(logits)
    powers = np.exp(table - table.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def predicted(logits: ArrayLike) -> Integers:
    """The class with the largest logit, `[samples]`; of equal ones the first, as numpy and torch have it.

    >>> predicted([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]]).tolist()
    [1, 0]
    """
    return checked_logits(logits).argmax(axis=1)
