"""Churn against a plain loop, Jensen–Shannon against scipy, and properties of a distance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon

from emabank.study.metrics import churn, jensen_shannon

SHAPES = st.tuples(st.integers(1, 6), st.integers(2, 5))


def tables_of_one_shape(count: int, elements: st.SearchStrategy[float]) -> st.SearchStrategy[list[np.ndarray]]:
    return SHAPES.flatmap(
        lambda shape: st.lists(arrays(np.float64, shape, elements=elements), min_size=count, max_size=count)
    )


def distributions(table: np.ndarray) -> np.ndarray:
    """Rows normalised to the sum 1; a row of zeros becomes certainty of its first class."""
    table = table.copy()
    table[table.sum(axis=1) == 0, 0] = 1.0
    return table / table.sum(axis=1, keepdims=True)


LOGITS = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-6, 1), st.floats(1e-300, 1e-290))


@given(tables_of_one_shape(2, LOGITS))
def test_churn_counts_different_predictions(tables):
    a, b = tables
    different = sum(x.index(max(x)) != y.index(max(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True))
    assert churn(a, b) == different / len(a)


@given(tables_of_one_shape(2, WEIGHTS))
def test_jensen_shannon_is_the_square_of_scipys_distance(tables):
    a, b = map(distributions, tables)
    with np.errstate(invalid="ignore"):  # scipy takes the root even where rounding made the divergence negative
        by_scipy = np.nan_to_num([jensenshannon(x, y) for x, y in zip(a, b, strict=True)]) ** 2
    assert jensen_shannon(a, b) == pytest.approx(by_scipy.mean(), rel=1e-9, abs=1e-14)


@given(tables_of_one_shape(2, WEIGHTS))
def test_jensen_shannon_is_symmetric_and_bounded(tables):
    a, b = map(distributions, tables)
    assert 0 <= jensen_shannon(a, b) <= math.log(2)
    assert jensen_shannon(a, b) == jensen_shannon(b, a)
    assert jensen_shannon(a, a) == 0


def test_jensen_shannon_of_the_smallest_float():
    smallest = 5e-324
    assert jensen_shannon([[1.0, smallest]], [[1.0, 0.0]]) == 0.0
    assert jensen_shannon([[1.0, smallest]], [[smallest, 1.0]]) == pytest.approx(math.log(2))


def test_jensen_shannon_stays_bounded_if_sums_are_only_nearly_1():
    a = np.array([[1.0005, 0.0]], dtype=np.float32)
    assert jensen_shannon(a, [[0.0, 1.0]]) == pytest.approx(math.log(2), rel=1e-14)
    assert jensen_shannon(a, [[1.0, 0.0]]) == 0.0
