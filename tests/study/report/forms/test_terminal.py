"""The terminal: no line is too long, no number is broken, and nothing is lost when columns are spread over tables."""

import io
import re

import pytest
from rich.console import Console

from emabank.study.report.forms.terminal import terminal
from emabank.study.report.sheet import Cell, Sheet
from tests.study.report.forms.made_sheets import NASTY, everything, of, single, uneven


def printed(sheet: Sheet, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(terminal(sheet, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def wide(columns: int, *, grouped: bool = False) -> Sheet:
    """Each number says in which row and column it stands."""
    rows = [
        (f"a rather long label of row {row}", [of(row + at / 100, paper=f"{row}.{at:02} ± 9") for at in range(columns)])
        for row in (10, 20, 30)
    ]
    groups = [("", 1), *((f"group {at}", 2) for at in range(columns // 2))] if grouped else []
    return Sheet(name="", title="Wide", columns=["", *(f"c{at}" for at in range(columns))], rows=rows, groups=groups)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("sheet", [everything(), uneven(), wide(12), wide(12, grouped=True)], ids=lambda s: s.title[:6])
def test_no_line_is_longer_than_the_terminal(sheet: Sheet, width: int):
    assert max(map(len, printed(sheet, width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("grouped", [True, False])
def test_every_number_is_whole_and_below_its_title(width: int, grouped: bool):
    place: dict[str, int] = {}
    found: set[str] = set()
    for line in printed(wide(12, grouped=grouped), width).splitlines():
        titles = {match[0]: match.end() for match in re.finditer(r"\bc\d+\b", line)}
        place = titles or place
        for match in re.finditer(r"\b(\d\d)\.(\d\d) ± (?:–|9)", line):
            assert place[f"c{int(match[2])}"] == match.end()
            found.add(match[0])
    assert len(found) == 2 * 3 * 12


def test_columns_of_a_group_stay_together():
    for line in printed(wide(12, grouped=True)).splitlines():
        if "c0" in line or "c2" in line:
            assert len(re.findall(r"\bc\d+\b", line)) % 2 == 0


def test_a_sheet_that_fits_is_one_table():
    assert printed(uneven()).count("───") and len(re.findall(r"^─+$", printed(uneven()), re.M)) == 1
    assert (
        len(re.findall(r"^─+$", printed(wide(12), 200), re.M)) == 1 < len(re.findall(r"^─+$", printed(wide(12)), re.M))
    )


def test_text_is_shown_as_it_is_also_where_rich_knows_markup():
    sheet = Sheet(name="", title="[bold]t[/]", columns=["", "[red]a"], rows=[("[b]x", [Cell(text="[143, 139]")])])
    text = printed(sheet)
    for part in ("[bold]t[/]", "[red]a", "[b]x", "[143, 139]"):
        assert part in text


def test_headings_rules_and_what_the_paper_prints_have_lines_of_their_own():
    lines = [line.rstrip() for line in printed(everything(), 200).splitlines()]
    at = lines.index("data")
    assert lines[at + 1].split()[:4] == ["accuracy", "77.60", "±", "0.10"]
    assert lines[at + 2].split() == ["paper", "77.63", "±", "0.14"]
    assert lines[at + 3].split()[0] == "epochs" and lines[at + 5] == ""


def test_a_broken_label_below_a_heading_stays_indented():
    long = "a label of many words " * 3
    rows = [(f"A: {long}{at}", [of(1.0)] * 4) for at in range(2)]
    lines = printed(Sheet(name="", title="t", columns=["", *"abcd"], rows=rows))
    assert len(re.findall(r"^  (?:a|label|of|many|words|[01])\b", lines, re.M)) >= 4
    assert not re.search(r"^(?:a|label|of|many|words|[01])\b", lines, re.M)


def test_the_best_is_bold_where_there_is_colour():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(terminal(Sheet(name="", title="", columns=["", "a"], rows=[("x", [Cell(text="best", best=True)])])))
    assert re.search(r"\x1b\[1m *best\b", console.file.getvalue())  # type: ignore[attr-defined]


def test_n_item_caption_and_notes_are_said():
    text = " ".join(printed(everything(), 300).split())
    assert "compare Table 1 of the paper" in text and f"Caption {NASTY}. n = 3." in text and f"- {NASTY}" in text
    assert "5.00 ± – (n=1)" in printed(uneven()) and "n = 1: one value has no spread." in printed(single())
