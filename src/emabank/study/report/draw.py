"""Draws a figure as an SVG or PDF file with matplotlib. The same figure gives the same bytes.

Lines look as they do on the page: the colours come from assets/page.css, and lines also differ in dashes, so that no
reader depends on hues.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from io import BytesIO
from itertools import cycle
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

from emabank.study.report.figures import Figure, Line, Panel, Style, seeds_note, styles_of

FORMATS: tuple[Literal["svg", "pdf"], ...] = ("svg", "pdf")
_NARROW, _WIDE = 8.0, 11.0  # inches: a figure of one column, of more
_PANEL, _RATE, _LINE = 3.1, 0.6, 0.21  # inches: the height of a panel, of its learning rate, and of a line of text
_AROUND = 0.75  # inches of a panel's width that its axis labels take
_CHARACTERS = 11.5  # characters per inch in titles and legends
_UNBROKEN = re.compile(r"(?<=[=±]) | (?=[=±])|(?<=epoch) (?=\d)|(?<=epochs) (?=\d)")  # spaces that must not break
_MOST_TICKS = 9
_GRID, _MARK, _MISSING = "#dddddd", "#111111", "#eeeeee"
_MARKERS = "oDs^v"
_HEAT = "cividis"  # looks nearly the same with and without colour blindness
RC: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "figure.titlesize": 13,
    "svg.hashsalt": "emabank",  # without it, ids are random and the same figure gives another file each time
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # fonts that journals accept
}


@cache
def colours() -> dict[str, str]:
    """The colours of lines by name, from the page's light scheme."""
    style = (files("emabank.study.report") / "assets" / "page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--(\w+): light-dark\((#[0-9a-f]{6})", style))


