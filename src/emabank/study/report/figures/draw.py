"""A figure as a PNG or SVG file: where its panels, titles and legends stand. The same figure gives the same bytes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib import figure as matplotlib_figure
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from emabank.study.report.figures.axes import draw_heat, draw_panel, draw_rate, key_of_line, keys_of_marks
from emabank.study.report.figures.captions import seeds_of
from emabank.study.report.figures.style import RC, look_of
from emabank.study.report.panel import Figure, Panel

DPI = 150
_NARROW, _WIDE = 8.0, 11.0  # inches: a figure of one column, of more
_PANEL, _RATE, _LINE = 3.1, 0.6, 0.21  # inches: a panel's height, that of its learning rate, a line of text
_AROUND = 0.75  # inches of a panel's width that its axis takes
_CHARACTERS = 11.5  # of text to an inch, in the size of titles and legends
_HELD = re.compile(r"(?<=[=±]) | (?=[=±])|(?<=epoch) (?=\d)|(?<=epochs) (?=\d)")  # spaces at which no line breaks


class _Plan(NamedTuple):
    """What stands where: the figure's size, and the heights of the grid's lines that each row of panels takes."""

    columns: int
    width: float
    height: float
    heights: tuple[float, ...]
    has_rates: bool
    has_keys: bool
    shares_key: bool


def draw(figure: Figure, path: Path, *, file_format: Literal["png", "svg"] = "png") -> None:
    """Draw a figure into a file, whose folder is made if it is not there.

    >>> import tempfile
    >>> from emabank.study.report.panel import Line
    >>> line = Line(label="live weights", x=np.arange(3), y=np.arange(3), kind="live")
    >>> figure = Figure(name="demo/example", title="An example", panels=[Panel(title="digits", lines=[line])])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(figure, Path(folder, "example.svg"), file_format="svg")
    ...     "live weights" in Path(folder, "example.svg").read_text()
    True
    """
    if file_format not in ("png", "svg"):
        raise ValueError(f"file_format is {file_format!r}; give 'png' or 'svg'")
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(RC):
        # Fixed metadata: matplotlib would put the time of day into the file.
        metadata = {"Date": None} if file_format == "svg" else {}
        picture(figure).savefig(path, format=file_format, dpi=DPI, metadata=metadata)


def picture(figure: Figure) -> matplotlib_figure.Figure:
    """The figure as matplotlib has it, not yet in a file.

    >>> made = picture(Figure(name="demo/example", title="An example", panels=[Panel(title="digits")]))
    >>> made.axes[0].get_title("left")
    'digits'
    """
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
    there = values[np.isfinite(values)]
    return (float(there.min()), float(there.max())) if len(there) else (0.0, 1.0)


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
    many = seeds_of(figure.panels)
    if many == "1":
        return "one seed"
    thin = any(line.seeds is not None for panel in figure.panels for line in panel.lines)
    return (
        f"bold: mean of {many} seeds, thin: each seed"
        if thin
        else (f"mean of {many} seeds, band: one standard deviation over them")
    )
