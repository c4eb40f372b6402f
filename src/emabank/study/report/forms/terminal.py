"""A sheet on the terminal: columns that do not fit beside each other are spread over several tables.

May import rich, the sheet and forms.words.
"""

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from emabank.study.report.forms.words import PAPER, caption, common_n, lines, over, shown
from emabank.study.report.sheet import Sheet

_GAP = 2
"""Characters between two columns: the padding, and the box's blank line."""
_LABELS = (30, 24, 18)
"""Characters of a label after which it is broken; the fewer, the more columns stand beside each other."""

_TEXTS = 16
"""Characters of a list or a title after which it may be broken."""


def terminal(sheet: Sheet, *, width: int = 80) -> Group:
    """Title, tables, caption and notes, for lines of so many characters.

    >>> from rich.console import Console
    >>> from emabank.study.report.sheet import Cell
    >>> cells = [Cell(text="–"), Cell(mean=78.543, std=0.284, n=3, paper="78.54 ± 0.28")]
    >>> made = terminal(Sheet(name="a/b", title="Test", columns=["", "SWA", "EMA"], rows=[("acc., %", cells)]))
    >>> Console(width=40, color_system=None).print(made)  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    Test
             SWA           EMA
    ──────────────────────────...
    acc., %    –  78.54 ± 0.28
      paper       78.54 ± 0.28
    n = 3.
    """
    title = f"{sheet.title} (compare {sheet.item} of the paper)" if sheet.item else sheet.title
    tables = [each for columns, widths in _parts(sheet, width) for each in (_table(sheet, columns, widths), Text(""))][
        :-1
    ]
    notes = [Text(f"- {note}", style="italic") for note in sheet.notes]
    said = caption(sheet)
    return Group(Text(title, style="bold"), *tables, *([Text(said, style="italic")] if said else []), *notes)


def _texts(sheet: Sheet) -> list[list[str]]:
    """What stands in each column: title, group's title, cells, what the paper prints; the labels' column first."""
    with_n = common_n(sheet) is None
    columns = [[group, title] for group, title in zip(over(sheet), sheet.columns, strict=True)]
    columns[0] += [f"  {PAPER}", *(("  " if line.below_heading else "") + line.label for line in lines(sheet))]
    for place, column in enumerate(columns[1:]):
        for _, cells in sheet.rows:
            column += [shown(cells[place], with_n=with_n), cells[place].paper]
    return columns


def _parts(sheet: Sheet, width: int) -> list[tuple[list[int], list[int]]]:
    """The columns of each table with their widths, the labels' first; a group stays together if it fits at all."""
    texts = _texts(sheet)
    words = [max([1, *(len(word) for text in column for word in text.split())]) for column in texts]
    words[0] += 2 * any(line.below_heading for line in lines(sheet))
    widths = [max(least, *map(_wished, column)) for least, column in zip(words, texts, strict=True)]
    full = max(map(len, texts[0]))
    titles = over(sheet)
    together = [list(places) for _, places in groupby(range(1, len(texts)), key=lambda at: titles[at] or at)]
    allowed = sorted({min(full, max(words[0], label)) for label in (full, *_LABELS)}, reverse=True)
    parts = [_filled(together, widths, label, width) for label in allowed]
    fewest = min(map(len, parts))
    label, best = next(pair for pair in zip(allowed, parts, strict=True) if len(pair[1]) == fewest)
    return [([0, *part], [label, *(widths[at] for at in part)]) for part in best]


def _filled(together: Sequence[list[int]], widths: Sequence[int], label: int, width: int) -> list[list[int]]:
    """The columns of each table, if labels are so wide."""
    fits = [group for group in together if label + _needed([widths[at] for at in group]) <= width]
    units = [unit for group in together for unit in ([group] if group in fits else [[at] for at in group])]
    parts: list[list[int]] = []
    for unit in units:
        if parts and label + _needed([widths[at] for at in [*parts[-1], *unit]]) <= width:
            parts[-1] += unit
        else:
            parts.append(list(unit))
    return parts


def _wished(text: str) -> int:
    """The width that a text needs in a column: a number with its spread is never broken, a longer text may be."""
    return len(text) if "±" in text else min(len(text), _TEXTS)


def _needed(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)


def _table(sheet: Sheet, columns: Sequence[int], widths: Sequence[int]) -> Table:
    with_n = common_n(sheet) is None
    titles = over(sheet)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for at, width in zip(columns, widths, strict=True):
        head = Text("\n".join(filter(None, (titles[at], sheet.columns[at]))))
        table.add_column(head, justify="right" if at else "left", width=width, overflow="fold", vertical="bottom")
    for line in lines(sheet):
        if line.rule:
            table.add_section()
        if not line.cells:
            table.add_row(Text(line.label, style="bold"))
            continue
        indent = 2 if line.below_heading else 0
        mine = [line.cells[at - 1] for at in columns[1:]]
        texts = [Text(shown(cell, with_n=with_n), style="bold" if cell.best else "") for cell in mine]
        table.add_row(Padding(Text(line.label), (0, 0, 0, indent)), *texts)
        if any(cell.paper for cell in mine):
            table.add_row(" " * (indent + 2) + PAPER, *(Text(cell.paper) for cell in mine), style="dim")
    return table
