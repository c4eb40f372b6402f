"""Equal-mass bins against a loop, what a calibrated model scores, and the fitted temperature against scipy."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import minimize_scalar

from emabank.study.metrics.calibration import (
    apply_temperature,
    calibrated_ece,
    default_bins,
    ece,
    fit_temperature,
    reliability_curve,
)
from emabank.study.metrics.classification import loss, softmax


def with_confidence(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of three classes with these confidences (above ½) in class 1, right or wrong."""
    rest = (1 - confidence) / 2
    return np.stack([rest, confidence, rest], axis=1), np.where(right, 1, 2)


def made_up(seed: int, samples: int, *, levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1.0, samples)
    if levels is not None:  # few different ones, 1.0 among them
        confidence = 0.5 + np.ceil((confidence - 0.5) * 2 * levels) / (2 * levels)
    return with_confidence(confidence, generator.random(samples) < 0.7)


def curve_by_definition(probabilities, labels, bins: int) -> list[tuple[float, float, int]]:
    """Sort, cut into equal parts, look at each; equal confidences share their mean accuracy."""
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
def test_the_curve_is_what_the_definition_says(seed, samples, levels, share):
    probabilities, labels = made_up(seed, samples, levels=levels)
    bins = 1 + int(share * (samples - 1))
    curve = reliability_curve(probabilities, labels, bins=bins)
    expected = curve_by_definition(probabilities, labels, bins)
    np.testing.assert_allclose(np.stack(curve[:2], axis=1), [part[:2] for part in expected], rtol=1e-12)
    assert curve.samples.tolist() == [part[2] for part in expected]
    by_hand = sum(count * abs(accuracy - confidence) for confidence, accuracy, count in expected) / samples
    assert ece(probabilities, labels, bins=bins) == pytest.approx(by_hand, rel=1e-10, abs=1e-14)
    assert curve.ece == ece(probabilities, labels, bins=bins)


@given(**CASES, order=st.integers(0, 99))
def test_the_order_of_the_samples_does_not_matter_at_all(seed, samples, levels, share, order):
    probabilities, labels = made_up(seed, samples, levels=levels)
    bins = 1 + int(share * (samples - 1))
    other = np.random.default_rng(order).permutation(samples)
    assert ece(probabilities[other], labels[other], bins=bins) == ece(probabilities, labels, bins=bins)
    shuffled = calibrated_ece(probabilities[other], bins=bins, draws=2)
    assert shuffled == calibrated_ece(probabilities, bins=bins, draws=2)


def test_a_bins_edge_among_equal_confidences_hides_nothing_and_adds_nothing():
    # 100 samples, all sure, 90 right: however they are cut, the error is 10%
    probabilities, labels = with_confidence(np.ones(100), np.arange(100) >= 10)
    curve = reliability_curve(probabilities, labels, bins=10)
    assert curve.accuracy.tolist() == pytest.approx([0.9] * 10)
    assert [ece(probabilities, labels, bins=bins) for bins in (1, 7, 100)] == pytest.approx([0.1] * 3)


def test_a_confidence_of_exactly_1_is_in_a_bin():
    probabilities, labels = with_confidence(np.array([0.95, 1.0]), np.array([False, True]))
    assert ece(probabilities, labels, bins=2) == pytest.approx(0.475)  # torchmetrics: 0.525


def test_how_many_bins_a_number_of_samples_gets():
    expected = {1: 5, 499: 5, 500: 5, 600: 6, 1999: 19, 2000: 20, 9_999: 99, 10_000: 100, 10_100: 100, 10**6: 100}
    assert {samples: default_bins(samples) for samples in expected} == expected
    probabilities, labels = made_up(0, 730)
    assert len(reliability_curve(probabilities, labels).samples) == 7
    assert ece(probabilities, labels) == ece(probabilities, labels, bins=7) != ece(probabilities, labels, bins=8)
    assert (
        calibrated_ece(probabilities) == calibrated_ece(probabilities, bins=7) < calibrated_ece(probabilities, bins=8)
    )


@pytest.mark.parametrize(("bins", "said"), [(0, "bins is 0"), (-1, "bins is -1"), (5, "bins is 5 for 4 samples")])
def test_bins_without_samples_are_refused(bins, said):
    probabilities, labels = made_up(0, 4)
    for call in (ece, reliability_curve):
        with pytest.raises(ValueError, match=said):
            call(probabilities, labels, bins=bins)
    with pytest.raises(ValueError, match=said):
        calibrated_ece(probabilities, bins=bins)
    with pytest.raises(ValueError, match="bins is 5 for 4 samples; give at least 1 bin and at least as many samples"):
        ece(probabilities, labels)


@pytest.mark.parametrize("bins", [1, 20, 100])
def test_a_calibrated_model_scores_what_the_binomial_distribution_says(bins):
    confidence = np.repeat(np.linspace(0.505, 0.995, bins), 500 // bins)
    confidence += np.linspace(0, 1e-9, 500)  # all different, all but equal within a bin
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


def test_a_calibrated_model_is_drawn_alike_from_the_same_seed_only():
    probabilities = softmax(np.random.default_rng(0).normal(size=(200, 4)))
    before = np.random.get_state()[1].copy()
    assert calibrated_ece(probabilities, draws=3) == calibrated_ece(probabilities, draws=3, seed=0)
    assert calibrated_ece(probabilities, draws=3) != calibrated_ece(probabilities, draws=3, seed=1)
    assert np.array_equal(np.random.get_state()[1], before), "numpy's global random numbers must stay where they were"


# Temperature scaling --------------------------------------------------------------------------------------------------


def drawn(seed: int, samples: int, classes: int, *, true_temperature: float, scale: float = 3.0):
    """Logits, and labels drawn from their softmax at the true temperature."""
    generator = np.random.default_rng(seed)
    logits = scale * generator.normal(size=(samples, classes))
    cumulated = softmax(logits / true_temperature).cumsum(axis=1)
    return logits, (generator.random((samples, 1)) > cumulated[:, :-1]).sum(axis=1)


DRAWN = {
    "seed": st.integers(0, 999),
    "samples": st.integers(1, 80),
    "classes": st.integers(2, 6),
    "true_temperature": st.floats(0.2, 10),
}


def has_minimum(logits, labels) -> bool:
    """Whether the loss has a minimum over temperatures: some label is not the likeliest, and labels are on the mean."""
    own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return bool((own < logits.max(axis=1)).any() and own.mean() > logits.mean())


@given(**DRAWN)
def test_it_is_where_scipy_finds_the_minimum(seed, samples, classes, true_temperature):
    logits, labels = drawn(seed, samples, classes, true_temperature=true_temperature)
    assume(has_minimum(logits, labels))
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


@given(**DRAWN, factor=st.floats(1e-4, 1e4))
def test_logits_times_a_factor_need_a_temperature_times_that_factor(seed, samples, classes, true_temperature, factor):
    logits, labels = drawn(seed, samples, classes, true_temperature=true_temperature)
    one, other = fit_temperature(logits, labels), fit_temperature(factor * logits, labels)
    assume(has_minimum(logits, labels) and 0.01 < one < 100)
    assert other == pytest.approx(factor * one, rel=1e-8)


@given(**DRAWN, order=st.integers(0, 99), shift=st.floats(-100, 100))
def test_neither_the_order_nor_a_shift_matters(seed, samples, classes, true_temperature, order, shift):
    logits, labels = drawn(seed, samples, classes, true_temperature=true_temperature)
    one = fit_temperature(logits, labels)
    assume(has_minimum(logits, labels) and 0.01 < one < 100)
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
