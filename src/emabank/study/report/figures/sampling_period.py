"""The same horizon sampled every T steps: accuracy by epoch, and what is lost against every step."""

import re

from emabank.study.metrics.classification import Floats
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import CUT, ORACLE, figure_of, how, statistics
from emabank.study.report.figures.lines import best_of, curves_of, difference, focus, line
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure, Panel

PAIR = "cifar100-resnet18"


def sampling_period(evidence: Evidence, scale: Scale) -> list[Figure]:
    """The best average for each period, and its difference from the shortest.

    >>> sampling_period(Evidence(), "demo")
    []
    """
    settings = evidence.of(PAIR, scale=scale)
    panels = [panel for setting in settings for panel in _panels(setting)]
    return figure_of(
        "sampling-period/accuracy",
        settings,
        panels,
        scale=scale,
        title="Averages of the same horizon, updated every T steps",
        caption=f"{ORACLE} The difference is taken seed by seed; the paper samples every 16 steps. "
        f"{statistics(settings)}{how(panels)} {CUT}",
        columns=2,
    )


def _panels(setting: Setting) -> list[Panel]:
    periods = _periods(setting)
    if len(periods) < 2:
        return []
    shortest = min(periods)
    live = curves_of(setting, f"every {shortest}", LIVE, "test")
    # Dashed, because the grey is as light as the second shade.
    lines = [] if live is None else [line(live, "live weights", kind="live", dashed=True)]
    lines += [line(best, f"T = {T}", kind="average", order=order) for order, (T, best) in enumerate(periods.items())]
    differences = [
        difference(best, periods[shortest], f"T = {T}", kind="average", order=order)
        for order, (T, best) in enumerate(periods.items())
        if order and best.shape == periods[shortest].shape
    ]
    return [
        Panel(title=f"{setting.title}: best average at each epoch", lines=lines, y_limits=focus(lines)),
        Panel(
            title=f"{setting.title}: difference from T = {shortest}",
            y_label=f"above T = {shortest}, points",
            lines=differences,
        ),
    ]


def _periods(setting: Setting) -> dict[int, Floats]:
    """The best average's curves by period, the shortest first."""
    arms = {int(found[1]): arm for arm in setting.arms if (found := re.fullmatch(r"every (\d+)", arm))}
    best = {period: best_of(setting, arms[period], "test") for period in sorted(arms)}
    return {period: curves for period, curves in best.items() if curves is not None}
