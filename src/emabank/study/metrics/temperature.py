"""Temperature scaling (Guo et al. 2017, "On calibration of modern neural networks"): all logits divided by one number.

The loss is convex in the inverse temperature, so that its one minimum is where the slope is 0.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from emabank.study.metrics.inputs import Floats, checked_labels, checked_logits

_REACH = 1000.0  # times the mean spread of a sample's logits: from there on all classes are alike, or one has it all
_PRECISION = 1e-12
_MOST_TRIES = 200  # halving alone would need about 45


class FittedTemperature(NamedTuple):
    """A temperature, and whether the loss has its minimum there."""

    temperature: float
    is_minimum: bool
    """False: the loss has no minimum, and the temperature is an end of the range that was searched, or 1."""


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> FittedTemperature:
    """Find the temperature that minimises the loss on held-out samples.

    The search goes from 1/1000 to 1000 times the mean spread of the logits (a sample's largest minus its smallest),
    and takes 1 in, so that the loss never gets worse. Not every set of samples has a minimum, and `is_minimum` says so:

    - every label has the largest logit: the colder the better; the lower end is returned;
    - labels have no larger logits than the rest, on the mean: the hotter the better; the upper end is returned;
    - each sample's logits are all equal: every temperature is as good; 1 is returned.

    >>> logits = np.log([[0.9, 0.1]] * 4)  # says 90% and is right 3 times in 4
    >>> fitted = fit_temperature(logits, [0, 0, 0, 1])
    >>> round(fitted.temperature, 6), fitted.is_minimum  # softmax(log([0.9, 0.1]) / 2) is [0.75, 0.25]
    (2.0, True)
    >>> fit_temperature(logits, [0, 0, 0, 0]).is_minimum
    False
    """
    table = checked_logits(logits)
    right = checked_labels(labels, like=table)
    spread = float((table.max(axis=1) - table.min(axis=1)).mean())
    if spread == 0:
        return FittedTemperature(1.0, is_minimum=False)
    # Against the label's logit and in units of the spread: what comes out scales with the logits exactly.
    margins = (table - np.take_along_axis(table, right[:, None], axis=1)) / spread
    coldest, hottest = min(1.0, spread / _REACH), max(1.0, spread * _REACH)
    inverse, is_minimum = _root(lambda inverse: _slopes(margins, inverse), spread / hottest, spread / coldest)
    return FittedTemperature(min(max(spread / inverse, coldest), hottest), is_minimum)


def apply_temperature(logits: ArrayLike, temperature: float) -> Floats:
    """The logits divided by the temperature; above 1 the probabilities get more alike, below 1 less.

    >>> apply_temperature([[4.0, 2.0]], 2.0).tolist()
    [[2.0, 1.0]]
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}; give a finite number above 0")
    return checked_logits(logits) / temperature


def _slopes(margins: Floats, inverse: float) -> tuple[float, float]:
    """First and second derivative of the loss, mean log Σ exp(inverse · margin), by the inverse temperature."""
    scaled = inverse * margins
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    means = (shares * margins).sum(axis=1, keepdims=True)
    return float(means.mean()), float((shares * (margins - means) ** 2).sum(axis=1).mean())


def _root(slopes: Callable[[float], tuple[float, float]], low: float, high: float) -> tuple[float, bool]:
    """Where a rising function is 0, and True; or the end of the range that is nearest to 0, and False.

    Newton's method between two ends that close in; where it leaves them or is slow, their logarithms' range is halved.
    """
    if slopes(high)[0] <= 0:
        return high, False
    if slopes(low)[0] >= 0:
        return low, False
    point, last = math.sqrt(low * high), math.inf
    for _ in range(_MOST_TRIES):
        value, slope = slopes(point)
        low, high = (point, high) if value < 0 else (low, point)
        newton = point - value / slope if slope > 0 else math.inf
        if min(abs(newton - point), high - low) <= _PRECISION * point:
            break
        is_good = low < newton < high and abs(value) < last / 2
        point, last = newton if is_good else math.sqrt(low * high), abs(value)
    return point, True
