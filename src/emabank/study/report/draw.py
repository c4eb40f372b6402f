"""A figure as an SVG or PDF file: its looks, its panels on their axes, titles and legends. Matplotlib alone.

The same figure gives the same bytes. Colours differ in lightness as well as in hue, and dashes do where lightness does
not: no reader needs to tell hues.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib import figure as matplotlib_figure
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from emabank.study.report.figures import Figure, Line, Panel, seeds_text

FORMATS: tuple[Literal["svg", "pdf"], ...] = ("svg", "pdf")
_NARROW, _WIDE = 8.0, 11.0  # inches: a figure of one column, of more
_PANEL, _RATE, _LINE = 3.1, 0.6, 0.21  # inches: a panel's height, that of its learning rate, a line of text
_AROUND = 0.75  # inches of a panel's width that its axis takes
_CHARACTERS = 11.5  # of text to an inch, in the size of titles and legends
_HELD = re.compile(r"(?<=[=±]) | (?=[=±])|(?<=epoch) (?=\d)|(?<=epochs) (?=\d)")  # spaces at which no line breaks

# Looks ----------------------------------------------------------------------------------------------------------------

SHADES = ("#f0a93b", "#e0703c", "#c23b75", "#7b2f9a", "#2b1b6b")
"""Of averages, the one with the shortest memory first: light to dark."""
COLOURS = {"live": "#7f7f7f", "best": SHADES[-1], "swa": "#0b7a75", "rate": "#7f7f7f", "ideal": "#444444"}
GRID = "#dddddd"
MARK = "#111111"
MARKERS = "oDs^v"
MISSING = "#eeeeee"
"""Of a heat map's fields in which nothing was measured."""
HEAT = "cividis"
"""A colour map that readers with and without colour blindness see alike."""

RC: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "figure.titlesize": 13,
    "svg.hashsalt": "emabank",  # without it the ids in the file are random, and the same figure gives another file
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # fonts that journals accept
}


class Look(NamedTuple):
    """Everything in which one line differs from another to the eye."""

    colour: str
    width: float
    dashes: tuple[float, ...]


def look_of(line: Line) -> Look:
    """A line's look, by what it shows and its place among its likes."""
    round_, shade = divmod(line.order, len(SHADES))
    colour = COLOURS.get(line.kind, SHADES[shade])
    dashes = (4.0, 2.0) if line.dashed else ()
    if round_ and line.kind not in COLOURS:  # more averages than shades: dots tell the second round from the first
        dashes = (*(dashes or (1.0, 1.5)), *(1.0, 1.5) * (round_ - 1))
    return Look(colour, 1.3 if line.kind in ("live", "ideal", "rate") else 1.9, dashes)


