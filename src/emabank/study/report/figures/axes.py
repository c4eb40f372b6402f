"""One panel on its axes: lines with seeds or bands, marks, bars, a heat map, the learning rate on axes beneath."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from emabank.study.report.figures.style import GRID, HEAT, MARK, MARKERS, MISSING, look_of, tint
from emabank.study.report.panel import Line, Panel

_MOST_TICKS = 9


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Everything of a panel but its learning rate and its heat map."""
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    if panel.bars:
        left, width, height = zip(*panel.bars, strict=True)
        colour = tint(look_of(panel.lines[0]).colour) if panel.lines else GRID
        axes.bar(left, height, width, align="edge", color=colour, edgecolor="white", linewidth=0.6)
    for line in panel.lines:
        draw_line(axes, line, points=bool(panel.bars) and line.kind != "ideal")
    _draw_marks(axes, panel)
    _limit(axes, panel)
    axes.set_title(panel.title, loc="left")


def _draw_marks(axes: Axes, panel: Panel) -> None:
    """Points on top of everything, a shape each."""
    for (x, y, _), marker in zip(panel.marks, _markers(panel), strict=True):
        axes.scatter(x, y, s=52, color=MARK, marker=marker, edgecolors="white", zorder=5, clip_on=False)


def draw_line(axes: Axes, line: Line, *, points: bool = False) -> None:
    """A line; beneath it each seed as a thin line, or without these one standard deviation as a band."""
    look = look_of(line)
    if line.seeds is not None:
        axes.plot(line.x, line.seeds.T, color=tint(look.colour, 0.55), linewidth=0.6, zorder=1.5)
    elif line.std is not None:
        low, high = line.y - line.std, line.y + line.std
        axes.fill_between(line.x, low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.add_line(key_of_line(line, points=points, x=line.x, y=line.y))
    axes.autoscale_view()


def key_of_line(line: Line, *, points: bool = False, x: Sequence[float] | np.ndarray = (), y: Any = ()) -> Line2D:
    """The line itself, or without data its entry in a legend."""
    look = look_of(line)
    made = Line2D(x, y, color=look.colour, linewidth=look.width, label=line.label)
    if look.dashes:
        made.set_dashes(look.dashes)
    if points:
        made.set_clip_on(False)  # a point on the border is whole
        made.set_marker("o")
        made.set_markersize(3.5)
    return made


def keys_of_marks(panel: Panel) -> list[Line2D]:
    """The entries of a panel's marks in its legend; a heat map's, one a row, are explained by the figure's title."""
    if panel.grid is not None:
        return []
    return [
        Line2D((), (), color=MARK, marker=marker, markeredgecolor="white", markersize=8, linewidth=0, label=label)
        for (_, _, label), marker in zip(panel.marks, _markers(panel), strict=True)
    ]


def _markers(panel: Panel) -> list[str]:
    """A shape for each mark; on a heat map the same for all."""
    shapes = MARKERS if panel.grid is None else MARKERS[:1]
    return [shapes[number % len(shapes)] for number in range(len(panel.marks))]


def draw_rate(axes: Axes, line: Line) -> None:
    """The learning rate as an area, on axes of its own."""
    look = look_of(line)
    axes.fill_between(line.x, line.y, color=tint(look.colour), linewidth=0)
    axes.plot(line.x, line.y, color=look.colour, linewidth=look.width)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2))


def draw_heat(axes: Axes, panel: Panel, grid: np.ndarray, *, limits: tuple[float, float]) -> AxesImage:
    """A heat map, a field for each value; where there is none, grey."""
    colours = colormaps[HEAT].with_extremes(bad=MISSING)
    image = axes.imshow(
        grid, aspect="auto", interpolation="nearest", cmap=colours, vmin=limits[0], vmax=limits[1], origin="upper"
    )
    columns = _some(len(panel.x_ticks))
    axes.set_xticks(columns, [panel.x_ticks[i] for i in columns])
    axes.set_yticks(range(len(panel.y_ticks)), list(panel.y_ticks))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _draw_marks(axes, panel)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x_label)
    return image


def _some(count: int) -> list[int]:
    """Which of so many columns are named: those at round distances, from the last one back."""
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 200, count) if count / step <= _MOST_TICKS)
    return [i for i in range(count) if (i + 1) % step == 0]


def _limit(axes: Axes, panel: Panel) -> None:
    xs = [float(each) for line in panel.lines for each in (line.x.min(), line.x.max())]
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    elif xs:
        axes.set_xlim(min(xs) - 0.01 * (max(xs) - min(xs)) - 0.01, max(xs) + 0.01 * (max(xs) - min(xs)) + 0.01)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
