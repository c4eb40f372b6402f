"""Equal-mass bins against a loop, the error of a calibrated model, and the fitted temperature against scipy."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import minimize_scalar

from emabank.study.metrics import (
    apply_temperature,
    calibrated_ece,
    default_bins,
    ece,
    fit_temperature,
    loss,
    reliability_curve,
    softmax,
)


def with_confidence(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of three classes, with these confidences (above ½) in class 1, right or wrong."""
    rest = (1 - confidence) / 2
    return np.stack([rest, confidence, rest], axis=1), np.where(right, 1, 2)


def make_predictions(seed: int, samples: int, *, levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1.0, samples)
    if levels is not None:  # round up to few values, including 1.0
        confidence = 0.5 + np.ceil((confidence - 0.5) * 2 * levels) / (2 * levels)
    return with_confidence(confidence, generator.random(samples) < 0.7)


def curve_by_definition(probabilities, labels, bins: int) -> list[tuple[float, float, int]]:
    """Sort and cut into equal parts; equal confidences share their mean accuracy."""
    samples = []
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        samples.append((max(row), row.index(max(row)) == label))
    groups: dict[float, list[bool]] = {}
    for confidence, right in samples:
        groups.setdefault(confidence, []).append(right)
    samples.sort()
    parts = []
    for indices in np.array_split(np.arange(len(samples)), bins):
        confidences = [samples[i][0] for i in indices]
        accuracies = [sum(groups[c]) / len(groups[c]) for c in confidences]
        parts.append((sum(confidences) / len(indices), sum(accuracies) / len(indices), len(indices)))
    return parts


CASES = {
    "seed": st.integers(0, 999),
    "samples": st.integers(1, 60),
    "levels": st.one_of(st.none(), st.integers(1, 4)),
    "share": st.floats(0, 1),
}


@given(**CASES)
def test_curve_and_ece_follow_their_definition(seed, samples, levels, share):
    probabilities, labels = make_predictions(seed, samples, levels=levels)
    bins = 1 + int(share * (samples - 1))
    curve = reliability_curve(probabilities, labels, bins=bins)
    expected = curve_by_definition(probabilities, labels, bins)
    np.testing.assert_allclose(np.stack(curve[:2], axis=1), [part[:2] for part in expected], rtol=1e-12)
    assert curve.samples.tolist() == [part[2] for part in expected]
    by_hand = sum(count * abs(accuracy - confidence) for confidence, accuracy, count in expected) / samples
    assert ece(probabilities, labels, bins=bins) == pytest.approx(by_hand, rel=1e-10, abs=1e-14)
    assert curve.ece == ece(probabilities, labels, bins=bins)


def test_default_number_of_bins():
    expected = {1: 1, 4: 4, 499: 5, 500: 5, 600: 6, 1999: 19, 2000: 20, 9_999: 99, 10_000: 100, 10_100: 100, 10**6: 100}
    assert {samples: default_bins(samples) for samples in expected} == expected
    probabilities, labels = make_predictions(0, 730)
    assert len(reliability_curve(probabilities, labels).samples) == 7
    assert ece(probabilities, labels) == ece(probabilities, labels, bins=7) != ece(probabilities, labels, bins=8)
    assert (
        calibrated_ece(probabilities) == calibrated_ece(probabilities, bins=7) < calibrated_ece(probabilities, bins=8)
    )


@pytest.mark.parametrize(("bins", "message"), [(0, "bins is 0"), (-1, "bins is -1"), (5, "bins is 5 for 4 samples")])
def test_bins_without_samples_are_refused(bins, message):
    probabilities, labels = make_predictions(0, 4)
    for measure in (ece, reliability_curve):
        with pytest.raises(ValueError, match=message):
            measure(probabilities, labels, bins=bins)
    with pytest.raises(ValueError, match=message):
        calibrated_ece(probabilities, bins=bins)


def test_fewer_than_five_samples_have_a_bin_each():
    two = [[0.9, 0.1], [0.4, 0.6]], [0, 0]
    assert ece(*two) == pytest.approx((0.1 + 0.6) / 2)


