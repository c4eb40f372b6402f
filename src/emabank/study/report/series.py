"""The only operations on columns and curves, so that tables, figures and claims agree on every number.

May import only numpy and results.py.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from emabank.study.report.results import LIVE, TRANSFER, Column, Curve, Run, Setting

T = TypeVar("T")
BySeed = Mapping[int, float | None]
"""One value per seed; None where nothing was measured. Empty if a run lacks the curve."""
MakeCurve = Callable[[Run], np.ndarray | None]

# Columns --------------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """The share of training images that models were trained on, and the split they were measured on."""

    trained_on: str
    split: str


TUNED = Stage("80%", "val")
TUNED_ON_TEST = Stage("80%", "test")
REFIT = Stage("100%", "test")


def columns_of(setting: Setting, stage: Stage) -> list[Column]:
    """All columns of a stage."""
    return [column for column in setting.columns if (column.trained_on, column.split) == stage]


def column(setting: Setting, title: str, stage: Stage) -> Column | None:
    """A column by its title; None if the stage has no such column."""
    return next((column for column in columns_of(setting, stage) if column.title == title), None)


def values(setting: Setting, title: str, metric: str, stage: Stage) -> Sequence[float | None] | None:
    """One value per seed (per pair of seeds for churn and js); None if there is no such column or metric."""
    own = column(setting, title, stage)
    return None if own is None else own.values.get(metric)


def transfers(setting: Setting, title: str | None = None) -> list[str]:
    """The transfer metrics of the refits, or of one of their columns."""
    columns = [column for column in columns_of(setting, REFIT) if title in (None, column.title)]
    return list(dict.fromkeys(name for column in columns for name in column.values if name.startswith(TRANSFER)))


def combined(
    ours: Sequence[float | None] | None,
    theirs: Sequence[float | None] | None,
    combine: Callable[[float, float], float | None],
) -> list[float | None] | None:
    """The values of two columns combined per seed; None if either is missing or they differ in length."""
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    return [None if a is None or b is None else combine(a, b) for a, b in zip(ours, theirs, strict=True)]


# Curves of one run ----------------------------------------------------------------------------------------------------


def live(run: Run, split: str) -> np.ndarray | None:
    """The accuracy of the live weights at every epoch."""
    return run.curves.get(Curve(LIVE, "own", split, "accuracy"))


def average(run: Run, name: str, split: str, *, batchnorm: str = "averaged") -> np.ndarray | None:
    """The accuracy of an average at every epoch."""
    return run.curves.get(Curve(name, batchnorm, split, "accuracy"))


def best(run: Run, names: Sequence[str], split: str) -> np.ndarray | None:
    """The accuracy of the best of these averages at every epoch, with averaged statistics: an oracle's choice.

    None unless the run has all of the averages.
    """
    curves = [average(run, name, split) for name in names]
    known = [curve for curve in curves if curve is not None]
    return np.fmax.reduce(known) if known and len(known) == len(curves) else None


def sgd(split: str) -> MakeCurve:
    """A function from a run to its curve of the live weights."""
    return lambda run: live(run, split)


def average_of(name: str, split: str, *, batchnorm: str = "averaged") -> MakeCurve:
    """A function from a run to its curve of an average."""
    return lambda run: average(run, name, split, batchnorm=batchnorm)


def best_of(setting: Setting, split: str) -> MakeCurve:
    """A function from a run to its curve of the best of all averages."""
    return lambda run: best(run, setting.averages, split)


# Points of a curve ----------------------------------------------------------------------------------------------------


class Peak(NamedTuple):
    """The highest value of a curve and its epoch, counted from 1; on a tie, the first."""

    value: float
    epoch: int


def peak(curve: np.ndarray | None) -> Peak | None:
    """The highest point; None if nothing was measured."""
    if curve is None or not np.isfinite(curve).any():
        return None
    epoch = int(np.nanargmax(curve)) + 1
    return Peak(float(curve[epoch - 1]), epoch)


def height(curve: np.ndarray | None) -> float | None:
    """The highest value."""
    point = peak(curve)
    return point and point.value


def peak_epoch(curve: np.ndarray | None) -> int | None:
    """The epoch of the highest value."""
    point = peak(curve)
    return point and point.epoch


def end(curve: np.ndarray | None) -> float | None:
    """The value at the last epoch."""
    return at(curve, -1)


def at(curve: np.ndarray | None, epoch: float | None) -> float | None:
    """The value at an epoch, counted from 1; -1 is the last."""
    if curve is None or epoch is None or not 1 <= abs(epoch) <= len(curve):
        return None
    value = float(curve[int(epoch) - 1 if epoch > 0 else int(epoch)])
    return value if math.isfinite(value) else None


def mean(curve: np.ndarray | None) -> float | None:
    """The mean over the epochs that were measured."""
    known = None if curve is None else curve[np.isfinite(curve)]
    return None if known is None or not len(known) else float(known.mean())


def gap(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """One minus the other at every epoch, in points; NaN where either was not measured."""
    return None if one is None or other is None or len(one) != len(other) else 100.0 * (one - other)


def points(one: float | None, other: float | None) -> float | None:
    """The difference of two shares in points."""
    return None if one is None or other is None else 100.0 * (one - other)


def first_quarter(epochs: int) -> int:
    """The number of epochs in the first quarter of a run."""
    return max(1, epochs // 4)


# Curves of every seed -------------------------------------------------------------------------------------------------


def stack(setting: Setting, variant: str, make: MakeCurve) -> np.ndarray | None:
    """A curve of every run of a variant, [seeds, epochs]; None unless all runs have it, with equally many epochs."""
    runs = setting.variants.get(variant, ())
    curves = [curve for curve in map(make, runs) if curve is not None and len(curve)]
    if not curves or len(curves) < len(runs) or len({len(curve) for curve in curves}) > 1:  # one may have diverged
        return None
    return np.stack(curves)


def by_seed(setting: Setting, variant: str, make: MakeCurve, point: Callable[[np.ndarray], T]) -> dict[int, T]:
    """A point of each seed's curve; empty if the curves cannot be stacked."""
    stacked = stack(setting, variant, make)
    if stacked is None:
        return {}
    return {run.seed: point(curve) for run, curve in zip(setting.variants[variant], stacked, strict=True)}


