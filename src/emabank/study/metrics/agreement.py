"""How far two models agree on the same samples: churn of the predicted class, divergence of all probabilities."""

import math

import numpy as np
from numpy.typing import ArrayLike

from emabank.study.metrics.classification import Floats, check_logits, check_probabilities, check_same_shape


def churn(logits_a: ArrayLike, logits_b: ArrayLike) -> float:
    """The share of samples for which the two predict different classes.

    >>> churn([[1.0, 0.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 3.0]])
    0.5
    """
    a, b = check_logits(logits_a, name="logits_a"), check_logits(logits_b, name="logits_b")
    check_same_shape(a, b, names=("logits_a", "logits_b"))
    return float(np.mean(a.argmax(axis=1) != b.argmax(axis=1)))


def jensen_shannon(probabilities_a: ArrayLike, probabilities_b: ArrayLike) -> float:
    """The Jensen–Shannon divergence, mean over samples, natural logarithm: 0 when equal, at most ln 2 = 0.693.

    It is ½ KL(a‖m) + ½ KL(b‖m) with m = ½ (a + b); a class of probability 0 adds nothing, exactly.

    >>> jensen_shannon([[1.0, 0.0]], [[1.0, 0.0]])
    0.0
    >>> round(jensen_shannon([[1.0, 0.0]], [[0.0, 1.0]]), 6)
    0.693147
    """
    a = check_probabilities(probabilities_a, name="probabilities_a")
    b = check_probabilities(probabilities_b, name="probabilities_b")
    check_same_shape(a, b, names=("probabilities_a", "probabilities_b"))
    a, b = (table / table.sum(axis=1, keepdims=True) for table in (a, b))  # float32 sums to 1 only nearly
    divergence = (_terms(a, b) + _terms(b, a)).sum(axis=1) / 2
    return float(np.clip(divergence, 0.0, math.log(2)).mean())  # rounding may leave the range by its last digit


def _terms(a: Floats, b: Floats) -> Floats:
    """The terms a log(a / m) of a‖m, class by class. 2a / (a + b) is a / m where m itself would underflow."""
    ratio = np.divide(2 * a, a + b, out=np.ones_like(a), where=a > 0)
    return a * np.log(ratio)
