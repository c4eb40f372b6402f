"""The inputs that measures accept, and the errors of all other inputs."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emabank.study import metrics

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 1.0, 3.0]])
PROBABILITIES = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
LABELS = np.array([0, 2])
GOOD = {
    "logits": LOGITS,
    "logits_a": LOGITS,
    "logits_b": LOGITS,
    "probabilities": PROBABILITIES,
    "probabilities_a": PROBABILITIES,
    "probabilities_b": PROBABILITIES,
    "labels": LABELS,
    "given": LABELS,
    "clean": LABELS,
    "temperature": 2.0,
}
MEASURES = [
    metrics.accuracy,
    metrics.loss,
    metrics.churn,
    metrics.jensen_shannon,
    metrics.calibrated_ece,
    metrics.ece,
    metrics.reliability_curve,
    metrics.clean_accuracy,
    metrics.memorised,
    metrics.log_softmax,
    metrics.softmax,
    metrics.apply_temperature,
    metrics.fit_temperature,
]
BINNED = (metrics.calibrated_ece, metrics.ece, metrics.reliability_curve)


def call(measure, **changed):
    names = [name for name in inspect.signature(measure).parameters if name in GOOD]
    bins = {"bins": 2} if measure in BINNED else {}
    return measure(**{name: GOOD[name] for name in names} | bins | changed)


def arguments(*kinds: str) -> list[tuple[Callable[..., Any], str]]:
    """Every measure with each of its arguments whose name begins with one of these."""
    return [
        (measure, name)
        for measure in MEASURES
        for name in inspect.signature(measure).parameters
        if name.startswith(kinds)
    ]


def test_every_measure_is_listed_and_leaves_its_arguments_unchanged():
    defined = {
        function
        for module in (metrics,)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith(("_", "check_"))
    }
    assert defined - set(MEASURES) == {metrics.default_bins}
    before = {name: np.copy(value) for name, value in GOOD.items()}
    for measure in MEASURES:
        call(measure)
    assert all(np.array_equal(GOOD[name], value) for name, value in before.items())


def test_tables_of_a_wrong_shape_or_type_are_refused():
    for measure, name in arguments("logits", "probabilities"):
        shapes = [np.zeros(shape) for shape in [(0,), (4,), (0, 3), (2, 0), (2, 3, 1)]]
        for table in (*shapes, *(GOOD[name].astype(dtype) for dtype in (bool, complex, object, str))):
            with pytest.raises(ValueError, match=rf"^{name} must be real numbers \[samples, classes\], .*; got "):
                call(measure, **{name: table})


def test_nan_and_infinite_logits_are_refused():
    for measure, name in arguments("logits"):
        for value in (np.nan, np.inf, -np.inf):
            logits = LOGITS.copy()
            logits[1, 2] = value
            message = f"^{name} hold NaN or infinity in 1 of 2 samples, first in sample 1; give"
            with pytest.raises(ValueError, match=message):
                call(measure, **{name: logits})


def test_impossible_probabilities_are_refused_and_low_precision_is_accepted():
    for measure, name in arguments("probabilities"):
        for row in ([0.5, 0.5, 0.5], [1.5, -0.5, 0.0], [2.0, -1.0, 0.5], [np.nan, 0.5, 0.5], [0, 0, np.inf]):
            message = f"^{name} of 1 of 2 samples, first of sample 1, are not all from 0 to 1"
            with pytest.raises(ValueError, match=message):
                call(measure, **{name: np.array([[0.5, 0.25, 0.25], row])})
    logits = np.random.default_rng(0).normal(size=(50, 200))
    for dtype in (np.float16, np.float32):
        rounded = metrics.softmax(logits).astype(dtype)
        assert np.array_equal(metrics.check_probabilities(rounded), rounded)


def test_labels_of_a_wrong_shape_type_or_range_are_refused():
    for measure, name in arguments("labels", "given", "clean"):
        for labels in ([0], [[0, 1]], [0.0, 1.0], [True, False], [0, 3], [-1, 2]):
            subject = name if name == "labels" else f"{name} labels"
            with pytest.raises(ValueError, match=f"^{subject} must be 2 whole numbers from 0 to 2, one a sample; got "):
                call(measure, **{name: labels})


def test_two_predictions_of_different_samples_are_refused():
    for kind, measure in (("logits", metrics.churn), ("probabilities", metrics.jensen_shannon)):
        with pytest.raises(ValueError, match=rf"^{kind}_a have the shape \(2, 3\) and {kind}_b \(1, 3\); give two"):
            call(measure, **{f"{kind}_b": GOOD[kind][:1]})
