"""Which average to ship, its gain over the live weights with its uncertainty, and when training could have stopped.

Computed from the curves of one criterion, one value per epoch; no torch.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from emabank.rules import LIVE

Curve = Mapping[int, float]  # epoch to value
Direction = Literal["max", "min"]

LEVEL = 0.05  # how often, at most, a gain is called clear without a real one


@dataclass(frozen=True)
class Best:
    """The best value of a criterion.

    Args:
        criterion: the metric.
        average: the name of the average that had it, or "live".
        epoch: the epoch it was observed at.
        value: the value of the metric.
    """

    criterion: str
    average: str
    epoch: int
    value: float


# From all averages, the best of them and the best live weights: the standard error of the gain and its critical value.
PairedTest = Callable[[Sequence[Best], Best, Best], tuple[float, float] | None]


@dataclass(frozen=True)
class Advice:
    """What to ship, and why. `print` shows it in a few sentences.

    Args:
        criterion: the metric it was chosen by.
        average: the average to ship, or "live".
        epoch: the epoch to ship it from.
        value: the value of the criterion there.
        batchnorm: which batch-norm statistics to ship; None for the live weights, or without batch norm.
        live: the best of the live weights; None if they were not observed.
        best_average: the best of the averages, shipped or not; None if none was observed.
        gain: how much better `best_average` is than `live` (positive is better); None without either.
        error: the standard error of the gain; None if it is unknown.
        critical: how many standard errors a gain must be to be clear, given the number of candidates; None without one.
        stop: the epoch after which training could have stopped, because later ones gained less than the error.
        epochs: all observed epochs, in order.
        is_share: whether values are shares of one, such as accuracies: shown in percent, gains in points.
        note: what to do first; often empty.
        unit: what epochs are called, such as "step".

    >>> curves = {"live": {8: 0.79, 9: 0.80}, "slow": {8: 0.70, 9: 0.81}}
    >>> advise(curves, criterion="f1", better="max", error=0.02).reason.partition(" better")[0]
    'No clear gain, so either will do: its f1 of 81.00 % is 1.0 ± 2.0 points'
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
        """The least that the gain is with 95 % confidence, allowing for the choice among averages and epochs."""
        if self.gain is None or self.error is None or self.critical is None:
            return None
        return self.gain - self.critical * self.error

    @property
    def is_clear(self) -> bool:
        """Whether the gain is more than chance; False if its uncertainty is unknown."""
        return self.bound is not None and self.bound > 0.0

    @property
    def saved(self) -> float:
        """The share of the observed epochs that training could have saved."""
        return 1.0 - sum(epoch <= self.stop for epoch in self.epochs) / len(self.epochs)

    @property
    def reason(self) -> str:
        """The reason, in a sentence."""
        value = f"{100.0 * self.value:.2f} %" if self.is_share else f"{self.value:.4g}"
        if self.live is None:
            return (
                f"It is the best of the averages, with {self.criterion} {value}; observe the live weights too to learn "
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
                f"A gain of unknown uncertainty: {sentence}. Pass per-sample values with every observation to learn "
                "whether it is more than chance."
            )
        if not self.is_clear:
            return f"No clear gain, so either will do: {sentence}."
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
    """A gain and its standard error, to two digits of the error; in points if values are shares.

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
    rounded = round(scale * gain, digits) + 0.0  # turns -0.0 into 0.0
    return f"{rounded:{plus}.{digits}f} ± {scale * error:.{digits}f}{points}"


def critical_value(choices: int = 1) -> float:
    """How many standard errors the best of so many candidates must gain to be clear: a normal quantile with
    Bonferroni's correction, valid however correlated the candidates are.

    >>> round(critical_value(), 3), round(critical_value(100), 3)
    (1.645, 3.291)
    """
    return NormalDist().inv_cdf(1.0 - LEVEL / choices)


def advise(
    curves: Mapping[str, Curve],
    *,
    criterion: str,
    better: Direction,
    samples: int | None = None,
    error: float | None = None,
    critical: float | None = None,
    test: PairedTest | None = None,
    recomputed: Collection[tuple[str, int]] = (),
    has_batchnorm: bool = False,
    unit: str = "epoch",
) -> Advice:
    """Advice from the curves of the averages and of the live weights.

    Args:
        curves: the curve of every average by name; the live weights are "live".
        criterion: the name of the metric.
        better: "max" or "min".
        samples: the number of validation samples. Without `error` it gives an upper bound of the error of an accuracy,
            as if every candidate had been measured on its own samples.
        error: the standard error of the gain of the best average over the best live weights.
        critical: how many standard errors the gain must be to be clear; by default `critical_value` of all epochs of
            all averages.
        test: gives both, from all averages, the best of them and the best live weights, or None.
        recomputed: the averages and epochs that had recomputed batch-norm statistics.
        has_batchnorm: whether the averages have batch-norm statistics.
        unit: what epochs are called.

    >>> curves = {"live": {1: 0.70, 2: 0.80}, "slow": {1: 0.50, 2: 0.86}}
    >>> advice = advise(curves, criterion="accuracy", better="max", samples=1000)
    >>> advice.average, advice.epoch, round(advice.gain, 2), round(advice.error, 3)
    ('slow', 2, 0.06, 0.017)
    """
    sign = 1.0 if better == "max" else -1.0
    points = [Best(criterion, name, epoch, value) for name, curve in curves.items() for epoch, value in curve.items()]
    points = [point for point in points if math.isfinite(point.value)]
    is_share = better == "max" and all(0.0 <= point.value <= 1.0 for point in points)
    if samples is not None and not is_share:
        raise ValueError(
            f"samples must be None for {criterion!r}: it gives the uncertainty of an accuracy from 0 to 1, where more "
            "is better. Pass per-sample values instead."
        )

    def best(candidates: list[Best]) -> Best | None:  # of equal values the earliest epoch wins
        return max(candidates, key=lambda point: (sign * point.value, -point.epoch), default=None)

    averages = [point for point in points if point.average != LIVE]
    top, live = best(averages), best([point for point in points if point.average == LIVE])
    gain = None
    if top is None or live is None:
        error = critical = None
    else:
        gain = sign * (top.value - live.value)
        if test is not None:
            error, critical = test(averages, top, live) or (None, None)
        if error is None and samples is not None:
            error = math.hypot(_share_error(top.value, samples), _share_error(live.value, samples))
        if error is not None and critical is None:
            critical = critical_value(len(averages))
    chosen = live if top is None or (gain is not None and gain <= 0.0) else top
    if chosen is None:
        raise LookupError(f"No {criterion} has been observed that is complete and finite.")
    statistics: Literal["averaged", "recomputed"] | None = None
    if chosen is top and (chosen.average, chosen.epoch) in recomputed:
        statistics = "recomputed"
    elif chosen is top and has_batchnorm:
        statistics = "averaged"
    as_good = sign * chosen.value - (error or 0.0)
    like_chosen = averages if chosen is top else [point for point in points if point.average == LIVE]
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
        stop=min(point.epoch for point in like_chosen if sign * point.value >= as_good),
        epochs=tuple(sorted({epoch for curve in curves.values() for epoch in curve})),
        is_share=is_share,
        note=_UNCALIBRATED if statistics == "averaged" else "",
        unit=unit,
    )


_UNCALIBRATED = (
    "Its batch-norm statistics were averaged, not recomputed: evaluate again after recalibrate_batchnorm, from which "
    "slow averages gain most."
)


def _share_error(share: float, samples: int) -> float:
    """The standard error of a share with one more success and one more failure (Agresti and Caffo 2000), because a
    share of 0 or 1 is uncertain too.
    """
    share = (share * samples + 1.0) / (samples + 2.0)
    return math.sqrt(share * (1.0 - share) / samples)