def _tint(colour: str, share: float = 0.3) -> tuple[float, float, float]:
    """A colour mixed with white, for areas; unlike a transparent colour, it looks the same on any background."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


# One panel on its axes ------------------------------------------------------------------------------------------------


def _draw_panel(axes: Axes, panel: Panel, styles: dict[str, Style]) -> None:
    """Draw a panel, except for its learning rate and heat map."""
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    if panel.bars:
        left, width, height = zip(*panel.bars, strict=True)
        colour = _tint(colours()[styles[panel.lines[0].label].colour]) if panel.lines else _GRID
        axes.bar(left, height, width, align="edge", color=colour, edgecolor="white", linewidth=0.6)
    for line in panel.lines:
        _draw_line(axes, line, styles[line.label], points=bool(panel.bars) and line.kind != "ideal")
    _draw_marks(axes, panel)
    xs = [float(end) for line in panel.lines for end in (line.x.min(), line.x.max())]
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    elif xs:
        margin = 0.01 * (max(xs) - min(xs)) + 0.01
        axes.set_xlim(min(xs) - margin, max(xs) + margin)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


def _draw_line(axes: Axes, line: Line, style: Style, *, points: bool) -> None:
    """Draw a line; beneath it a thin line per seed or, without seeds, a band of one standard deviation."""
    colour = colours()[style.colour]
    if line.seeds is not None:
        axes.plot(line.x, line.seeds.T, color=_tint(colour, 0.55), linewidth=0.6, zorder=1.5)
    elif line.std is not None:
        axes.fill_between(line.x, line.y - line.std, line.y + line.std, color=colour, alpha=0.18, linewidth=0)
    axes.add_line(_line_key(line.label, style, line.x, line.y, points=points))
    axes.autoscale_view()


def _line_key(label: str, style: Style, x: Any = (), y: Any = (), *, points: bool = False) -> Line2D:
    """The line itself or, without data, its legend entry."""
    made = Line2D(x, y, color=colours()[style.colour], linewidth=1.7, label=label)
    if style.dash:
        made.set_dashes([float(length) / 2 for length in style.dash.split()])
    if points:
        made.set(clip_on=False, marker="o", markersize=3.5)  # unclipped, so that points on the border are whole
    return made


def _draw_marks(axes: Axes, panel: Panel) -> None:
    """Draw marks on top of everything, each with its own shape; on a heat map, all have the same."""
    markers = cycle(_MARKERS if panel.grid is None else _MARKERS[:1])
    for (x, y, _), marker in zip(panel.marks, markers, strict=False):
        axes.scatter(x, y, s=52, color=_MARK, marker=marker, edgecolors="white", zorder=5, clip_on=False)


def _mark_keys(panel: Panel) -> list[Line2D]:
    """The legend entries of a panel's marks; none for a heat map, whose marks the figure's title explains."""
    if panel.grid is not None:
        return []
    return [
        Line2D((), (), color=_MARK, marker=marker, markeredgecolor="white", markersize=8, linewidth=0, label=label)
        for (_, _, label), marker in zip(panel.marks, cycle(_MARKERS), strict=False)
    ]


def _draw_rate(axes: Axes, line: Line) -> None:
    """Draw the learning rate as an area, on axes of its own."""
    axes.fill_between(line.x, line.y, color=_tint(colours()["live"]), linewidth=0)
    axes.plot(line.x, line.y, color=colours()["live"], linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2))


def _draw_heat(axes: Axes, panel: Panel, grid: np.ndarray, limits: tuple[float, float]) -> AxesImage:
    """Draw a heat map, with missing values in grey."""
    colour_map = colormaps[_HEAT].with_extremes(bad=_MISSING)
    image = axes.imshow(
        grid, aspect="auto", interpolation="nearest", cmap=colour_map, vmin=limits[0], vmax=limits[1], origin="upper"
    )
    count = len(panel.x_ticks)  # only multiples of a round step are labelled
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 200, count) if count / step <= _MOST_TICKS)
    named = range(step - 1, count, step)
    axes.set_xticks(named, [panel.x_ticks[index] for index in named])
    axes.set_yticks(range(len(panel.y_ticks)), list(panel.y_ticks))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _draw_marks(axes, panel)
    return image


# The figure -----------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """The layout of a figure: its size, and the heights of the grid rows that each row of panels takes."""

    rows: int
    columns: int
    width: float
    height: float
    heights: tuple[float, ...]
    has_rates: bool
    has_keys: bool
    key_columns: int


def draw(figure: Figure, path: Path, *, file_format: Literal["svg", "pdf"] = "svg") -> None:
    """Draw a figure into a file, creating its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(RC):
        # Without the date and time, which matplotlib would write into the file.
        metadata = {"Date": None} if file_format == "svg" else {"CreationDate": None}
        content = BytesIO()  # because matplotlib's own writer of PDF hides a failed write behind an AttributeError
        picture(figure).savefig(content, format=file_format, dpi=150, metadata=metadata)
    path.write_bytes(content.getvalue())


def picture(figure: Figure) -> matplotlib_figure.Figure:
    """The drawn figure as a matplotlib figure."""
    with rc_context(RC):
        figure = _with_wrapped_text(figure)
        plan, styles = _plan(figure), styles_of(figure)
        made = matplotlib_figure.Figure(figsize=(plan.width, plan.height), layout="constrained")
        lines = len(plan.heights)
        grid = made.add_gridspec(plan.rows * lines, plan.columns, height_ratios=plan.heights * plan.rows)
        heats: list[AxesImage] = []
        limits = _heat_limits(figure)
        for number, panel in enumerate(figure.panels):
            row, column = divmod(number, plan.columns)
            cells = [made.add_subplot(grid[row * lines + line, column]) for line in range(lines)]
            if panel.grid is None:
                _draw_panel(cells[0], panel, styles)
            else:
                heats.append(_draw_heat(cells[0], panel, panel.grid, limits))
            _place(cells, panel, plan, before=figure.panels[number - 1] if column else None)
        if heats:
            axes: Any = [heat.axes for heat in heats]
            bar: Any = made.colorbar(heats[0], ax=axes, format="%.0f%%", shrink=0.9, pad=0.02)
            bar.outline.set_visible(False)
        if styles:
            keys = [_line_key(label, style) for label, style in styles.items()]
            title = seeds_note(figure.panels)
            made.legend(
                handles=keys,
                loc="outside lower center",
                ncols=plan.key_columns,
                frameon=False,
                title=title,
                title_fontsize=10,
            )
        made.suptitle(figure.title, x=0.01, ha="left")
        return made


