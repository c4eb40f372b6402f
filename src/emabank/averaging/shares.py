"""How much each checkpoint of a sequence counts in their average. Pure maths; the shares add up to 1."""

import math
from collections.abc import Sequence


def uniform_shares(count: int) -> list[float]:
    """The plain mean: a uniform soup, or stochastic weight averaging after the fact.

    >>> uniform_shares(4)
    [0.25, 0.25, 0.25, 0.25]
    """
    if count < 1:
        raise ValueError(f"The mean of {count} checkpoints: give at least one.")
    return [1.0 / count] * count


def last_shares(count: int, last: int) -> list[float]:
    """The mean of the last so many (LAWA: Kaddour 2022, "Stop wasting my time! Saving days of ImageNet and BERT
    training with latest weight averaging"); the others count nothing.

    >>> last_shares(4, 2)
    [0.0, 0.0, 0.5, 0.5]
    """
    if not 1 <= last <= count:
        raise ValueError(f"The last {last} of {count} checkpoints: give a number from 1 to {count}.")
    return [0.0] * (count - last) + uniform_shares(last)


def ema_shares(count: int, decay: float) -> list[float]:
    """An exponential moving average over the sequence: each counts `decay` times as much as the next.

    That is (1 - α)·α^k for the one k places before the last, over the sum of all: without the correction, the first
    checkpoint would count for all that might have been before it, with 0.9 and three of them 81%.

    >>> [round(share, 3) for share in ema_shares(3, 0.9)]
    [0.299, 0.332, 0.369]
    """
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"A decay of {decay}: it is the weight of the past, a number from 0 to below 1, such as 0.9.")
    return given_shares(count, [decay ** (count - 1 - at) for at in range(count)])


def given_shares(count: int, weights: Sequence[float]) -> list[float]:
    """These weights, one for each checkpoint, over their sum.

    >>> given_shares(2, [3, 1])
    [0.75, 0.25]
    """
    if len(weights) != count:
        raise ValueError(f"There are {len(weights)} weights for {count} checkpoints; give one for each.")
    if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights) or not any(weights):
        raise ValueError(f"The weights {list(weights)} make no average: give numbers from 0 on, and one above 0.")
    largest = max(weights)  # first, because the sum of large ones may not be finite
    scaled = [weight / largest for weight in weights]
    return [weight / math.fsum(scaled) for weight in scaled]
