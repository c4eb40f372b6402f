"""Which figures there are, and their lines, marks and heat maps against the curves of the runs."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.special import softmax as probabilities_of

from emabank.study.report.figure_specs import make_figures, reliability, reliability_of
from emabank.study.report.figures import Figure, drawable, focus, line, mark_at
from emabank.study.report.results import LIVE, Curve, Setting
from emabank.study.report.series import live
from tests.study.report.example_results import (
    AVERAGES,
    EPOCHS,
    RATES,
    VARIANTS,
    fewer_averages,
    first_seeds,
    make_curves,
    make_predictions,
    make_results,
    make_runs,
    make_setting,
)

NEEDED = {
    "constant-lr/accuracy": ("refit", "constant"), "step-decay/accuracy": ("step",), "lr-search/curves": (),
    "bootstrap/accuracy": ("tune", "bootstrap"), "calibration/reliability": ("tune",), "sampling-period/accuracy": (),
    "posthoc/heatmap": ("posthoc",),
}  # fmt: skip
"""The variants that a figure needs; by default the refits."""
RESULTS = make_results()
NAMES = {figure.name.removeprefix("demo/") for figure in make_figures(RESULTS)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_missing_variant_removes_only_the_figures_that_need_it(variant):
    settings = [replace(setting, variants={**setting.variants, variant: ()}) for setting in RESULTS.settings]
    names = {figure.name.removeprefix("demo/") for figure in make_figures(make_results(*settings))}
    assert names == {name for name in NAMES if variant not in NEEDED.get(name, ("refit",))}


# From curves to lines -------------------------------------------------------------------------------------------------

CURVES = np.random.default_rng(1).random((3, 12))


def test_a_line_is_the_mean_of_the_seeds_in_percent_with_their_standard_deviation():
    drawn = line(CURVES, "live weights", kind="live")
    np.testing.assert_allclose(drawn.y, [100 * sum(column) / 3 for column in CURVES.T])
    np.testing.assert_allclose(drawn.std, 100 * np.sqrt(((CURVES - CURVES.mean(axis=0)) ** 2).sum(axis=0) / 2))
    assert drawn.n == 3 and drawn.x.tolist() == list(range(1, 13))
    np.testing.assert_array_equal(drawn.seeds, 100 * CURVES)
    one = line(CURVES[:1], "live weights", kind="live")
    assert one.std is None and one.seeds is None, "one seed has no spread"


def test_a_line_has_a_gap_where_a_seed_has_no_value():
    curves = CURVES.copy()
    curves[1, 4] = np.nan
    assert np.flatnonzero(np.isnan(line(curves, "live weights", kind="live").y)).tolist() == [4]


def test_epochs_that_no_seed_measured_are_dropped():
    drawn = line(np.array([[np.nan, 0.2, np.nan, 0.4], [np.nan, 0.4, np.nan, np.nan]]), "live", kind="live")
    assert drawn.x.tolist() == [2, 4]
    np.testing.assert_allclose(drawn.y, [30.0, np.nan])


def test_a_curve_that_a_seed_lacks_or_has_shorter_is_not_drawn():
    run, *complete = make_runs("refit")
    empty = replace(run, curves=dict.fromkeys(run.curves, np.full(EPOCHS, np.nan)))
    diverged = replace(run, rates=run.rates[:7], curves={key: y[:7] for key, y in run.curves.items()})
    for changed in (empty, diverged):
        setting = make_setting(variants={"refit": (changed, *complete)})
        assert drawable(setting, "refit", lambda run: live(run, "test")) is None


def test_the_axis_omits_only_the_initial_rise():
    curve = make_curves()[Curve(LIVE, "own", "test", "accuracy")][None]
    drawn = line(curve, "live weights", kind="live")
    low, high = focus([drawn])
    outside = np.flatnonzero((drawn.y < low) | (drawn.y > high))
    assert len(outside) and outside.max() < EPOCHS / 10
    assert focus([drawn], [(3.0, 99.0, "a mark")])[1] > 99
    dip = np.full((3, 40), 0.5)
    dip[1, 17] = 0.1
    assert focus([line(dip, "live weights", kind="live")])[0] < 10, "a late dip of one seed"


def test_a_mark_is_the_mean_over_each_seed_at_its_own_epoch():
    drawn = line(CURVES, "live weights", kind="live")
    ((x, y, label),) = mark_at(drawn, [3, 12, 6], "live weights")
    values = 100 * np.array([CURVES[0, 2], CURVES[1, 11], CURVES[2, 5]])
    assert (x, y) == (7.0, pytest.approx(values.mean()))
    assert label == f"live weights: {values.mean():.1f} ± {values.std(ddof=1):.1f}% (n = 3), epochs 3, 12, 6"
    assert mark_at(drawn, [3, 13, 6], "") == mark_at(drawn, [3, 12], "") == []
    assert mark_at(line(CURVES * np.nan, "", kind="live"), [3, 3, 3], "") == []


# Lines of the figures ------------------------------------------------------------------------------------------------


def figure_of(name: str, *settings: Setting) -> Figure:
    (figure,) = [figure for figure in make_figures(make_results(*settings)) if figure.name == f"demo/{name}"]
    return figure


def mean(setting: Setting, variant: str, weights: str, split: str, batchnorm: str = "averaged") -> np.ndarray:
    """The mean accuracy in percent; "best" is the highest average at each epoch of each seed."""
    names = setting.averages if weights == "best" else (weights,)
    kind = "own" if weights == LIVE else batchnorm
    curves = [np.max([run.curves[Curve(name, kind, split, "accuracy")] for name in names], axis=0)
              for run in setting.variants[variant]]  # fmt: skip
    return 100 * np.mean(curves, axis=0)


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("averages", [1, 3, 5])
def test_lines_are_means_of_the_runs_for_any_number_of_seeds_and_averages(seeds: int, averages: int):
    one = fewer_averages(first_seeds(make_setting(), seeds), averages)
    copied = AVERAGES[min(2, averages - 1)]
    expected = {
        "dynamics/cifar100-resnet18": [("refit", LIVE, "test"), ("refit", "best", "test")],
        "step-decay/accuracy": [("step", LIVE, "test"), ("step", "best", "test")],
        "bootstrap/accuracy": [(variant, weights, "val") for variant in ("tune", "bootstrap")
                               for weights in (LIVE, copied)],
        "lr-search/curves": [(f"tune at {rate:g}", LIVE, "val") for rate in RATES],
        "sampling-period/accuracy": [("every 1", LIVE, "test"), *((f"every {period}", "best", "test")
                                                                  for period in (1, 2, 4, 8))],
    }  # fmt: skip
    for name, lines in expected.items():
        panel = figure_of(name, one).panels[0]
        assert len(panel.lines) == len(lines)
        for drawn, key in zip(panel.lines, lines, strict=True):
            np.testing.assert_allclose(drawn.y, mean(one, *key))
            assert drawn.n == seeds and (drawn.std is None) == (seeds == 1)


def test_the_start_of_the_constant_rate_is_marked():
    one = make_setting("cifar100n-resnet18")
    runs = tuple(replace(run, constant_from=30) for run in one.variants["constant"])
    (panel,) = figure_of("constant-lr/accuracy", replace(one, variants={**one.variants, "constant": runs})).panels
    ((x, y, label),) = panel.marks
    assert (x, y) == (30.0, pytest.approx(mean(one, "refit", "best", "test")[29])) and "epoch 30" in label
    assert [line.dashed for line in panel.lines] == [False, False, True, True]


@pytest.mark.parametrize("batchnorm", ["recomputed", "averaged"])
def test_marks_under_label_noise_are_on_the_drawn_curves(batchnorm: str):
    one = make_setting("cifar100n-resnet34")
    runs = tuple(replace(run, curves={key: y for key, y in run.curves.items() if key.batchnorm in ("own", batchnorm)})
                 for run in one.variants["refit"])  # fmt: skip
    one = replace(one, variants={**one.variants, "refit": runs})
    panel = figure_of("label-noise/accuracy", one).panels[0]
    slowest = mean(one, "refit", AVERAGES[-1], "test", batchnorm)
    np.testing.assert_allclose(panel.lines[1].y, slowest)
    (x_live, y_live, _), (x, y, _) = panel.marks
    assert (x_live, y_live) == (38.0, pytest.approx(mean(one, "refit", LIVE, "test")[37]))
    assert (x, y) == (25.0, pytest.approx(slowest[24]))
    assert f"{batchnorm} statistics" in panel.lines[1].label


def test_periods_are_sorted_as_numbers_and_compared_with_the_shortest_by_seed():
    one = make_setting()
    shifted = tuple(replace(run, curves={key: y + 0.01 * (1 + run.seed) for key, y in run.curves.items()})
                    for run in one.variants["every 4"])  # fmt: skip
    variants = {name: runs for name, runs in one.variants.items() if not name.startswith("every ")}
    periods = {"every 64": one.variants["every 8"], "every 16": shifted, "every 4": one.variants["every 2"]}
    panels = figure_of("sampling-period/accuracy", replace(one, variants={**variants, **periods})).panels
    assert [line.label for line in panels[0].lines[1:]] == ["T = 4", "T = 16", "T = 64"]
    np.testing.assert_allclose(panels[1].lines[0].y, 2.0)
    np.testing.assert_allclose(panels[1].lines[0].std, 1.0)


# Heat maps ------------------------------------------------------------------------------------------------------------


def test_batchnorm_figures_need_recomputed_statistics():
    one = make_setting()
    without = tuple(replace(run, curves={key: y for key, y in run.curves.items()
                                         if key != Curve(AVERAGES[1], "recomputed", "test", "accuracy")})
                    for run in one.variants["refit"])  # fmt: skip
    names = [figure.name for figure in make_figures(make_results(make_setting(variants={"refit": without})))]
    assert names and not [name for name in names if "batchnorm" in name]


@pytest.mark.parametrize("has_batchnorm", [True, False])
def test_the_post_hoc_heat_map_marks_the_best_field(has_batchnorm: bool):
    one = make_setting(has_batchnorm=has_batchnorm)
    figure = figure_of("posthoc/heatmap", one)
    posthoc, during = figure.panels
    assert list(posthoc.y_ticks) == [*AVERAGES, "ema-10%", "ema-14%"] and list(during.y_ticks) == list(AVERAGES)
    assert list(posthoc.x_ticks) == [str(epoch) for epoch in range(2, EPOCHS + 1, 2)]
    curve = Curve("ema-10%", "recomputed" if has_batchnorm else "averaged", "val", "accuracy")
    curves = [run.posthoc[curve][1::2] for run in one.variants["posthoc"]]
    assert posthoc.grid is not None
    np.testing.assert_allclose(posthoc.grid[5], 100 * np.mean(curves, axis=0))
    ((column, row, label),) = posthoc.marks
    assert posthoc.grid[int(row), int(column)] == posthoc.grid.max() and label in figure.caption
    # `make_posthoc` adds 0.05 to 0.25 points.
    assert "differ by 0.15 points in the median field, 0.25 at most" in figure.caption


# Reliability diagrams -------------------------------------------------------------------------------------------------

LIVE_NAME, SLOW_NAME = "live-accuracy", f"{AVERAGES[-1]}-recomputed-loss"


def with_predictions(setting, predictions):
    """Replace the predictions of the tuning runs by a function of seed and name."""
    runs = tuple(
        replace(run, predictions=lambda name, seed=run.seed: predictions(seed, name))
        for run in setting.variants["tune"]
    )
    return replace(setting, variants={**setting.variants, "tune": runs})


def seeded(seed: int, name: str):
    """Predictions that differ by seed."""
    random = np.random.default_rng(seed)
    return {split: (logits + 0.3 * random.normal(size=logits.shape), labels)
            for split, (logits, labels) in make_predictions(name).items()}  # fmt: skip


def by_sorting(logits: np.ndarray, labels: np.ndarray, bins: int) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy by definition: sort by confidence, split into equal parts."""
    found = probabilities_of(logits, axis=1)
    order = np.argsort(found.max(axis=1))
    right = found.argmax(axis=1) == labels
    parts = np.array_split(order, bins)
    return [float(found.max(axis=1)[part].mean()) for part in parts], [float(right[part].mean()) for part in parts]


