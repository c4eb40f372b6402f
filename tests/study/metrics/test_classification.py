"""Accuracy, loss, softmax and memorisation against scikit-learn, torch, scipy and plain loops."""

import json
import math

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


def make_logits(seed: int, samples: int, classes: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return scale * generator.normal(size=(samples, classes)), generator.integers(classes, size=samples)


CASES = {
    "seed": st.integers(0, 999),
    "samples": st.integers(1, 40),
    "classes": st.integers(2, 8),
    "scale": st.floats(0.01, 20),
}


@given(**CASES)
def test_accuracy_and_loss_are_those_of_scikit_learn(seed, samples, classes, scale):
    logits, labels = make_logits(seed, samples, classes, scale)
    assert accuracy(logits, labels) == pytest.approx(metrics.accuracy_score(labels, logits.argmax(axis=1)), abs=1e-15)
    # log_loss clips probabilities at the precision of their type, which changes a loss above 36.
    by_sklearn = metrics.log_loss(labels, softmax(logits), labels=range(classes))
    smallest = softmax(logits)[np.arange(samples), labels].min()
    assert loss(logits, labels) == pytest.approx(by_sklearn, rel=1e-9) or smallest < 1e-13


@given(**CASES)
def test_loss_is_that_of_torch(seed, samples, classes, scale):
    logits, labels = make_logits(seed, samples, classes, scale)
    by_torch = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)).item()
    assert loss(logits, labels) == pytest.approx(by_torch, rel=1e-10, abs=1e-14)


def test_loss_of_a_confident_mistake_is_finite_and_exact():
    assert loss([[0.0, 5000.0]], [0]) == 5000.0
    assert loss([[0.0, 5000.0]], [1]) == 0.0


def test_values_are_plain_floats():
    logits, labels = make_logits(0, 5, 3, 1.0)
    assert type(accuracy(logits, labels)) is float
    assert type(loss(logits, labels)) is float
    assert math.isfinite(loss(logits.astype(np.float16), labels.astype(np.uint8)))


LOGITS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e4, 1e4))


@given(LOGITS)
def test_softmax_and_log_softmax_are_those_of_scipy(logits):
    np.testing.assert_allclose(softmax(logits), special.softmax(logits, axis=1), rtol=1e-12)
    np.testing.assert_allclose(log_softmax(logits), special.log_softmax(logits, axis=1), rtol=1e-12, atol=1e-15)


def test_large_logits_neither_overflow_nor_vanish():
    assert softmax([[1e300, -1e300]]).tolist() == [[1.0, 0.0]]
    assert log_softmax([[1e5, 0.0, -1e5]]).tolist() == [[0.0, -1e5, -2e5]]


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


def test_the_share_of_no_examples_is_none_and_json():
    logits = logits_for([0, 1])
    assert memorised(logits, [0, 1], [0, 1]) is None
    assert clean_accuracy(logits, [0, 1], [1, 0]) is None
    assert json.dumps([memorised(logits, [0, 1], [0, 1]), clean_accuracy(logits, [0, 1], [0, 1])]) == "[null, 1.0]"
