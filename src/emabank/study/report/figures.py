"""Figures as data: panels with lines, marks and a learning rate; and the functions that build them.

draw.py draws the panels as SVG and PDF files, page.py as the interactive curves of the page.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from emabank.study.metrics import Floats
from emabank.study.report import series
from emabank.study.report.results import Results, Setting
from emabank.study.report.series import MakeCurve
from emabank.study.report.tables import Cell, Item, curves_note, selection_note, settings_for
from emabank.study.studies.scales import PAIRS, Scale

Mark = tuple[float, float, str]
"""A point (x, y) with a label."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: the mean over the seeds, with the spread."""

    label: str
    x: np.ndarray
    y: np.ndarray
    std: np.ndarray | None = None
    """The standard deviation over the seeds; None with one seed."""
    seeds: np.ndarray | None = None
    """The curve of each seed, [seeds, points], drawn thin beneath the mean; None with one seed."""
    n: int = 1
    """The number of seeds."""
    kind: str = "average"
    """What it shows: "live", "best", "average", "swa", "rate", "ideal", ...; determines the colour."""
    order: int = 0
    """The rank of an average, the fastest first; determines the shade."""
    dashed: bool = False

    @property
    def curves(self) -> np.ndarray:
        """The curve of each seed, [seeds, points], also for a single seed."""
        return self.y[None] if self.seeds is None else self.seeds


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str = "epoch"
    y_label: str = "test accuracy, %"
    lines: Sequence[Line] = ()
    rate: Line | None = None
    """The learning rate, drawn beside the curves on an axis of its own."""
    marks: Sequence[Mark] = ()
    """Points such as the epoch that validation chose."""
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    bars: Sequence[tuple[float, float, float]] = ()
    """(left edge, width, height) of each bar of a reliability diagram."""
    grid: np.ndarray | None = None
    """Values of a heat map, [rows, columns]. `x_ticks` and `y_ticks` then name its columns and rows, and the
    coordinates of marks count its fields from 0."""
    x_ticks: Sequence[str] = ()
    y_ticks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Figure(Item):
    """One figure: its panels."""

    panels: Sequence[Panel] = ()
    columns: int = 1
    """The number of panels side by side."""


@dataclass(frozen=True, kw_only=True)
class FigureSpec(Figure):
    """A figure without panels. Calling it with results and a scale fills in the panels of every setting of that scale.

    Without any panels, there is no figure.
    """

    panels_of: Callable[[Setting], Sequence[Panel]]
    pairs: Sequence[str] = ()
    """The pairs whose settings it shows; empty for all."""
    about: Callable[[Sequence[Setting]], str] = lambda settings: ""
    """Sentences on the settings shown, added to the caption."""
    averaged: bool = False
    """Whether its averages have averaged batch-norm statistics; the caption then says so."""
    cut: bool = False
    """Whether the vertical axis omits the first rise; the caption then says so."""

    def __call__(self, results: Results, scale: Scale) -> list[Figure]:
        by_setting = [(setting, self.panels_of(setting)) for setting in settings_for(results, scale, self.pairs)]
        settings = [setting for setting, panels in by_setting if panels]
        panels = [panel for _, own in by_setting for panel in own]
        if not panels:
            return []
        title = self.title
        if len(settings) == 1 and len(panels) > 1:  # its name once, not above every panel
            title = f"{title} ({settings[0].title})"
            panels = [replace(panel, title=panel.title.removeprefix(f"{settings[0].title}: ")) for panel in panels]
        lines = [line for panel in panels for line in panel.lines]
        sentences = [
            self.caption,
            ORACLE if any(line.label.endswith(BEST_ON_TEST) for line in lines) else "",
            self.about(settings),
            STATISTICS_AVERAGED if self.averaged and any(setting.has_batchnorm for setting in settings) else "",
            seeds_note(panels) if any(line.kind != "ideal" for line in lines) else "",
            CUT if self.cut else "",
            selection_note(settings).strip(),
            curves_note(settings).strip() if self.curves else "",
        ]
        notes = [
            f"{setting.title} stands in for the paper's {PAIRS[setting.pair].replace(',', ' with')}: compare shapes, "
            "not numbers."
            for setting in settings
            if scale != "paper" and setting.pair in PAIRS
        ]
        return [
            replace(
                self, name=f"{scale}/{self.name}", title=title, panels=panels, columns=min(self.columns, len(panels)),
                caption=" ".join(filter(None, sentences)), study=self.name.partition("/")[0], scale=scale,
                notes=tuple(dict.fromkeys(notes)),
            )
        ]  # fmt: skip


