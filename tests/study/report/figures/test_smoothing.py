"""The sliding window against a plain loop, and what holds of it for any curve."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.figures.smoothing import WINDOW, smooth

VALUES = st.lists(st.one_of(st.floats(-1, 1), st.just(math.nan)), min_size=1, max_size=30)
WINDOWS = st.sampled_from([1, 3, 5, 7])


def by_loop(values: list[float], window: int) -> list[float]:
    """From the definition: the mean of what was measured in a window that is centred and inside of the curve."""
    smoothed = []
    for i, value in enumerate(values):
        reach = window // 2
        while i - reach < 0 or i + reach >= len(values):
            reach -= 1
        inside = [each for each in values[i - reach : i + reach + 1] if not math.isnan(each)]
        smoothed.append(math.nan if math.isnan(value) else sum(inside) / len(inside))
    return smoothed


@given(VALUES, WINDOWS)
def test_it_is_the_plain_loop(values, window):
    np.testing.assert_allclose(smooth(values, window=window), by_loop(values, window), atol=1e-12)


@given(st.floats(-1, 1), st.floats(-1, 1), st.integers(1, 30))
def test_a_straight_line_stays_as_it_is_up_to_its_ends(start, slope, epochs):
    line = start + slope * np.arange(epochs)
    np.testing.assert_allclose(smooth(line), line, atol=1e-9)


@given(VALUES)
def test_the_ends_are_the_measured_ones_and_nothing_leaves_the_range(values):
    smoothed = smooth(values)
    np.testing.assert_equal(smoothed[[0, -1]], np.array(values)[[0, -1]])
    there = smoothed[np.isfinite(smoothed)]
    if len(there):
        assert np.nanmin(values) - 1e-12 <= there.min() and there.max() <= np.nanmax(values) + 1e-12


def test_where_nothing_was_measured_nothing_is_made_up_and_neighbours_pass_it_over():
    np.testing.assert_equal(smooth([1.0, 2.0, math.nan, 4.0, 6.0], window=3), [1.0, 1.5, math.nan, 5.0, 6.0])


def test_each_seed_is_smoothed_by_itself():
    curves = np.random.default_rng(0).random((3, 11))
    np.testing.assert_array_equal(smooth(curves), [smooth(curve) for curve in curves])


def test_the_window_is_the_papers():
    assert WINDOW == 5
    spike = np.zeros(11)
    spike[5] = 1
    np.testing.assert_allclose(smooth(spike), [0, 0, 0, 0.2, 0.2, 0.2, 0.2, 0.2, 0, 0, 0])


@pytest.mark.parametrize("window", [0, -1, 4])
def test_a_window_without_a_middle_is_refused(window):
    with pytest.raises(ValueError, match=f"window is {window}; give an odd number"):
        smooth([1.0], window=window)
