"""A line and a power law through a few points of cost against size: how a cost grows, its fixed part aside."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fit:
    """What the medians of a series show. Residuals count in proportion to the time, as errors do here.

    Args:
        intercept, slope: of the line that fits best, its fixed cost and its cost a unit, in seconds.
        r_squared: how much of the differences between the points it explains.
        deviation, deviation_at: the largest distance of a point from it, over the point's own time, and where.
        power: exponent of the power law through the points, fixed costs and all: the slope in log-log.
        exponent: the p of `fixed + c · x^p`, with a fixed cost of 0 or more: how the marginal cost grows.
        fixed: the fixed cost of that.
    """

    intercept: float
    slope: float
    r_squared: float
    deviation: float
    deviation_at: float
    power: float
    exponent: float
    fixed: float


def fit_line(xs: Sequence[float], ys: Sequence[float], *, least: float = -math.inf) -> tuple[float, float, float]:
    """Intercept (not below `least`), slope, and the sum of squared relative residuals."""
    weights = [y**-2 for y in ys]
    mean_x, mean_y = (sum(w * v for w, v in zip(weights, vs, strict=True)) / sum(weights) for vs in (xs, ys))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True))
    slope /= sum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
    intercept = mean_y - slope * mean_x
    if intercept < least:
        intercept = least
        slope = sum(w * x * (y - least) for w, x, y in zip(weights, xs, ys, strict=True))
        slope /= sum(w * x * x for w, x in zip(weights, xs, strict=True))
    residual = sum(w * (intercept + slope * x - y) ** 2 for w, x, y in zip(weights, xs, ys, strict=True))
    return intercept, slope, residual


def fit_exponent(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """The p and the fixed cost with which `fixed + c · x^p` fits best; p to a hundredth, from 0.1 to 4."""
    largest = max(xs)
    found: list[tuple[float, float, float]] = []
    for hundredths in range(10, 401):
        exponent = hundredths / 100
        fixed, _, residual = fit_line([(x / largest) ** exponent for x in xs], ys, least=0.0)
        found.append((residual, exponent, fixed))
    _, exponent, fixed = min(found)
    return exponent, fixed


def fit(xs: Sequence[float], ys: Sequence[float]) -> Fit:
    """All of it, of at least three points."""
    if len(xs) < 3:
        raise ValueError(f"a fit needs three points or more; given {len(xs)}")
    intercept, slope, _ = fit_line(xs, ys)
    line = [intercept + slope * x for x in xs]
    mean = statistics.fmean(ys)
    residual, total = sum((y - on) ** 2 for y, on in zip(ys, line, strict=True)), sum((y - mean) ** 2 for y in ys)
    deviation, at = max((abs(1 - on / y), x) for x, y, on in zip(xs, ys, line, strict=True))
    power = statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys]).slope
    exponent, fixed = fit_exponent(xs, ys)
    return Fit(intercept, slope, 1 - residual / total if total else 1.0, deviation, at, power, exponent, fixed)
