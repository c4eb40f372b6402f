"""Claims 1, 2, 3 and 17 on curves that are written down."""

from dataclasses import replace

import pytest

from emabank.study.report.claims.dynamics import AHEAD, END, LOSS_FIRST, PEAK
from tests.study.report.claims.shapes import by_hand, values

NAN = float("nan")
LIVE = ("live", "own", "test", "accuracy")
A = ("a", "averaged", "test", "accuracy")
B = ("b", "averaged", "test", "accuracy")


def four_epochs():
    """The best average is ahead by 20, 10, 0 and -10 points with one seed, by 10 twice and 5 with the other."""
    return by_hand(
        {
            LIVE: [[0.4, 0.5, 0.6, 0.7], [0.4, NAN, 0.6, 0.7]],
            A: [[0.6, 0.5, 0.5, 0.6], [0.5, 0.5, 0.7, 0.6]],
            B: [[0.3, 0.6, 0.6, 0.5], [0.4, 0.9, 0.6, 0.75]],
        }
    )


def test_a_tie_is_half_a_lead_and_what_was_not_measured_is_none():
    assert values(AHEAD, 0, four_epochs()) == [[pytest.approx(100 * 2.5 / 4), pytest.approx(100.0)]]


def test_the_first_quarter_is_one_epoch_of_four():
    assert values(AHEAD, 1, four_epochs()) == [[pytest.approx(20.0), pytest.approx(10.0)]]
    assert values(AHEAD, 2, four_epochs()) == [[pytest.approx(20.0 - 0.0), pytest.approx(10.0 - 7.5)]]


def test_the_end_is_the_last_epoch():
    assert values(END, 0, four_epochs()) == [[pytest.approx(-10.0), pytest.approx(5.0)]]


def test_a_run_without_a_last_value_is_left_out():
    lost = by_hand({LIVE: [[0.4, 0.5], [0.4, NAN]], A: [[0.5, 0.7], [0.5, 0.6]], B: [[0.5, 0.6], [0.5, 0.6]]})
    assert values(END, 0, lost) == [[pytest.approx(20.0)]]


def test_the_chosen_epoch_is_a_share_of_all():
    assert values(PEAK, 0, four_epochs()) == [[50.0, 50.0]]


def test_from_the_chosen_epoch_to_the_end_the_chosen_average_is_looked_at():
    assert values(PEAK, 1, four_epochs()) == [[pytest.approx(10.0), pytest.approx(10.0)]]


def test_a_peak_on_test_is_not_what_counts():
    """Higher at an epoch that validation did not choose, and equal at the chosen one and at the end."""
    found = by_hand({A: [[0.9, 0.5, 0.5]], B: [[0.1, 0.1, 0.1]]})
    assert values(PEAK, 1, found) == [[0.0]]


def test_epochs_of_both_criteria_are_subtracted_by_seed():
    choices = [
        {"seed": seed, "averages": {"accuracy": ("a", epoch), "loss": ("a", other)}}
        for seed, epoch, other in ((0, 4, 1), (1, 3, 3))
    ]
    assert values(LOSS_FIRST, 0, replace(four_epochs(), choices=choices)) == [[-3.0, 0.0]]
