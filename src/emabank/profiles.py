"""How much each sample weighs in an average, and how to mix averages so that their samples weigh as in another.

Every average is a weighted mean of the samples a bank has taken, and of the weights it began with; so a mixture of
averages is one too, and the mixture that comes nearest to a given average is a least-squares problem in these weights.
Pure maths: imports rules and torch.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from emabank.rules import EMA, PowerEMA, Uniform

SPREAD = 0.1
"""By which share of their length the samples of a run are taken to differ: what the rounding of stored averages is held
against. Early in a training they differ by more, at its end by less."""

_EXACT = 4096  # so many samples are fitted one by one; of more, those far back are taken together
_FINENESS = 512  # as many as this share of their distance from the end
_LEAST = 1e-9  # of the noise: directions in which averages hardly differ need some to be solved
_KIND = torch.float64


def profile(rule: EMA | Uniform | PowerEMA, step: int, *, every: int) -> Tensor:
    """The weights, at a step, of the initial weights and of each sample so far, in float64; they add up to 1.

    >>> profile(Uniform(), 3, every=1)
    tensor([0.0000, 0.3333, 0.3333, 0.3333], dtype=torch.float64)
    >>> profile(EMA(0.5, warmup=None), 5, every=2)
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    return weights_of(decays(rule, step, every=every))


def decays(rule: EMA | Uniform | PowerEMA, step: int, *, every: int) -> Tensor:
    """The decay of each sample up to a step; what comes first, before any sample, has none, which is 0.

    >>> decays(EMA(0.5, warmup=None, start=3), 6, every=2)
    tensor([0.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    found = [0.0]
    begun = 0
    for at in range(every, step + 1, every):
        if at <= rule.start:
            found.append(0.0)  # the last sample before its start is what it begins with
            continue
        found.append(rule.decay_at(steps=at - rule.start, elapsed=every, samples=begun, every=every))
        begun += 1
    return torch.tensor(found, dtype=_KIND)


def weights_of(decays: Tensor) -> Tensor:
    """What is left of each sample after all that came later: its share, times the decays of the others.

    >>> weights_of(torch.tensor([0.0, 0.5, 0.25]))
    tensor([0.1250, 0.1250, 0.7500])
    """
    first = int((decays == 0).nonzero().max())  # all before it is forgotten
    later = decays[first + 1 :].log().flip(0).cumsum(0).flip(0).exp()
    left = torch.cat([later, later.new_ones(1)])
    weights = torch.zeros_like(decays)
    weights[first:] = (1.0 - decays[first:]) * left
    return weights


class Mixture(NamedTuple):
    """How averages are mixed, and what comes of it."""

    coefficients: list[float]
    """They add up to 1, so that what never changed stays what it is."""
    error: float
    """How far the weights of the samples are from those of the target, as vectors, over the length of the target's.
    The rounding of what is mixed is in it, held against samples that differ by `SPREAD` of their length."""
    rounding: float
    """By which share of their length the mixed weights are off because of the rounding of what is mixed."""


def mixture(profiles: Iterable[Tensor], target: Tensor, roundings: Sequence[float]) -> Mixture:
    """The mixture of profiles that comes nearest to a target. They are gone through several times, one by one.

    Profiles may be shorter than the target: what came later weighs nothing in them. `roundings` says by which share of
    its length each average is off as it is stored. Large coefficients of opposite signs would multiply that, so it has
    its part in what is minimised.

    >>> first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    >>> found = mixture([first, second], torch.tensor([0.75, 0.25]), [6e-8, 6e-8])
    >>> [round(each, 6) for each in found.coefficients], found.error < 1e-4
    ([0.5, 0.5], True)
    """
    lengths = [len(each) for each in profiles]
    bins = _Bins(len(target), lengths)
    noise = torch.tensor(roundings, dtype=_KIND)
    columns = torch.stack([bins.of(each) for each in profiles], dim=1)
    coefficients = _solved(columns, bins.of(target), noise / SPREAD)
    off = -target.to(_KIND)
    for share, each in zip(coefficients, profiles, strict=True):
        off[: len(each)] += share * each
    rounding = float(torch.linalg.vector_norm(noise * torch.tensor(coefficients, dtype=_KIND)))
    length = float(torch.linalg.vector_norm(target.to(_KIND)))
    error = math.hypot(float(torch.linalg.vector_norm(off)), rounding / SPREAD) / length
    return Mixture(coefficients, error, rounding)


def _solved(columns: Tensor, wanted: Tensor, noise: Tensor) -> list[float]:
    """Least squares with coefficients that add up to 1: the last is what is missing to that."""
    count = columns.shape[1]
    if count == 1:
        return [1.0]
    columns = torch.cat([columns, torch.diag(noise.clamp_min(_LEAST))])
    wanted = torch.cat([wanted, wanted.new_zeros(count)])
    last = columns[:, -1:]
    # Not by the default driver, whose last digits differ from call to call.
    found: Tensor = torch.linalg.lstsq(columns[:, :-1] - last, wanted.unsqueeze(1) - last, driver="gels").solution
    others: list[float] = found[:, 0].tolist()
    return [*others, 1.0 - math.fsum(others)]


class _Bins:
    """Neighbouring samples that are fitted together. Near the end, where windows are short, each is by itself; and what
    an average has ends where a bin does, so that none of them lies in half a bin.
    """

    def __init__(self, length: int, lengths: Sequence[int]) -> None:
        edges = {0, length, *lengths}
        if length <= _EXACT:
            edges.update(range(length))
        else:
            place = length
            while place > 0:
                place -= max(1, (length - place) // _FINENESS)
                edges.add(max(0, place))
        starts = torch.tensor(sorted(edges))
        self._sizes = starts.diff()
        self._bin = torch.repeat_interleave(torch.arange(len(self._sizes)), self._sizes)

    def of(self, weights: Tensor) -> Tensor:
        """The weight of each bin; as vectors, they are as long as if all samples of a bin weighed the same."""
        sums = torch.zeros(len(self._sizes), dtype=_KIND)
        sums.index_add_(0, self._bin[: len(weights)], weights.to(_KIND))
        return sums / self._sizes.sqrt()
