r"""Renders tables for a terminal and as Markdown, CSV and LaTeX. Computes nothing.

LaTeX has the paper's layout and needs only booktabs and graphicx. CSV has one line per cell, in full precision, so that
the files of many tables can be joined into one frame.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from emabank.study.report.tables import DASH, Cell, Table

PAPER = "paper"
"""The label of a line with the paper's values for the row above."""


# Shared by all formats ------------------------------------------------------------------------------------------------


class Number(NamedTuple):
    """A cell's number as text: the mean, its spread (None for a single value), and n."""

    mean: str
    spread: str | None
    n: int


def number(cell: Cell) -> Number | None:
    """The number of a cell, rounded to its digits; None if the cell has text or is empty."""
    if cell.mean is None or cell.text:
        return None
    # A mean that rounds to zero has no sign.
    mean = f"{round(cell.mean, cell.digits) + 0.0:.{cell.digits}f}"
    return Number(mean, None if cell.std is None else f"{cell.std:.{cell.digits}f}", cell.n)


def numbers(table: Table) -> list[Number]:
    """All numbers of a table."""
    return [shown for row in table.rows for cell in row.cells if (shown := number(cell))]


def common_n(table: Table) -> int | None:
    """The n of every number in a table, if they all have the same; else None."""
    counts = {shown.n for shown in numbers(table)}
    return counts.pop() if len(counts) == 1 else None


def format_cell(cell: Cell, *, with_n: bool) -> str:
    """A cell as one line of text."""
    shown = number(cell)
    if shown is None:
        return cell.text
    spread = f" ± {shown.spread}" if shown.spread else ""
    return f"{shown.mean}{spread}" + (f" (n={shown.n})" if with_n else "")


def caption_of(table: Table) -> str:
    """The caption, then sentences on what the means are over, on n, and on what is bold."""
    sentences = [table.caption.strip()]
    shown = numbers(table)
    n = common_n(table)
    if n == 1:
        sentences.append("n = 1: no spread.")
    elif shown:
        count = "n beside each number" if n is None else f"n = {n}"
        sentences.append(f"Mean ± standard deviation over {table.over}, {count}.")
    if table.bold and any(cell.best for row in table.rows for cell in row.cells):
        sentences.append(f"Bold: {table.bold}.")
    return " ".join(filter(None, sentences))


def group_titles(table: Table) -> list[str]:
    """The group title above each column, the first included; empty for a column without one."""
    titles = [title for title, span in table.groups for _ in range(span)]
    return [*titles, *[""] * (len(table.columns) - len(titles))]


class Line(NamedTuple):
    """A line of a table: a row, or a heading above rows, which has no cells."""

    label: str
    cells: Sequence[Cell] = ()
    below_heading: bool = False
    rule: bool = False
    """Whether a rule precedes it."""


def lines_of(table: Table) -> list[Line]:
    """The rows of a table as lines; a group of several rows gets one heading."""
    lines: list[Line] = []
    ruled = {at for at in table.breaks if at > 0}
    for _, neighbours in groupby(enumerate(table.rows), key=lambda numbered: numbered[1].group or numbered[0]):
        rows = list(neighbours)
        first, group = rows[0][0], rows[0][1].group
        shared = bool(group) and len(rows) > 1
        if shared:
            lines.append(Line(group, rule=first in ruled))
        for at, row in rows:
            label = row.label if shared else row.full_label
            lines.append(
                Line(label, row.cells, below_heading=shared, rule=at in ruled and not (shared and at == first))
            )
    return lines


# Markdown -------------------------------------------------------------------------------------------------------------

# Characters that would begin emphasis, code, HTML, strike-through or a formula, or end the cell.
_SPECIAL = re.compile(r"([\\`*_<|~$])")


