"""Values of columns and curves by hand; tables, figures and claims agree on them."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claim_specs import make_claims
from emabank.study.report.figure_specs import make_figures
from emabank.study.report.results import LIVE, Curve
from emabank.study.report.series import (
    OnTrain,
    Reached,
    at,
    best,
    by_seed,
    copied_back,
    first_quarter,
    gap,
    live,
    mean,
    minus,
    peak,
    stack,
)
from emabank.study.report.table_specs import make_tables
from tests.study.report.example_results import (
    AVERAGES,
    cell_at,
    fewer_averages,
    make_results,
    make_runs,
    make_setting,
    setting_from_curves,
    table_named,
)

NAN = float("nan")
# Three seeds whose clean accuracy jumps past 90% between two epochs.
CURVES = {
    (LIVE, "own", "train", "clean_accuracy"): [[0.5, 0.8, 0.96, 1.0], [0.7, 0.92, 0.95, 1.0], [0.6, 0.7, 0.9, 1.0]],
    (LIVE, "own", "train", "memorised"): [[0.1, 0.4, 0.9, 1.0], [0.3, 0.7, 0.9, 1.0], [0.2, 0.5, 0.8, 1.0]],
    ("b", "averaged", "train", "clean_accuracy"): [[0.6, 0.91, 1.0, 1.0], [0.6, 0.9, 1.0, 1.0], [0.8, 0.85, 0.99, 1]],
    ("b", "averaged", "train", "memorised"): [[0.1, 0.3, 0.6, 1.0], [0.1, 0.2, 0.6, 1.0], [0.1, 0.2, 0.6, 1.0]],
}
SGD, EMA = [0.9, 0.7, 0.8], [0.3, 0.2, 0.6]  # memorised at epochs 3, 2, 3 and 2, 2, 3, by hand


def test_table_figure_and_claim_agree_on_memorisation():
    results = make_results(setting_from_curves(CURVES))
    (finding,) = [finding for finding in make_claims(results)[5].findings if finding.key == "memorised"]
    table = table_named(make_tables(results), "demo/label-noise/memorisation")
    (figure,) = [figure for figure in make_figures(results) if figure.name == "demo/label-noise/memorisation"]
    differences = 100 * np.subtract(EMA, SGD)
    assert finding.values == pytest.approx(differences)
    cell = cell_at(table, "90%", "memorised, points")
    assert (cell.mean, cell.std) == (pytest.approx(differences.mean()), pytest.approx(differences.std(ddof=1)))
    (x_live, of_live, live_label), (x, average, label) = figure.panels[0].marks
    assert (of_live, average) == (pytest.approx(100 * np.mean(SGD)), pytest.approx(100 * np.mean(EMA)))
    assert (x_live, x) == (pytest.approx(8 / 3), pytest.approx(7 / 3))
    for group, text in (("SGD", live_label), ("EMA, slowest", label)):
        found = cell_at(table, "90%", "memorised, %", group)
        assert f"{found.mean:.1f} ± {found.std:.1f}% (n = 3) memorised" in text


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_table_and_figure_show_the_average_that_the_bootstrap_runs_copied(count: int):
    one = fewer_averages(make_setting(), count)
    name = AVERAGES[min(2, count - 1)]
    assert copied_back(one) == name
    (figure,) = [figure for figure in make_figures(make_results(one)) if figure.name == "demo/bootstrap/accuracy"]
    table = table_named(make_tables(make_results(one)), "demo/bootstrap/accuracy")
    assert [line.label for line in figure.panels[0].lines][1::2] == [f"plain: {name}", f"bootstrapped: {name}"]
    end = figure.panels[0].lines[3].y[-1]
    assert cell_at(table, f"{name}, bootstrapped", "end, %").mean == pytest.approx(end)


def first_reached(clean: list[float], memorised: list[float], *level: float) -> Reached | None:
    (reached,) = OnTrain(np.array([clean]), np.array([memorised])).first_reached(*level)
    return reached


def test_first_reached_is_the_first_measured_epoch_at_the_level():
    assert first_reached([0.5, 0.8, 1.0], [0.0, 0.1, 0.2]) == (3, 1.0, 0.2)
    assert first_reached([0.95, 0.8], [0.3, 0.4]) == (1, 0.95, 0.3)
    assert first_reached([0.8, 0.9, 0.7], [0.1, 0.3, 0.9], 0.75) == (1, 0.8, 0.1)
    assert first_reached([NAN, 0.8, 0.95, 1.0], [0.9, 0.1, NAN, 0.2]) == (4, 1.0, 0.2)
    assert first_reached([0.8, 0.89], [0.1, 0.3]) is None
    assert first_reached([], []) is None


def test_the_best_average_is_the_highest_measured_at_each_epoch():
    run = make_runs("refit")[0]
    found = best(run, AVERAGES, "test")
    assert found is not None
    for epoch in range(run.epochs):
        assert found[epoch] == max(run.curves[Curve(name, "averaged", "test", "accuracy")][epoch] for name in AVERAGES)
    assert best(run, (*AVERAGES, "another"), "test") is None and best(run, (), "test") is None
    keys = [Curve(name, "averaged", "test", "accuracy") for name in AVERAGES[:2]]
    holes = replace(run, curves={keys[0]: np.array([NAN, 0.5]), keys[1]: np.array([NAN, NAN])})
    np.testing.assert_array_equal(best(holes, AVERAGES[:2], "test"), [NAN, 0.5])  # type: ignore[arg-type]


def test_epochs_are_counted_from_one():
    curve = np.array([0.1, 0.2, NAN])
    assert [at(curve, epoch) for epoch in (1, 2, 3, 4, 0, -1, -2, -4)] == [0.1, 0.2, None, None, None, None, 0.2, None]
    assert peak(curve) == (0.2, 2) and peak(np.array([NAN])) is None and peak(None) is None
    assert gap(np.zeros(3), np.zeros(4)) is None and gap(None, np.zeros(4)) is None, "of different lengths"
    assert [first_quarter(epochs) for epochs in (1, 3, 7, 8, 30, 200)] == [1, 1, 1, 2, 7, 50]


def test_a_curve_that_one_run_lacks_or_has_shorter_is_not_stacked():
    one = make_setting()
    first, second, third = one.variants["refit"]
    found = stack(one, "refit", lambda run: live(run, "test"))
    assert found is not None and [row.tolist() for row in found] == [
        run.curves[Curve(LIVE, "own", "test", "accuracy")].tolist() for run in one.variants["refit"]
    ]
    shorter = replace(second, curves={key: curve[:7] for key, curve in second.curves.items()})
    for changed in (replace(second, curves={}), shorter):
        other = replace(one, variants={"refit": (first, changed, third)})
        assert stack(other, "refit", lambda run: live(run, "test")) is None
        assert by_seed(other, "refit", lambda run: live(run, "test"), mean) == {}
    assert stack(one, "no such variant", lambda run: live(run, "test")) is None


def test_differences_use_the_seeds_that_both_have():
    assert minus({0: 1.0, 2: 3.0, 3: None}, {1: 1.0, 2: 1.0, 3: 2.0}) == {2: 2.0, 3: None}
