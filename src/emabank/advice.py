"""Which average to ship, what it gains with what uncertainty, and whether training could have stopped earlier.

From curves of one criterion, one value an epoch; numbers only. May import ledger and observed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from emabank._schedule import LIVE

Curve = Mapping[int, float]
"""The value of each epoch that was looked at."""

LEVEL = 0.05  # how often, at most, a gain is called clear where there is none


@dataclass(frozen=True)
class Best:
    """The best value of a criterion, and which average had it at which epoch.

    >>> Best("accuracy", average="ema-0.998", epoch=12, value=0.941).average
    'ema-0.998'
    """

    criterion: str
    """The metric that it is the best of."""
    average: str
    """The name of the average, or "live"."""
    epoch: int
    """Where it was seen."""
    value: float
    """Of the metric."""


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
        best_average: the average at its best, shipped or not; None when none was observed.
        gain: how much better that is than the live weights, positive is better; None without either.
        error: the standard error of the gain; None when nothing is known about it.
        critical: how many standard errors the best of so many candidates must gain to be clear; None without an error.
        stop: the epoch after which training could have stopped: what came later gained less than the error.
        epochs: all epochs that were observed, in order.
        is_share: whether values are shares of one, such as accuracies: shown in percent, gains in points.
        note: what else should be done first; often nothing.
        unit: what epochs are called: "epoch", or "step".
    """

    criterion: str
    average: str
    epoch: int
    value: float
    batchnorm: Literal["averaged", "recomputed"] | None
    live: Best | None
    best_average: Best | None
    gain: float | None
    error: float | None
    critical: float | None
    stop: int
    epochs: tuple[int, ...]
    is_share: bool
    note: str = ""
    unit: str = "epoch"

    @property
    def bound(self) -> float | None:
        """What the gain is at least, with 95 % confidence, the choice among averages and epochs allowed for.

        >>> advice = advise({"live": {1: 0.7}, "slow": {1: 0.9}}, criterion="accuracy", better="max", error=0.1)
        >>> round(advice.bound, 3)  # of one candidate: 0.2 - 1.645 * 0.1
        0.036
        """
        if self.gain is None or self.error is None or self.critical is None:
            return None
        return self.gain - self.critical * self.error

    @property
    def is_clear(self) -> bool:
        """Whether the gain is more than chance; never, where its uncertainty is unknown.

        >>> advise({"live": {1: 0.7}, "slow": {1: 0.9}}, criterion="accuracy", better="max", samples=1000).is_clear
        True
        """
        return self.bound is not None and self.bound > 0.0

    @property
    def saved(self) -> float:
        """The share of the observed epochs that could have been spared.

        >>> curve = {0: 0.5, 1: 0.9, 2: 0.9, 3: 0.9}
        >>> advise({"slow": curve}, criterion="accuracy", better="max").saved
        0.5
        """
        return 1.0 - sum(epoch <= self.stop for epoch in self.epochs) / len(self.epochs)

    @property
    def reason(self) -> str:
        """The reason, in a sentence.

        >>> curves = {"live": {9: 0.80}, "slow": {9: 0.81}}
        >>> advise(curves, criterion="f1", better="max", error=0.02).reason
        'No clear gain: its f1 of 81.00 % is 1.0 ± 2.0 points better than that of the best live weights (epoch 9).'
        """
        value = f"{100.0 * self.value:.2f} %" if self.is_share else f"{self.value:.4g}"
        if self.live is None:
            return (
                f"Of the averages it is the best, with {self.criterion} {value}; observe the live weights too, to know "
                "the gain."
            )
        if self.best_average is None:
            return f"No average was observed beside the live weights, whose best {self.criterion} is {value}."
        assert self.gain is not None, "both were observed"
        best_live = f"the best live weights ({self.unit} {self.live.epoch})"
        amount = gain_text(abs(self.gain), self.error, is_share=self.is_share)
        if self.gain <= 0.0:
            top = f"the best average ({self.best_average.average}, {self.unit} {self.best_average.epoch})"
            return f"No gain: {top} is {f'{amount} worse than' if self.gain else 'only as good as'} {best_live}."
        sentence = f"its {self.criterion} of {value} is {amount} better than that of {best_live}"
        if self.bound is None:
            return (
                f"A gain of unknown uncertainty: {sentence}. Give per-sample values with every observation to learn "
                "whether it is more than chance."
            )
        if not self.is_clear:
            return f"No clear gain: {sentence}."
        at_least = gain_text(self.bound, None, is_share=self.is_share)
        return f"A clear gain: {sentence}, and at least {at_least} with {100.0 * (1.0 - LEVEL):.0f} % confidence."

    def __str__(self) -> str:
        statistics = f" with {self.batchnorm} batch-norm statistics" if self.batchnorm else ""
        sentences = [f"Ship {self.average} of {self.unit} {self.epoch}{statistics}.", self.reason]
        if self.stop < self.epochs[-1]:
            no_worse = (
                f"Nothing after {self.unit} {self.stop} was better"
                if self.stop == self.epoch
                else f"{self.unit.capitalize()} {self.stop} was as good within the standard error"
            )
            sentences.append(f"{no_worse}: stopping there would have saved {100.0 * self.saved:.0f} % of the training.")
        return " ".join([*sentences, self.note] if self.note else sentences)