def markdown(table: Table) -> str:
    """A heading, the table, its caption and notes; the paper's values are in italics below their row."""
    titles = [
        f"{group}: {title}" if group else title for group, title in zip(group_titles(table), table.columns, strict=True)
    ]
    body = [_md_line(map(_md, titles)), "|" + "|".join([":---", *["---:"] * (len(titles) - 1)]) + "|", *_md_body(table)]
    head = [f"### {_md(table.title)}", f"Compare {_md(table.item)} of the paper." if table.item else ""]
    after = [_md(caption_of(table)), "\n".join(f"- {_md(note)}" for note in table.notes)]
    return "\n\n".join(part for part in [*head, "\n".join(body), *after] if part) + "\n"


def _md_body(table: Table) -> list[str]:
    with_n = common_n(table) is None
    made: list[str] = []
    for line in lines_of(table):
        if line.rule and line.cells:  # Markdown has no rules inside a table; a heading separates well enough
            made.append(_md_line([""] * len(table.columns)))
        if not line.cells:
            made.append(_md_line([f"**{_md(line.label)}**", *[""] * (len(table.columns) - 1)]))
            continue
        texts = [_marked(_md(format_cell(cell, with_n=with_n)), "**" if cell.best else "") for cell in line.cells]
        made.append(_md_line([_md(line.label), *texts]))
        if any(cell.paper for cell in line.cells):
            made.append(_md_line([f"*{PAPER}*", *(_marked(_md(cell.paper), "*") for cell in line.cells)]))
    return made


def _md_line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _marked(text: str, mark: str) -> str:
    return f"{mark}{text}{mark}" if text else text


def _md(text: str) -> str:
    """The text, escaped so that Markdown shows it unchanged, on one line."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(text.split()).replace("&", "&amp;"))
    return escaped.replace("](", "]\\(")


# CSV ------------------------------------------------------------------------------------------------------------------

CSV_FIELDS = (
    "table", "title", "scale", "item", "row", "group", "column", "mean", "std", "n", "text", "best", "paper",
    "paper_mean", "paper_std",
)  # fmt: skip
"""`paper` is the paper's value as printed; `paper_mean` and `paper_std` are its numbers."""
_PRINTED = re.compile(r"([-−]?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?")


def table_csv(table: Table) -> str:
    """A header, then one line per cell that is not empty."""
    lines: list[Sequence[object]] = []
    for row in table.rows:
        for group, title, cell in zip(group_titles(table)[1:], table.columns[1:], row.cells, strict=True):
            if number(cell) or cell.text or cell.paper:
                index = (table.name, table.title, table.scale, table.item, row.full_label, group, title)
                lines.append([*index, *_csv_values(cell), cell.paper, *_printed_numbers(cell.paper)])
    return csv_text(CSV_FIELDS, lines)


def _csv_values(cell: Cell) -> list[object]:
    best = int(cell.best)
    if number(cell) is None:
        return ["", "", "", "" if cell.text == DASH else cell.text, best]
    return [cell.mean, "" if cell.std is None else cell.std, cell.n, "", best]


def _printed_numbers(text: str) -> tuple[str, str]:
    """The mean and the spread in a printed value; empty where there is none."""
    match = _PRINTED.fullmatch(text.strip())
    return (match[1].replace("−", "-"), match[2] or "") if match else ("", "")


def csv_text(fields: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """CSV text: the header, then the lines."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([fields, *lines])
    return out.getvalue()


# LaTeX ----------------------------------------------------------------------------------------------------------------

_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    # After \\ and booktabs' rules these two would be read as an argument.
    "[": "{[}", "*": "{*}",
    # In TeX's old font encoding or in ligatures, these would print as other characters.
    "<": "$<$", ">": "$>$", "|": "$|$", '"': "''",
    # Used by our own text, and possibly by a user's titles.
    "±": r"$\pm$", "−": "$-$", "–": r"\textendash{}", "—": r"\textemdash{}", "→": r"$\to$", "×": r"$\times$",
    "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "…": r"\dots{}", "α": r"$\alpha$", "’": "'", "‘": "`",
    "“": "``", "”": "''", "\u00a0": "~", "µ": r"$\mu$", "°": r"$^\circ$",
}  # fmt: skip
_WIDE = 95
"""Characters per line that fit the width of a page in \\small; a wider table is scaled down to that width."""


def latex(table: Table) -> str:
    """A table environment, ready to include, with a line of the paper's values below each row that has any."""
    tabular = _tabular(table)
    if _width(table) > _WIDE:
        tabular = [r"\resizebox{\textwidth}{!}{%", *tabular[:-1], tabular[-1] + "}"]
    caption = f"{table.title.rstrip('.')}. {caption_of(table)}".strip()
    notes = [escape_latex(note) + r"\par" for note in table.notes]
    body = [
        r"\small", r"\centering", rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9.-]+', '-', table.name)}}}", *tabular,
        *([r"\par\smallskip\raggedright\footnotesize", *notes] if notes else []),
    ]  # fmt: skip
    head = [f"% Compare {' '.join(table.item.split())} of the paper."] if table.item else []
    needs = r"% Needs \usepackage{booktabs} and \usepackage{graphicx}."
    return "\n".join([needs, *head, r"\begin{table}[ht]", *_indented(body), r"\end{table}"]) + "\n"


