"""What a model makes of training examples with wrong labels, beside those with right ones.

`given` are the labels it was trained with, `clean` the true ones; the logits are of the training examples, without
augmentation. A share of no examples is None: there is nothing to say, and NaN is not JSON.
"""

import numpy as np
from numpy.typing import ArrayLike

from emabank.study.metrics.inputs import Integers, checked_labels, checked_logits
from emabank.study.metrics.probabilities import predicted


def memorised(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """Among the examples whose given label is wrong, the share predicted as that label; None if no label is wrong.

    >>> memorised([[3.0, 0.0], [0.0, 3.0], [0.0, 3.0]], given=[0, 1, 0], clean=[0, 0, 1])
    0.5
    """
    prediction, given_labels, clean_labels = _checked(logits, given, clean)
    return _share(prediction == given_labels, among=given_labels != clean_labels)


def corrected(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """Among the examples whose given label is wrong, the share predicted as the true one; None if no label is wrong.

    With `memorised` it need not add up to 1: the prediction may be a third class.

    >>> corrected([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]], given=[1, 1], clean=[0, 0])
    0.5
    """
    prediction, given_labels, clean_labels = _checked(logits, given, clean)
    return _share(prediction == clean_labels, among=given_labels != clean_labels)


def clean_accuracy(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """The accuracy on the examples whose given label is right; None if no label is right.

    >>> clean_accuracy([[3.0, 0.0], [0.0, 3.0], [0.0, 3.0]], given=[0, 1, 0], clean=[0, 1, 1])
    1.0
    """
    prediction, given_labels, clean_labels = _checked(logits, given, clean)
    return _share(prediction == clean_labels, among=given_labels == clean_labels)


def _checked(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> tuple[Integers, Integers, Integers]:
    table = checked_logits(logits)
    given_labels = checked_labels(given, like=table, name="given labels")
    return predicted(table), given_labels, checked_labels(clean, like=table, name="clean labels")


def _share(hits: np.ndarray, *, among: np.ndarray) -> float | None:
    return float(hits[among].mean()) if among.any() else None
