"""Which average to ship, what it gains with what uncertainty, and whether training could have stopped earlier.

From curves of one criterion, one value an epoch; numbers only. May import ledger and observed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from emabank.ledger import LIVE
from emabank.observed import Best

Curve = Mapping[int, float]
"""The value of each epoch that was looked at."""

CLEAR = 2.0  # standard errors that a gain has to be from nothing, to be called clear
_NORMAL = 1.4826  # standard deviation over median distance, of normal noise
_SECOND_DIFFERENCE = math.sqrt(6.0)  # standard deviation of x₋ - 2x + x₊ over that of x
_FEWEST = 5  # epochs, below which their scatter says little


@dataclass(frozen=True)
class Advice:
    """What to ship, and why. Printed, it is a few sentences.

    Args:
        criterion: what it was chosen by.
        average: the one to ship, or "live".
        epoch: from which epoch.
        value: what it had there.
        batchnorm: with which batch-norm statistics; None where there are none, or for the live weights.
        live: the live weights at their own best; None when they were not observed.
        gain: how much better it is than they are, positive is better; None without them.
        error: the standard error of the gain; None when nothing is known about it.
        stop: the epoch at which training could have stopped: what came later gained less than the error.
        epochs: the last epoch that was observed.
        reason: the one reason, in a sentence.
        note: what else should be done first; often nothing.
    """

    criterion: str
    average: str
    epoch: int
    value: float
    batchnorm: Literal["averaged", "recomputed"] | None
    live: Best | None
    gain: float | None
    error: float | None
    stop: int
    epochs: int
    reason: str
    note: str = ""

    @property
    def is_clear(self) -> bool:
        """Whether the gain is more than chance: positive, and more than two standard errors.

        >>> advise({"live": {1: 0.7}, "slow": {1: 0.9}}, criterion="accuracy", better="max", samples=1000).is_clear
        True
        """
        return is_clear(self.gain, self.error)

    @property
    def saved(self) -> float:
        """The share of the epochs that could have been spared.

        >>> curve = {1: 0.5, 2: 0.9, 3: 0.9, 4: 0.9}
        >>> advise({"slow": curve}, criterion="accuracy", better="max").saved
        0.5
        """
        return 1.0 - self.stop / self.epochs if self.epochs > 0 else 0.0

    def __str__(self) -> str:
        statistics = f" with {self.batchnorm} batch-norm statistics" if self.batchnorm else ""
        told = [f"Ship {self.average} of epoch {self.epoch}{statistics}.", self.reason]
        if self.stop < self.epochs:
            told.append(
                f"Training could have stopped after epoch {self.stop} of {self.epochs}, {self.saved:.0%} of it spared: "
                f"what came later gained nothing{'' if self.error is None else ' beyond the standard error'}."
            )
        return " ".join([*told, self.note] if self.note else told)


def is_clear(gain: float | None, error: float | None) -> bool:
    """Whether a gain is more than two standard errors; never, where either is unknown.

    >>> is_clear(0.02, 0.005), is_clear(0.02, 0.015), is_clear(0.02, None)
    (True, False, False)
    """
    return gain is not None and error is not None and gain > CLEAR * error


def advise(
    curves: Mapping[str, Curve],
    *,
    criterion: str,
    better: Literal["max", "min"],
    samples: int | None = None,
    error: float | None = None,
    recomputed: Sequence[int] = (),
    has_batchnorm: bool = False,
) -> Advice:
    """What the curves of averages, and of the live weights under "live", come to.

    The error of the gain is the one given; else, for a share of right answers, that of counting `samples` of them (an
    upper bound: as if each had been asked about others); else what the curves' scatter from epoch to epoch says, which
    needs five epochs. `recomputed` are the epochs at which averages had recomputed batch-norm statistics.

    >>> curves = {"live": {1: 0.70, 2: 0.80}, "slow": {1: 0.50, 2: 0.86}}
    >>> advice = advise(curves, criterion="accuracy", better="max", samples=1000)
    >>> advice.average, advice.epoch, round(advice.gain, 2), round(advice.error, 3)
    ('slow', 2, 0.06, 0.017)
    """
    sign = 1.0 if better == "max" else -1.0
    bests = {name: found for name, curve in curves.items() if (found := _best(name, curve, criterion, sign))}
    if not bests:
        raise LookupError(
            f"No {criterion} has been observed that is complete and finite, so there is nothing to advise."
        )
    live = bests.get(LIVE)
    averages = [best for name, best in bests.items() if name != LIVE]
    top = max(averages, key=lambda best: sign * best.value, default=None)
    gain = None if live is None or top is None else sign * (top.value - live.value)
    if error is None and live is not None and top is not None:
        error = _error(curves[top.average], curves[LIVE], top, live, better, samples)
    chosen = live if top is None or (live is not None and gain is not None and gain <= 0.0) else top
    assert chosen is not None, "there is a best of something"
    epochs = max(epoch for curve in curves.values() for epoch in curve)
    candidates = {name: curve for name, curve in curves.items() if (name == LIVE) == (chosen.average == LIVE)}
    statistics: Literal["averaged", "recomputed"] | None = None
    if has_batchnorm and chosen.average != LIVE:
        statistics = "recomputed" if chosen.epoch in recomputed else "averaged"
    return Advice(
        criterion=criterion,
        average=chosen.average,
        epoch=chosen.epoch,
        value=chosen.value,
        batchnorm=statistics,
        live=live,
        gain=gain,
        error=error,
        stop=_stop(list(candidates.values()), chosen.value, sign, error or 0.0),
        epochs=epochs,
        reason=reason_of(chosen, top, live, gain, error),
        note=_UNCALIBRATED if statistics == "averaged" else "",
    )


_UNCALIBRATED = (
    "Its batch-norm statistics were averaged, not recomputed: measure it once more after recalibrate_batchnorm, from "
    "which slow averages gain most."
)


def reason_of(chosen: Best, top: Best | None, live: Best | None, gain: float | None, error: float | None) -> str:
    """The one reason, in a sentence.

    >>> live, slow = Best("accuracy", "live", 9, 0.8), Best("accuracy", "slow", 7, 0.81)
    >>> reason_of(slow, slow, live, 0.01, 0.02)
    'No clear gain: its accuracy of 0.8100 is 0.0100 ± 0.0200 better than that of the best live weights (epoch 9).'
    """
    what = f"its {chosen.criterion} of {chosen.value:.4f}"
    if live is None:
        return f"Of the averages it is the best: {what}; the live weights were not observed, so no gain can be told."
    if top is None:
        return f"No average was observed beside the live weights, whose best {chosen.criterion} is {chosen.value:.4f}."
    assert gain is not None, "both were observed"
    known = "" if error is None else f" ± {error:.4f}"
    if gain <= 0.0:
        return (
            f"No gain: the best average ({top.average}, epoch {top.epoch}) is {-gain:.4f}{known} worse than the best "
            f"live weights (epoch {live.epoch})."
        )
    than = f"{gain:.4f}{known} better than that of the best live weights (epoch {live.epoch})"
    if is_clear(gain, error):
        return f"A clear gain: {what} is {than}."
    if error is None:
        return f"A gain whose uncertainty is not known (give samples=, or observe five epochs): {what} is {than}."
    return f"No clear gain: {what} is {than}."


def _best(name: str, curve: Curve, criterion: str, sign: float) -> Best | None:
    finite = {epoch: value for epoch, value in curve.items() if math.isfinite(value)}
    if not finite:
        return None
    epoch = max(finite, key=lambda epoch: (sign * finite[epoch], -epoch))
    return Best(criterion, name, epoch, finite[epoch])


def _error(
    averaged: Curve, live: Curve, top: Best, best: Best, better: Literal["max", "min"], samples: int | None
) -> float | None:
    shares = better == "max" and all(0.0 <= each.value <= 1.0 for each in (top, best))
    if samples is not None and shares:
        return math.sqrt(sum(each.value * (1.0 - each.value) for each in (top, best)) / samples)
    scatters = [scatter([curve[epoch] for epoch in sorted(curve)]) for curve in (averaged, live)]
    return None if None in scatters else math.hypot(*(each for each in scatters if each is not None))


def scatter(values: Sequence[float]) -> float | None:
    """The standard deviation of a curve's noise: from how far each value is from the line between its neighbours, so
    that neither a trend nor a few jumps count. None below five finite values.

    >>> scatter([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0
    >>> scatter([1.0, 2.0]) is None
    True
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < _FEWEST:
        return None
    bends = [abs(a - 2.0 * b + c) for a, b, c in zip(finite, finite[1:], finite[2:], strict=False)]
    return _NORMAL * median(bends) / _SECOND_DIFFERENCE


def _stop(curves: Sequence[Curve], value: float, sign: float, error: float) -> int:
    """The first epoch at which one of the curves was as good as it got, but for the error."""
    good = [
        epoch
        for curve in curves
        for epoch, each in curve.items()
        if math.isfinite(each) and sign * each >= sign * value - error
    ]
    return min(good)
