"""Find cells in tables and compare them with numpy."""

from collections.abc import Sequence

import numpy as np

from emabank.study.report.render import group_titles
from emabank.study.report.tables import Cell, Table


def table_named(tables: Sequence[Table], name: str) -> Table:
    (table,) = [table for table in tables if table.name == name]
    return table


def cell_at(table: Table, label: str, column: str, group: str = "") -> Cell:
    """The cell in the row with this label, in the column with this title (and group)."""
    (cells,) = [row.cells for row in table.rows if row.label == label]
    titles = list(zip(group_titles(table), table.columns, strict=True))[1:]
    (index,) = [index for index, (above, title) in enumerate(titles) if title == column and group in ("", above)]
    return cells[index]


def is_mean_of(cell: Cell, values: Sequence[float | None] | np.ndarray, *, scale: float = 100) -> bool:
    """Whether a cell has the mean, the standard deviation and n of these values."""
    found = scale * np.array(values, dtype=float)
    spread = np.std(found, ddof=1) if len(found) > 1 else None
    same = cell.std == spread or bool(cell.std is not None and spread is not None and np.isclose(cell.std, spread))
    return bool(cell.mean is not None and np.isclose(cell.mean, found.mean()) and same and cell.n == len(found))


def are_complete(tables: Sequence[Table]) -> bool:
    """Whether every row has a cell for each column, groups span all columns, and rules are between rows."""
    return all(
        len(row.cells) == len(table.columns) - 1
        and (not table.groups or sum(span for _, span in table.groups) == len(table.columns))
        and all(0 < place < len(table.rows) for place in table.breaks)
        for table in tables
        for row in table.rows
    )
