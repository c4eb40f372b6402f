"""Markdown: as many cells in each line as titles, nothing taken for markup, the paper's values below ours."""

import re

from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.forms.markdown import markdown
from emabank.study.report.sheet import Cell, Sheet
from tests.study.report.forms.made_sheets import NASTY, everything, single, uneven


def table(text: str) -> list[list[str]]:
    """The cells of each line of the table, split as Markdown splits them."""
    found = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]


def unescaped(text: str) -> str:
    return re.sub(r"\\([\\`*_<|~$(])", r"\1", text).replace("&amp;", "&")


def test_every_line_has_as_many_cells_as_there_are_columns():
    assert {len(line) for line in table(markdown(everything()))} == {4}


def test_titles_of_groups_stand_before_those_of_their_columns():
    head = table(markdown(everything()))[0]
    assert [unescaped(each) for each in head] == ["what", "SGD: acc., %", "SGD: loss", "EMA_1 & co: acc., %"]


def test_numbers_lists_dashes_and_what_the_paper_prints_are_in_their_places():
    found = table(markdown(everything()))[2:]
    assert found[0] == ["**data**", "", "", ""]
    assert found[1] == ["accuracy", "77.60 ± 0.10", "1.100 ± 0.100", "79.00 ± 1.00"]
    assert found[2] == ["*paper*", "*77.63 ± 0.14*", "", ""]
    assert found[3] == ["epochs", "[143, 139, 156]", "–", ""]
    assert found[5] == [""] * 4  # a rule
    assert found[6][2:] == ["**-0.50 ± 0.25**", "–"]


def test_the_best_is_bold_and_nothing_empty_is_marked():
    text = markdown(everything())
    assert "**bold**" in text and "****" not in text and "| ** " not in text


def test_n_stands_beside_numbers_that_do_not_share_it_and_a_single_run_has_no_spread():
    assert "| 2.00 ± 1.00 (n=3) | 2.00 ± 1.41 (n=2) |" in markdown(uneven())
    assert "| 5.00 ± – |" in markdown(single()) and "n = 1: one value has no spread." in markdown(single())


def test_title_item_caption_and_notes_are_there_in_this_order():
    text = unescaped(markdown(everything()))
    places = [
        text.index(part) for part in (f"### Title {NASTY}", "Table 1 of the paper", "| what |", "Caption", "- Two.")
    ]
    assert places == sorted(places)


@given(st.text(max_size=30))
def test_any_text_stays_in_its_cell(text: str):
    sheet = Sheet(name="", title="", columns=["", "a"], rows=[(text, [Cell(text=text)]), ("end", [Cell(text="x")])])
    found = [line for line in markdown(sheet).split("\n") if line.startswith("|")]
    assert len(found) == 4
    for line in found:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
