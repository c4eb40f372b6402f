"""Tables as CSV, Markdown, LaTeX and on a terminal: nothing is lost, broken or taken for markup, whatever the text."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from emabank.study.report.render import (
    CSV_FIELDS,
    caption_of,
    common_n,
    escape_latex,
    format_cell,
    latex,
    lines_of,
    markdown,
    table_csv,
    terminal,
)
from emabank.study.report.tables import Cell, Row, Table
from tests.study.report.made_tables import NASTY, everything, of, single, uneven

# What all forms say alike ---------------------------------------------------------------------------------------------


def labelled(*labels: tuple[str, str], breaks: tuple[int, ...] = ()) -> Table:
    rows = [Row(label, [Cell(text=str(at))], group) for at, (group, label) in enumerate(labels)]
    return Table(name="", title="", columns=["", "a"], rows=rows, breaks=breaks)


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
def test_a_number_is_shown_with_its_spread_and_a_single_value_says_that_it_has_none(cell, with_n, expected):
    assert format_cell(cell, with_n=with_n) == expected


def test_n_is_said_once_where_all_numbers_have_the_same_and_beside_each_elsewhere():
    assert common_n(everything()) == 3 and caption_of(everything()).endswith("n = 3.")
    assert common_n(uneven()) is None and "n beside each number" in caption_of(uneven())
    assert common_n(single()) == 1 and "no spread" in caption_of(single())


def test_labels_of_neighbours_share_a_heading_and_a_label_alone_keeps_its_beginning():
    made = lines_of(labelled(("A", "x"), ("A", "y"), ("B", "x"), ("", "z"), ("A", "x")))
    assert [(line.label, line.below_heading, bool(line.cells)) for line in made] == [
        ("A", False, False), ("x", True, True), ("y", True, True), ("B: x", False, True), ("z", False, True),
        ("A: x", False, True),
    ]  # fmt: skip
    assert [line.cells[0].text for line in made if line.cells] == ["0", "1", "2", "3", "4"]


def test_a_rule_stands_before_the_heading_and_never_before_the_first_line():
    made = lines_of(labelled(("A", "x"), ("A", "y"), ("B", "x"), ("B", "y"), ("", "c"), breaks=(0, 2, 4)))
    assert [line.label for line in made if line.rule] == ["B", "c"]


# CSV ------------------------------------------------------------------------------------------------------------------


def records(made: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_csv(made))))


def test_numbers_come_back_in_full_precision():
    values = [0.1234567890123, 0.2, 0.7]
    made = Table(name="t", title="", columns=["", "a"], rows=[Row("x", [of(*values, scale=100)])])
    (found,) = records(made)
    assert float(found["mean"]) == pytest.approx(np.mean(values) * 100, rel=1e-14)
    assert float(found["std"]) == pytest.approx(np.std(values, ddof=1) * 100, rel=1e-14)
    assert found["n"] == "3"


def test_text_with_quotes_commas_and_signs_comes_back_as_it_was():
    found = [each for each in records(everything()) if each["row"] == NASTY]
    assert found[0]["text"] == NASTY
    assert {each["title"] for each in found} == {f"Title {NASTY}"}
    assert {(each["table"], each["scale"], each["item"]) for each in found} == {("study/table-1", "demo", "Table 1")}


def test_pandas_reads_numbers_as_numbers_and_files_of_two_sheets_make_one_frame():
    frame = pd.concat(
        [pd.read_csv(io.StringIO(table_csv(made))) for made in (everything(), single())], ignore_index=True
    )
    assert tuple(frame.columns) == CSV_FIELDS
    assert frame["mean"].dtype == float and frame["paper_mean"].dtype == float
    ours = frame[frame["row"] == "data: accuracy"].iloc[0]
    assert ours["mean"] == pytest.approx(77.6) and (ours["paper_mean"], ours["paper_std"]) == (77.63, 0.14)
    assert frame.loc[frame["table"] == "study/single", "mean"].tolist() == [5.0, 6.25]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("78.54 ± 0.28", ["78.54", "0.28"]), ("198", ["198", ""]), ("−0.18", ["-0.18", ""]), ("[1, 2]", ["", ""]),
     ("T = 16", ["", ""]), ("23.7M", ["", ""])],
)  # fmt: skip
def test_what_the_paper_prints_becomes_numbers_where_it_is_one(text, expected):
    (found,) = records(Table(name="", title="", columns=["", "a"], rows=[Row("x", [Cell(paper=text)])]))
    assert [found["paper_mean"], found["paper_std"]] == expected


# Markdown -------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=30))
def test_any_text_stays_in_its_cell(text: str):
    made = Table(
        name="", title="", columns=["", "a"], rows=[Row(text, [Cell(text=text)]), Row("end", [Cell(text="x")])]
    )
    found = [line for line in markdown(made).split("\n") if line.startswith("|")]
    assert len(found) == 4
    for line in found:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3


# On a terminal --------------------------------------------------------------------------------------------------------


def printed(made: Table, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(terminal(made, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def wide(columns: int, *, grouped: bool = False) -> Table:
    """Each number says in which row and column it stands."""
    rows = [
        Row(
            f"a rather long label of row {row}",
            [of(row + at / 100, paper=f"{row}.{at:02} ± 9") for at in range(columns)],
        )
        for row in (10, 20, 30)
    ]
    groups = [("", 1), *((f"group {at}", 2) for at in range(columns // 2))] if grouped else []
    return Table(name="", title="Wide", columns=["", *(f"c{at}" for at in range(columns))], rows=rows, groups=groups)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("made", [everything(), uneven(), wide(12), wide(12, grouped=True)], ids=lambda s: s.title[:6])
def test_no_line_is_longer_than_the_terminal(made: Table, width: int):
    assert max(map(len, printed(made, width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("grouped", [True, False])
def test_every_number_is_whole_and_below_its_title(width: int, grouped: bool):
    place: dict[str, int] = {}
    found: set[str] = set()
    for line in printed(wide(12, grouped=grouped), width).splitlines():
        titles = {match[0]: match.end() for match in re.finditer(r"\bc\d+\b", line)}
        place = titles or place
        for match in re.finditer(r"\b(\d\d)\.(\d\d)(?: ± 9)?", line):
            assert place[f"c{int(match[2])}"] == match.end()
            found.add(match[0])
    assert len(found) == 2 * 3 * 12


def test_text_is_shown_as_it_is_also_where_rich_knows_markup():
    made = Table(name="", title="[bold]t[/]", columns=["", "[red]a"], rows=[Row("[b]x", [Cell(text="[143, 139]")])])
    text = printed(made)
    for part in ("[bold]t[/]", "[red]a", "[b]x", "[143, 139]"):
        assert part in text


# LaTeX: there may be none here, so a small reader of what is written stands in for it ---------------------------------


COMMANDS = {
    "begin", "end", "small", "centering", "caption", "label", "toprule", "midrule", "cmidrule", "bottomrule", "quad",
    "multicolumn", "textit", "textbf", "mathbf", "pm", "par", "smallskip", "raggedright", "footnotesize", "resizebox",
    "textwidth", "textbackslash", "textasciitilde", "textasciicircum", "textendash", "textemdash", "to", "times", "leq",
    "geq", "approx", "dots", "alpha", "mu", "circ",
}  # fmt: skip
"""What LaTeX with booktabs and graphicx knows; the form must use nothing else."""


def checked(text: str) -> list[str]:
    """The lines of a tabular, after everything in the text was found to balance."""
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
    return rows


def columns_in(row: str) -> int:
    """How many columns a line of a tabular fills."""
    cells = re.split(r"(?<!\\)&", row)
    return sum(int(found[1]) if (found := re.search(r"\\multicolumn\{(\d+)\}", cell)) else 1 for cell in cells)


@pytest.mark.parametrize("made", [everything(), uneven(), single()], ids=lambda made: made.title[:6])
def test_everything_balances_and_needs_two_packages_only(made: Table):
    checked(latex(made))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (r"\bottomrule", r"\bottomrule}"),
        (r"\end{tabular}", ""),
        (" & ", " "),
        (r"\pm", r"\plusminus"),
        (r"\_", "_"),
        ("{[}first]", "[first]"),
        (r"\cmidrule(lr){2-3}", r"\cmidrule(lr){2-5}"),
    ],
)
def test_the_check_finds_what_would_not_compile(good: str, bad: str):
    text = latex(everything())
    assert good in text
    with pytest.raises((AssertionError, ValueError)):
        checked(text.replace(good, bad, 1))


def test_a_table_too_wide_for_the_page_is_scaled_to_it():
    assert r"\resizebox" not in latex(uneven())
    wide = [Cell(text="x" * 20)] * 8
    text = latex(Table(name="", title="", columns=["", *"abcdefgh"], rows=[Row("row", wide)]))
    assert r"\resizebox{\textwidth}{!}{%" in text
    checked(text)


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
def test_signs_are_printed_as_they_are(text: str, expected: str):
    assert escape_latex(text) == expected


@given(st.text(max_size=30))
def test_any_text_balances(text: str):
    cells = [Cell(text=text, paper=text, best=True)]
    checked(
        latex(Table(name=text, title=text, columns=[text, text], rows=[Row(text, cells)], notes=[text], caption=text))
    )
