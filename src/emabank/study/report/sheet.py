"""A table before it has a form: titles, cells with their spread and n, the paper's value beside them.

What makes terminal, Markdown, CSV, LaTeX and HTML of it lives elsewhere. May import nothing of ours.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number with its spread and how many values it is the mean of; or a text, such as a list of epochs.

    Numbers are as people read them: percentages are multiplied out. `digits` are those behind the point.
    """

    mean: float | None = None
    std: float | None = None
    n: int = 0
    digits: int = 2
    text: str = ""
    """In place of a number."""
    paper: str = ""
    """What the paper prints in this place, such as "78.54 ± 0.28"; empty where it has nothing."""
    best: bool = False
    """Whether it is the best of its row or group, which the paper prints bold."""

    @classmethod
    def of(cls, values: Sequence[float | None], *, scale: float = 1.0, digits: int = 2, paper: str = "") -> "Cell":
        """The mean of some values and their standard deviation (of a sample); one that is missing makes it a dash.

        >>> cell = Cell.of([0.5, 0.75], scale=100, digits=1)
        >>> cell.mean, round(cell.std, 1), cell.n
        (62.5, 17.7, 2)
        """
        whole = [scale * value for value in values if value is not None and math.isfinite(value)]
        if not whole or len(whole) < len(values):
            return cls(text="–", paper=paper)
        std = statistics.stdev(whole) if len(whole) > 1 else None
        return cls(mean=statistics.fmean(whole), std=std, n=len(whole), digits=digits, paper=paper)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table: which of the paper it answers to, its head, its rows, and what has to be said of it."""

    name: str
    """Of its files, such as "generalization/headline"."""
    title: str
    columns: Sequence[str]
    """Titles; the first is that of the labels."""
    rows: Sequence[tuple[str, Sequence[Cell]]]
    """A label and a cell for each column after the first."""
    groups: Sequence[tuple[str, int]] = ()
    """Titles above several columns, with how many each spans, the first column included; empty: none."""
    breaks: Sequence[int] = ()
    """Rows before which a rule stands."""
    caption: str = ""
    item: str = ""
    """The paper's own name for it, such as "Table 1"; empty where the paper has none."""
    study: str = ""
    scale: Literal["demo", "small", "paper", ""] = ""
    notes: Sequence[str] = field(default_factory=tuple)
    """What a reader must know to compare it with the paper."""
