"""Which figures there are, their lines, marks and heat maps against the curves of the runs, and their files."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from emabank.study.report.draw import draw
from emabank.study.report.figure_specs import make_figures, reliability
from emabank.study.report.figures import Figure, Line, Panel, drawable, focus, line, mark_at
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


def test_a_line_has_gaps_where_a_seed_has_no_value_and_no_point_where_none_has():
    drawn = line(np.array([[np.nan, 0.2, np.nan, 0.4], [np.nan, 0.4, np.nan, np.nan]]), "live", kind="live")
    assert drawn.x.tolist() == [2, 4]
    np.testing.assert_allclose(drawn.y, [30.0, np.nan])


def test_a_curve_without_an_epoch_that_all_seeds_measured_is_not_drawn():
    run, *complete = make_runs("refit")
    empty = replace(run, curves=dict.fromkeys(run.curves, np.full(EPOCHS, np.nan)))
    setting = make_setting(variants={"refit": (empty, *complete)})
    assert drawable(setting, "refit", lambda run: live(run, "test")) is None


def test_the_axis_omits_only_the_initial_rise():
    curve = make_curves(0)[Curve(LIVE, "own", "test", "accuracy")][None]
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


def mean(setting: Setting, variant: str, weights: str, split: str) -> np.ndarray:
    """The mean accuracy in percent; "best" is the highest average at each epoch of each seed."""
    names = setting.averages if weights == "best" else (weights,)
    kind = "own" if weights == LIVE else "averaged"
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


def test_averages_under_label_noise_have_averaged_statistics_if_no_others_were_measured():
    one = make_setting("cifar100n-resnet34")
    runs = tuple(replace(run, curves={key: y for key, y in run.curves.items() if key.batchnorm != "recomputed"})
                 for run in one.variants["refit"])  # fmt: skip
    panel = figure_of("label-noise/accuracy", replace(one, variants={**one.variants, "refit": runs})).panels[0]
    np.testing.assert_allclose(panel.lines[1].y, mean(one, "refit", AVERAGES[-1], "test"))
    assert "averaged statistics" in panel.lines[1].label


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


# Reliability diagrams -------------------------------------------------------------------------------------------------


def with_predictions(setting, predictions):
    """Replace the predictions of the tuning runs by a function of seed and name."""
    runs = tuple(
        replace(run, predictions=lambda name, seed=run.seed: predictions(seed, name))
        for run in setting.variants["tune"]
    )
    return replace(setting, variants={**setting.variants, "tune": runs})


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


# Figures as files -----------------------------------------------------------------------------------------------------

LONG = "CIFAR-10N (worse labels), 4,000 images, ResNet-8 of width 24, with flips alone"
X = np.arange(1, 21)


def small() -> Figure:
    lines = [Line(label="live weights", x=X, y=X * 2.0, std=X / 9, n=3, kind="live"),
             Line(label="ema-7.1%", x=X, y=X * 3.0, n=3, order=4)]  # fmt: skip
    rate = Line(label="learning rate", x=X, y=1 / X, kind="rate")
    panel = Panel(title="digits", lines=lines, rate=rate, marks=[(3.0, 9.0, "chosen on validation")])
    return Figure(name="demo/small", title="A small figure", panels=[panel])


@pytest.mark.parametrize("name", ["lines", "batchnorm/heatmap"])
@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_figure_gives_the_same_bytes(tmp_path, name, file_format, start):
    figure = small() if name == "lines" else figure_of(name, make_setting())
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        draw(figure, path, file_format=file_format)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(start)


def test_text_of_a_figure_is_text_in_its_svg(tmp_path):
    noisy = make_setting("cifar10n-resnet34")
    figure = figure_of("label-noise/memorisation", make_setting("cifar100n-resnet34"), replace(noisy, title=LONG))
    draw(figure, tmp_path / "figure.svg", file_format="svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    drawn = " ".join("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))
    panel = figure.panels[0]
    expected = [figure.title, panel.title, panel.x_label, panel.y_label, panel.marks[0][2], panel.marks[1][2], LONG]
    for text in [*expected, *(own.label for own in panel.lines), "mean of 3 seeds"]:
        assert re.sub(r"\s+", " ", text) in re.sub(r"\s+", " ", drawn)
