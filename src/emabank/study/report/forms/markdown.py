"""A sheet as Markdown, for GitHub and everyone who reads its tables. May import the sheet and forms.words."""

import re
from collections.abc import Iterable

from emabank.study.report.forms.words import PAPER, caption, common_n, lines, over, shown
from emabank.study.report.sheet import Sheet

# What would begin emphasis, code, HTML, strike-through or a formula, or end the cell.
_SPECIAL = re.compile(r"([\\`*_<|~$])")


def markdown(sheet: Sheet) -> str:
    """A heading, the table, its caption and notes; below a row, in italics, what the paper prints in its places.

    >>> from emabank.study.report.sheet import Cell
    >>> cells = [Cell(mean=78.543, std=0.284, n=3, paper="78.54 ± 0.28", best=True)]
    >>> print(markdown(Sheet(name="a/b", title="Test", columns=["", "EMA"], rows=[("acc., %", cells)], item="Table 1")))
    ### Test
    <BLANKLINE>
    Compare Table 1 of the paper.
    <BLANKLINE>
    |  | EMA |
    |:---|---:|
    | acc., % | **78.54 ± 0.28** |
    | *paper* | *78.54 ± 0.28* |
    <BLANKLINE>
    n = 3.
    <BLANKLINE>
    """
    heads = [f"{group}: {title}" if group else title for group, title in zip(over(sheet), sheet.columns, strict=True)]
    table = [_line(map(_plain, heads)), "|" + "|".join([":---", *["---:"] * (len(heads) - 1)]) + "|", *_body(sheet)]
    head = [f"### {_plain(sheet.title)}", f"Compare {_plain(sheet.item)} of the paper." if sheet.item else ""]
    after = [_plain(caption(sheet)), "\n".join(f"- {_plain(note)}" for note in sheet.notes)]
    return "\n\n".join(part for part in [*head, "\n".join(table), *after] if part) + "\n"


def _body(sheet: Sheet) -> list[str]:
    with_n = common_n(sheet) is None
    made: list[str] = []
    for line in lines(sheet):
        if line.rule and line.cells:  # Markdown has no rules inside a table; a heading is one
            made.append(_line([""] * len(sheet.columns)))
        if not line.cells:
            made.append(_line([f"**{_plain(line.label)}**", *[""] * (len(sheet.columns) - 1)]))
            continue
        texts = [_marked(_plain(shown(cell, with_n=with_n)), "**", cell.best) for cell in line.cells]
        made.append(_line([_plain(line.label), *texts]))
        if any(cell.paper for cell in line.cells):
            made.append(_line([f"*{PAPER}*", *(_marked(_plain(cell.paper), "*") for cell in line.cells)]))
    return made


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _marked(text: str, mark: str, wanted: bool = True) -> str:
    return f"{mark}{text}{mark}" if text and wanted else text


def _plain(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(text.split()).replace("&", "&amp;"))
    return escaped.replace("](", "]\\(")
