"""The fitted temperature against scipy's minimiser, and what is returned where the loss has no minimum."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize_scalar

from emabank.study.metrics.calibration import apply_temperature, fit_temperature
from emabank.study.metrics.classification import loss, softmax


def drawn(seed: int, samples: int, classes: int, *, true_temperature: float, scale: float = 3.0):
    """Logits, and labels drawn from their softmax at the true temperature."""
    generator = np.random.default_rng(seed)
    logits = scale * generator.normal(size=(samples, classes))
    cumulated = softmax(logits / true_temperature).cumsum(axis=1)
    return logits, (generator.random((samples, 1)) > cumulated[:, :-1]).sum(axis=1)


CASES = {
    "seed": st.integers(0, 999),
    "samples": st.integers(1, 80),
    "classes": st.integers(2, 6),
    "true_temperature": st.floats(0.2, 10),
}


@given(**CASES)
def test_it_is_where_scipy_finds_the_minimum(seed, samples, classes, true_temperature):
    logits, labels = drawn(seed, samples, classes, true_temperature=true_temperature)
    own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    assume((own < logits.max(axis=1)).any() and own.mean() > logits.mean())  # else the loss has no minimum
    fitted = fit_temperature(logits, labels)
    by_scipy = minimize_scalar(
        lambda log_inverse: loss(logits * np.exp(log_inverse), labels),
        bounds=(-12, 12),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assume(abs(by_scipy.x) < 5)  # beyond there the search may end
    # The loss is flat at its minimum: half the digits of the loss are left for the place.
    found = loss(apply_temperature(logits, fitted), labels)
    assert found <= by_scipy.fun + 1e-12
    assert fitted == pytest.approx(np.exp(-by_scipy.x), rel=1e-3) or found < by_scipy.fun - 1e-12


@given(
    logits=st.tuples(st.integers(1, 8), st.integers(1, 4)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-1e6, 1e6)))
    ),
    seed=st.integers(0, 99),
)
def test_it_never_makes_the_loss_worse(logits, seed):
    labels = np.random.default_rng(seed).integers(logits.shape[1], size=len(logits))
    fitted = fit_temperature(logits, labels)
    assert 0 < fitted < np.inf
    scaled = apply_temperature(logits, fitted)
    assert loss(scaled, labels) <= loss(logits, labels) * (1 + 1e-9) + 1e-12


@given(**CASES, factor=st.floats(1e-4, 1e4))
def test_logits_times_a_factor_need_a_temperature_times_that_factor(seed, samples, classes, true_temperature, factor):
    logits, labels = drawn(seed, samples, classes, true_temperature=true_temperature)
    one, other = fit_temperature(logits, labels), fit_temperature(factor * logits, labels)
    assume(0.01 < one < 100)
    assert other == pytest.approx(factor * one, rel=1e-8)


@given(**CASES, order=st.integers(0, 99), shift=st.floats(-100, 100))
def test_neither_the_order_nor_a_shift_matters(seed, samples, classes, true_temperature, order, shift):
    logits, labels = drawn(seed, samples, classes, true_temperature=true_temperature)
    one = fit_temperature(logits, labels)
    assume(0.01 < one < 100)
    other = np.random.default_rng(order).permutation(samples)
    assert fit_temperature(logits[other] + shift, labels[other]) == pytest.approx(one, rel=1e-6)


def test_where_every_label_has_the_largest_logit_colder_is_always_better():
    logits, labels = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), [0, 1]
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(2.5 / 1000)  # the mean spread is 2.5
    assert loss(apply_temperature(logits, fitted), labels) == 0.0
    assert fit_temperature([[1.0, 1.0, 0.0]], [0]) == pytest.approx(1 / 1000), "tied"


def test_where_labels_have_no_larger_logits_hotter_is_always_better():
    logits, labels = np.array([[2.0, 0.0], [0.0, 3.0]]), [1, 0]
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(2.5 * 1000)
    assert loss(apply_temperature(logits, fitted), labels) == pytest.approx(np.log(2), abs=1e-3)
    assert fit_temperature([[1.0, 0.0], [1.0, 0.0]], [0, 1]) == pytest.approx(1000), "by chance"


@pytest.mark.parametrize("logits", [[[0.1, 0.1, 0.1], [7.0, 7.0, 7.0]], [[5.0], [3.0]]])
def test_where_logits_are_all_equal_nothing_is_changed(logits):
    assert fit_temperature(logits, [0, 0]) == 1.0


def test_the_ends_of_the_search_take_1_in():
    tiny = np.array([[2e-9, 0.0], [0.0, 3e-9]])
    assert fit_temperature(tiny, [1, 0]) == fit_temperature(1e15 * tiny, [0, 1]) == 1.0
