"""A figure before it is drawn: panels with lines, bands, a learning rate beside them. May import numpy alone.

The same panels become PNG and SVG files and the interactive curves of the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


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
    marks: Sequence[tuple[float, float, str]] = ()
    """Points with a label, such as the epoch that validation chose."""
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    bars: Sequence[tuple[float, float, float]] = ()
    """Left edge, width and height, for a reliability diagram."""
    grid: np.ndarray | None = None
    """Values for a heat map, [rows, columns]; then `x_ticks` and `y_ticks` name its columns and rows."""
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
