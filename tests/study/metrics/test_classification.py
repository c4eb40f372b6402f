"""Accuracy, loss, softmax and memorisation against scikit-learn, torch, scipy and plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import special
from sklearn import metrics

from emabank.study.metrics import (
    accuracy,
    clean_accuracy,
    log_softmax,
    loss,
    memorised,
    softmax,
)

LOGITS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e4, 1e4))


@given(LOGITS, st.integers(0, 999))
def test_accuracy_is_that_of_scikit_learn_and_loss_that_of_torch(logits, seed):
    labels = np.random.default_rng(seed).integers(logits.shape[1], size=len(logits))
    assert accuracy(logits, labels) == pytest.approx(metrics.accuracy_score(labels, logits.argmax(axis=1)), abs=1e-15)
    by_torch = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)).item()
    assert loss(logits, labels) == pytest.approx(by_torch, rel=1e-10, abs=1e-14)


@given(LOGITS)
def test_softmax_and_log_softmax_are_those_of_scipy(logits):
    np.testing.assert_allclose(softmax(logits), special.softmax(logits, axis=1), rtol=1e-12)
    np.testing.assert_allclose(log_softmax(logits), special.log_softmax(logits, axis=1), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_low_precision_is_computed_in_float64(dtype):
    logits = np.array([[10.0, 0.5, -3.0]], dtype=dtype)
    assert softmax(logits).dtype == log_softmax(logits).dtype == np.float64
    assert np.array_equal(softmax(logits), softmax(logits.astype(np.float64)))


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.sampled_from([-1.0, 0.0, 2.0])))
def test_the_first_of_equal_logits_is_predicted_as_in_torch(logits):
    by_hand = [row.index(max(row)) for row in logits.tolist()]
    assert by_hand == torch.from_numpy(logits).argmax(dim=1).tolist()
    assert accuracy(logits, by_hand) == 1.0


EXAMPLES = st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30)


def logits_for(predictions: list[int]) -> np.ndarray:
    return np.eye(4)[predictions]


@given(EXAMPLES)
def test_memorised_and_clean_accuracy_match_a_plain_count(examples):
    predictions, given_labels, clean = map(list, zip(*examples, strict=True))
    wrong = [(p, g, c) for p, g, c in examples if g != c]
    right = [(p, g, c) for p, g, c in examples if g == c]
    arguments = logits_for(predictions), given_labels, clean
    assert memorised(*arguments) == (sum(p == g for p, g, _ in wrong) / len(wrong) if wrong else None)
    assert clean_accuracy(*arguments) == (sum(p == c for p, _, c in right) / len(right) if right else None)
