"""A sheet as CSV: one line a cell, so that the files of many sheets make one frame.

Numbers are in full precision, in the units that the titles name. May import the sheet and forms.words.
"""

import csv as format_of_csv
import io
import re

from emabank.study.report.forms.words import DASH, number, over
from emabank.study.report.sheet import Cell, Sheet

HEAD = (
    "table", "title", "scale", "item", "row", "group", "column", "mean", "std", "n", "text", "best", "paper",
    "paper_mean", "paper_std",
)  # fmt: skip
"""The names of the columns. `paper` is what the paper prints there, the last two are the same as numbers."""

_PRINTED = re.compile(r"([-−]?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?")


def csv(sheet: Sheet) -> str:
    r"""One line for each cell with something in it, after a line of names.

    >>> from emabank.study.report.sheet import Cell
    >>> cells = [Cell(mean=78.543, std=0.284, n=3, paper="78.54 ± 0.28", best=True)]
    >>> print(csv(Sheet(name="a/b", title="Test", columns=["", "EMA"], rows=[("acc., %", cells)])).splitlines()[1])
    a/b,Test,,,"acc., %",,EMA,78.543,0.284,3,,1,78.54 ± 0.28,78.54,0.28
    """
    written = io.StringIO()
    writer = format_of_csv.writer(written, lineterminator="\n")
    writer.writerow(HEAD)
    groups = over(sheet)[1:]
    for label, cells in sheet.rows:
        for group, title, cell in zip(groups, sheet.columns[1:], cells, strict=True):
            if number(cell) or cell.text or cell.paper:
                place = (sheet.name, sheet.title, sheet.scale, sheet.item, label, group, title)
                writer.writerow([*place, *_values(cell), cell.paper, *printed_numbers(cell.paper)])
    return written.getvalue()


def printed_numbers(text: str) -> tuple[str, str]:
    """The mean and the spread in a printed text, as CSV has them; empty where there is none.

    >>> printed_numbers("78.54 ± 0.28"), printed_numbers("198"), printed_numbers("[143, 139, 156]")
    (('78.54', '0.28'), ('198', ''), ('', ''))
    """
    found = _PRINTED.fullmatch(text.strip())
    return (found[1].replace("−", "-"), found[2] or "") if found else ("", "")


def _values(cell: Cell) -> list[object]:
    best = int(cell.best)
    if number(cell) is None:
        return ["", "", "", "" if cell.text == DASH else cell.text, best]
    return [cell.mean, "" if cell.std is None else cell.std, cell.n, "", best]
