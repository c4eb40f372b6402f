"""A figure as the page's script wants it: short JSON, rounded, safe inside HTML. May import numpy and panels alone."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emabank.study.report.panel import Figure, Line, Panel

# Inside <script> only these can end the element or open a comment; as escapes they mean the same to JSON.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
# Second channel beside the colour, for the averages from the fastest on: the longer the memory, the longer the dash.
_DASHES = ("1.5 3", "4 3", "8 3", "14 3", "")
_DASHED = "6 4"
_KINDS = ("live", "best", "swa", "ideal")
# For lines of no known kind, and for those that would look like another: the colours x0 to x5, then again with dashes.
_EXTRAS = tuple((f"x{number}", dash) for dash in ("", "2 2", "10 3 2 3") for number in range(6))


def series(figure: Figure) -> str:
    """What the script needs to draw a figure, as JSON that may stand inside a `<script>` element.

    Lines of one label have one style and one entry of the legend, whatever their panel.

    >>> line = Line(label="live", kind="live", x=np.arange(1, 4), y=np.array([50.0, 61.23456, np.nan]))
    >>> found = json.loads(series(Figure(name="a", title="A", panels=[Panel(title="a", lines=[line])])))
    >>> found["legend"], found["xs"]
    ([{'label': 'live', 'colour': 'live', 'dash': ''}], [{'from': 1, 'step': 1, 'count': 3}])
    >>> found["panels"][0]["lines"]
    [{'of': 0, 'x': 0, 'y': [50, 61.235, None], 'n': 1}]
    """
    legend = _legend(figure)
    places = {entry["label"]: place for place, entry in enumerate(legend)}
    xs: list[Any] = []
    panels = [_panel(panel, places, xs) for panel in figure.panels]
    made = {"columns": figure.columns, "legend": legend, "xs": xs, "panels": panels}
    return json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def digits(values: Iterable[float]) -> int:
    """How many digits behind the point the values deserve: four that count, of a value of middling size.

    >>> digits([10.0, 78.5, 81.2]), digits([1.02, 2.5, 100.0]), digits([0.012, 0.013])
    (2, 3, 5)
    >>> digits([]), digits([0.0])
    (2, 2)
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    return min(6, max(0, math.floor(4 - math.log10(float(np.median(sizes)))))) if sizes else 2


def _panel(panel: Panel, places: dict[str, int], xs: list[Any]) -> dict[str, Any]:
    """A panel without what it does not have."""
    shown = digits(_heights(panel))
    made: dict[str, Any] = {
        "title": panel.title,
        "xLabel": panel.x_label,
        "yLabel": panel.y_label,
        "digits": shown,
        "lines": [{"of": places[line.label], **_line(line, xs, shown)} for line in panel.lines],
    }
    if panel.rate is not None:
        finest = digits(panel.rate.y)
        made["rate"] = {"label": panel.rate.label, "digits": finest, **_line(panel.rate, xs, finest)}
    if len(panel.marks):
        made["marks"] = [[*_rounded((x, y), shown + 1), label] for x, y, label in panel.marks]
    for name, limits in (("xLimits", panel.x_limits), ("yLimits", panel.y_limits)):
        if limits is not None:
            made[name] = _rounded(limits, 6)
    if len(panel.bars):
        made["bars"] = [[*_rounded(bar[:2], 6), *_rounded(bar[2:], shown + 1)] for bar in panel.bars]
    if panel.grid is not None:
        made["grid"] = [_rounded(row, shown + 1) for row in panel.grid]
        made["xTicks"], made["yTicks"] = list(panel.x_ticks), list(panel.y_ticks)
    return made


def _heights(panel: Panel) -> list[float]:
    """All that the panel shows upwards, or as colour."""
    lines = [float(value) for line in panel.lines for value in line.y]
    grid = [] if panel.grid is None else [float(value) for value in panel.grid.ravel()]
    return [*lines, *(bar[2] for bar in panel.bars), *grid]


def _line(line: Line, xs: list[Any], shown: int) -> dict[str, Any]:
    """One digit more than is shown, for the zoom."""
    x = _steps(line.x)
    if x not in xs:
        xs.append(x)
    made: dict[str, Any] = {"x": xs.index(x), "y": _rounded(line.y, shown + 1), "n": line.n}
    if line.std is not None:
        made["std"] = _rounded(line.std, shown + 1)
    if line.seeds is not None:
        made["seeds"] = [_rounded(seed, shown + 1) for seed in line.seeds]
    return made


def _steps(x: np.ndarray) -> dict[str, Any] | list[float | int | None]:
    """Epochs are mostly equally far from each other: then the first, the step and how many there are say it all."""
    whole = _rounded(x, 6)
    if len(x) > 2 and np.allclose(np.diff(x), x[1] - x[0], rtol=0, atol=1e-9):
        return {"from": whole[0], "step": _rounded(x[1:2] - x[:1], 6)[0], "count": len(x)}
    return whole


def _rounded(values: Iterable[float], places: int) -> list[float | int | None]:
    """Numbers as short as they can be; None where there is none."""
    made: list[float | int | None] = []
    for value in values:
        number = round(float(value), places) if math.isfinite(value) else None
        made.append(int(number) if number is not None and number.is_integer() else number)
    return made


def _legend(figure: Figure) -> list[dict[str, str]]:
    """Label, colour and dashes of each line there is; two labels never look the same while there are colours left."""
    lines: dict[str, Line] = {}
    for panel in figure.panels:
        for line in panel.lines:
            lines.setdefault(line.label, line)
    # Where the figure itself gives the dashes of averages a meaning, these are told apart by their shade alone.
    meant = any(line.dashed for line in lines.values() if line.kind == "average")
    extras = iter(_EXTRAS)
    seen: set[tuple[str, str]] = set()
    legend: list[dict[str, str]] = []
    for label, line in lines.items():
        style = _style(line, meant=meant)
        while (not style[0] or style in seen) and (extra := next(extras, None)) is not None:
            style = (extra[0], extra[1] or style[1])
        seen.add(style)
        legend.append({"label": label, "colour": style[0] or "x0", "dash": style[1]})
    return legend


def _style(line: Line, *, meant: bool) -> tuple[str, str]:
    """The name of a colour of the style sheet, empty for a kind that has none, and the dashes."""
    if line.kind == "average":
        place = min(max(line.order, 0), len(_DASHES) - 1)
        return f"a{place}", (_DASHED if line.dashed else "") if meant else _DASHES[place]
    dash = _DASHED if line.dashed or line.kind == "ideal" else ""
    return (line.kind if line.kind in _KINDS else ""), dash


def labels(figure: Figure) -> Sequence[str]:
    """The labels of the lines, each once, for the sentence that stands in place of the figure without a script.

    >>> labels(Figure(name="a", title="A", panels=[]))
    []
    """
    return [entry["label"] for entry in _legend(figure)]
