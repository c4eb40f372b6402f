"""A figure before it is drawn: panels with lines, marks, a learning rate beside them; and what they are built with.

The same panels become SVG and PDF files (draw.py) and the interactive curves of the page (page.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from emabank.study.metrics.classification import Floats
from emabank.study.report import series
from emabank.study.report.results import Run, Setting
from emabank.study.report.series import MakeCurve
from emabank.study.report.tables import Cell, selection_note
from emabank.study.studies.scales import PAIRS, Scale

Mark = tuple[float, float, str]
"""A point with a label."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: the mean over the seeds, with their spread."""

    label: str
    x: np.ndarray
    y: np.ndarray
    std: np.ndarray | None = None
    """Of the seeds; None with one seed."""
    seeds: np.ndarray | None = None
    """The curve of each seed, [seeds, points], drawn thin beneath the mean; None with one seed."""
    n: int = 1
    kind: str = "average"
    """What it shows: "live", "best", "average", "swa", "rate", "ideal", ...: it gives the colour."""
    order: int = 0
    """The place of an average among its likes, the fastest first: it gives the shade."""
    dashed: bool = False


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
    """Such as the epoch that validation chose."""
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    bars: Sequence[tuple[float, float, float]] = ()
    """Left edge, width and height, for a reliability diagram."""
    grid: np.ndarray | None = None
    """Values for a heat map, [rows, columns]; then `x_ticks` and `y_ticks` name its columns and rows, and marks are
    counted in fields, from 0."""
    x_ticks: Sequence[str] = ()
    y_ticks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the report: which of the paper it answers to, and its panels."""

    name: str
    """Of its files, such as "dynamics/cifar100-resnet18"."""
    title: str
    panels: Sequence[Panel]
    columns: int = 1
    """Panels beside each other."""
    caption: str = ""
    item: str = ""
    """The paper's own name for it, such as "Figure 1a"; empty where the paper has none."""
    study: str = ""
    scale: Literal["demo", "small", "paper", ""] = ""
    notes: Sequence[str] = field(default_factory=tuple)


def figure(
    name: str,
    settings: Sequence[Setting],
    panels: Sequence[Panel],
    *,
    scale: Scale,
    title: str,
    caption: str,
    columns: int = 1,
    item: str = "",
    notes: Sequence[str] = (),
) -> list[Figure]:
    """The figure with these panels in a list, or none without panels; a study's name begins that of its figures."""
    if not panels:
        return []
    stand_ins = [
        f"{setting.title} stands for the paper's {PAIRS[setting.pair].replace(',', ' with')}: shapes compare, numbers "
        "do not."
        for setting in settings
        if scale != "paper" and setting.pair in PAIRS
    ]
    return [
        Figure(
            name=f"{scale}/{name}", title=title, panels=panels, columns=columns, item=item, scale=scale,
            caption=caption + selection_note(settings), study=name.partition("/")[0],
            notes=(*dict.fromkeys(stand_ins), *notes),
        )
    ]  # fmt: skip


# Lines ----------------------------------------------------------------------------------------------------------------


def drawable(setting: Setting, variant: str, make: MakeCurve) -> Floats | None:
    """A curve of every run of a variant, [seeds, epochs]; None unless there is an epoch that all of them measured."""
    stacked = series.stack(setting, variant, make)
    return stacked if stacked is not None and bool(np.isfinite(stacked).all(axis=0).any()) else None


def line(
    curves: Floats, label: str, *, kind: str, order: int = 0, dashed: bool = False, until: int | None = None
) -> Line:
    """The mean of curves [seeds, epochs] and their standard deviation (of a sample), fractions become percent.

    Nothing is smoothed. There is a mean only where every seed has a value, so that `n` holds all along. `until` is the
    last epoch shown.

    >>> made = line(np.array([[0.25, 0.5], [0.75, 0.5]]), "live weights", kind="live")
    >>> made.x.tolist(), made.y.tolist(), made.std.round(2).tolist(), made.n
    ([1, 2], [50.0, 50.0], [35.36, 0.0], 2)
    """
    percent = 100 * curves[:, :until]
    mean = _mean_line(percent, label, kind=kind)
    return replace(mean, order=order, dashed=dashed, seeds=percent if len(percent) > 1 else None)


def rate_line(runs: Sequence[Run], label: str = "learning rate") -> Line:
    """The learning rate of some runs, epoch by epoch; seeds may have chosen different peaks."""
    return _mean_line(np.stack([run.rates for run in runs]), label, kind="rate")


