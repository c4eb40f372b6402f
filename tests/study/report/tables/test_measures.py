"""From values to cells: a missing value is a dash, differences are paired, and the best is found as it is shown."""

import numpy as np

from emabank.study.report.sheet import Cell
from emabank.study.report.tables.measures import REFIT, TUNED, cell, difference, subtracted, with_best
from tests.study.report.tables.looking import is_mean_of, setting, with_values

KEY = ("100%", "test", "SWA", "accuracy")


def test_a_cell_is_mean_and_spread_of_the_values_and_a_missing_one_makes_it_a_dash():
    one = with_values(setting(), {KEY: [0.7, 0.8, 0.75]})
    assert is_mean_of(cell(one, "SWA", "accuracy", REFIT), [0.7, 0.8, 0.75])
    assert cell(with_values(one, {KEY: [0.7, None, 0.75]}), "SWA", "accuracy", REFIT).text == "–"
    assert cell(one, "SWA", "accuracy", TUNED).text == "–" and cell(one, "SWA", "unknown", REFIT).text == "–"


def test_differences_are_paired_by_seed_so_what_seeds_share_does_not_spread():
    sgd, swa = [0.5, 0.6, 0.7], [0.52, 0.63, 0.71]
    one = with_values(setting(), {KEY: swa, ("100%", "test", "SGD", "accuracy"): sgd})
    found = difference(one, "SWA", "accuracy", REFIT)
    assert is_mean_of(found, np.subtract(swa, sgd).tolist())
    assert found.std is not None and found.std < 1.5 < 100 * np.std(sgd)


def test_values_that_are_no_pairs_have_no_difference():
    one = with_values(setting(), {KEY: [0.5, 0.6]})
    assert difference(one, "SWA", "accuracy", REFIT).text == "–"
    assert subtracted([1.0, None], [None, 1.0]) == [None, None]


def test_the_best_is_marked_by_what_is_shown_and_only_among_the_places_given():
    cells = [Cell(mean=1.004, n=1), Cell(mean=1.001, n=1), Cell(mean=0.9, n=1), Cell(mean=5.0, n=1), Cell(text="–")]
    assert [each.best for each in with_best(cells, (0, 1, 2, 4))] == [True, True, False, False, False]
    assert [each.best for each in with_best(cells, (0, 1, 2), lower=True)] == [False, False, True, False, False]
    assert not any(each.best for each in with_best(cells, (0, 4)))
