"""How the figures of docs/speed.md look and how they become files. A figure is data first, and drawn after that."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from statistics import median
from typing import Any, Literal

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from emabank.bench.interleave import Spread
from emabank.study.report.figures.style import COLOURS, GRID, RC, SHADES

OURS, PEER, GOAL = SHADES[-1], COLOURS["live"], SHADES[1]
ROW, LABELS = 0.215, 2.3  # inches: the height of one row of dots, the width of their labels
# The page is read in dark mode too, and an image cannot know: so it brings its own, light ground.
LOOK: dict[Any, Any] = {**RC, "font.size": 9.5, "axes.titlesize": 10, "figure.facecolor": "white"}


@dataclass(frozen=True)
class Dot:
    """One row of a dot plot: a median with its 10–90 % whisker; nothing where it was not measured."""

    label: str
    value: Spread | None
    ours: bool = False


@dataclass(frozen=True)
class Dots:
    """One panel of a dot plot, rows from top to bottom; a goal is a dashed line."""

    title: str
    dots: tuple[Dot, ...]
    goal: float | None = None


@dataclass(frozen=True)
class DotPlot:
    """Panels in lines that share the axis of numbers.

    Args:
        panels: line by line.
        of_one: what the line at 1 is; empty where there is none.
        labelled_once: all panels of a line have the same rows, so that the first has their labels.
        percent: numbers are shares, and shown in percent.
        scale: of the axis of numbers.
    """

    panels: tuple[tuple[Dots, ...], ...]
    x_label: str
    of_one: str = ""
    labelled_once: bool = False
    percent: bool = False
    scale: Literal["log", "linear", "from zero"] = "log"
    width: float = 9.0


def aligned(
    panels: Mapping[str, Mapping[str, Spread]], *, ours: str, goals: Mapping[str, float] | None = None
) -> list[Dots]:
    """Panels with the same rows in all of them: ours first, then everybody else by the middle of all panels.

    Where nothing is ours, rows stand as they are given.
    """
    found: dict[str, list[float]] = {}
    for values in panels.values():
        for name, value in values.items():
            found.setdefault(name, []).append(value.median)
    order = sorted(found, key=lambda name: (name != ours, median(found[name]))) if ours else list(found)
    return [
        Dots(title, tuple(Dot(name, values.get(name), name == ours) for name in order), (goals or {}).get(title))
        for title, values in panels.items()
    ]


def in_lines(panels: Sequence[Dots], columns: int) -> tuple[tuple[Dots, ...], ...]:
    """The panels, so many to a line."""
    return tuple(tuple(panels[begin : begin + columns]) for begin in range(0, len(panels), columns))


def dot_plot(plan: DotPlot) -> Figure:
    """Draw it."""
    columns = max(map(len, plan.panels))
    heights = [max(len(panel.dots) for panel in line) + 0.6 for line in plan.panels]
    size = plan.width, sum(heights) * ROW + 0.62 * len(heights) + 0.25
    figure = Figure(figsize=size, layout="constrained")
    grid: Any = figure.subplots(len(heights), columns, sharex=True, squeeze=False, height_ratios=heights)
    for number, line in enumerate(plan.panels):
        for column, axes in enumerate(grid[number]):
            if column >= len(line):
                axes.set_axis_off()
                continue
            _draw_dots(axes, line[column], labelled=not (column and plan.labelled_once))
            _draw_number_axis(axes, plan, last=number + 1 == len(heights))
    if plan.scale == "from zero":
        grid[0, 0].set_xlim(left=0)  # for all of them, and only now: it ends the search for limits
    figure.supxlabel(plan.x_label, fontsize=LOOK["font.size"])
    return figure


def _draw_dots(axes: Axes, panel: Dots, *, labelled: bool) -> None:
    for ours, colour, size in ((False, PEER, 4.5), (True, OURS, 6)):
        there = [(row, dot.value) for row, dot in enumerate(panel.dots) if dot.value and dot.ours is ours]
        rows, values = [row for row, _ in there], [value for _, value in there]
        axes.hlines(rows, [v.low for v in values], [v.high for v in values], color=colour, linewidth=1.4)
        axes.plot([v.median for v in values], rows, "o", color=colour, markersize=size)
    axes.set_ylim(len(panel.dots) - 0.2, -0.8)
    axes.set_yticks(range(len(panel.dots)), [dot.label for dot in panel.dots] if labelled else [""] * len(panel.dots))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_title(panel.title, loc="left")
    if panel.goal is not None:
        axes.axvline(panel.goal, color=GOAL, linewidth=1.2, dashes=(4, 2), zorder=1)


def _draw_number_axis(axes: Axes, plan: DotPlot, *, last: bool) -> None:
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    if plan.of_one:
        axes.axvline(1, color=COLOURS["ideal"], linewidth=1, zorder=1)
    if plan.scale == "log":
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=_steps(plan)))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value if plan.percent else value:g}")
    axes.tick_params(axis="x", labelbottom=last)


def _steps(plan: DotPlot) -> tuple[int, ...]:
    """What is written of each decade, so that the numbers do not touch."""
    there = [dot.value for line in plan.panels for panel in line for dot in panel.dots if dot.value]
    decades = log10(max(each.high for each in there) / min(each.low for each in there)) if there else 1.0
    inches = (plan.width - LABELS) / (max(map(len, plan.panels)) if plan.labelled_once else 1) / max(decades, 0.1)
    return (1, 2, 5) if inches > 1.3 else (1, 3) if inches > 0.8 else (1,)


# Files ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A figure to be drawn: what it shows, and how it is drawn."""

    data: Any
    draw: Callable[[Any], Figure] = dot_plot

    def svg(self) -> bytes:
        """The file; the same data gives the same bytes, and says of what data it was made."""
        stamp = hashlib.sha256(repr(self.data).encode()).hexdigest()
        with rc_context(LOOK), io.BytesIO() as file:
            metadata = {"Date": None, "Description": f"drawn by benchmarks/draw.py from {stamp}"}
            self.draw(self.data).savefig(file, format="svg", metadata=metadata)
            return file.getvalue()


_CREATOR, _STAMP = re.compile(rb"<dc:title>.*?</dc:title>"), re.compile(rb"benchmarks/draw\.py from \w+")
_MADE_UP = re.compile(rb"\b[pm][0-9a-f]{10}\b")


def same_picture(kept: bytes, made: bytes) -> bool:
    """Whether a file shows what would be drawn now: the same file, or where another matplotlib drew it, the same data.

    Names that matplotlib makes up (of the last digits of places, which another processor may round otherwise) show
    nothing: they need only name the same things.
    """
    if _CREATOR.findall(kept) == _CREATOR.findall(made):
        return _named_in_order(kept) == _named_in_order(made)
    return _STAMP.findall(kept) == _STAMP.findall(made)


def _named_in_order(picture: bytes) -> bytes:
    names: dict[bytes, bytes] = {}
    return _MADE_UP.sub(lambda found: names.setdefault(found[0], b"name-%d" % len(names)), picture)