# Lines ----------------------------------------------------------------------------------------------------------------


def drawable(setting: Setting, variant: str, make: MakeCurve) -> Floats | None:
    """A curve of every run of a variant, [seeds, epochs]; None unless all runs measured at least one common epoch."""
    stacked = series.stack(setting, variant, make)
    return stacked if stacked is not None and bool(np.isfinite(stacked).all(axis=0).any()) else None


def line(
    curves: Floats, label: str, *, kind: str = "average", order: int = 0, dashed: bool = False, until: int | None = None
) -> Line:
    """The mean and sample standard deviation of curves [seeds, epochs], converted from fractions to percent.

    Nothing is smoothed. Epochs that no seed measured (perhaps every second one) are not points of the line. The mean
    exists only where every seed has a value, so that `n` holds for the whole line. `until` is the last epoch shown.
    """
    percent = 100 * curves[:, :until]
    measured = np.flatnonzero(np.isfinite(percent).any(axis=0))
    percent, seeds = percent[:, measured], len(percent)
    std, thin = (percent.std(axis=0, ddof=1), percent) if seeds > 1 else (None, None)
    return Line(
        label=label, x=measured + 1, y=percent.mean(axis=0), std=std, seeds=thin, n=seeds, kind=kind, order=order,
        dashed=dashed,
    )  # fmt: skip


def line_of(setting: Setting, variant: str, make: MakeCurve, label: str, **look: Any) -> Line | None:
    """The line for a curve of every run of a variant; None if it cannot be drawn."""
    curves = drawable(setting, variant, make)
    return None if curves is None else line(curves, label, **look)


def complete(*lines: Line | None) -> list[Line]:
    """The lines of a panel; none if any of them cannot be drawn."""
    drawn = [line for line in lines if line is not None]
    return drawn if len(drawn) == len(lines) else []


def training_panel(
    setting: Setting, lines: Sequence[Line], variant: str, *, marks: Sequence[Mark] = (), **fields: Any
) -> list[Panel]:
    """A panel of lines over the epochs with the learning rate of a variant beneath; no panel without lines."""
    if not lines:
        return []
    # Seeds may have chosen different peak rates: the panel shows their mean, not the curve of each.
    rates = line(np.stack([run.rates for run in setting.variants[variant]]) / 100, "learning rate", kind="rate")
    fields = {"title": setting.title, "y_limits": focus(lines, marks), **fields}
    return [Panel(lines=lines, rate=replace(rates, seeds=None), marks=marks, **fields)]