def minus(ours: BySeed, theirs: BySeed) -> dict[int, float | None]:
    """The difference for each seed that both have."""
    both = [(seed, ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return {seed: None if one is None or other is None else one - other for seed, one, other in both}


def posthoc(setting: Setting, metric: str = "accuracy") -> dict[str, np.ndarray]:
    """A metric of each window tried after training, on validation, [seeds, epochs], the shortest window first.

    Epochs that were not tried are NaN. A window that any run lacks is skipped.
    """
    statistics = "averaged" if metric == "weight_distance" else setting.statistics
    runs = setting.variants.get("posthoc", ())
    names = [curve.weights for run in runs[:1] for curve in run.posthoc if curve[1:] == (statistics, "val", metric)]

    def measured(run: Run, name: str) -> np.ndarray | None:
        curve = run.posthoc.get(Curve(name, statistics, "val", metric))
        return curve if curve is not None and np.isfinite(curve).any() else None

    stacks = {name: stack(setting, "posthoc", lambda run, name=name: measured(run, name)) for name in names}
    return {name: stacked for name, stacked in stacks.items() if stacked is not None}


def kept_during_training(setting: Setting, name: str) -> np.ndarray | None:
    """The validation accuracy of an average that the runs with snapshots also kept in training, [seeds, epochs]."""
    return stack(setting, "posthoc", average_of(name, "val", batchnorm=setting.statistics))


# What was chosen ------------------------------------------------------------------------------------------------------


def chosen(setting: Setting, seed: int, criterion: str = "accuracy") -> tuple[str, int] | None:
    """The average and the epoch that validation chose for a seed, by accuracy or by loss."""
    for choice in setting.choices:
        if choice["seed"] == seed and criterion in choice["averages"]:
            name, epoch = choice["averages"][criterion]
            return str(name), int(epoch)
    return None


def chosen_epoch(setting: Setting, seed: int) -> int | None:
    """The epoch that validation chose for a seed's average, by accuracy."""
    choice = chosen(setting, seed)
    return None if choice is None else choice[1]


def copied_back(setting: Setting) -> str | None:
    """The average that the bootstrap runs copied back into training; None if there is none, or more than one."""
    names = {run.copied_back for run in setting.variants.get("bootstrap", ())}
    return names.pop() if len(names) == 1 else None


# Right and wrong labels -----------------------------------------------------------------------------------------------

REACHED = 0.9
"""The accuracy on training images with right labels at which the paper compares memorisation."""


class Reached(NamedTuple):
    """One run at one epoch, counted from 1."""

    epoch: int
    clean: float
    memorised: float


class OnTrain(NamedTuple):
    """The refits' curves on training images with right and with wrong labels, both [seeds, epochs]."""

    clean: np.ndarray
    """Accuracy on the images with a right label."""
    memorised: np.ndarray
    """Share of the images with a wrong label that are predicted as that label."""

    def at(self, epochs: Sequence[int | None]) -> list[Reached | None]:
        """Each seed at its own epoch; None if it has no such epoch."""
        return [
            Reached(epoch, float(clean[epoch - 1]), float(memorised[epoch - 1]))
            if epoch is not None and 1 <= epoch <= len(clean)
            else None
            for clean, memorised, epoch in zip(self.clean, self.memorised, epochs, strict=True)
        ]

    def first_reached(self, level: float = REACHED) -> list[Reached | None]:
        """Each seed at its first measured epoch with at least this clean accuracy, as in the paper; None if never.

        Nothing is interpolated between epochs, so the clean accuracy there may be well above the level.
        """
        reached = [np.flatnonzero(seed) for seed in (self.clean >= level) & np.isfinite(self.memorised)]
        return self.at([int(places[0]) + 1 if len(places) else None for places in reached])


def on_train(setting: Setting, weights: str) -> OnTrain | None:
    """The curves of the live weights, or of an average with averaged batch-norm statistics; None if not measured."""
    batchnorm = "own" if weights == LIVE else "averaged"
    both = [Curve(weights, batchnorm, "train", metric) for metric in ("clean_accuracy", "memorised")]
    clean, memorised = (stack(setting, "refit", lambda run, curve=curve: run.curves.get(curve)) for curve in both)
    return None if clean is None or memorised is None else OnTrain(clean, memorised)
