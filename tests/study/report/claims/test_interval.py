"""The t-interval against scipy, and the rules at their edges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from emabank.study.report.claims.interval import (
    EQUAL,
    Interval,
    above,
    below,
    interval,
    judge,
    no_gain,
    t_quantile,
    within,
)

numbers = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 30, 99, 1000])
@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.9999])
def test_quantiles_are_those_of_scipy(probability, freedom):
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 2), (1.0, 2), (0.975, 0), (math.nan, 2)])
def test_a_quantile_that_is_not_there_is_refused(probability, freedom):
    with pytest.raises(ValueError, match="give a probability from 0.5 to below 1"):
        t_quantile(probability, freedom)


@given(st.lists(numbers, min_size=2, max_size=12))
def test_the_interval_is_that_of_scipy(values):
    found = interval(values)
    spread = stats.sem(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    if np.ptp(values) > 0:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=spread)
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=8))
def test_zero_is_excluded_exactly_where_a_paired_t_test_has_p_below_five_percent(pairs):
    one, other = np.array(pairs).T
    if np.ptp(one - other) < 1e-6:
        return
    p = stats.ttest_rel(one, other).pvalue
    found = interval(list(one - other))
    if abs(p - 0.05) > 1e-6:
        assert (found.low > 0 or found.high < 0) == (p < 0.05)


def test_equal_values_make_an_interval_without_width():
    assert interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1, 3)  # their computed mean is 0.10000000000000002
    assert judge(interval([0.1, 0.1, 0.1]), above()) == "reproduced"
    assert judge(interval([0.0, 0.0, 0.0]), above()) == "inconclusive"
    assert judge(interval([0.0, 0.0, 0.0]), within()) == "reproduced"


def test_values_that_are_not_independent_are_counted_as_fewer():
    values = [1.0, 2.0, 4.0, 1.5, 2.5, 3.0]
    found = interval(values, independent=4)
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    assert found.n == 4
    assert found.low == pytest.approx(np.mean(values) - half)
    assert interval(values, independent=1) == Interval(np.mean(values), None, None, 1)
    assert interval([1.0, 2.0], independent=5).n == 2


def test_fewer_than_two_values_are_too_few():
    assert interval([]) == Interval(None, None, None, 0)
    for values in ([], [5.0]):
        assert judge(interval(values), above()) == "too few runs"


@pytest.mark.parametrize(
    ("low", "high", "rule", "verdict"),
    [
        (0.1, 2.0, above(), "reproduced"),
        (0.0, 2.0, above(), "inconclusive"),
        (-2.0, 0.0, above(), "inconclusive"),
        (-2.0, -0.1, above(), "not reproduced"),
        (-2.0, -0.1, below(), "reproduced"),
        (-1.0, 1.0, below(), "inconclusive"),
        (0.1, 1.0, below(), "not reproduced"),
        (-0.9, 0.9, within(), "reproduced"),
        (0.5, 0.9, within(), "reproduced"),
        (0.9, 1.1, within(), "inconclusive"),
        (-3.0, 3.0, within(), "inconclusive"),
        (1.1, 3.0, within(), "not reproduced"),
        (-3.0, -1.1, within(), "not reproduced"),
        (-9.0, 0.9, below(EQUAL), "reproduced"),
        (0.5, 1.5, below(EQUAL), "inconclusive"),
        (1.1, 1.5, below(EQUAL), "not reproduced"),
        (-9.0, 0.9, no_gain(), "reproduced"),
        (-0.1, 1.5, no_gain(), "inconclusive"),
        (0.1, 0.5, no_gain(), "not reproduced"),
        (76.0, 80.0, above(75), "reproduced"),
        (60.0, 70.0, above(75), "not reproduced"),
    ],
)
def test_a_rule_says_where_the_whole_interval_must_lie(low, high, rule, verdict):
    assert judge(Interval((low + high) / 2, low, high, 3), rule) == verdict


def test_rules_are_named_as_people_say_them():
    assert [rule.text for rule in (above(), below(), within(), above(75), above(-EQUAL), no_gain())] == [
        "above 0", "below 0", "within ±1", "above 75", "above -1", "below 1, and not above 0",
    ]  # fmt: skip
