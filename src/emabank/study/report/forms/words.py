"""What all forms of a sheet say alike: a number with its spread, n in the caption or in the cell, titles over columns.

May import the sheet alone.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from emabank.study.report.sheet import Cell, Sheet

DASH = "–"
"""Where a number should stand and none does, or none can."""
PAPER = "paper"
"""The label of a line with what the paper prints in the places above."""


class Number(NamedTuple):
    """A cell's number as texts: the mean, its spread or None where one value has none, and n."""

    mean: str
    spread: str | None
    n: int


def number(cell: Cell) -> Number | None:
    """The number of a cell with its digits; None where it has a text, or nothing.

    >>> number(Cell(mean=78.543, std=0.284, n=3))
    Number(mean='78.54', spread='0.28', n=3)
    >>> number(Cell(mean=-0.0001, n=1))
    Number(mean='0.00', spread=None, n=1)
    """
    if cell.mean is None or cell.text:
        return None
    # A mean that rounds to zero has no sign.
    mean = f"{round(cell.mean, cell.digits) + 0.0:.{cell.digits}f}"
    return Number(mean, None if cell.std is None else f"{cell.std:.{cell.digits}f}", cell.n)


def common_n(sheet: Sheet) -> int | None:
    """Of how many values each number of a sheet is the mean, if they all have the same; else None.

    >>> common_n(Sheet(name="", title="", columns=["", "a"], rows=[("x", [Cell.of([1, 2])]), ("y", [Cell.of([3, 4])])]))
    2
    """
    found = {cell.n for _, cells in sheet.rows for cell in cells if number(cell)}
    return found.pop() if len(found) == 1 else None


def shown(cell: Cell, *, with_n: bool) -> str:
    """A cell in a line of text; without a spread it says so.

    >>> shown(Cell.of([1.0, 2.0]), with_n=True), shown(Cell.of([1.0]), with_n=False), shown(Cell(text="a"), with_n=True)
    ('1.50 ± 0.71 (n=2)', '1.00 ± –', 'a')
    """
    found = number(cell)
    if found is None:
        return cell.text
    return f"{found.mean} ± {found.spread or DASH}" + (f" (n={found.n})" if with_n else "")


def caption(sheet: Sheet) -> str:
    """The caption of a sheet with its n, where that is the same for all numbers; a sentence otherwise says where it is.

    >>> caption(Sheet(name="", title="", columns=["", "a"], rows=[("x", [Cell.of([1.0])])], caption="Mean ± std."))
    'Mean ± std. n = 1: one value has no spread.'
    """
    numbers = [found for _, cells in sheet.rows for cell in cells if (found := number(cell))]
    if not numbers:
        return sheet.caption
    n = common_n(sheet)
    said = "n beside each number." if n is None else f"n = {n}."
    if any(found.spread is None for found in numbers):
        said = f"{said[:-1]}: one value has no spread." if n == 1 else f"{said} ± {DASH}: one value, no spread."
    return f"{sheet.caption} {said}".strip()


def over(sheet: Sheet) -> list[str]:
    """The group's title over each column, the first included; empty where there are no groups.

    >>> over(Sheet(name="", title="", columns=["", "a", "b", "c"], rows=[], groups=[("", 1), ("A", 2), ("B", 1)]))
    ['', 'A', 'A', 'B']
    """
    spread = [title for title, span in sheet.groups for _ in range(span)]
    return [*spread, *[""] * (len(sheet.columns) - len(spread))]


class Line(NamedTuple):
    """A line of a table: a heading over rows, without cells, or a row."""

    label: str
    cells: Sequence[Cell] = ()
    below_heading: bool = False
    rule: bool = False
    """Whether a rule stands before it."""


def lines(sheet: Sheet) -> list[Line]:
    """The rows of a sheet; what the labels of neighbours have in common up to a colon is said once, as a heading.

    >>> cells = [Cell(text="1")]
    >>> made = Sheet(name="", title="", columns=["", "a"], rows=[("A: x", cells), ("A: y", cells), ("B: x", cells)])
    >>> [(line.label, line.below_heading) for line in lines(made)]
    [('A', False), ('x', True), ('y', True), ('B: x', False)]
    """
    made: list[Line] = []
    ruled = {at for at in sheet.breaks if at > 0}
    numbered = [(at, *row) for at, row in enumerate(sheet.rows)]
    for _, same in groupby(numbered, key=lambda row: row[1].rpartition(": ")[0] or row[0]):
        rows = list(same)
        first, heading = rows[0][0], rows[0][1].rpartition(": ")[0]
        shared = bool(heading) and len(rows) > 1
        if shared:
            made.append(Line(heading, rule=first in ruled))
        for at, label, cells in rows:
            said = label.rpartition(": ")[2] if shared else label
            made.append(Line(said, cells, below_heading=shared, rule=at in ruled and not (shared and at == first)))
    return made


def has_paper(sheet: Sheet) -> bool:
    """Whether the paper prints anything in the places of this sheet.

    >>> has_paper(Sheet(name="", title="", columns=["", "a"], rows=[("x", [Cell(text="1", paper="2")])]))
    True
    """
    return any(cell.paper for _, cells in sheet.rows for cell in cells)
