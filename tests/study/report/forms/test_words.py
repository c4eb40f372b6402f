"""What all forms say alike: numbers never without spread and n, and headings from what labels have in common."""

import pytest

from emabank.study.report.forms.words import caption, common_n, has_paper, lines, number, over, shown
from emabank.study.report.sheet import Cell, Sheet
from tests.study.report.forms.made_sheets import everything, of, single, uneven


def sheet(*labels: str, breaks: tuple[int, ...] = ()) -> Sheet:
    rows = [(label, [Cell(text=str(at))]) for at, label in enumerate(labels)]
    return Sheet(name="", title="", columns=["", "a"], rows=rows, breaks=breaks)


@pytest.mark.parametrize(
    ("cell", "with_n", "expected"),
    [
        (Cell(mean=78.545, std=0.284, n=3), False, "78.55 ± 0.28"),
        (Cell(mean=78.545, std=0.284, n=3), True, "78.55 ± 0.28 (n=3)"),
        (Cell(mean=1.0, std=0.0, n=2, digits=3), False, "1.000 ± 0.000"),
        (Cell(mean=78.5, n=1), False, "78.50 ± –"),
        (Cell(mean=78.5, n=1), True, "78.50 ± – (n=1)"),
        (Cell(mean=-0.001, std=0.5, n=2), False, "0.00 ± 0.50"),
        (Cell(text="[1, 2]"), True, "[1, 2]"),
        (Cell(), True, ""),
    ],
)
def test_a_number_is_shown_with_its_spread_and_a_single_value_says_that_it_has_none(cell, with_n, expected):
    assert shown(cell, with_n=with_n) == expected


def test_n_is_said_once_where_all_numbers_have_the_same_and_beside_each_elsewhere():
    assert common_n(everything()) == 3 and caption(everything()).endswith("n = 3.")
    assert common_n(uneven()) is None and "n beside each number" in caption(uneven())
    assert common_n(single()) == 1 and "no spread" in caption(single())


def test_a_sheet_of_texts_alone_has_no_n():
    assert caption(sheet("x")) == "" and common_n(sheet("x")) is None


def test_every_column_has_its_group_over_it_also_where_groups_are_too_few():
    assert over(everything()) == ["", "SGD", "SGD", "EMA_1 & co"]
    assert over(Sheet(name="", title="", columns=["", "a", "b"], rows=[], groups=[("", 1), ("A", 1)])) == ["", "A", ""]


def test_labels_of_neighbours_share_a_heading_and_a_label_alone_keeps_its_beginning():
    made = lines(sheet("A: x", "A: y", "B: x", "z", "A: x"))
    assert [(line.label, line.below_heading, bool(line.cells)) for line in made] == [
        ("A", False, False), ("x", True, True), ("y", True, True), ("B: x", False, True), ("z", False, True),
        ("A: x", False, True),
    ]  # fmt: skip
    assert [line.cells[0].text for line in made if line.cells] == ["0", "1", "2", "3", "4"]


def test_a_rule_stands_before_the_heading_and_never_before_the_first_line():
    made = lines(sheet("A: x", "A: y", "B: x", "B: y", "c", breaks=(0, 2, 4)))
    assert [line.label for line in made if line.rule] == ["B", "c"]


def test_rows_without_a_colon_never_share_a_heading():
    assert [line.label for line in lines(sheet("same", "same"))] == ["same", "same"]


def test_whether_the_paper_has_anything_is_seen_in_any_cell():
    assert has_paper(everything()) and not has_paper(uneven())


def test_a_cell_with_a_text_is_no_number_whatever_else_it_has():
    assert number(Cell(mean=1.0, text="x")) is None
    assert number(of(1.0, None)) is None