@pytest.mark.parametrize(("panel", "name"), [(0, LIVE_NAME), (2, SLOW_NAME)])
def test_reliability_points_are_means_over_seeds_of_equal_mass_bins(panel, name):
    (figure,) = reliability(make_results(with_predictions(make_setting(), seeded)), "demo")
    points, ideal = figure.panels[panel].lines
    # There are 5 bins for 400 images.
    found = np.array([by_sorting(*seeded(seed, name)["test"], bins=5) for seed in range(3)])
    np.testing.assert_allclose(points.x, 100 * found[:, 0].mean(axis=0))
    np.testing.assert_allclose(points.y, 100 * found[:, 1].mean(axis=0))
    np.testing.assert_allclose(points.std, 100 * found[:, 1].std(axis=0, ddof=1), atol=1e-9)
    assert points.n == 3 and ideal.kind == "ideal" and ideal.x.tolist() == ideal.y.tolist() == [0, 100]
    errors = [np.mean(np.abs(confidence - accuracy)) for confidence, accuracy in found]
    expected = f"ECE {100 * np.mean(errors):.1f} ± {100 * np.std(errors, ddof=1):.1f}% (n = 3)"
    assert figure.panels[panel].title.endswith(expected)


def test_the_temperature_minimises_the_validation_loss():
    def predictions(seed, name):
        found = make_predictions(name)
        return {"val": found["val"], "test": seeded(seed, name)["test"]}

    logits, labels = make_predictions(LIVE_NAME)["val"]
    fitted = minimize_scalar(
        lambda t: -log_softmax(logits / t, axis=1)[np.arange(len(labels)), labels].mean(),
        bounds=(0.1, 10),
        method="bounded",
    ).x
    setting = with_predictions(make_setting(), predictions)
    found = reliability_of(setting, "SGD", scaled=True)
    for seed, curve in enumerate(found.curves):
        on_test, right = predictions(seed, LIVE_NAME)["test"]
        confidence, accuracy = by_sorting(on_test / fitted, right, bins=5)
        np.testing.assert_allclose(curve.confidence, confidence, atol=1e-4)
        np.testing.assert_allclose(curve.accuracy, accuracy, atol=0.02)


@pytest.mark.parametrize("missing", ["test", "val"])
def test_a_reliability_figure_needs_predictions(missing):
    def predictions(seed, name):
        return {split: found for split, found in make_predictions(name).items() if split != missing or seed != 1}

    assert reliability(make_results(with_predictions(make_setting(), predictions)), "demo") == []


def test_a_setting_with_damaged_predictions_is_skipped_with_a_note():
    def damaged(seed, name):
        raise ValueError("live-accuracy.npz is damaged")

    def infinite(seed, name):
        return {split: (np.full_like(z, np.inf), y) for split, (z, y) in make_predictions(name).items()}

    whole = make_setting("cifar100-vgg16")
    for predictions, message in ((damaged, "live-accuracy.npz is damaged"), (infinite, "NaN or infinity")):
        (figure,) = reliability(make_results(with_predictions(make_setting(), predictions), whole), "demo")
        assert len(figure.panels) == 4
        assert figure.notes[-1].startswith(f"{make_setting().title} is skipped: ") and message in figure.notes[-1]
