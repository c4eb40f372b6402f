"""Curves of docs/speed.md: points with whiskers over a number, the line fitted through them, what was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drawn.look import GOAL, LOOK
from emabank.bench.interleave import Spread
from emabank.study.report.figures.style import COLOURS, GRID, MARKERS, SHADES

CHARACTERS = 10  # of a title to an inch of a panel


@dataclass(frozen=True)
class Points:
    """One series: medians with 10–90 % whiskers, and the slope and intercept of the line fitted through them."""

    label: str
    x: tuple[float, ...]
    y: tuple[Spread, ...]
    fit: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curves:
    """One panel.

    Args:
        within: a band around 0 in which a difference does not matter.
        chosen: where a dashed line stands, and what it says.
        log: the axis below is logarithmic.
        connected: points of a series are joined.
        note: said inside, in the corner that growing curves leave free.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Points, ...]
    within: float | None = None
    chosen: tuple[float, str] | None = None
    log: bool = False
    connected: bool = False
    note: str = ""


@dataclass(frozen=True)
class CurvePlot:
    """Panels, so many to a line."""

    panels: tuple[Curves, ...]
    columns: int = 2
    share_y: bool = False
    width: float = 9.0


def curve_plot(plan: CurvePlot) -> Figure:
    """Draw it."""
    columns = min(plan.columns, len(plan.panels))
    lines = -(-len(plan.panels) // columns)
    width = min(plan.width, 4.5 * columns)
    figure = Figure(figsize=(width, 3.0 * lines), layout="constrained")
    grid: Any = figure.subplots(lines, columns, squeeze=False, sharey=plan.share_y)
    for number, axes in enumerate(grid.flat):
        if number < len(plan.panels):
            labelled = not (plan.share_y and number % columns)
            _draw(axes, plan.panels[number], width=int(CHARACTERS * width / columns), labelled=labelled)
        else:
            axes.set_axis_off()
    return figure


def _draw(axes: Axes, panel: Curves, *, width: int, labelled: bool) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    if panel.within is not None:
        axes.axhspan(-panel.within, panel.within, color=GRID, alpha=0.6, linewidth=0)
        axes.axhline(0, color=COLOURS["ideal"], linewidth=1)
        axes.set_yscale("symlog", linthresh=panel.within)  # beside what does not matter, some of it matters much
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    for order, points in enumerate(panel.series):
        aside = (
            1.08 ** (order - (len(panel.series) - 1) / 2) if panel.log else 1.0
        )  # so that whiskers do not hide others
        _draw_points(axes, points, aside=aside, order=order, of=len(panel.series), connected=panel.connected)
    if panel.chosen is not None:
        axes.axvline(panel.chosen[0], color=GOAL, linewidth=1.2, dashes=(4, 2), label=panel.chosen[1])
    if panel.log:
        axes.set_xscale("log", base=4)
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    elif panel.within is None:
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    axes.set_title(fill(panel.title, width), loc="left")
    if panel.note:
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 2}
        axes.annotate(panel.note, (0.04, 0.95), xycoords="axes fraction", va="top", bbox=ground)
    axes.set_xlabel(panel.x_label)
    if labelled:
        axes.set_ylabel(panel.y_label)
    if len(panel.series) > 1 or panel.chosen is not None:
        axes.legend(loc="lower right", facecolor="white", edgecolor="none", fontsize=LOOK["font.size"] - 1)


def _draw_points(axes: Axes, points: Points, *, aside: float, order: int, of: int, connected: bool) -> None:
    colour = SHADES[-1] if of == 1 else SHADES[(order * (len(SHADES) - 1)) // max(1, of - 1) % len(SHADES)]
    xs, marker = [aside * x for x in points.x], MARKERS[order % len(MARKERS)]
    axes.vlines(xs, [y.low for y in points.y], [y.high for y in points.y], color=colour, linewidth=1.2)
    line = "-" if connected else "none"
    axes.plot(
        xs, [y.median for y in points.y], marker, color=colour, markersize=4.5, linestyle=line, label=points.label
    )
    if points.fit is not None:
        slope, intercept = points.fit
        ends = [0, max(points.x)]
        axes.plot(ends, [intercept + slope * x for x in ends], color=colour, linewidth=1, dashes=(4, 2))
