"""Paired values out of the evidence: one a seed, from the columns of the tables or from the curves of runs.

A value that is not there is left out and named; nothing here is smoothed. May import numpy, the evidence and questions.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from emabank.study.report.claims.question import Measured
from emabank.study.report.evidence import LIVE, Curve, Run, Setting

POINTS = 100.0
"""From shares to percentages."""
OF_PAIRS = ("churn", "js")
"""Measures with one value a pair of seeds."""
TRANSFER = "transfer:"


# From the tables ------------------------------------------------------------------------------------------------------


def of_columns(
    setting: Setting,
    one: tuple[str, str],
    other: tuple[str, str],
    *,
    trained_on: str,
    split: str = "test",
    make: Callable[[float, float], float | None] = lambda one, other: POINTS * (one - other),
) -> list[Measured]:
    """What `make` makes of two measures, each given as (column, metric): by default one minus the other, in points."""
    left, right = (
        setting.values(column, metric, trained_on=trained_on, split=split) for column, metric in (one, other)
    )
    if left is None or right is None or len(left) != len(right):
        return []
    pairs = one[1] in OF_PAIRS
    names = [f"pair {place + 1} of seeds" for place in range(len(left))] if pairs else _names(setting, len(left))
    values = {
        name: None if a is None or b is None else make(a, b) for name, a, b in zip(names, left, right, strict=True)
    }
    found = measured(values)
    return [found._replace(independent=len(setting.seeds)) if pairs else found]


def _names(setting: Setting, count: int) -> list[str]:
    seeds = setting.seeds if len(setting.seeds) == count else range(count)
    return [f"seed {seed}" for seed in seeds]


def measured(values: Mapping[str, float | None]) -> Measured:
    """What is there of the values by name; the note names those that are not.

    >>> measured({"seed 0": 0.5, "seed 1": None, "seed 2": float("nan")})
    Measured(values=[0.5], note='no value for seed 1, seed 2', independent=None, whole=True, target='')
    """
    there = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    absent = [name for name in values if name not in there]
    return Measured(list(there.values()), note=f"no value for {', '.join(absent)}" if absent else "")


# From the curves ------------------------------------------------------------------------------------------------------


def of_runs(setting: Setting, arm: str, make: Callable[[Run], float | None]) -> list[Measured]:
    """What `make` makes of each run of an arm; nothing where it makes nothing of any, as the evidence is not there."""
    return _unless_absent({f"seed {run.seed}": make(run) for run in setting.arms.get(arm, ())})


def of_both(setting: Setting, one: str, other: str, make: Callable[[Run, Run], float | None]) -> list[Measured]:
    """What `make` makes of the runs of two arms, paired by their seeds."""
    others = {run.seed: run for run in setting.arms.get(other, ())}
    runs = [run for run in setting.arms.get(one, ()) if run.seed in others]
    return _unless_absent({f"seed {run.seed}": make(run, others[run.seed]) for run in runs})


def _unless_absent(values: Mapping[str, float | None]) -> list[Measured]:
    return [] if all(value is None for value in values.values()) else [measured(values)]


def live(run: Run, split: str) -> np.ndarray | None:
    """The accuracy of the live weights at every epoch."""
    return run.curves.get(Curve(LIVE, "own", split, "accuracy"))


def average(run: Run, name: str, split: str, *, batchnorm: str = "averaged") -> np.ndarray | None:
    """The accuracy of an average at every epoch."""
    return run.curves.get(Curve(name, batchnorm, split, "accuracy"))


def best(run: Run, names: Sequence[str], split: str) -> np.ndarray | None:
    """The accuracy of the best of some averages at every epoch, averaged statistics: an oracle's choice."""
    found = [average(run, name, split) for name in names]
    there = [each for each in found if each is not None]
    return np.fmax.reduce(there) if there and len(there) == len(found) else None


def at(curve: np.ndarray | None, epoch: int) -> float | None:
    """The value at an epoch, counted from 1; -1 is the last.

    >>> at(np.array([0.5, np.nan]), 1), at(np.array([0.5, np.nan]), -1), at(None, 1)
    (0.5, None, None)
    """
    if curve is None or not 1 <= (epoch if epoch > 0 else -epoch) <= len(curve):
        return None
    value = float(curve[epoch - 1 if epoch > 0 else epoch])
    return value if math.isfinite(value) else None


def peak(curve: np.ndarray | None) -> tuple[float, int] | None:
    """The highest value and its epoch, of equals the first.

    >>> peak(np.array([0.5, np.nan, 0.7, 0.7]))
    (0.7, 3)
    """
    if curve is None or not np.isfinite(curve).any():
        return None
    epoch = int(np.nanargmax(curve)) + 1
    return float(curve[epoch - 1]), epoch


def gap(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """One minus the other at every epoch, in points; NaN where either was not measured."""
    return None if one is None or other is None or len(one) != len(other) else POINTS * (one - other)


def mean(curve: np.ndarray | None) -> float | None:
    """The mean over the epochs that were measured.

    >>> mean(np.array([1.0, np.nan, 2.0])), mean(np.array([np.nan]))
    (1.5, None)
    """
    there = None if curve is None else curve[np.isfinite(curve)]
    return None if there is None or not len(there) else float(there.mean())


def minus(one: float | None, other: float | None) -> float | None:
    """The difference of two shares in points.

    >>> minus(0.75, 0.5), minus(None, 0.5)
    (25.0, None)
    """
    return None if one is None or other is None else POINTS * (one - other)


def chosen(setting: Setting, seed: int, criterion: str) -> tuple[str, int] | None:
    """The average and the epoch that validation chose for a seed, by its accuracy or its loss."""
    for choice in setting.choices:
        if choice["seed"] == seed and criterion in choice["averages"]:
            name, epoch = choice["averages"][criterion]
            return str(name), int(epoch)
    return None
