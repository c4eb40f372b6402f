"""Tables as CSV, Markdown, LaTeX and on a terminal, with any text in them."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from emabank.study.report.render import (
    caption_of,
    common_n,
    escape_latex,
    format_cell,
    latex,
    markdown,
    table_csv,
    terminal,
)
from emabank.study.report.tables import Cell, Row, Table

NASTY = r"50% & {A_1} #2 $x^2$ ~ \b <i> [1] *a* `c` | α → ± 3 − 2"
"""Special characters of LaTeX, Markdown, rich and CSV."""


def make_cell(*values: float | None, **more: object) -> Cell:
    return Cell.of(values, **more)  # type: ignore[arg-type]


def full_table() -> Table:
    """Groups, rules, headings, numbers with and without a value of the paper, lists, dashes and text to escape."""
    return Table(
        name="study/table-1", title=f"Title {NASTY}", columns=["what", "acc., %", "loss", "acc., %"],
        groups=[("", 1), ("SGD", 2), ("EMA_1 & co", 1)],
        rows=[
            Row("accuracy", [make_cell(77.5, 77.7, 77.6, paper="77.63 ± 0.14"), make_cell(1, 1.1, 1.2, digits=3),
                             make_cell(78, 79, 80)], "data"),
            Row("epochs", [Cell(text="[143, 139, 156]", paper="[1, 2, 3]"), Cell(text="–"), Cell()], "data"),
            Row(NASTY, [Cell(text=NASTY), Cell(mean=-0.5, std=0.25, n=3, best=True), make_cell(None, 1.0)]),
            Row("[first] * of all",
                [make_cell(-0.0001, 0.0001, 0.0), Cell(text="bold", best=True), Cell(paper="0.998")]),
        ],
        breaks=[2, 3], caption=f"Caption {NASTY}.", item="Table 1", study="study", scale="demo", notes=(NASTY, "Two."),
    )  # fmt: skip


def uneven_table() -> Table:
    """Numbers with different n, one of them a single value."""
    return Table(
        name="study/uneven", title="Uneven", columns=["", "a", "b"], caption="Caption.",
        rows=[Row("three", [make_cell(1.0, 2.0, 3.0), make_cell(1.0, 3.0)]),
              Row("one", [make_cell(5.0), Cell(text="–")])],
    )  # fmt: skip


def single_run_table() -> Table:
    rows = [Row("one", [make_cell(5.0)]), Row("two", [make_cell(6.25)])]
    return Table(name="study/single", title="Single", columns=["", "a"], rows=rows)


# All formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "with_n", "expected"),
    [
        (Cell(mean=78.545, std=0.284, n=3), False, "78.55 ± 0.28"),
        (Cell(mean=78.545, std=0.284, n=3), True, "78.55 ± 0.28 (n=3)"),
        (Cell(mean=1.0, std=0.0, n=2, digits=3), False, "1.000 ± 0.000"),
        (Cell(mean=78.5, n=1), False, "78.50"),
        (Cell(mean=78.5, n=1), True, "78.50 (n=1)"),
        (Cell(mean=-0.001, std=0.5, n=2), False, "0.00 ± 0.50"),
        (Cell(text="[1, 2]"), True, "[1, 2]"),
        (Cell(), True, ""),
    ],
)
def test_a_number_is_shown_with_its_spread_and_a_single_value_without(cell, with_n, expected):
    assert format_cell(cell, with_n=with_n) == expected


def test_n_is_in_the_caption_if_common_and_beside_each_number_otherwise():
    assert common_n(full_table()) == 3 and caption_of(full_table()).endswith("n = 3.")
    assert common_n(uneven_table()) is None and "n beside each number" in caption_of(uneven_table())
    assert common_n(single_run_table()) == 1 and "no spread" in caption_of(single_run_table())


# CSV ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("78.54 ± 0.28", ["78.54", "0.28"]), ("198", ["198", ""]), ("−0.18", ["-0.18", ""]), ("[1, 2]", ["", ""]),
     ("T = 16", ["", ""]), ("23.7M", ["", ""])],
)  # fmt: skip
def test_numbers_printed_in_the_paper_become_csv_numbers_and_empty_cells_nothing(text, expected):
    table = Table(name="", title="", columns=["", "a", "b"], rows=[Row("x", [Cell(paper=text), Cell()])])
    (found,) = csv.DictReader(io.StringIO(table_csv(table)))
    assert [found["paper_mean"], found["paper_std"]] == expected


# Markdown -------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=30))
def test_any_text_stays_in_its_markdown_cell(text: str):
    rows = [Row(text, [Cell(text=text)]), Row("end", [Cell(text="x")])]
    table = Table(name="", title="", columns=["", "a"], rows=rows)
    lines = [line for line in markdown(table).split("\n") if line.startswith("|")]
    assert len(lines) == 4
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3


# Terminal -------------------------------------------------------------------------------------------------------------


def output_of(table: Table, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(terminal(table, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def wide(columns: int, *, grouped: bool = False) -> Table:
    """Each number encodes its row and column."""
    rows = [Row(f"a rather long label of row {row}",
                [make_cell(row + column / 100, paper=f"{row}.{column:02} ± 9") for column in range(columns)])
            for row in (10, 20, 30)]  # fmt: skip
    groups = [("", 1), *((f"group {group}", 2) for group in range(columns // 2))] if grouped else []
    titles = ["", *(f"c{column}" for column in range(columns))]
    return Table(name="", title="Wide", columns=titles, rows=rows, groups=groups)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize(
    "table", [full_table(), uneven_table(), wide(12), wide(12, grouped=True)], ids=lambda table: table.title[:6]
)
def test_no_line_is_longer_than_the_terminal(table: Table, width: int):
    assert max(map(len, output_of(table, width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("grouped", [True, False])
def test_every_number_on_a_terminal_is_whole_and_below_its_title(width: int, grouped: bool):
    place: dict[str, int] = {}
    found: set[str] = set()
    for line in output_of(wide(12, grouped=grouped), width).splitlines():
        titles = {match[0]: match.end() for match in re.finditer(r"\bc\d+\b", line)}
        place = titles or place
        for match in re.finditer(r"\b(\d\d)\.(\d\d)(?: ± 9)?", line):
            assert place[f"c{int(match[2])}"] == match.end()
            found.add(match[0])
    assert len(found) == 2 * 3 * 12


def test_rich_markup_in_text_is_printed_literally():
    table = Table(name="", title="[bold]t[/]", columns=["", "[red]a"], rows=[Row("[b]x", [Cell(text="[143, 139]")])])
    text = output_of(table)
    for part in ("[bold]t[/]", "[red]a", "[b]x", "[143, 139]"):
        assert part in text


# LaTeX, checked without a LaTeX installation --------------------------------------------------------------------------


COMMANDS = {
    "begin", "end", "small", "centering", "caption", "label", "toprule", "midrule", "cmidrule", "bottomrule", "quad",
    "multicolumn", "textit", "textbf", "mathbf", "pm", "par", "smallskip", "raggedright", "footnotesize", "resizebox",
    "textwidth", "textbackslash", "textasciitilde", "textasciicircum", "textendash", "textemdash", "to", "times", "leq",
    "geq", "approx", "dots", "alpha", "mu", "circ",
}  # fmt: skip
"""The commands of LaTeX, booktabs and graphicx that a table may use."""


def check_latex(text: str) -> None:
    """Assert that environments, braces, formulas and columns match."""
    lines = [re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines()]
    plain = re.sub(r"\\[\\&%$#_{}]", "", "\n".join(lines))
    depth, stack, math = 0, [], False
    for token in re.finditer(r"\\(begin|end)\{(\w+)\}|[{}$&#_^~]|\\([A-Za-z]+)", plain):
        found = token[0]
        if token[1] == "begin":
            stack.append(token[2])
        elif token[1] == "end":
            assert stack and stack.pop() == token[2], f"\\end{{{token[2]}}} closes nothing"
        elif found in "{}":
            depth += 1 if found == "{" else -1
            assert depth >= 0, "a brace too many"
        elif found == "$":
            math = not math
        elif found in "#_~":
            raise AssertionError(f"{found} is not escaped")
        elif found == "^":
            assert math, "^ outside a formula"
        elif token[3]:
            assert token[3] in COMMANDS, f"\\{token[3]} needs another package"
    assert (depth, stack, math) == (0, [], False)
    whole = "\n".join(lines)
    (spec,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", whole)
    inside = whole.split(r"\begin{tabular}")[1].split(r"\end{tabular}")[0]
    rows = [line.strip() for line in inside.splitlines() if line.rstrip().endswith(r"\\")]
    for row in rows:
        assert columns_in(row) == len(spec), f"{columns_in(row)} columns, not {len(spec)}: {row}"
    for first, last in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", whole):
        assert 1 <= int(first) <= int(last) <= len(spec)
    assert not re.search(r"(?:\\\\|rule)\s*[\[*]", inside), "an argument of \\\\ or of a rule"


def columns_in(row: str) -> int:
    cells = re.split(r"(?<!\\)&", row)
    return sum(int(found[1]) if (found := re.search(r"\\multicolumn\{(\d+)\}", cell)) else 1 for cell in cells)


@pytest.mark.parametrize("table", [full_table(), uneven_table(), single_run_table()], ids=lambda table: table.title[:6])
def test_latex_is_well_formed_and_needs_only_two_packages(table: Table):
    check_latex(latex(table))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100% of R&D_1", r"100\% of R\&D\_1"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("--scale", "-{}-scale"),
        ("---", "-{}-{}-"),
        ("ResNet-18", "ResNet-18"),
        ("a -0.5 b", "a $-$0.5 b"),
        ("1e-4", "1e-4"),
        ("two\nlines", "two lines"),
        ("é ž", "é ž"),
        ("ﬁ ½ ḱ 中", "fi 1/2 k ?"),
    ],
)
def test_latex_special_characters_are_escaped(text: str, expected: str):
    assert escape_latex(text) == expected


@given(st.text(max_size=30))
def test_any_text_gives_well_formed_latex(text: str):
    cells = [Cell(text=text, paper=text, best=True)]
    table = Table(name=text, title=text, columns=[text, text], rows=[Row(text, cells)], notes=[text], caption=text)
    check_latex(latex(table))
