r"""A sheet as LaTeX in the paper's layout: booktabs, titles over groups of columns, `$78.54 \pm 0.28$`, the best bold.

Needs the packages booktabs and graphicx, nothing else; UTF-8. May import the sheet and forms.words.
"""

import re
import unicodedata
from collections.abc import Sequence

from emabank.study.report.forms.words import PAPER, caption, common_n, has_paper, lines, number, shown
from emabank.study.report.sheet import Cell, Sheet

_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    # After \\ and booktabs' rules these two would be read as an argument.
    "[": "{[}", "*": "{*}",
    # Other signs in TeX's old encoding of fonts, or in ligatures.
    "<": "$<$", ">": "$>$", "|": "$|$", '"': "''",
    "±": r"$\pm$", "−": "$-$", "–": r"\textendash{}", "—": r"\textemdash{}", "→": r"$\to$", "×": r"$\times$",
    "÷": r"$\div$", "≤": r"$\leq$",
    "≥": r"$\geq$", "≈": r"$\approx$", "…": r"\dots{}", "·": r"$\cdot$", "∞": r"$\infty$", "α": r"$\alpha$",
    "γ": r"$\gamma$", "η": r"$\eta$", "σ": r"$\sigma$", "’": "'", "‘": "`", "“": "``", "”": "''", "²": "$^2$",
    "\u00a0": "~", "µ": r"$\mu$", "μ": r"$\mu$", "°": r"$^\circ$",
}  # fmt: skip
_WIDE = 95
"""Characters of the longest line that still fit the width of a page in \\small; a wider table is scaled down to it."""


def latex(sheet: Sheet, *, paper: bool = True) -> str:
    r"""A table environment to be included; without `paper` the lines with what the paper prints are left out.

    >>> cells = [Cell(mean=78.543, std=0.284, n=3, paper="78.55 ± 0.28", best=True)]
    >>> made = latex(Sheet(name="a/b", title="Test", columns=["", "EMA"], rows=[("acc., %", cells)]))
    >>> [line.strip() for line in made.splitlines() if "pm" in line]
    ['acc., \\% & $\\mathbf{78.54} \\pm 0.28$ \\\\', '\\quad\\textit{paper} & \\textit{78.55 $\\pm$ 0.28} \\\\']
    """
    tabular = _tabular(sheet, paper=paper and has_paper(sheet))
    if _width(sheet) > _WIDE:
        tabular = [r"\resizebox{\textwidth}{!}{%", *tabular[:-1], tabular[-1] + "}"]
    said = f"{sheet.title.rstrip('.')}. {caption(sheet)}".strip()
    notes = (
        [r"\par\smallskip\raggedright\footnotesize", *(escaped(note) + r"\par" for note in sheet.notes)]
        if sheet.notes
        else []
    )
    made = [
        r"% Needs \usepackage{booktabs} and \usepackage{graphicx}.",
        *([f"% Compare {_one_line(sheet.item)} of the paper."] if sheet.item else []),
        r"\begin{table}[ht]",
        *_indented([r"\small", r"\centering", rf"\caption{{{escaped(said)}}}"]),
        *_indented([rf"\label{{tab:{_key(sheet.name)}}}", *tabular, *notes]),
        r"\end{table}",
    ]
    return "\n".join(made) + "\n"


def escaped(text: str) -> str:
    r"""A text that LaTeX prints as it is, in one paragraph.

    >>> escaped("50% of A_1 & B [x]"), escaped("0.9 ± 0.1"), escaped("中")
    ('50\\% of A\\_1 \\& B {[}x]', '0.9 $\\pm$ 0.1', '?')
    """
    made = "".join(_ESCAPES.get(sign, sign if _known(sign) else _ascii(sign)) for sign in _signed(_one_line(text)))
    return re.sub("-(?=-)", "-{}", made)  # two hyphens would become a dash


def _signed(text: str) -> str:
    """With a minus, not a hyphen, before a number."""
    return re.sub(r"(?<![\w)-])-(?=\d)", "−", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _known(sign: str) -> bool:
    """Whether LaTeX knows it without further packages: ASCII, and the letters of western and central Europe."""
    return " " <= sign <= "~" or (sign.isalpha() and "À" <= sign <= "ž")


def _ascii(sign: str) -> str:
    """The nearest that LaTeX knows, without accents; a question mark where there is nothing."""
    parts = unicodedata.normalize("NFKD", sign).replace("\N{FRACTION SLASH}", "/")
    plain = "".join(each for each in parts if not unicodedata.combining(each))
    known = plain and all(" " <= each <= "~" for each in plain)
    return "".join(_ESCAPES.get(each, each) for each in plain) if known else "?"


def _key(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _width(sheet: Sheet) -> int:
    """Characters of the longest line, if each column is as wide as its widest text."""
    with_n = common_n(sheet) is None
    columns = [[title] for title in sheet.columns]
    for label, cells in ((line.label, line.cells) for line in lines(sheet) if line.cells):
        texts = [label, *(max(shown(cell, with_n=with_n), cell.paper, key=len) for cell in cells)]
        for column, text in zip(columns, texts, strict=True):
            column.append(text)
    return sum(max(map(len, column)) + 2 for column in columns)


def _tabular(sheet: Sheet, *, paper: bool) -> list[str]:
    with_n = common_n(sheet) is None
    body: list[str] = []
    for line in lines(sheet):
        body += [r"\midrule"] if line.rule else []
        if not line.cells:
            body.append(_line([rf"\multicolumn{{{len(sheet.columns)}}}{{l}}{{\textit{{{escaped(line.label)}}}}}"]))
            continue
        label = (r"\quad " if line.below_heading else "") + escaped(line.label)
        body.append(_line([label, *(_cell(cell, with_n=with_n) for cell in line.cells)]))
        if paper and any(cell.paper for cell in line.cells):
            texts = [rf"\textit{{{escaped(cell.paper)}}}" if cell.paper else "" for cell in line.cells]
            body.append(_line([rf"\quad\textit{{{PAPER}}}", *texts]))
    alignment = "l" + "r" * (len(sheet.columns) - 1)
    whole = [r"\toprule", *_head(sheet), *body, r"\bottomrule"]
    return [rf"\begin{{tabular}}{{{alignment}}}", *_indented(whole), r"\end{tabular}"]


def _head(sheet: Sheet) -> list[str]:
    """The titles, those of groups above them; then a rule, in parts where there are groups, as the paper has it."""
    titles = _line([escaped(title) for title in sheet.columns])
    if not sheet.groups:
        return [titles, r"\midrule"]
    spans: list[str] = []
    rules: list[str] = []
    first = 1
    for title, span in sheet.groups:
        last = first + span - 1
        spans.append(rf"\multicolumn{{{span}}}{{c}}{{{escaped(title)}}}" if title or span > 1 else "")
        if title:
            rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    spans += [""] * (len(sheet.columns) - first + 1)
    return [_line(spans), titles, "".join(rules) or r"\midrule"]


def _line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _cell(cell: Cell, *, with_n: bool) -> str:
    found = number(cell)
    if found is None:
        text = escaped(cell.text)
        return rf"\textbf{{{text}}}" if cell.best and text else text
    mean = rf"\mathbf{{{found.mean}}}" if cell.best else found.mean
    value = rf"${mean} \pm$ --" if found.spread is None else rf"${mean} \pm {found.spread}$"
    return value + (f" ($n={found.n}$)" if with_n else "")
