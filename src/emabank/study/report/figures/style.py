"""How every figure looks: the colours and sizes of the demo's figure, made for all kinds of lines. Matplotlib alone.

Colours differ in lightness as well as in hue, and dashes do where lightness does not: no reader needs to tell hues.
"""

from typing import Any, NamedTuple

from matplotlib.colors import to_rgb

from emabank.study.report.panel import Line

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
}


class Look(NamedTuple):
    """Everything in which one line differs from another to the eye."""

    colour: str
    width: float
    dashes: tuple[float, ...]


def look_of(line: Line) -> Look:
    """A line's look, by what it shows and its place among its likes.

    >>> import numpy as np
    >>> look_of(Line(label="live weights", x=np.arange(2), y=np.arange(2), kind="live"))
    Look(colour='#7f7f7f', width=1.3, dashes=())
    """
    round_, shade = divmod(line.order, len(SHADES))
    colour = COLOURS.get(line.kind, SHADES[shade])
    dashes = (4.0, 2.0) if line.dashed else ()
    if round_ and line.kind not in COLOURS:  # more averages than shades: dots tell the second round from the first
        dashes = (*(dashes or (1.0, 1.5)), *(1.0, 1.5) * (round_ - 1))
    return Look(colour, 1.3 if line.kind in ("live", "ideal", "rate") else 1.9, dashes)


def tint(colour: str, share: float = 0.3) -> tuple[float, float, float]:
    """A colour mixed with white, for areas: unlike transparency, it looks the same above other things.

    >>> tint("#000000", 0.5)
    (0.5, 0.5, 0.5)
    """
    red, green, blue = (1 - share * (1 - each) for each in to_rgb(colour))
    return red, green, blue