@pytest.mark.parametrize("bins", [1, 20, 100])
def test_error_of_a_calibrated_model_is_that_of_the_binomial_distribution(bins):
    confidence = np.repeat(np.linspace(0.505, 0.995, bins), 500 // bins)
    confidence += np.linspace(0, 1e-9, 500)  # distinct, and nearly equal within a bin
    size = 500 // bins
    expected = np.mean(
        [
            sum(stats.binom.pmf(k, size, p) * abs(k / size - p) for k in range(size + 1))
            for p in confidence.reshape(bins, size).mean(axis=1)
        ]
    )
    probabilities, _ = with_confidence(confidence, np.ones(500))
    tolerance = 5 * expected / np.sqrt(400 * bins)  # five standard errors
    assert calibrated_ece(probabilities, bins=bins, draws=400) == pytest.approx(expected, abs=tolerance)


def test_calibrated_ece_depends_on_its_seed_and_neither_on_order_nor_on_global_random_state():
    probabilities = softmax(np.random.default_rng(0).normal(size=(200, 4)))
    assert calibrated_ece(probabilities[::-1], draws=3) == calibrated_ece(probabilities, draws=3)
    before = np.random.get_state()[1].copy()
    assert calibrated_ece(probabilities, draws=3) == calibrated_ece(probabilities, draws=3, seed=0)
    assert calibrated_ece(probabilities, draws=3) != calibrated_ece(probabilities, draws=3, seed=1)
    assert np.array_equal(np.random.get_state()[1], before)


# Temperature scaling --------------------------------------------------------------------------------------------------


def make_logits(seed: int, samples: int, classes: int, *, true_temperature: float, scale: float = 3.0):
    """Logits, and labels sampled from their softmax at the true temperature."""
    generator = np.random.default_rng(seed)
    logits = scale * generator.normal(size=(samples, classes))
    cumulated = softmax(logits / true_temperature).cumsum(axis=1)
    return logits, (generator.random((samples, 1)) > cumulated[:, :-1]).sum(axis=1)


LOGITS = {
    "seed": st.integers(0, 999),
    "samples": st.integers(1, 80),
    "classes": st.integers(2, 6),
    "true_temperature": st.floats(0.2, 10),
}


def has_minimum(logits, labels) -> bool:
    """Whether the loss has a minimum: some label is not the likeliest, and labels have logits above the mean."""
    own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return bool((own < logits.max(axis=1)).any() and own.mean() > logits.mean())


@given(**LOGITS)
def test_fitted_temperature_is_scipys_minimum(seed, samples, classes, true_temperature):
    logits, labels = make_logits(seed, samples, classes, true_temperature=true_temperature)
    assume(has_minimum(logits, labels))
    fitted = fit_temperature(logits, labels)
    by_scipy = minimize_scalar(
        lambda log_inverse: loss(logits * np.exp(log_inverse), labels),
        bounds=(-12, 12),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assume(abs(by_scipy.x) < 5)  # the search may not reach further
    # The loss is flat at its minimum: the temperature has half the digits of the loss.
    fitted_loss = loss(apply_temperature(logits, fitted), labels)
    assert fitted_loss <= by_scipy.fun + 1e-12
    assert fitted == pytest.approx(np.exp(-by_scipy.x), rel=1e-3) or fitted_loss < by_scipy.fun - 1e-12


@given(
    logits=st.tuples(st.integers(1, 8), st.integers(1, 4)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-1e6, 1e6)))
    ),
    seed=st.integers(0, 99),
)
def test_fitted_temperature_never_increases_the_loss(logits, seed):
    labels = np.random.default_rng(seed).integers(logits.shape[1], size=len(logits))
    fitted = fit_temperature(logits, labels)
    assert 0 < fitted < np.inf
    scaled = apply_temperature(logits, fitted)
    assert loss(scaled, labels) <= loss(logits, labels) * (1 + 1e-9) + 1e-12


@given(**LOGITS, factor=st.floats(1e-4, 1e4))
def test_temperature_scales_with_the_logits(seed, samples, classes, true_temperature, factor):
    logits, labels = make_logits(seed, samples, classes, true_temperature=true_temperature)
    plain, scaled = fit_temperature(logits, labels), fit_temperature(factor * logits, labels)
    assume(has_minimum(logits, labels) and 0.01 < plain < 100)
    assert scaled == pytest.approx(factor * plain, rel=1e-8)


def test_temperature_is_the_lowest_if_every_label_has_the_largest_logit():
    logits, labels = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), [0, 1]
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(2.5 / 1000)  # the mean spread is 2.5
    assert loss(apply_temperature(logits, fitted), labels) == 0.0
    assert fit_temperature([[1.0, 1.0, 0.0]], [0]) == pytest.approx(1 / 1000), "tied"


def test_temperature_is_the_highest_if_labels_have_no_larger_logits():
    logits, labels = np.array([[2.0, 0.0], [0.0, 3.0]]), [1, 0]
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(2.5 * 1000)
    assert loss(apply_temperature(logits, fitted), labels) == pytest.approx(np.log(2), abs=1e-3)
    assert fit_temperature([[1.0, 0.0], [1.0, 0.0]], [0, 1]) == pytest.approx(1000), "by chance"


@pytest.mark.parametrize("logits", [[[0.1, 0.1, 0.1], [7.0, 7.0, 7.0]], [[5.0], [3.0]]])
def test_temperature_is_1_if_all_logits_are_equal(logits):
    assert fit_temperature(logits, [0, 0]) == 1.0


def test_temperature_is_1_if_the_search_range_would_exclude_1():
    tiny = np.array([[2e-9, 0.0], [0.0, 3e-9]])
    assert fit_temperature(tiny, [1, 0]) == fit_temperature(1e15 * tiny, [0, 1]) == 1.0
