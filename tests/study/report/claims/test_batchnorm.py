"""Claim 5 on curves that are written down, with numpy's least squares beside its slopes."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claims.batchnorm import QUESTIONS
from emabank.study.report.evidence import Curve
from tests.study.report.claims.shapes import AVERAGES, by_hand, curves, setting, values

(QUESTION,) = QUESTIONS


def accuracy(name: str, batchnorm: str) -> tuple[str, str, str, str]:
    return name, batchnorm, "test", "accuracy"


def four_epochs():
    """Of a and b the slowest is b; validation chose epochs 2 (accuracy) and 1 (loss)."""
    return by_hand(
        {
            accuracy("a", "averaged"): [[0.5, 0.5, 0.5, 0.5]],
            accuracy("a", "recomputed"): [[0.5, 0.7, 0.6, 0.5]],
            accuracy("b", "averaged"): [[0.1, 0.6, 0.7, 0.6]],
            accuracy("b", "recomputed"): [[0.5, 0.7, 0.7, 0.8]],
        }
    )


def test_early_is_the_first_quarter_of_the_slowest_average():
    assert values(QUESTION, 0, four_epochs()) == [[pytest.approx(40.0)]]


def test_the_gain_at_the_choice_is_the_mean_of_both_chosen_epochs():
    assert values(QUESTION, 1, four_epochs()) == [[pytest.approx((10.0 + 40.0) / 2)]]


def test_slopes_go_from_one_average_to_the_next_slower():
    """Peaks at epochs 2 and 4 of 4, 70% and 80%."""
    assert values(QUESTION, 2, four_epochs()) == [[pytest.approx(50.0)]]
    assert values(QUESTION, 3, four_epochs()) == [[pytest.approx(10.0)]]


def test_slopes_are_those_of_least_squares():
    found = curves(0)
    recomputed = [found[Curve(name, "recomputed", "test", "accuracy")] for name in AVERAGES]
    epochs = [100 * (np.argmax(curve) + 1) / len(curve) for curve in recomputed]
    heights = [100 * curve.max() for curve in recomputed]
    assert values(QUESTION, 2, setting())[0][0] == pytest.approx(np.polyfit(range(5), epochs, 1)[0])
    assert values(QUESTION, 3, setting())[0][0] == pytest.approx(np.polyfit(range(5), heights, 1)[0])


def test_networks_without_batch_norm_do_not_take_part():
    for place in range(4):
        assert values(QUESTION, place, replace(four_epochs(), has_batchnorm=False)) == []


def test_runs_that_were_not_recomputed_each_epoch_do_not_take_part():
    bare = by_hand({accuracy("a", "averaged"): [[0.5]], accuracy("b", "averaged"): [[0.5]]})
    assert [values(QUESTION, place, bare) for place in range(4)] == [[]] * 4
