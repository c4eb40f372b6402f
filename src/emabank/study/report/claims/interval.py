"""The 95% t-interval of paired differences, and the rules it is held against. Plain Python; imports verdicts alone."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from emabank.study.report.verdict import Verdict

EQUAL = 1.0
"""Two results are on a par if they differ by less than so many points."""
_INFINITY = math.inf
_BISECTIONS = 200  # each halves an angle; the doubles run out after about sixty


class Interval(NamedTuple):
    """A mean and where it may lie; no ends where fewer than two values are there, no mean where none is."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """How many independent values it rests on."""


class Rule(NamedTuple):
    """Where an interval must lie for a claim to hold, and where for it to be refuted; in between nothing is said."""

    text: str
    low: float = -_INFINITY
    high: float = _INFINITY
    """The claim holds if the whole interval lies strictly between `low` and `high`."""
    refuted_below: float = -_INFINITY
    refuted_above: float = _INFINITY
    """It is refuted if the whole interval lies below the one or above the other; this is looked at first."""


def above(bound: float = 0.0) -> Rule:
    """More than a bound.

    >>> judge(interval([0.4, 0.5, 0.6]), above())
    'reproduced'
    """
    return Rule(f"above {_bound(bound)}", low=bound, refuted_below=bound)


def below(bound: float = 0.0) -> Rule:
    """Less than a bound; `below(EQUAL)` is "worse or equal".

    >>> judge(interval([0.4, 0.5, 0.6]), below()), below(EQUAL).text
    ('not reproduced', 'below 1')
    """
    return Rule(f"below {_bound(bound)}", high=bound, refuted_above=bound)


def within(bound: float = EQUAL) -> Rule:
    """On a par.

    >>> judge(interval([0.4, 0.5, 0.6]), within()), judge(interval([1.4, 1.5, 1.6]), within())
    ('reproduced', 'not reproduced')
    """
    return Rule(f"within ±{_bound(bound)}", low=-bound, high=bound, refuted_below=-bound, refuted_above=bound)


def no_gain(bound: float = EQUAL) -> Rule:
    """Worse or equal, and refuted by any gain that is beyond doubt, however small.

    >>> judge(interval([-0.1, 0.0, 0.1]), no_gain()), judge(interval([0.4, 0.5, 0.6]), no_gain())
    ('reproduced', 'not reproduced')
    """
    return Rule(f"below {_bound(bound)}, and not above 0", high=bound, refuted_above=0.0)


def interval(values: Sequence[float], *, independent: int | None = None) -> Interval:
    """The mean of paired differences and its 95% t-interval; equal values make one without width.

    `independent`: how many values to count where they are not independent of each other, such as the pairs among a few
    seeds, of which no more are counted than there are seeds.

    >>> [round(end, 2) for end in interval([1.0, 2.0, 3.0])[:3]]
    [2.0, -0.48, 4.48]
    >>> interval([0.5])
    Interval(mean=0.5, low=None, high=None, n=1)
    """
    n = len(values) if independent is None else min(len(values), independent)
    if not values:
        return Interval(None, None, None, 0)
    mean = statistics.fmean(values)
    if n < 2:
        return Interval(mean, None, None, n)
    # Counted from the first value, so that equal values have no spread at all, whatever their mean is rounded to.
    spread = statistics.stdev([value - values[0] for value in values])
    if spread == 0.0:
        return Interval(values[0], values[0], values[0], n)
    half = t_quantile(0.975, n - 1) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def judge(found: Interval, rule: Rule) -> Verdict:
    """What an interval says under a rule.

    >>> judge(interval([-1.0, 0.0, 1.5]), above()), judge(interval([1.0]), above())
    ('inconclusive', 'too few runs')
    """
    if found.low is None or found.high is None:
        return "too few runs"
    if found.high < rule.refuted_below or found.low > rule.refuted_above:
        return "not reproduced"
    return "reproduced" if rule.low < found.low and found.high < rule.high else "inconclusive"


def t_quantile(probability: float, freedom: int) -> float:
    """Where Student's t with whole degrees of freedom has so much probability below it.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    if not 0.5 <= probability < 1.0 or freedom < 1:
        raise ValueError(
            f"probability is {probability} and freedom {freedom}; give a probability from 0.5 to below 1, and at least "
            "one degree of freedom"
        )
    central = 2.0 * probability - 1.0
    low, high = 0.0, math.pi / 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _central_probability(middle, freedom) < central else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _central_probability(angle: float, freedom: int) -> float:
    """How much probability lies within ±t, for t = sqrt(freedom) * tan(angle).

    The finite sums for whole degrees of freedom, Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    cosine2 = math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2.0 / math.pi * (angle + total) if odd else total


def _bound(bound: float) -> str:
    return f"{bound:g}"
