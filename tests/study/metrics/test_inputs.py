"""What the measures accept, and what each of them says to the rest."""

import inspect

import numpy as np
import pytest

from emabank.study.metrics import agreement, calibration, classification

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
    classification.accuracy,
    classification.loss,
    agreement.churn,
    agreement.jensen_shannon,
    calibration.calibrated_ece,
    calibration.ece,
    calibration.reliability_curve,
    classification.clean_accuracy,
    classification.memorised,
    classification.log_softmax,
    classification.predicted,
    classification.softmax,
    calibration.apply_temperature,
    calibration.fit_temperature,
]
BINNED = (calibration.calibrated_ece, calibration.ece, calibration.reliability_curve)


def call(measure, **changed):
    names = [name for name in inspect.signature(measure).parameters if name in GOOD]
    bins = {"bins": 2} if measure in BINNED else {}
    return measure(**{name: GOOD[name] for name in names} | bins | changed)


def takes(kind: str):
    """Every measure with each of its arguments whose name begins so."""
    return [
        pytest.param(measure, name, id=f"{measure.__name__}-{name}")
        for measure in MEASURES
        for name in inspect.signature(measure).parameters
        if name.startswith(kind)
    ]


TABLES = takes("logits") + takes("probabilities")
LABELLED = takes("labels") + takes("given") + takes("clean")


def test_every_measure_is_listed_here():
    modules = (agreement, calibration, classification)
    defined = {
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith(("_", "check_"))
    }
    assert defined - set(MEASURES) == {calibration.default_bins}


@pytest.mark.parametrize(("measure", "name"), TABLES)
@pytest.mark.parametrize("shape", [(0,), (4,), (0, 3), (2, 0), (2, 3, 1)])
def test_a_table_of_another_shape_is_refused(measure, name, shape):
    with pytest.raises(
        ValueError, match=rf"^{name} have the shape .*; give \[samples, classes\], at least one of each$"
    ):
        call(measure, **{name: np.zeros(shape)})


@pytest.mark.parametrize(("measure", "name"), TABLES)
@pytest.mark.parametrize("dtype", [bool, complex, object, str])
def test_a_table_of_something_else_than_real_numbers_is_refused(measure, name, dtype):
    with pytest.raises(ValueError, match=f"^{name} are of type .*; give real numbers$"):
        call(measure, **{name: GOOD[name].astype(dtype)})


@pytest.mark.parametrize(("measure", "name"), takes("logits"))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(measure, name, value):
    logits = LOGITS.copy()
    logits[1, 2] = value
    with pytest.raises(ValueError, match=f"^{name} hold NaN or infinity in 1 of 2 samples, first in sample 1; give"):
        call(measure, **{name: logits})


@pytest.mark.parametrize(("measure", "name"), takes("probabilities"))
@pytest.mark.parametrize(
    "row", [[0.5, 0.5, 0.5], [1.5, -0.5, 0.0], [2.0, -1.0, 0.5], [np.nan, 0.5, 0.5], [0, 0, np.inf]]
)
def test_what_cannot_be_probabilities_is_refused(measure, name, row):
    with pytest.raises(ValueError, match=f"^{name} of 1 of 2 samples, first of sample 1, are not all from 0 to 1"):
        call(measure, **{name: np.array([[0.5, 0.25, 0.25], row])})


@pytest.mark.parametrize(("measure", "name"), LABELLED)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0], r"have the shape \(1,\); give one label for each of the 2 samples"),
        ([[0, 1]], r"have the shape \(1, 2\)"),
        ([0.0, 1.0], "are of type float64; give whole numbers from 0 to 2"),
        ([True, False], "are of type bool"),
        ([0, 3], "go from 0 to 3; with 3 classes give 0 to 2"),
        ([-1, 2], "go from -1 to 2"),
    ],
)
def test_labels_that_do_not_fit_are_refused(measure, name, labels, message):
    name_in_words = name if name == "labels" else f"{name} labels"
    with pytest.raises(ValueError, match=f"^{name_in_words} {message}"):
        call(measure, **{name: labels})


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_two_predictions_of_different_samples_are_refused(kind):
    measure = agreement.churn if kind == "logits" else agreement.jensen_shannon
    with pytest.raises(ValueError, match=rf"^{kind}_a have the shape \(2, 3\) and {kind}_b \(1, 3\); give two"):
        call(measure, **{f"{kind}_b": GOOD[kind][:1]})


@pytest.mark.parametrize("measure", MEASURES)
def test_what_is_given_stays_as_it_was(measure):
    before = {name: np.copy(value) for name, value in GOOD.items()}
    call(measure)
    assert all(np.array_equal(GOOD[name], value) for name, value in before.items())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_probabilities_in_low_precision_are_accepted(dtype):
    logits = np.random.default_rng(0).normal(size=(50, 200))
    rounded = classification.softmax(logits).astype(dtype)
    assert np.array_equal(classification.check_probabilities(rounded), rounded)
