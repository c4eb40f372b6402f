"""How often the prediction is right, and how probable the model held the right answer: accuracy and loss."""

import numpy as np
from numpy.typing import ArrayLike

from emabank.study.metrics.inputs import checked_labels, checked_logits
from emabank.study.metrics.probabilities import log_softmax, predicted


def accuracy(logits: ArrayLike, labels: ArrayLike) -> float:
    """The share of samples whose largest logit is that of the label; of equal logits the first counts.

    >>> accuracy([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [1.0, 0.0]], [0, 1, 1, 0])
    0.75
    """
    table = checked_logits(logits)
    return float(np.mean(predicted(table) == checked_labels(labels, like=table)))


def loss(logits: ArrayLike, labels: ArrayLike) -> float:
    """The mean cross entropy, natural logarithm.

    >>> round(loss([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 6)  # ln 2: two classes, both as probable
    0.693147
    """
    table = checked_logits(logits)
    right = checked_labels(labels, like=table)
    return float(-log_softmax(table)[np.arange(len(right)), right].mean())
