"""From the curves of the seeds to the lines of a panel: each seed as it was measured, mean and spread, in percent."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from emabank.study.metrics.classification import Floats
from emabank.study.report.evidence import LIVE, Curve, Run, Setting
from emabank.study.report.panel import Line
from emabank.study.report.sheet import Cell

Mark = tuple[float, float, str]


# What was measured ----------------------------------------------------------------------------------------------------


def curves_of(
    setting: Setting, arm: str, weights: str, split: str, *, metric: str = "accuracy", batchnorm: str | None = None
) -> Floats | None:
    """A curve of every seed of an arm, [seeds, epochs]; None unless there is an epoch that all of them measured.

    Without `batchnorm`: the live weights' own statistics, those averaged with the weights otherwise.
    """
    batchnorm = batchnorm or ("own" if weights == LIVE else "averaged")
    if not _are_equally_long(setting.arms.get(arm, ())):
        return None
    return _usable(setting.curves(arm, Curve(weights, batchnorm, split, metric)))


def best_of(setting: Setting, arm: str, split: str) -> Floats | None:
    """The accuracy of the best average at each epoch, [seeds, epochs], among all averages that the arm's runs have.

    With another sampling period an average of the same horizon may have another name than in the protocol.
    """
    runs = setting.arms.get(arm, ())
    if not _are_equally_long(runs):
        return None
    named = {curve.weights for run in runs for curve in run.curves if curve[2:] == (split, "accuracy")} - {LIVE}
    own = tuple(name for name in setting.averages if name in named) or tuple(sorted(named))
    return _usable(replace(setting, averages=own).best_average(arm, split))


def slowest_of(setting: Setting, arm: str, split: str) -> tuple[Floats, str] | None:
    """The accuracy of the slowest average, [seeds, epochs], and with which statistics: recomputed if measured so."""
    for batchnorm in ("recomputed", "averaged"):
        found = curves_of(setting, arm, setting.slowest, split, batchnorm=batchnorm)
        if found is not None:
            return found, batchnorm
    return None


def _are_equally_long(runs: Sequence[Run]) -> bool:
    """False for runs of which one ended before the others, because it diverged: these have no mean curve."""
    return len({run.epochs for run in runs}) == 1


def _usable(found: np.ndarray | None) -> Floats | None:
    is_there = found is not None and bool(np.isfinite(found).all(axis=0).any())
    return found if is_there else None


# Lines ----------------------------------------------------------------------------------------------------------------


def line(
    curves: Floats,
    label: str,
    *,
    kind: str,
    order: int = 0,
    dashed: bool = False,
    until: int | None = None,
) -> Line:
    """The mean of curves [seeds, epochs] and their standard deviation (of a sample), fractions become percent.

    Nothing is smoothed. There is a mean only where every seed has a value, so that `n` holds all along. `until` is the
    last epoch shown.

    >>> made = line(np.array([[0.25, 0.5], [0.75, 0.5]]), "live weights", kind="live")
    >>> made.x.tolist(), made.y.tolist(), made.std.round(2).tolist(), made.n
    ([1, 2], [50.0, 50.0], [35.36, 0.0], 2)
    """
    percent = 100 * curves[:, :until]
    made = _mean(percent, label, kind=kind, order=order, dashed=dashed)
    return replace(made, seeds=percent if len(percent) > 1 else None)


def difference(curves: Floats, other: Floats, label: str, *, kind: str, order: int = 0) -> Line:
    """By how many points one curve is above the other, seed by seed, then as `line` has it.

    >>> difference(np.array([[0.5, 0.75]]), np.array([[0.5, 0.5]]), "gain", kind="average").y.tolist()
    [0.0, 25.0]
    """
    return line(curves - other, label, kind=kind, order=order)


def rate_line(runs: Sequence[Run], label: str = "learning rate", *, until: int | None = None) -> Line:
    """The learning rate of some runs, epoch by epoch; seeds may have chosen different peaks."""
    return _mean(np.stack([run.rates for run in runs])[:, :until], label, kind="rate", order=0, dashed=False)


def _mean(values: Floats, label: str, *, kind: str, order: int, dashed: bool) -> Line:
    seeds, epochs = values.shape
    return Line(
        label=label,
        x=np.arange(1, epochs + 1),
        y=values.mean(axis=0),
        std=values.std(axis=0, ddof=1) if seeds > 1 else None,
        n=seeds,
        kind=kind,
        order=order,
        dashed=dashed,
    )


def focus(lines: Sequence[Line], marks: Sequence[Mark] = ()) -> tuple[float, float]:
    """Limits of the y axis within which all marks are, and every seed of all lines after the first tenth of the epochs.

    With the first steep rise, one point of difference late in training could not be seen.

    >>> rising = line(np.linspace(0, 1, 101)[None], "live weights", kind="live")
    >>> [round(limit, 1) for limit in focus([rising])]
    [5.5, 104.5]
    """
    low = min((y for _, y, _ in marks), default=math.inf)
    high = max((y for _, y, _ in marks), default=-math.inf)
    for each in lines:
        curves = each.y[None] if each.seeds is None else each.seeds
        there = np.flatnonzero(np.isfinite(each.y))
        if len(there):
            late = there[there >= len(each.y) // 10]
            low = min(low, float(curves[:, late if len(late) else there].min()))
            high = max(high, float(curves[:, there].max()))
    margin = max(0.05 * (high - low), 0.1)
    return low - margin, high + margin


# Marks ----------------------------------------------------------------------------------------------------------------


def percent_of(values: Sequence[float]) -> str:
    """Mean, spread and n of some fractions, for people.

    >>> percent_of([0.5, 0.75]), percent_of([0.5])
    ('62.5 ± 17.7% (n = 2)', '50.0% (n = 1)')
    """
    cell = Cell.of(values, scale=100)
    spread = "" if cell.std is None else f" ± {cell.std:.1f}"
    return f"{cell.mean:.1f}{spread}% (n = {cell.n})"


def epochs_of(epochs: Sequence[int]) -> str:
    """The epochs of the seeds, once if they are all the same.

    >>> epochs_of([25, 25]), epochs_of([25, 27])
    ('epoch 25', 'epochs 25, 27')
    """
    return f"epoch {epochs[0]}" if len(set(epochs)) == 1 else f"epochs {', '.join(map(str, epochs))}"


def mark_at(curves: Floats, epochs: Sequence[int], words: str) -> list[Mark]:
    """The mean of the seeds' epochs and of what their curves have there: with the statistics of the line itself.

    >>> mark_at(np.array([[0.5, 0.75], [0.25, 0.5]]), [2, 1], "live weights, chosen on validation")
    [(1.5, 50.0, 'live weights, chosen on validation: 50.0 ± 35.4% (n = 2), epochs 2, 1')]
    """
    if len(epochs) != len(curves) or not all(1 <= epoch <= curves.shape[1] for epoch in epochs):
        return []
    values = [float(curve[epoch - 1]) for curve, epoch in zip(curves, epochs, strict=True)]
    if not np.isfinite(values).all():
        return []
    label = f"{words}: {percent_of(values)}, {epochs_of(epochs)}"
    return [(float(np.mean(epochs)), 100 * float(np.mean(values)), label)]


def chosen_mark(setting: Setting, column: str) -> list[Mark]:
    """Where validation chose, with the test accuracy of the refits there: beside the oracle's curve, what one gets."""
    found = setting.column(column, trained_on="100%", split="test")
    values: Any = found and found["values"].get("accuracy")
    if not found or not values or None in values:
        return []
    label = f"{column}, chosen on validation: {percent_of(values)}, {epochs_of(found['epochs'])}"
    return [(float(np.mean(found["epochs"])), 100 * float(np.mean(values)), label)]
