"""Every average with averaged and with recomputed statistics: the paper's Figures 1b and 9, and a heat map of ours."""

from collections.abc import Sequence

import numpy as np

from emabank.study.metrics.classification import Floats
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import figure_of, how, named
from emabank.study.report.figures.lines import curves_of, line, rate_line
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure, Line, Panel

PAIR = "cifar100-resnet18"
STATISTICS = {
    "averaged": "statistics averaged with the weights",
    "recomputed": "statistics recomputed on the training images",
}


def decays(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Each average as a curve, beside the live weights.

    >>> decays(Evidence(), "demo")
    []
    """
    settings = _settings(evidence, scale)
    panels = [panel for setting in settings for panel in _decay_panels(setting)]
    return figure_of(
        "batchnorm/decays",
        settings,
        panels,
        scale=scale,
        title="Every average, with averaged and with recomputed batch-norm statistics",
        caption=f"Statistics are recomputed after every epoch. {_names(settings)}{how(panels)}",
        columns=2,
        item="Figure 1b, Figure 9",
    )


def heatmap(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Accuracy over average and epoch, one panel for each kind of statistics; marks are counted in fields, from 0.

    >>> heatmap(Evidence(), "demo")
    []
    """
    settings = _settings(evidence, scale)
    return figure_of(
        "batchnorm/heatmap",
        settings,
        [panel for setting in settings for panel in _heat_panels(setting)],
        scale=scale,
        title="Test accuracy over average and epoch; points: the best epoch of each, on test",
        caption=f"From the average with the shortest memory to that with the longest. {_names(settings)}The points "
        "mark the best epoch of each average's mean over the seeds, found on test itself: an oracle's choice. "
        f"{_spread(settings)}Not smoothed.",
        columns=2,
    )


def averages_of(setting: Setting, batchnorm: str) -> dict[str, Floats] | None:
    """The test accuracy of every average in the refits, [seeds, epochs]; None where one of them was not measured."""
    found = {name: curves_of(setting, "refit", name, "test", batchnorm=batchnorm) for name in setting.averages}
    there = {name: curves for name, curves in found.items() if curves is not None}
    return there if len(there) == len(found) else None


def _settings(evidence: Evidence, scale: Scale) -> list[Setting]:
    settings = evidence.of(PAIR, scale=scale)
    return [each for each in settings if all(averages_of(each, kind) for kind in STATISTICS)]


def _decay_panels(setting: Setting) -> list[Panel]:
    live = curves_of(setting, "refit", LIVE, "test")
    lines = {kind: _decay_lines(live, averages_of(setting, kind) or {}) for kind in STATISTICS}
    limits = _limits([each for kind in STATISTICS for each in lines[kind]])
    rate = rate_line(setting.arms["refit"])
    return [
        Panel(title=f"{setting.title}: {words}", lines=lines[kind], rate=rate, y_limits=limits)
        for kind, words in STATISTICS.items()
    ]


def _decay_lines(live: Floats | None, averages: dict[str, Floats]) -> list[Line]:
    # The live weights' grey is as light as the second shade of the averages: dashes tell them apart without hue.
    lines = [] if live is None else [line(live, "live weights", kind="live", dashed=True)]
    return lines + [
        line(curves, name, kind="average", order=order) for order, (name, curves) in enumerate(averages.items())
    ]


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The same for both panels, and whole: that slow averages fail early is what is to be seen."""
    curves = [each.y if each.seeds is None else each.seeds for each in lines]
    low, high = min(float(np.nanmin(each)) for each in curves), max(float(np.nanmax(each)) for each in curves)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _heat_panels(setting: Setting) -> list[Panel]:
    panels: list[Panel] = []
    for kind, words in STATISTICS.items():
        averages = averages_of(setting, kind) or {}
        grid = np.stack([100 * curves.mean(axis=0) for curves in averages.values()])
        epochs = [str(epoch) for epoch in range(1, grid.shape[1] + 1)]
        best = np.nanargmax(grid, axis=1)
        panels.append(
            Panel(
                title=f"{setting.title}: {words}",
                y_label="",
                grid=grid,
                x_ticks=epochs,
                y_ticks=list(averages),
                marks=[
                    (float(column), float(row), f"{name}: best at epoch {column + 1}")
                    for row, (name, column) in enumerate(zip(averages, best, strict=True))
                ],
            )
        )
    return panels


def _names(settings: Sequence[Setting]) -> str:
    return f"{named(settings[0].averages)} " if settings else ""


def _spread(settings: Sequence[Setting]) -> str:
    """How many seeds, and the median over all fields of their standard deviation, which colours cannot show."""
    seeds = " or ".join(map(str, sorted({len(each.arms["refit"]) for each in settings})))
    found = [
        100 * curves.std(axis=0, ddof=1)
        for setting in settings
        for kind in STATISTICS
        for curves in (averages_of(setting, kind) or {}).values()
        if len(curves) > 1
    ]
    if not found:
        return "One seed. "
    return (
        f"Mean of {seeds} seeds; their standard deviation is {np.nanmedian(np.concatenate(found)):.1f} points in "
        "the median field. "
    )
