"""Reliability diagrams: bins of equal mass, the temperature, and what happens to predictions that are not whole."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.special import softmax as probabilities_of

from emabank.study.report.figures.calibration import bars_of, reliability, reliability_of
from tests.study.report.made_evidence import AVERAGES, made_evidence, made_predictions, made_setting

LIVE_NAME, SLOW_NAME = "live-accuracy", f"{AVERAGES[-1]}-recomputed-loss"


def with_predictions(setting, predictions):
    """The setting whose tuning runs predict this, given the seed and the name."""
    runs = tuple(
        replace(run, predictions=lambda name, seed=run.seed: predictions(seed, name)) for run in setting.arms["tune"]
    )
    return replace(setting, arms={**setting.arms, "tune": runs})


def seeded(seed: int, name: str):
    """Other predictions with each seed."""
    random = np.random.default_rng(seed)
    return {split: (logits + 0.3 * random.normal(size=logits.shape), labels)
            for split, (logits, labels) in made_predictions(name).items()}  # fmt: skip


def by_sorting(logits: np.ndarray, labels: np.ndarray, bins: int) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy, from the definition: sort by confidence, cut into equal parts."""
    found = probabilities_of(logits, axis=1)
    order = np.argsort(found.max(axis=1))
    right = found.argmax(axis=1) == labels
    parts = np.array_split(order, bins)
    return [float(found.max(axis=1)[part].mean()) for part in parts], [float(right[part].mean()) for part in parts]


def test_each_setting_has_four_diagrams():
    (figure,) = reliability(made_evidence(), "demo")
    assert len(figure.panels) == 4 * 5 and figure.columns == 4  # the five pairs of the paper's calibration table
    words = [panel.title.removeprefix(f"{made_setting().title}: ").partition(": ECE")[0] for panel in figure.panels[:4]]
    assert words == ["SGD", "SGD, TS", "slowest (loss)", "slowest (loss), TS"]
    assert figure.name == "demo/calibration/reliability" and figure.item == ""


@pytest.mark.parametrize(("panel", "name"), [(0, LIVE_NAME), (2, SLOW_NAME)])
def test_points_are_the_mean_over_the_seeds_of_bins_of_equal_mass(panel, name):
    (figure,) = reliability(made_evidence(with_predictions(made_setting(), seeded)), "demo")
    points, ideal = figure.panels[panel].lines
    # 400 images bear 5 bins.
    found = np.array([by_sorting(*seeded(seed, name)["test"], bins=5) for seed in range(3)])
    np.testing.assert_allclose(points.x, 100 * found[:, 0].mean(axis=0))
    np.testing.assert_allclose(points.y, 100 * found[:, 1].mean(axis=0))
    np.testing.assert_allclose(points.std, 100 * found[:, 1].std(axis=0, ddof=1), atol=1e-9)
    assert points.n == 3 and ideal.kind == "ideal" and ideal.x.tolist() == ideal.y.tolist() == [0, 100]
    errors = [np.mean(np.abs(confidence - accuracy)) for confidence, accuracy in found]
    expected = f"ECE {100 * np.mean(errors):.1f} ± {100 * np.std(errors, ddof=1):.1f}% (n = 3)"
    assert figure.panels[panel].title.endswith(expected)


def test_the_temperature_is_the_one_that_minimises_the_loss_on_validation():
    def predictions(seed, name):
        found = made_predictions(name)
        return {"val": found["val"], "test": seeded(seed, name)["test"]}

    logits, labels = made_predictions(LIVE_NAME)["val"]
    fitted = minimize_scalar(
        lambda t: -log_softmax(logits / t, axis=1)[np.arange(len(labels)), labels].mean(),
        bounds=(0.1, 10),
        method="bounded",
    ).x
    setting = with_predictions(made_setting(), predictions)
    found = reliability_of(setting, "SGD", scaled=True)
    for seed, curve in enumerate(found.curves):
        on_test, right = predictions(seed, LIVE_NAME)["test"]
        confidence, accuracy = by_sorting(on_test / fitted, right, bins=5)
        np.testing.assert_allclose(curve.confidence, confidence, atol=1e-4)
        np.testing.assert_allclose(curve.accuracy, accuracy, atol=0.02)


def test_many_images_make_fifteen_bins_at_most_while_the_ece_keeps_its_own():
    def predictions(seed, name):
        random = np.random.default_rng(seed)
        logits, labels = random.normal(size=(3000, 4)), random.integers(0, 4, 3000)
        return {"val": (logits, labels), "test": (logits, labels)}

    found = reliability_of(with_predictions(made_setting(), predictions), "SGD", scaled=False)
    assert {len(curve.samples) for curve in found.curves} == {15}
    logits, labels = predictions(0, "")["test"]
    confidence, accuracy = by_sorting(logits, labels, bins=30)
    assert found.ece[0] == pytest.approx(np.mean(np.abs(np.subtract(confidence, accuracy))))


def test_names_are_those_under_which_runs_keep_their_weights():
    asked = []

    def predictions(seed, name):
        asked.append(name)
        return made_predictions(name)

    reliability(made_evidence(with_predictions(made_setting(), predictions)), "demo")
    assert set(asked) == {LIVE_NAME, SLOW_NAME}
    asked.clear()
    reliability(made_evidence(with_predictions(made_setting(has_batchnorm=False), predictions)), "demo")
    assert set(asked) == {LIVE_NAME, f"{AVERAGES[-1]}-loss"}


def test_bars_stand_side_by_side_around_the_points_and_stay_within_the_axis():
    confidence = np.array([30.0, 50.0, 80.0, 99.0, 100.0])
    bars = bars_of(confidence, np.array([10.0, 40.0, 70.0, 90.0, 95.0]))
    left, width, height = np.array(bars).T
    np.testing.assert_allclose(left[1:], (left + width)[:-1])
    assert (left <= confidence).all() and (confidence <= left + width).all()
    assert left[0] >= 0 and (left + width)[-1] <= 100
    assert height.tolist() == [10, 40, 70, 90, 95]
    assert bars_of(np.array([60.0]), np.array([50.0])) == [(0.0, 100.0, 50.0)]


@pytest.mark.parametrize("missing", ["test", "val"])
def test_without_predictions_there_is_no_figure(missing):
    def predictions(seed, name):
        return {split: found for split, found in made_predictions(name).items() if split != missing or seed != 1}

    assert reliability(made_evidence(with_predictions(made_setting(), predictions)), "demo") == []


def test_without_tables_or_runs_there_is_no_figure():
    assert reliability(made_evidence(replace(made_setting(), tables=[])), "demo") == []
    assert reliability(made_evidence(made_setting(arms={"tune": ()})), "demo") == []
    assert reliability(made_evidence(made_setting("cifar10n-resnet34")), "demo") == []


def test_damaged_predictions_leave_their_setting_out_and_the_figure_says_so():
    def damaged(seed, name):
        raise ValueError("live-accuracy.npz is damaged")

    def infinite(seed, name):
        return {split: (np.full_like(z, np.inf), y) for split, (z, y) in made_predictions(name).items()}

    whole = made_setting("cifar100-vgg16")
    for predictions, words in ((damaged, "live-accuracy.npz is damaged"), (infinite, "NaN or infinity")):
        (figure,) = reliability(made_evidence(with_predictions(made_setting(), predictions), whole), "demo")
        assert len(figure.panels) == 4
        assert figure.notes[-1].startswith(f"{made_setting().title} is left out: ") and words in figure.notes[-1]
