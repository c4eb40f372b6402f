"""The study's metrics: pure functions of numpy arrays of logits, probabilities or labels.

Arrays are checked once and converted to float64 and int64. Shares are fractions of 1; the report prints percent.
Imports only numpy.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SUM_TOLERANCE = 1e-3  # how far from 1 a softmax over many classes may sum in half precision


def accuracy(logits: ArrayLike, labels: ArrayLike) -> float:
    """The share of samples whose largest logit is that of the label; ties go to the first class.

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
# `given` are the labels a model was trained with, `clean` the true ones. The logits are those of the training examples
# without augmentation. A share of no examples is None, because JSON has no NaN.


def memorised(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """Among the examples whose given label is wrong, the share predicted as that label; None if no label is wrong.

    >>> memorised([[3.0, 0.0], [0.0, 3.0], [0.0, 3.0]], given=[0, 1, 0], clean=[0, 0, 1])
    0.5
    """
    as_given, is_right = _correctness_masks(logits, given, clean)
    return None if is_right.all() else float(as_given[~is_right].mean())


def clean_accuracy(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> float | None:
    """The accuracy on the examples whose given label is right; None if no label is right."""
    as_given, is_right = _correctness_masks(logits, given, clean)
    return float(as_given[is_right].mean()) if is_right.any() else None


def _correctness_masks(logits: ArrayLike, given: ArrayLike, clean: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Masks: where the prediction is the given label, and where the given label is the true one."""
    table = check_logits(logits)
    labels = check_labels(given, like=table, name="given labels")
    return table.argmax(axis=1) == labels, labels == check_labels(clean, like=table, name="clean labels")


# Two models on the same samples ---------------------------------------------------------------------------------------


def churn(logits_a: ArrayLike, logits_b: ArrayLike) -> float:
    """The share of samples for which two models predict different classes.

    >>> churn([[1.0, 0.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 3.0]])
    0.5
    """
    a, b = check_logits(logits_a, name="logits_a"), check_logits(logits_b, name="logits_b")
    check_same_shape(a, b, names=("logits_a", "logits_b"))
    return float(np.mean(a.argmax(axis=1) != b.argmax(axis=1)))


def jensen_shannon(probabilities_a: ArrayLike, probabilities_b: ArrayLike) -> float:
    """The Jensen–Shannon divergence, mean over samples, natural logarithm: 0 when equal, at most ln 2 = 0.693.

    It is ½ KL(a‖m) + ½ KL(b‖m) with m = ½ (a + b); a class of probability 0 adds exactly 0.

    >>> jensen_shannon([[1.0, 0.0]], [[1.0, 0.0]])
    0.0
    >>> round(jensen_shannon([[1.0, 0.0]], [[0.0, 1.0]]), 6)
    0.693147
    """
    a = check_probabilities(probabilities_a, name="probabilities_a")
    b = check_probabilities(probabilities_b, name="probabilities_b")
    check_same_shape(a, b, names=("probabilities_a", "probabilities_b"))
    a, b = (table / table.sum(axis=1, keepdims=True) for table in (a, b))  # in float32 sums are only nearly 1
    divergence = (_kl_terms(a, b) + _kl_terms(b, a)).sum(axis=1) / 2
    return float(np.clip(divergence, 0.0, math.log(2)).mean())  # rounding may step just outside the range


def _kl_terms(a: Floats, b: Floats) -> Floats:
    """The terms a log(a / m) of KL(a‖m), per class. a / m is computed as 2a / (a + b), because m may underflow."""
    ratio = np.divide(2 * a, a + b, out=np.ones_like(a), where=a > 0)
    return a * np.log(ratio)


# Calibration ----------------------------------------------------------------------------------------------------------
#
# The confidence of a sample is its largest probability. Bins are of equal mass (Nixon et al. 2019, "Measuring
# calibration in deep learning"): the samples sorted by confidence and cut into parts of equal size.


class ReliabilityCurve(NamedTuple):
    """Bins from the least confident samples to the most confident."""

    confidence: Floats
    """The mean confidence in each bin."""
    accuracy: Floats
    """The share of right predictions in each bin."""
    samples: Integers
    """The number of samples in each bin; any two differ by at most one."""

    @property
    def ece(self) -> float:
        """The mean gap between a bin's accuracy and confidence, weighted by its samples."""
        return float(np.average(np.abs(self.accuracy - self.confidence), weights=self.samples))


def default_bins(samples: int) -> int:
    """One bin per 100 samples, at least 5 (or one per sample) and at most 100.

    With fewer samples per bin, even a perfectly calibrated model would score far from 0.
    """
    return min(100, max(5, samples // 100), samples)


def reliability_curve(probabilities: ArrayLike, labels: ArrayLike, *, bins: int | None = None) -> ReliabilityCurve:
    """Mean confidence, accuracy and number of samples in bins of equal mass, by default `default_bins` of them.

    Samples of equal confidence (many may have exactly 1.0) have no order, and the edge of a bin may fall between them.
    Each counts with the mean accuracy of all of them, so the curve does not depend on the order of the samples. If all
    confidences differ, this is the plain sort and split.

    >>> probabilities = [[0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [0.8, 0.2]]
    >>> curve = reliability_curve(probabilities, [0, 0, 0, 0], bins=2)
    >>> curve.confidence.round(3).tolist(), curve.accuracy.tolist(), curve.samples.tolist()
    ([0.65, 0.85], [0.5, 1.0], [2, 2])
    """
    table = check_probabilities(probabilities)
    right = table.argmax(axis=1) == check_labels(labels, like=table)
    confidence = table.max(axis=1)
    order = confidence.argsort(kind="stable")
    return _Bins(confidence[order], bins).curve(right[order])


def ece(probabilities: ArrayLike, labels: ArrayLike, *, bins: int | None = None) -> float:
    """The expected calibration error of the top class, in bins of equal mass; see `reliability_curve`."""
    return reliability_curve(probabilities, labels, bins=bins).ece


def calibrated_ece(probabilities: ArrayLike, *, bins: int | None = None, draws: int = 100, seed: int = 0) -> float:
    """The ECE of a perfectly calibrated model with these confidences: the floor with which to compare an ECE.

    In each draw, every prediction is right with a probability equal to its confidence, independently. The result is the
    mean over draws. It is above 0, because a bin holds few samples.

    >>> confidence = np.linspace(0.5, 1.0, 500)
    >>> probabilities = np.stack([confidence, 1 - confidence], axis=1)
    >>> [round(calibrated_ece(probabilities, bins=bins), 2) for bins in (5, 100)]
    [0.03, 0.14]
    """
    confidence = np.sort(check_probabilities(probabilities).max(axis=1))
    binned, generator = _Bins(confidence, bins), np.random.default_rng(seed)
    return float(np.mean([binned.curve(generator.random(len(confidence)) < confidence).ece for _ in range(draws)]))


class _Bins:
    """Bins of equal mass over ascending confidences, and where these are equal."""

    def __init__(self, confidence: Floats, bins: int | None):
        samples = len(confidence)
        bins = default_bins(samples) if bins is None else bins
        if not 1 <= bins <= samples:
            raise ValueError(f"bins is {bins} for {samples} samples; give at least 1 bin and at least as many samples")
        smaller, larger = divmod(samples, bins)  # as np.array_split does: the first bins have one more
        self.samples = np.full(bins, smaller, dtype=np.int64)
        self.samples[:larger] += 1
        self.starts = np.cumsum(self.samples) - self.samples
        self.confidence = np.add.reduceat(confidence, self.starts) / self.samples
        is_new = np.concatenate([[True], confidence[1:] != confidence[:-1]])
        self.tie_starts = np.flatnonzero(is_new)
        self.tie_counts = np.diff(self.tie_starts, append=samples)

    def curve(self, right: NDArray[np.bool_]) -> ReliabilityCurve:
        """The curve, from which predictions are right, in the order of the confidences."""
        hits = np.add.reduceat(right, self.tie_starts, dtype=np.int64)
        shared = np.repeat(hits / self.tie_counts, self.tie_counts)
        accuracy = np.add.reduceat(shared, self.starts) / self.samples
        return ReliabilityCurve(self.confidence, accuracy, self.samples)


# Temperature scaling -------------------------------------------------------------------------------------------------
#
# Guo et al. 2017, "On calibration of modern neural networks": all logits divided by one number. The loss is convex in
# the inverse temperature, so its only minimum is where the slope is 0.

_REACH = 1000.0  # times the mean spread of a sample's logits; beyond it the softmax is uniform, or one-hot
_PRECISION = 1e-12
_MOST_TRIES = 200  # halving alone would need about 45


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """Find the temperature that minimises the loss on held-out samples.

    The search goes from 1/1000 to 1000 times the mean spread of the logits (a sample's largest minus its smallest).
    The range always includes 1, so that the loss never gets worse. Not every set of samples has a minimum:

    - If every label has the largest logit, colder is always better, and the lower end is returned.
    - If labels have no larger logits than the rest on average, hotter is always better, and the upper end is returned.
    - If each sample's logits are all equal, every temperature is as good, and 1 is returned.

    >>> logits = np.log([[0.9, 0.1]] * 4)  # says 90% and is right 3 times in 4
    >>> round(fit_temperature(logits, [0, 0, 0, 1]), 6)  # softmax(log([0.9, 0.1]) / 2) is [0.75, 0.25]
    2.0
    """
    table = check_logits(logits)
    right = check_labels(labels, like=table)
    spread = float((table.max(axis=1) - table.min(axis=1)).mean())
    if spread == 0:
        return 1.0
    # Relative to the label's logit and in units of the spread, so that the result scales exactly with the logits.
    margins = (table - np.take_along_axis(table, right[:, None], axis=1)) / spread
    coldest, hottest = min(1.0, spread / _REACH), max(1.0, spread * _REACH)
    inverse = _root(lambda inverse: _slopes(margins, inverse), spread / hottest, spread / coldest)
    return min(max(spread / inverse, coldest), hottest)


def apply_temperature(logits: ArrayLike, temperature: float) -> Floats:
    """The logits divided by the temperature: above 1 it flattens the probabilities, below 1 it sharpens them."""
    return check_logits(logits) / temperature


def _slopes(margins: Floats, inverse: float) -> tuple[float, float]:
    """First and second derivative of the loss, mean log Σ exp(inverse · margin), in the inverse temperature."""
    scaled = inverse * margins
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    means = (shares * margins).sum(axis=1, keepdims=True)
    return float(means.mean()), float((shares * (margins - means) ** 2).sum(axis=1).mean())


def _root(slopes: Callable[[float], tuple[float, float]], low: float, high: float) -> float:
    """The root of a rising function, or the end of the range that is nearest to it.

    Newton's method in a shrinking bracket. A step that leaves the bracket or is slow bisects it in log space instead.
    """
    if slopes(high)[0] <= 0:
        return high
    if slopes(low)[0] >= 0:
        return low
    point, last = math.sqrt(low * high), math.inf
    for _ in range(_MOST_TRIES):
        value, slope = slopes(point)
        low, high = (point, high) if value < 0 else (low, point)
        newton = point - value / slope if slope > 0 else math.inf
        if min(abs(newton - point), high - low) <= _PRECISION * point:
            break
        is_good = low < newton < high and abs(value) < last / 2
        point, last = newton if is_good else math.sqrt(low * high), abs(value)
    return point


# Checks --------------------------------------------------------------------------------------------------------------


def check_logits(logits: ArrayLike, *, name: str = "logits") -> Floats:
    """The logits `[samples, classes]` in float64; `ValueError` unless all are finite."""
    table = _table(logits, name)
    if not np.isfinite(table).all():
        rows = np.flatnonzero(~np.isfinite(table).all(axis=1))
        raise ValueError(
            f"{name} hold NaN or infinity in {len(rows)} of {len(table)} samples, first in sample {rows[0]}; "
            "give finite logits, and look at the weights that made these"
        )
    return table


def check_probabilities(probabilities: ArrayLike, *, name: str = "probabilities") -> Floats:
    """The probabilities `[samples, classes]` in float64, if all are in [0, 1] and sum to 1 within rounding."""
    table = _table(probabilities, name)
    bad = ~((table >= 0) & (table <= 1 + _SUM_TOLERANCE)).all(axis=1)  # written so that NaN is bad
    bad |= ~(np.abs(table.sum(axis=1) - 1) <= _SUM_TOLERANCE)
    if bad.any():
        raise ValueError(
            f"{name} of {np.count_nonzero(bad)} of {len(table)} samples, first of sample {np.flatnonzero(bad)[0]}, "
            "are not all from 0 to 1 with the sum 1; give softmax(logits), not logits"
        )
    return table


def check_labels(labels: ArrayLike, *, like: Floats, name: str = "labels") -> Integers:
    """The labels `[samples]` in int64, if there is one valid class per sample of `like`, `[samples, classes]`."""
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
    """Raise `ValueError` unless both arrays have the same number of samples and classes."""
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
