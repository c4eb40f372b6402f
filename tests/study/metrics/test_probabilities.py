"""Softmax and its logarithm against scipy, and what must hold at the ends."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import special

from emabank.study.metrics.probabilities import log_softmax, predicted, softmax

LOGITS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e4, 1e4))


@given(LOGITS)
def test_both_are_scipys(logits):
    np.testing.assert_allclose(softmax(logits), special.softmax(logits, axis=1), rtol=1e-12)
    np.testing.assert_allclose(log_softmax(logits), special.log_softmax(logits, axis=1), rtol=1e-12, atol=1e-15)


@given(LOGITS, st.floats(-1e3, 1e3))
def test_probabilities_sum_to_1_and_a_shift_changes_nothing(logits, shift):
    probabilities = softmax(logits)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(softmax(logits + shift), probabilities, rtol=1e-8, atol=1e-300)


def test_large_logits_neither_overflow_nor_vanish():
    assert softmax([[1e300, -1e300]]).tolist() == [[1.0, 0.0]]
    assert log_softmax([[1e5, 0.0, -1e5]]).tolist() == [[0.0, -1e5, -2e5]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_low_precision_is_computed_in_float64(dtype):
    logits = np.array([[10.0, 0.5, -3.0]], dtype=dtype)
    assert softmax(logits).dtype == log_softmax(logits).dtype == np.float64
    assert np.array_equal(softmax(logits), softmax(logits.astype(np.float64)))


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.sampled_from([-1.0, 0.0, 2.0])))
def test_of_equal_logits_the_first_is_predicted_as_in_torch(logits):
    by_hand = [row.index(max(row)) for row in logits.tolist()]
    assert predicted(logits).tolist() == by_hand == torch.from_numpy(logits).argmax(dim=1).tolist()