def escape_latex(text: str) -> str:
    r"""The text, escaped so that LaTeX prints it unchanged, in one paragraph."""
    line = re.sub(r"(?<![\w)-])-(?=\d)", "−", " ".join(text.split()))  # a minus, not a hyphen, before a number
    made = "".join(_ESCAPES.get(sign, sign if _is_known(sign) else _ascii(sign)) for sign in line)
    return re.sub("-(?=-)", "-{}", made)  # two hyphens would become a dash


def _is_known(sign: str) -> bool:
    """Whether LaTeX knows the character without further packages: ASCII, western and central European letters."""
    return " " <= sign <= "~" or (sign.isalpha() and "À" <= sign <= "ž")


def _ascii(sign: str) -> str:
    """The nearest character that LaTeX knows, without accents; a question mark if there is none."""
    parts = unicodedata.normalize("NFKD", sign).replace("\N{FRACTION SLASH}", "/")
    plain = "".join(part for part in parts if not unicodedata.combining(part))
    known = plain and all(" " <= part <= "~" for part in plain)
    return "".join(_ESCAPES.get(part, part) for part in plain) if known else "?"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _width(table: Table) -> int:
    """The width of the table in characters, with each column as wide as its widest text."""
    with_n = common_n(table) is None
    lines = [
        [line.label, *(max(format_cell(cell, with_n=with_n), cell.paper, key=len) for cell in line.cells)]
        for line in lines_of(table)
        if line.cells
    ]
    return sum(max(map(len, column)) + 2 for column in zip(table.columns, *lines, strict=True))


