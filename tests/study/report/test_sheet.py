"""Cells: mean, standard deviation and n by numpy, and a dash rather than a mean of what is left."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.sheet import Cell, Sheet

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.sampled_from([1.0, 100.0, 1000.0]))
def test_a_cell_has_numpys_mean_and_standard_deviation_of_a_sample(values: list[float], scale: float):
    cell = Cell.of(values, scale=scale, digits=3, paper="78.55")
    assert cell.mean == pytest.approx(np.mean(np.multiply(values, scale)), rel=1e-9, abs=1e-9)
    assert cell.n == len(values) and cell.digits == 3 and cell.paper == "78.55" and cell.text == ""
    if len(values) == 1:
        assert cell.std is None, "one value has no spread"
    else:
        assert cell.std == pytest.approx(np.std(np.multiply(values, scale), ddof=1), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_where_one_value_is_missing_there_is_no_mean_of_the_others(missing: float | None, place: int):
    values: list[float | None] = [0.5, 0.25]
    values.insert(place, missing)
    assert Cell.of(values, scale=100, paper="78.55") == Cell(text="–", paper="78.55")


def test_without_values_there_is_a_dash():
    assert Cell.of([]) == Cell(text="–")


def test_equal_values_have_no_spread_but_an_n():
    assert Cell.of([0.1] * 3, scale=100) == Cell(mean=pytest.approx(10.0), std=pytest.approx(0.0), n=3)


def test_a_number_is_never_marked_the_best_by_itself():
    assert not Cell.of([1.0, 2.0]).best


def test_a_sheet_needs_no_more_than_its_rows():
    sheet = Sheet(name="a/b", title="A", columns=["", "x"], rows=[("one", [Cell.of([1.0])])])
    assert (sheet.groups, sheet.breaks, sheet.caption, sheet.item, sheet.study, sheet.scale) == ((), (), "", "", "", "")
    assert sheet.notes == ()
