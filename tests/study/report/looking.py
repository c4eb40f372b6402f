"""Ways to find a cell in tables, and to compare it with numpy."""

from collections.abc import Sequence

import numpy as np

from emabank.study.report.render import group_titles
from emabank.study.report.tables import Cell, Table


def named(tables: Sequence[Table], name: str) -> Table:
    (table,) = [table for table in tables if table.name == name]
    return table


def at(table: Table, row: str, column: str, group: str = "", *, of: str = "") -> Cell:
    """The cell in a row with this label (and group), in a column with this title (and group)."""
    (cells,) = [each.cells for each in table.rows if each.label == row and of in ("", each.group)]
    titles = list(zip(group_titles(table), table.columns, strict=True))[1:]
    (place,) = [at for at, (over_it, title) in enumerate(titles) if title == column and group in ("", over_it)]
    return cells[place]


def is_mean_of(cell: Cell, values: Sequence[float | None] | np.ndarray, *, scale: float = 100) -> bool:
    """Whether a cell has the mean, the spread and n of these values, by numpy."""
    found = scale * np.array(values, dtype=float)
    spread = np.std(found, ddof=1) if len(found) > 1 else None
    same = cell.std == spread or bool(cell.std is not None and spread is not None and np.isclose(cell.std, spread))
    return bool(cell.mean is not None and np.isclose(cell.mean, found.mean()) and same and cell.n == len(found))


def complete(tables: Sequence[Table]) -> bool:
    """Whether every row has a cell for each column, groups fill the columns, and rules stand between rows."""
    return all(
        len(row.cells) == len(table.columns) - 1
        and (not table.groups or sum(span for _, span in table.groups) == len(table.columns))
        and all(0 < place < len(table.rows) for place in table.breaks)
        for table in tables
        for row in table.rows
    )