def _place(cells: Sequence[Axes], panel: Panel, plan: _Plan, *, before: Panel | None) -> None:
    """Add a panel's title and labels, its learning rate beneath it, and the legend of its marks."""
    main = lowest = cells[0]
    main.set_title(panel.title)
    if before is None or before.y_label != panel.y_label:
        main.set_ylabel(panel.y_label)
    if plan.has_rates and panel.rate is not None:
        lowest = cells[1]
        _draw_rate(lowest, panel.rate)
        lowest.sharex(main)
        main.tick_params(labelbottom=False)
        if before is None or before.rate is None or before.rate.label != panel.rate.label:
            lowest.set_ylabel(fill(panel.rate.label, 9))
    elif plan.has_rates:
        cells[1].set_axis_off()
    lowest.set_xlabel(panel.x_label)
    if plan.has_keys:
        cells[-1].set_axis_off()
        keys = _mark_keys(panel)
        if keys:
            cells[-1].legend(handles=keys, loc="upper left", frameon=False, borderpad=0, borderaxespad=0, fontsize=10)


def _heat_limits(figure: Figure) -> tuple[float, float]:
    """The range of values over all heat maps, so that a colour means the same in every panel."""
    values = np.concatenate([np.zeros(0), *(panel.grid.ravel() for panel in figure.panels if panel.grid is not None)])
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


# Sizes ----------------------------------------------------------------------------------------------------------------


def _plan(figure: Figure) -> _Plan:
    columns = max(1, min(figure.columns, len(figure.panels)))
    rows, width = -(-len(figure.panels) // columns), _width(figure)
    has_rates = any(panel.rate is not None for panel in figure.panels)
    labels = [[label for _, _, label in panel.marks] if panel.grid is None else [] for panel in figure.panels]
    keys = max((sum(_LINE * (label.count("\n") + 1) + 0.03 for label in own) for own in labels), default=0.0)
    heights = (min(_PANEL, width / columns - 0.6), *([_RATE] if has_rates else []), *([keys] if keys else []))
    titles = max((panel.title.count("\n") + 1 for panel in figure.panels), default=1)
    # Around the axes: each panel's title above, its ticks and label below; the figure's title, and later its legend.
    height = rows * (sum(heights) + titles * _LINE + 0.65) + (figure.title.count("\n") + 1) * 0.3 + 0.1
    entries = list(styles_of(figure))
    longest = max(map(len, entries), default=1)
    most = max(1, min(len(entries), int(width * _CHARACTERS / (longest + 8))))
    # Prefer slightly fewer legend columns to gaps in the last row.
    key_columns = next((count for count in range(most, most // 2, -1) if len(entries) % count == 0), most)
    height += (2 + len(entries) // key_columns) * 1.1 * _LINE if entries else 0.0
    return _Plan(rows, columns, width, round(height, 2), heights, has_rates, keys > 0, key_columns)


def _width(figure: Figure) -> float:
    return _NARROW if min(figure.columns, len(figure.panels)) <= 1 else _WIDE


def _with_wrapped_text(figure: Figure) -> Figure:
    """The figure with line breaks in titles and labels, so that none is wider than its panel or figure."""
    inches = _width(figure) / max(1, min(figure.columns, len(figure.panels))) - _AROUND
    panels = [
        replace(
            panel,
            title=_wrapped_title(panel.title, inches),
            marks=[(x, y, _wrapped(label, inches - 0.5)) for x, y, label in panel.marks],
        )
        for panel in figure.panels
    ]
    return replace(figure, title=_wrapped(figure.title, 0.8 * _width(figure)), panels=panels)


def _wrapped(text: str, inches: float) -> str:
    """The text, wrapped to a width in inches; "n = 3" and "epoch 7" stay whole."""
    unbroken = _UNBROKEN.sub("\u00a0", text)
    return fill(unbroken, max(12, int(inches * _CHARACTERS))).replace("\u00a0", " ")


def _wrapped_title(title: str, inches: float) -> str:
    """The title on one line or, if it is too long, with each of its parts on a new line."""
    if "\n" not in _wrapped(title, inches):
        return title
    return "\n".join(_wrapped(part, inches) for part in title.split(": "))