def _tabular(table: Table) -> list[str]:
    with_n = common_n(table) is None
    body: list[str] = []
    for line in lines_of(table):
        body += [r"\midrule"] if line.rule else []
        if not line.cells:
            heading = rf"\textit{{{escape_latex(line.label)}}}"
            body.append(_tex_line([rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{heading}}}"]))
            continue
        label = (r"\quad " if line.below_heading else "") + escape_latex(line.label)
        body.append(_tex_line([label, *(_tex_cell(cell, with_n=with_n) for cell in line.cells)]))
        if any(cell.paper for cell in line.cells):
            texts = [rf"\textit{{{escape_latex(cell.paper)}}}" if cell.paper else "" for cell in line.cells]
            body.append(_tex_line([rf"\quad\textit{{{PAPER}}}", *texts]))
    alignment = "l" + "r" * (len(table.columns) - 1)
    inside = [r"\toprule", *_tex_head(table), *body, r"\bottomrule"]
    return [rf"\begin{{tabular}}{{{alignment}}}", *_indented(inside), r"\end{tabular}"]


def _tex_head(table: Table) -> list[str]:
    """Group titles, column titles, then a rule; with groups, one rule per group, as in the paper."""
    titles = _tex_line([escape_latex(title) for title in table.columns])
    if not table.groups:
        return [titles, r"\midrule"]
    above: list[str] = []
    rules: list[str] = []
    first = 1
    for title, span in table.groups:
        last = first + span - 1
        above.append(rf"\multicolumn{{{span}}}{{c}}{{{escape_latex(title)}}}" if title or span > 1 else "")
        if title:
            rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    above += [""] * (len(table.columns) - first + 1)
    return [_tex_line(above), titles, "".join(rules) or r"\midrule"]


def _tex_line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _tex_cell(cell: Cell, *, with_n: bool) -> str:
    shown = number(cell)
    if shown is None:
        text = escape_latex(cell.text)
        return rf"\textbf{{{text}}}" if cell.best and text else text
    mean = rf"\mathbf{{{shown.mean}}}" if cell.best else shown.mean
    spread = rf" \pm {shown.spread}" if shown.spread else ""
    return f"${mean}{spread}$" + (f" ($n={shown.n}$)" if with_n else "")


# On a terminal --------------------------------------------------------------------------------------------------------

_GAP = 2
"""Characters between two columns: the padding and the box's blank separator."""
_LABEL, _TEXT = 24, 16
"""Characters after which a label, and any other text, may be wrapped."""


def terminal(table: Table, *, width: int = 80) -> Group:
    """Title, grids, caption and notes, for lines of `width` characters.

    Columns that do not fit side by side are spread over several grids.
    """
    title = f"{table.title} (compare {table.item} of the paper)" if table.item else table.title
    shown: list[RenderableType] = [Text(title, style="bold")]
    for index, (columns, widths) in enumerate(_parts(table, width)):
        shown += [*([Text("")] if index else []), _grid(table, columns, widths)]
    caption = caption_of(table)
    notes = [Text(f"- {note}", style="italic") for note in table.notes]
    return Group(*shown, *([Text(caption, style="italic")] if caption else []), *notes)


def _parts(table: Table, width: int) -> list[tuple[list[int], list[int]]]:
    """The columns of each grid and their widths, label column first: as many as fit side by side."""
    with_n = common_n(table) is None
    texts = [[group, title] for group, title in zip(group_titles(table), table.columns, strict=True)]
    texts[0] += [f"  {PAPER}", *(("  " if line.below_heading else "") + line.label for line in lines_of(table))]
    for row in table.rows:
        for column, cell in zip(texts[1:], row.cells, strict=True):
            column += [format_cell(cell, with_n=with_n), cell.paper]
    words = [max([1, *(len(word) for text in column for word in text.split())]) for column in texts]
    # A number with its spread is never wrapped; longer text may be.
    most = [_LABEL, *[_TEXT] * len(table.columns)]
    widths = [max(least, *(len(text) if "±" in text else min(len(text), limit) for text in column))
              for least, column, limit in zip(words, texts, most, strict=False)]  # fmt: skip
    widths[0] += 2 * any(line.below_heading for line in lines_of(table))
    parts: list[list[int]] = []
    for index in range(1, len(widths)):
        if parts and sum(widths[at] + _GAP for at in (0, *parts[-1], index)) - _GAP <= width:
            parts[-1].append(index)
        else:
            parts.append([index])
    return [([0, *part], [widths[at] for at in (0, *part)]) for part in parts]


def _grid(table: Table, columns: Sequence[int], widths: Sequence[int]) -> Grid:
    with_n = common_n(table) is None
    titles = group_titles(table)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for at, width in zip(columns, widths, strict=True):
        head = Text("\n".join(filter(None, (titles[at], table.columns[at]))))
        grid.add_column(head, justify="right" if at else "left", width=width, overflow="fold", vertical="bottom")
    for line in lines_of(table):
        if line.rule:
            grid.add_section()
        if not line.cells:
            grid.add_row(Text(line.label, style="bold"))
            continue
        indent = 2 if line.below_heading else 0
        cells = [line.cells[at - 1] for at in columns[1:]]
        texts = [Text(format_cell(cell, with_n=with_n), style="bold" if cell.best else "") for cell in cells]
        grid.add_row(Padding(Text(line.label), (0, 0, 0, indent)), *texts)
        if any(cell.paper for cell in cells):
            grid.add_row(" " * (indent + 2) + PAPER, *(Text(cell.paper) for cell in cells), style="dim")
    return grid