def tint(colour: str, share: float = 0.3) -> tuple[float, float, float]:
    """A colour mixed with white, for areas: unlike transparency, it looks the same above other things."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


# One panel on its axes ------------------------------------------------------------------------------------------------

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
    xs = [float(end) for line in panel.lines for end in (line.x.min(), line.x.max())]
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    elif xs:
        axes.set_xlim(min(xs) - 0.01 * (max(xs) - min(xs)) - 0.01, max(xs) + 0.01 * (max(xs) - min(xs)) + 0.01)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


# The figure -----------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """What stands where: the figure's size, and the heights of the grid's lines that each row of panels takes."""

    columns: int
    width: float
    height: float
    heights: tuple[float, ...]
    has_rates: bool
    has_keys: bool
    shares_key: bool


def draw(figure: Figure, path: Path, *, file_format: Literal["svg", "pdf"] = "svg") -> None:
    """Draw a figure into a file, whose folder is made if it is not there."""
    if file_format not in FORMATS:
        raise ValueError(f"file_format must be 'svg' or 'pdf'; got {file_format!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(RC):
        # Without the time of day, which matplotlib would put into the file.
        metadata = {"Date": None} if file_format == "svg" else {"CreationDate": None}
        picture(figure).savefig(path, format=file_format, dpi=150, metadata=metadata)


def picture(figure: Figure) -> matplotlib_figure.Figure:
    """The figure as matplotlib has it, not yet in a file."""
    with rc_context(RC):
        figure = _fitted(figure)
        plan = _plan(figure)
        made = matplotlib_figure.Figure(figsize=(plan.width, plan.height), layout="constrained")
        lines = len(plan.heights)
        grid = made.add_gridspec(_rows(figure) * lines, plan.columns, height_ratios=plan.heights * _rows(figure))
        heats: list[Any] = []
        for number, panel in enumerate(figure.panels):
            row, column = divmod(number, plan.columns)
            cells = [made.add_subplot(grid[row * lines + line, column]) for line in range(lines)]
            heats += _place(cells, panel, figure, plan, before=figure.panels[number - 1] if column else None)
        if heats:
            bar: Any = made.colorbar(heats[0], ax=[heat.axes for heat in heats], format="%.0f%%", shrink=0.9, pad=0.02)
            bar.outline.set_visible(False)
        if plan.shares_key:
            _place_shared_key(made, figure, plan)
        made.suptitle(figure.title, x=0.01, ha="left")
        return made


# Where things stand ---------------------------------------------------------------------------------------------------


def _columns(figure: Figure) -> int:
    return max(1, min(figure.columns, len(figure.panels)))


def _rows(figure: Figure) -> int:
    return -(-len(figure.panels) // _columns(figure))


def _width(figure: Figure) -> float:
    return _NARROW if _columns(figure) == 1 else _WIDE


def _fitted(figure: Figure) -> Figure:
    """The same with line breaks in titles and labels, so that nothing is wider than what it belongs to."""
    inches = _width(figure) / _columns(figure) - _AROUND
    panels = [
        replace(
            panel,
            title=_parted(panel.title, inches),
            marks=[(x, y, _wrapped(label, inches - 0.5)) for x, y, label in panel.marks],
        )
        for panel in figure.panels
    ]
    return replace(figure, title=_wrapped(figure.title, 0.8 * _width(figure)), panels=panels)


def _wrapped(text: str, inches: float) -> str:
    """The text in lines that are not wider than so many inches; "n = 3" and "epoch 7" stay whole."""
    held = _HELD.sub("\u00a0", text)
    return fill(held, max(12, int(inches * _CHARACTERS))).replace("\u00a0", " ")


def _parted(title: str, inches: float) -> str:
    """A title in one line, or if it is too long for that, each of its parts in lines of its own."""
    if "\n" not in _wrapped(title, inches):
        return title
    return "\n".join(_wrapped(part, inches) for part in title.split(": "))


def _plan(figure: Figure) -> _Plan:
    columns, width = _columns(figure), _width(figure)
    has_rates = any(panel.rate is not None for panel in figure.panels)
    shares_key = _keys_agree(figure.panels)
    keys = max((_height(_own_keys(panel, shares_key=shares_key)) for panel in figure.panels), default=0.0)
    panel = min(_PANEL, width / columns - 0.6)
    heights = (panel, *([_RATE] if has_rates else []), *([keys] if keys else []))
    titles = max((panel.title.count("\n") + 1 for panel in figure.panels), default=1)
    # What is around the axes: the title of each panel, ticks and label beneath it; the figure's title and legend.
    height = _rows(figure) * (sum(heights) + titles * _LINE + 0.65) + (figure.title.count("\n") + 1) * 0.3 + 0.1
    if shares_key:
        height += (2 + len(_shared_keys(figure)) // _key_columns(figure)) * 1.1 * _LINE
    return _Plan(columns, width, round(height, 2), heights, has_rates, keys > 0, shares_key)


def _place(cells: Sequence[Axes], panel: Panel, figure: Figure, plan: _Plan, *, before: Panel | None) -> list[Any]:
    """Draw a panel into its cells: itself, its learning rate, its key; a heat map is given back, for its colours."""
    main, heats = cells[0], []
    if panel.grid is None:
        draw_panel(main, panel)
    else:
        heats = [draw_heat(main, panel, panel.grid, limits=_heat_limits(figure))]
    if before is None or before.y_label != panel.y_label:
        main.set_ylabel(panel.y_label)
    lowest = main
    if plan.has_rates and panel.rate is not None:
        lowest = cells[1]
        draw_rate(lowest, panel.rate)
        lowest.sharex(main)
        main.tick_params(labelbottom=False)
        if before is None or before.rate is None or before.rate.label != panel.rate.label:
            lowest.set_ylabel(fill(panel.rate.label, 9))
    elif plan.has_rates:
        cells[1].set_axis_off()
    lowest.set_xlabel(panel.x_label)
    if plan.has_keys:
        _place_own_key(cells[-1], panel, plan)
    return heats


def _heat_limits(figure: Figure) -> tuple[float, float]:
    """The same colours for the same values in all panels."""
    values = np.concatenate([panel.grid.ravel() for panel in figure.panels if panel.grid is not None])
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


# Legends, always outside of the data ----------------------------------------------------------------------------------


def _keys_agree(panels: Sequence[Panel]) -> bool:
    """Whether a label means the same look in all panels, so that one legend serves them all."""
    looks = {(line.label, look_of(line)) for panel in panels for line in panel.lines}
    return len(looks) == len({label for label, _ in looks})


def _own_keys(panel: Panel, *, shares_key: bool) -> list[Line2D]:
    lines = [] if shares_key else [key_of_line(line) for line in panel.lines]
    return [*lines, *keys_of_marks(panel)]


def _height(keys: Sequence[Line2D]) -> float:
    return sum(_LINE * (str(key.get_label()).count("\n") + 1) + 0.03 for key in keys)


def _place_own_key(cell: Axes, panel: Panel, plan: _Plan) -> None:
    cell.set_axis_off()
    keys = _own_keys(panel, shares_key=plan.shares_key)
    if keys:
        cell.legend(handles=keys, loc="upper left", frameon=False, borderpad=0, borderaxespad=0, fontsize=10)


def _shared_keys(figure: Figure) -> list[Line2D]:
    by_label = {line.label: line for panel in figure.panels for line in panel.lines}
    return [key_of_line(line) for line in by_label.values()]


def _key_columns(figure: Figure) -> int:
    """How many entries of the shared legend fit beside each other."""
    keys = _shared_keys(figure)
    longest = max((len(str(key.get_label())) for key in keys), default=1)
    most = max(1, min(len(keys), int(_width(figure) * _CHARACTERS / (longest + 8))))
    # Rather a little fewer than a last row with gaps.
    return next((count for count in range(most, most // 2, -1) if len(keys) % count == 0), most)


def _place_shared_key(made: matplotlib_figure.Figure, figure: Figure, plan: _Plan) -> None:
    keys = _shared_keys(figure)
    if keys:
        columns, title = _key_columns(figure), _seeds(figure)
        made.legend(
            handles=keys, loc="outside lower center", ncols=columns, frameon=False, title=title, title_fontsize=10
        )


def _seeds(figure: Figure) -> str:
    """What lines and bands are, with n."""
    many = seeds_text(figure.panels)
    if many == "1":
        return "one seed"
    thin = any(line.seeds is not None for panel in figure.panels for line in panel.lines)
    return (
        f"bold: mean of {many} seeds, thin: each seed"
        if thin
        else (f"mean of {many} seeds, band: one standard deviation over them")
    )