def _mean_line(values: Floats, label: str, *, kind: str) -> Line:
    seeds, epochs = values.shape
    std = values.std(axis=0, ddof=1) if seeds > 1 else None
    return Line(label=label, x=np.arange(1, epochs + 1), y=values.mean(axis=0), std=std, n=seeds, kind=kind)


def focus(lines: Sequence[Line], marks: Sequence[Mark] = ()) -> tuple[float, float]:
    """Limits of the y axis within which all marks are, and every seed of all lines after the first tenth of the epochs.

    With the first steep rise, one point of difference late in training could not be seen.
    """
    low = min((y for _, y, _ in marks), default=math.inf)
    high = max((y for _, y, _ in marks), default=-math.inf)
    for drawn in lines:
        curves = drawn.y[None] if drawn.seeds is None else drawn.seeds
        known = np.flatnonzero(np.isfinite(drawn.y))
        if len(known):
            late = known[known >= len(drawn.y) // 10]
            low = min(low, float(curves[:, late if len(late) else known].min()))
            high = max(high, float(curves[:, known].max()))
    margin = max(0.05 * (high - low), 0.1)
    return low - margin, high + margin


# Marks and captions ---------------------------------------------------------------------------------------------------

BEST_ON_TEST = "best average at each epoch, chosen on test"
ORACLE = (
    "The best of the averages is taken anew at each epoch, on the test curve itself, as in the paper: an oracle's "
    "choice, which nobody could make without the test images."
)
CUT = "The vertical axis leaves out the first steep rise, in the first tenth of the epochs."


def mark(epochs: Sequence[float], shares: Sequence[float], label: str) -> list[Mark]:
    """One point at the mean of the seeds' epochs and shares."""
    return [(float(np.mean(epochs)), 100 * float(np.mean(shares)), label)]


def mark_at(curves: Floats, epochs: Sequence[int], words: str) -> list[Mark]:
    """The mean of the seeds' epochs and of their curves at these; none where one has no value.

    >>> mark_at(np.array([[0.5, 0.75], [0.25, 0.5]]), [2, 1], "live weights, chosen on validation")
    [(1.5, 50.0, 'live weights, chosen on validation: 50.0 ± 35.4% (n = 2), epochs 2, 1')]
    """
    values = [series.at(curve, epoch) for curve, epoch in zip(curves, epochs, strict=False)]
    known = [value for value in values if value is not None]
    if len(epochs) != len(curves) or len(known) < len(curves):
        return []
    return mark(epochs, known, f"{words}: {percent_text(known)}, {epochs_text(epochs)}")


def percent_text(shares: Sequence[float]) -> str:
    """Mean, spread and n of some fractions.

    >>> percent_text([0.5, 0.75]), percent_text([0.5])
    ('62.5 ± 17.7% (n = 2)', '50.0% (n = 1)')
    """
    cell = Cell.of(shares, scale=100)
    spread = "" if cell.std is None else f" ± {cell.std:.1f}"
    return f"{cell.mean:.1f}{spread}% (n = {cell.n})"


def epochs_text(epochs: Sequence[int]) -> str:
    """The epochs of the seeds, once if they are all the same."""
    return f"epoch {epochs[0]}" if len(set(epochs)) == 1 else f"epochs {', '.join(map(str, epochs))}"


def seeds_text(panels: Sequence[Panel]) -> str:
    """Of how many seeds the lines are the mean, such as "3", or "2 to 3"; nothing without lines."""
    counts = sorted({line.n for panel in panels for line in panel.lines if line.kind != "ideal"})
    return " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))


def seeds_note(panels: Sequence[Panel]) -> str:
    """How the lines were made of the seeds' curves."""
    many = seeds_text(panels)
    seeds = f"Bold: the mean of {many} seeds; thin: each seed. " if many else ""
    if many == "1":
        seeds = "One seed. "
    return f"{seeds}Each epoch as it was measured, not smoothed."


def statistics_note(settings: Sequence[Setting]) -> str:
    """Which batch-norm statistics the averages have where nothing else is said, as in the paper."""
    has_batchnorm = any(setting.has_batchnorm for setting in settings)
    return "Batch-norm statistics are averaged with the weights. " if has_batchnorm else ""


def average_note(name: str) -> str:
    """What the name of an average means, as a sentence with a blank behind it.

    >>> average_note("ema-7.1%"), average_note("")
    ('ema-7.1% is the average whose half-life is 7.1% of the run. ', '')
    """
    value = name.removeprefix("ema-")
    if not name:
        return ""
    if value.endswith("%"):
        return f"{name} is the average whose half-life is {value} of the run. "
    return f"{name} is the average with a decay of {value} per update. "
