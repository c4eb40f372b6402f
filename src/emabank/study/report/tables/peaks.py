"""From curves to cells: the highest point of each seed, its epoch, the end, and the value at an epoch that was chosen.

May import numpy, the evidence and the sheet.
"""

from collections.abc import Mapping

import numpy as np

from emabank.study.report.evidence import LIVE, Curve, Setting
from emabank.study.report.sheet import Cell

Curves = Mapping[int, np.ndarray]
"""By seed; empty where not every run has the curve."""
Values = Mapping[int, float | None]
"""By seed; None where nothing was measured."""
ORACLE = (
    "oracle: read off the measured curve itself at its highest point, so it is a little too good; nobody who has to "
    "choose an epoch beforehand can see it."
)


# Curves ---------------------------------------------------------------------------------------------------------------


def live(setting: Setting, arm: str, split: str, metric: str = "accuracy") -> Curves:
    """The curves of the live weights.

    >>> made = Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                has_batchnorm=True, tables=[], arms={})
    >>> live(made, "refit", "test")
    {}
    """
    return _by_seed(setting, arm, Curve(LIVE, "own", split, metric))


def average(
    setting: Setting, arm: str, name: str, split: str, metric: str = "accuracy", *, batchnorm: str = "averaged"
) -> Curves:  # fmt: skip
    """The curves of an average, with averaged or recomputed batch-norm statistics.

    >>> made = Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                has_batchnorm=True, tables=[], arms={})
    >>> average(made, "refit", "ema-0.998", "test", batchnorm="recomputed")
    {}
    """
    return _by_seed(setting, arm, Curve(name, batchnorm, split, metric))


def best_average(setting: Setting, arm: str, split: str) -> Curves:
    """The accuracy of the best of all averages at every epoch, as the paper's figures have it.

    >>> made = Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                has_batchnorm=True, tables=[], arms={})
    >>> best_average(made, "refit", "test")
    {}
    """
    if not all(average(setting, arm, name, split) for name in setting.averages):
        return {}
    found = setting.best_average(arm, split)
    return {} if found is None else dict(zip(_seeds(setting, arm), found, strict=True))


def _seeds(setting: Setting, arm: str) -> list[int]:
    return [run.seed for run in setting.arms.get(arm, ())]


def _by_seed(setting: Setting, arm: str, curve: Curve) -> Curves:
    lengths = {len(run.curves.get(curve, ())) for run in setting.arms.get(arm, ())}
    if len(lengths) != 1 or lengths == {0}:
        return {}
    found = setting.curves(arm, curve)
    return {} if found is None else dict(zip(_seeds(setting, arm), found, strict=True))


# Values ---------------------------------------------------------------------------------------------------------------


def peak(curves: Curves) -> Values:
    """The highest point of each.

    >>> peak({0: np.array([0.5, 0.75, np.nan]), 1: np.array([np.nan])})
    {0: 0.75, 1: None}
    """
    return {seed: float(np.nanmax(curve)) if np.isfinite(curve).any() else None for seed, curve in curves.items()}


def peak_epoch(curves: Curves) -> Values:
    """The epoch of the highest point of each, the first if there are several; epochs are counted from 1.

    >>> peak_epoch({0: np.array([0.5, 0.75, 0.75]), 1: np.array([np.nan])})
    {0: 2, 1: None}
    """
    return {seed: int(np.nanargmax(curve)) + 1 if np.isfinite(curve).any() else None for seed, curve in curves.items()}


def at(curves: Curves, epochs: Values) -> Values:
    """The value of each at the end of an epoch of its own.

    >>> at({0: np.array([0.5, 0.75]), 1: np.array([0.5, 0.25])}, {0: 2, 1: None})
    {0: 0.75, 1: None}
    """
    return {seed: _value(curve, epochs.get(seed)) for seed, curve in curves.items()}


def end(curves: Curves) -> Values:
    """The last value of each.

    >>> end({0: np.array([0.5, 0.75])})
    {0: 0.75}
    """
    return {seed: _value(curve, len(curve)) for seed, curve in curves.items()}


def minus(ours: Values, theirs: Values) -> Values:
    """The difference of each seed that both have.

    >>> minus({0: 3.0, 1: 2.0}, {0: 1.0, 1: None, 2: 5.0})
    {0: 2.0, 1: None}
    """
    made: dict[int, float | None] = {}
    for seed in ours:
        if seed in theirs:
            one, other = ours[seed], theirs[seed]
            made[seed] = None if one is None or other is None else one - other
    return made


def chosen_epochs(setting: Setting, criterion: str = "accuracy") -> Values:
    """The epoch that each seed chose on validation for its average.

    >>> made = Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[
    ...                {"seed": 0, "averages": {"accuracy": ("ema-0.998", 25)}}],
    ...                has_batchnorm=True, tables=[], arms={})
    >>> chosen_epochs(made)
    {0: 25}
    """
    return {
        choice["seed"]: choice["averages"][criterion][1]
        for choice in setting.choices
        if criterion in choice["averages"]
    }


def percent(values: Values, *, paper: str = "") -> Cell:
    """Shares as a cell in percent.

    >>> percent({0: 0.5, 1: 0.75}).mean, percent({}).text
    (62.5, '–')
    """
    return Cell.of(list(values.values()), scale=100, paper=paper)


def epochs(values: Values, *, paper: str = "") -> Cell:
    """Epochs as a cell.

    >>> epochs({0: 2, 1: 3}).mean
    2.5
    """
    return Cell.of(list(values.values()), digits=1, paper=paper)


def _value(curve: np.ndarray, epoch: float | None) -> float | None:
    if epoch is None or not 1 <= epoch <= len(curve):
        return None
    found = float(curve[int(epoch) - 1])
    return found if np.isfinite(found) else None
