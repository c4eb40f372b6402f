"""Window and stopping epoch, both chosen after one run: a heat map of ours, beside averages that were kept."""

import numpy as np

from emabank.study.metrics.classification import Floats
from emabank.study.report.evidence import Curve, Evidence, Setting
from emabank.study.report.figures.captions import figure_of
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure, Panel


def heatmap(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Validation accuracy over window and stopping epoch; marks are counted in fields, from 0.

    >>> heatmap(Evidence(), "demo")
    []
    """
    settings = [setting for setting in evidence.of(scale=scale) if setting.afterwards()]
    return figure_of(
        "posthoc/heatmap",
        settings,
        [panel for setting in settings for panel in _panels(setting)],
        scale=scale,
        title="Window and stopping epoch, chosen after one run; the point: the best field",
        caption="Left: averages that nobody kept, put together after the training from snapshots of two power-function "
        "averages. Right: those of them that were kept beside it. From the shortest window to the longest; a "
        "percentage is the half-life as a share of the run. Trained on 80% of the training images, measured on the "
        f"rest{_statistics(settings)}. {' '.join(_words(setting) for setting in settings)} Not smoothed.",
        columns=2,
    )


def _panels(setting: Setting) -> list[Panel]:
    made = setting.afterwards()
    there = _stops(made)
    kept = {name: setting.curves("posthoc", _kept(setting, name)) for name in made if name in setting.averages}
    both = [("put together afterwards", made), ("kept live", {n: each for n, each in kept.items() if each is not None})]
    return [
        Panel(
            title=f"{setting.title}: {words}",
            x_label="stopping epoch",
            y_label="",
            grid=(grid := np.stack([100 * curves.mean(axis=0)[there] for curves in some.values()])),
            x_ticks=[str(place + 1) for place in there],
            y_ticks=list(some),
            marks=[_best(grid, list(some), there)],
        )
        for words, some in both
        if some and all(curves.shape[1] > there[-1] for curves in some.values())
    ]


def _best(grid: Floats, names: list[str], there: list[int]) -> tuple[float, float, str]:
    row, column = np.unravel_index(np.nanargmax(grid), grid.shape)
    return float(column), float(row), f"best: {names[int(row)]} at epoch {there[int(column)] + 1}"


def _stops(made: dict[str, Floats]) -> list[int]:
    """The places of the epochs that were tried: of a long run, some."""
    return [int(place) for place in np.flatnonzero(np.isfinite(np.stack(list(made.values()))).any(axis=(0, 1)))]


def _kept(setting: Setting, name: str) -> Curve:
    return Curve(name, "recomputed" if setting.has_batchnorm else "averaged", "val", "accuracy")


def _statistics(settings: list[Setting]) -> str:
    return ", batch-norm statistics recomputed" if any(setting.has_batchnorm for setting in settings) else ""


def _words(setting: Setting) -> str:
    """What was chosen, of how many seeds it is the mean, and by how much the two panels differ where both have a field.

    Colours cannot show it.
    """
    made = setting.afterwards()
    there = _stops(made)
    grid = np.stack([100 * curves.mean(axis=0)[there] for curves in made.values()])
    column, row, best = _best(grid, list(made), there)
    seeds = len(next(iter(made.values())))
    said = f"{setting.title}: {best}, {grid[int(row), int(column)]:.1f}%"
    said += f" in the mean of {seeds} seeds." if seeds > 1 else " with one seed."
    found = {name: setting.curves("posthoc", _kept(setting, name)) for name in made if name in setting.averages}
    apart = [
        100 * np.abs(made[name][:, there] - kept[:, there]).ravel()
        for name, kept in found.items()
        if kept is not None and kept.shape == made[name].shape
    ]
    if not apart:
        return said
    points = np.concatenate(apart)
    return f"{said} Put together or kept, fields differ by {np.nanmedian(points):.2f} points in the median, " + (
        f"{np.nanmax(points):.2f} at most; posthoc/windows has each window apart."
    )