def gain_text(gain: float, error: float | None, *, is_share: bool, signed: bool = False) -> str:
    """A gain and its standard error, to two digits of the error; in points where values are shares.

    >>> gain_text(0.0123, 0.0041, is_share=True), gain_text(-0.00001, 0.016, is_share=False, signed=True)
    ('1.23 ± 0.41 points', '+0.000 ± 0.016')
    >>> gain_text(0.0123, None, is_share=False)
    '0.0123'
    """
    scale, points = (100.0, " points") if is_share else (1.0, "")
    plus = "+" if signed else ""
    if error is None or not 0.0 < error < math.inf:
        return f"{scale * gain + 0.0:{plus}.3g}{points}"
    digits = max(0, 1 - math.floor(math.log10(scale * error)))
    rounded = round(scale * gain, digits) + 0.0  # which makes 0.0 of -0.0
    return f"{rounded:{plus}.{digits}f} ± {scale * error:.{digits}f}{points}"


def critical_value(choices: int = 1) -> float:
    """How many standard errors the best of so many candidates must gain to be clear, however alike they are: a normal
    quantile, corrected by Bonferroni.

    >>> round(critical_value(), 3), round(critical_value(100), 3)
    (1.645, 3.291)
    """
    return NormalDist().inv_cdf(1.0 - LEVEL / choices)


def best_points(
    curves: Mapping[str, Curve], criterion: str, better: Literal["max", "min"]
) -> tuple[Best | None, Best | None]:
    """The best average and the best live weights; of equal values the earliest epoch wins.

    >>> best_points({"live": {1: 0.8}, "slow": {2: 0.9}, "fast": {1: 0.9}}, "accuracy", "max")[0]
    Best(criterion='accuracy', average='fast', epoch=1, value=0.9)
    """
    sign = 1.0 if better == "max" else -1.0
    bests = [Best(criterion, name, epoch, curves[name][epoch]) for name, epoch in finite_points(curves)]
    by_kind = ([best for best in bests if (best.average == LIVE) == is_live] for is_live in (False, True))
    top, live = (max(kind, key=lambda best: (sign * best.value, -best.epoch), default=None) for kind in by_kind)
    return top, live


def finite_points(curves: Mapping[str, Curve]) -> list[tuple[str, int]]:
    """The average (or "live") and the epoch of every finite value.

    >>> finite_points({"live": {1: 0.5}, "slow": {1: math.nan, 2: 0.6}})
    [('live', 1), ('slow', 2)]
    """
    return [(name, epoch) for name, curve in curves.items() for epoch in curve if math.isfinite(curve[epoch])]


def advise(
    curves: Mapping[str, Curve],
    *,
    criterion: str,
    better: Literal["max", "min"],
    samples: int | None = None,
    error: float | None = None,
    critical: float | None = None,
    recomputed: Sequence[int] = (),
    has_batchnorm: bool = False,
    unit: str = "epoch",
) -> Advice:
    """Advice from the curves of averages, and of the live weights under "live".

    `error` is the standard error of the best average's gain over the live weights at their best, and `critical` how
    many of these the gain must be to be clear (by default Bonferroni's, over all epochs of all averages). Without it,
    `samples` gives an upper bound of the error of an accuracy: as if every candidate had seen samples of its own.
    `recomputed` are the epochs at which averages had recomputed batch-norm statistics.

    >>> curves = {"live": {1: 0.70, 2: 0.80}, "slow": {1: 0.50, 2: 0.86}}
    >>> advice = advise(curves, criterion="accuracy", better="max", samples=1000)
    >>> advice.average, advice.epoch, round(advice.gain, 2), round(advice.error, 3)
    ('slow', 2, 0.06, 0.017)
    """
    sign = 1.0 if better == "max" else -1.0
    top, live = best_points(curves, criterion, better)
    places = finite_points(curves)
    is_share = better == "max" and all(0.0 <= curves[name][epoch] <= 1.0 for name, epoch in places)
    if samples is not None and not is_share:
        raise ValueError(
            f"samples must be left out for {criterion!r}: it gives the uncertainty of an accuracy from 0 to 1, where "
            "more is better. Give per-sample values instead."
        )
    gain = None if live is None or top is None else sign * (top.value - live.value)
    if live is None or top is None:
        error = None
    elif error is None and samples is not None:
        error = math.hypot(*(_share_error(best.value, samples) for best in (top, live)))
    if error is None:
        critical = None
    elif critical is None:
        critical = critical_value(sum(name != LIVE for name, _ in places))
    chosen = live if top is None or (gain is not None and gain <= 0.0) else top
    if chosen is None:
        raise LookupError(
            f"No {criterion} has been observed that is complete and finite, so there is nothing to advise."
        )
    statistics: Literal["averaged", "recomputed"] | None = None
    if has_batchnorm and chosen.average != LIVE:
        statistics = "recomputed" if chosen.epoch in recomputed else "averaged"
    as_good = [
        epoch
        for name, epoch in places
        if (name == LIVE) == (chosen.average == LIVE)
        and sign * curves[name][epoch] >= sign * chosen.value - (error or 0.0)
    ]
    return Advice(
        criterion=criterion,
        average=chosen.average,
        epoch=chosen.epoch,
        value=chosen.value,
        batchnorm=statistics,
        live=live,
        best_average=top,
        gain=gain,
        error=error,
        critical=critical,
        stop=min(as_good),
        epochs=tuple(sorted({epoch for curve in curves.values() for epoch in curve})),
        is_share=is_share,
        note=_UNCALIBRATED if statistics == "averaged" else "",
        unit=unit,
    )


_UNCALIBRATED = (
    "Its batch-norm statistics were averaged, not recomputed: measure it once more after recalibrate_batchnorm, from "
    "which slow averages gain most."
)


def _share_error(share: float, samples: int) -> float:
    """The standard error of a share, as if one more sample were right and one more wrong (Agresti and Caffo 2000), for
    a share of 0 or 1 is not certain either.
    """
    share = (share * samples + 1.0) / (samples + 2.0)
    return math.sqrt(share * (1.0 - share) / samples)
