"""Accuracy and loss against scikit-learn and torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from emabank.study.metrics.accuracy import accuracy, loss
from emabank.study.metrics.probabilities import softmax


def made_up(seed: int, samples: int, classes: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return scale * generator.normal(size=(samples, classes)), generator.integers(classes, size=samples)


CASES = {
    "seed": st.integers(0, 999),
    "samples": st.integers(1, 40),
    "classes": st.integers(2, 8),
    "scale": st.floats(0.01, 20),
}


@given(**CASES)
def test_both_are_scikit_learns(seed, samples, classes, scale):
    logits, labels = made_up(seed, samples, classes, scale)
    assert accuracy(logits, labels) == pytest.approx(metrics.accuracy_score(labels, logits.argmax(axis=1)), abs=1e-15)
    # log_loss clips probabilities at the precision of their type, which moves a loss above 36
    by_sklearn = metrics.log_loss(labels, softmax(logits), labels=range(classes))
    smallest = softmax(logits)[np.arange(samples), labels].min()
    assert loss(logits, labels) == pytest.approx(by_sklearn, rel=1e-9) or smallest < 1e-13


@given(**CASES)
def test_the_loss_is_torchs(seed, samples, classes, scale):
    logits, labels = made_up(seed, samples, classes, scale)
    by_torch = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)).item()
    assert loss(logits, labels) == pytest.approx(by_torch, rel=1e-10, abs=1e-14)


@given(**CASES, order=st.integers(0, 99))
def test_the_order_of_the_samples_does_not_matter(seed, samples, classes, scale, order):
    logits, labels = made_up(seed, samples, classes, scale)
    other = np.random.default_rng(order).permutation(samples)
    assert accuracy(logits[other], labels[other]) == accuracy(logits, labels)
    assert loss(logits[other], labels[other]) == pytest.approx(loss(logits, labels), rel=1e-12)


def test_the_loss_of_a_sure_mistake_is_finite_and_exact():
    assert loss([[0.0, 5000.0]], [0]) == 5000.0
    assert loss([[0.0, 5000.0]], [1]) == 0.0


def test_one_class_has_nothing_to_lose():
    assert accuracy([[3.0], [4.0]], [0, 0]) == 1.0
    assert loss([[3.0], [4.0]], [0, 0]) == 0.0


def test_values_are_plain_floats():
    logits, labels = made_up(0, 5, 3, 1.0)
    assert type(accuracy(logits, labels)) is float
    assert type(loss(logits, labels)) is float
    assert math.isfinite(loss(logits.astype(np.float16), labels.astype(np.uint8)))
