r"""LaTeX: every brace, environment and column balances, whatever the text; the paper's layout.

There may be no LaTeX where the tests run, so a small reader of what the form writes stands in for it.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.render import escape_latex, latex
from emabank.study.report.tables import Cell, Row, Table
from tests.study.report.made_tables import everything, single, uneven

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
        assert width(row) == len(spec), f"{width(row)} columns, not {len(spec)}: {row}"
    for first, last in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", whole):
        assert 1 <= int(first) <= int(last) <= len(spec)
    assert not re.search(r"(?:\\\\|rule)\s*[\[*]", inside), "an argument of \\\\ or of a rule"
    return rows


def width(row: str) -> int:
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