def focus(lines: Sequence[Line], marks: Sequence[Mark] = ()) -> tuple[float, float]:
    """Limits of the y axis that contain all marks and, after the first tenth of the epochs, every seed of all lines.

    If they contained the steep rise at the start, a difference of one point late in training would be invisible.
    """
    low = min((y for _, y, _ in marks), default=math.inf)
    high = max((y for _, y, _ in marks), default=-math.inf)
    for drawn in lines:
        known = np.flatnonzero(np.isfinite(drawn.y))
        if len(known):
            late = known[known >= len(drawn.y) // 10]
            low = min(low, float(drawn.curves[:, late if len(late) else known].min()))
            high = max(high, float(drawn.curves[:, known].max()))
    margin = max(0.05 * (high - low), 0.1)
    return low - margin, high + margin


# Marks and captions ---------------------------------------------------------------------------------------------------

BEST_ON_TEST = "best average at each epoch, chosen on test"
ORACLE = (
    "At each epoch the best average is chosen on the test curve itself, as in the paper: an oracle's choice, "
    "impossible without the test images."
)
STATISTICS_AVERAGED = "Batch-norm statistics are averaged with the weights."
CUT = "The vertical axis omits the steep rise in the first tenth of the epochs."


def mark(epochs: Sequence[float], shares: Sequence[float], label: str) -> list[Mark]:
    """One point at the mean of the seeds' epochs and shares."""
    return [(float(np.mean(epochs)), 100 * float(np.mean(shares)), label)]


def mark_of(epochs: Sequence[int], shares: Sequence[float | None], words: str) -> list[Mark]:
    """The mark at these epochs and shares, which its label also states; no mark if a seed has no value."""
    known = [share for share in shares if share is not None]
    if not known or len(known) < len(shares):
        return []
    return mark(epochs, known, f"{words}: {percent_text(known)}, {epochs_text(epochs)}")


def mark_at(drawn: Line, epochs: Sequence[int], words: str) -> list[Mark]:
    """The mark on a line at each seed's own epoch; no mark if a seed has no value there."""
    values = [series.at(curve / 100, epoch) for curve, epoch in zip(drawn.curves, epochs, strict=False)]
    return mark_of(epochs, values, words) if len(epochs) == drawn.n else []


def percent_text(shares: Sequence[float]) -> str:
    """The mean, spread and n of fractions, in percent."""
    cell = Cell.of(shares, scale=100)
    spread = "" if cell.std is None else f" ± {cell.std:.1f}"
    return f"{cell.mean:.1f}{spread}% (n = {cell.n})"


def epochs_text(epochs: Sequence[int]) -> str:
    """The epochs of the seeds: a single one if all are the same, each of up to three, else from which to which."""
    if len(set(epochs)) == 1:
        return f"epoch {epochs[0]}"
    return f"epochs {', '.join(map(str, epochs)) if len(epochs) <= 3 else f'{min(epochs)} to {max(epochs)}'}"


def seeds_note(panels: Sequence[Panel]) -> str:
    """What the lines and their spread show, and for how many seeds."""
    counts = sorted({line.n for panel in panels for line in panel.lines if line.kind != "ideal"})
    many = " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))
    thin = any(line.seeds is not None for panel in panels for line in panel.lines)
    spread = "thin: each seed" if thin else "band: one standard deviation"
    return "One seed, not smoothed." if many == "1" else f"Bold: mean of {many} seeds; {spread}; not smoothed."


def average_note(name: str) -> str:
    """The meaning of an average's name, as a sentence."""
    value = name.removeprefix("ema-")
    return f"{name}: half-life {value} of the run." if value.endswith("%") else f"{name}: decay {value} per update."


# How lines look -------------------------------------------------------------------------------------------------------

# Dashes of the averages, the fastest first, to tell them apart without colour: the longer the memory, the longer the
# dash.
_DASHES = ("1.5 3", "4 3", "8 3", "14 3", "")
_DASHED = "6 4"
_KINDS = ("live", "best", "swa", "ideal")
# For lines of unknown kind, and for those that would look like another line: colours x0 to x5, then again with dashes.
_EXTRAS = tuple((f"x{number}", dash) for dash in ("", "2 2", "10 3 2 3") for number in range(6))


class Style(NamedTuple):
    """The look of a line, in files and on the page."""

    colour: str
    """The name of a colour in assets/page.css."""
    dash: str
    """Lengths of dashes and gaps; empty for a solid line."""


def styles_of(figure: Figure) -> dict[str, Style]:
    """The look of every line by its label; no two labels look the same while unused styles are left."""
    lines: dict[str, Line] = {}
    for panel in figure.panels:
        for drawn in panel.lines:
            lines.setdefault(drawn.label, drawn)
    # If the figure gives dashed averages a meaning of their own, only the shade distinguishes averages.
    meant = any(drawn.dashed for drawn in lines.values() if drawn.kind == "average")
    extras = iter(_EXTRAS)
    styles: dict[str, Style] = {}
    for label, drawn in lines.items():
        style = _style(drawn, meant=meant)
        while (not style.colour or style in styles.values()) and (extra := next(extras, None)) is not None:
            style = Style(extra[0], extra[1] or style.dash)
        styles[label] = style if style.colour else Style("x0", style.dash)
    return styles


def _style(drawn: Line, *, meant: bool) -> Style:
    """The default look of a line; the colour is empty for an unknown kind."""
    if drawn.kind == "average":
        index = min(max(drawn.order, 0), len(_DASHES) - 1)
        return Style(f"a{index}", (_DASHED if drawn.dashed else "") if meant else _DASHES[index])
    dash = _DASHED if drawn.dashed or drawn.kind == "ideal" else ""
    return Style(drawn.kind if drawn.kind in _KINDS else "", dash)
