"""From the seeds' curves to lines: mean, spread, n, percent; what is not there, or diverged, gives none."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.figures.lines import (
    best_of,
    chosen_mark,
    curves_of,
    difference,
    epochs_of,
    focus,
    line,
    mark_at,
    percent_of,
    rate_line,
    slowest_of,
)
from tests.study.report.made_evidence import AVERAGES, EPOCHS, made_curves, made_runs, made_setting

CURVES = np.random.default_rng(1).random((3, 12))


def test_a_line_is_the_mean_of_the_seeds_in_percent_with_their_standard_deviation():
    made = line(CURVES, "live weights", kind="live")
    np.testing.assert_allclose(made.y, [100 * sum(column) / 3 for column in CURVES.T])
    np.testing.assert_allclose(made.std, 100 * np.sqrt(((CURVES - CURVES.mean(axis=0)) ** 2).sum(axis=0) / 2))
    assert made.n == 3 and made.x.tolist() == list(range(1, 13))


def test_every_seed_is_there_as_it_was_measured():
    made = line(CURVES, "live weights", kind="live")
    np.testing.assert_array_equal(made.seeds, 100 * CURVES)
    np.testing.assert_array_equal(line(CURVES, "live weights", kind="live", until=4).seeds, 100 * CURVES[:, :4])
    assert line(CURVES[:1], "live weights", kind="live").seeds is None


def test_the_peak_of_a_line_is_the_peak_that_was_measured():
    """One epoch far above its neighbours: any smoothing would lower it."""
    spike = np.full((3, 11), 0.3)
    spike[:, 5] = 0.43
    assert line(spike, "live weights", kind="live").y.max() == pytest.approx(43.0)


def test_one_seed_has_no_spread():
    assert line(CURVES[:1], "live weights", kind="live").std is None


def test_there_is_a_mean_only_where_every_seed_has_a_value():
    curves = CURVES.copy()
    curves[1, 4] = np.nan
    assert np.flatnonzero(np.isnan(line(curves, "live weights", kind="live").y)).tolist() == [4]


def test_a_line_can_end_early():
    whole, beginning = (line(CURVES, "live weights", kind="live", until=until) for until in (None, 4))
    np.testing.assert_array_equal(beginning.y, whole.y[:4])
    assert beginning.x.tolist() == [1, 2, 3, 4]


def test_a_difference_is_taken_seed_by_seed():
    made = difference(CURVES + 0.01, CURVES, "gain", kind="average")
    np.testing.assert_allclose(made.y, 1.0)
    np.testing.assert_allclose(made.std, 0.0, atol=1e-9)


def test_the_rate_is_the_mean_over_the_seeds():
    one, other = made_runs("refit", rate=0.4)[0], made_runs("refit", rate=0.8)[1]
    made = rate_line([one, other])
    np.testing.assert_allclose(made.y, (one.rates + other.rates) / 2)
    assert made.kind == "rate" and made.n == 2


def test_the_best_average_is_the_largest_at_each_epoch_of_each_seed():
    setting = made_setting()
    expected = [
        [
            max(run.curves[Curve(name, "averaged", "test", "accuracy")][epoch] for name in AVERAGES)
            for epoch in range(40)
        ]
        for run in setting.arms["refit"]
    ]
    np.testing.assert_array_equal(best_of(setting, "refit", "test"), expected)


def test_averages_with_other_names_than_the_protocols_have_a_best_too():
    def renamed(run):
        curves = {key._replace(weights=key.weights.replace("ema-", "other-")): y for key, y in run.curves.items()}
        return replace(run, curves=curves)

    setting = made_setting()
    arms = {"every 1": tuple(renamed(run) for run in setting.arms["every 1"])}
    np.testing.assert_array_equal(
        best_of(made_setting(arms=arms), "every 1", "test"), best_of(setting, "every 1", "test")
    )


def test_the_slowest_average_has_recomputed_statistics_if_they_were_measured():
    setting = made_setting()
    found = slowest_of(setting, "refit", "test")
    assert found is not None and found[1] == "recomputed"
    np.testing.assert_array_equal(
        found[0], setting.curves("refit", Curve(AVERAGES[-1], "recomputed", "test", "accuracy"))
    )
    kept = [replace(run, curves={k: v for k, v in run.curves.items() if k.batchnorm != "recomputed"})
            for run in setting.arms["refit"]]  # fmt: skip
    found = slowest_of(made_setting(arms={"refit": tuple(kept)}), "refit", "test")
    assert found is not None and found[1] == "averaged"


def test_what_is_not_there_is_none():
    setting = made_setting()
    assert curves_of(setting, "no such arm", LIVE, "test") is None
    assert curves_of(setting, "refit", "no such average", "test") is None
    assert best_of(setting, "no such arm", "test") is None
    assert slowest_of(replace(setting, averages=("other",)), "refit", "test") is None


def test_a_curve_that_is_nowhere_measured_by_all_seeds_is_none():
    run, *others = made_runs("refit")
    empty = replace(run, curves=dict.fromkeys(run.curves, np.full(EPOCHS, np.nan)))
    setting = made_setting(arms={"refit": (empty, *others)})
    assert curves_of(setting, "refit", LIVE, "test") is None
    assert best_of(setting, "refit", "test") is None


def test_runs_of_which_one_ended_early_have_no_mean_curve():
    run, *others = made_runs("refit")
    diverged = replace(run, rates=run.rates[:7], curves={key: y[:7] for key, y in run.curves.items()})
    setting = made_setting(arms={"refit": (diverged, *others)})
    assert curves_of(setting, "refit", LIVE, "test") is None
    assert best_of(setting, "refit", "test") is None


def test_the_axis_leaves_out_the_first_rise_and_nothing_else():
    curve = made_curves()[Curve(LIVE, "own", "test", "accuracy")][None]
    made = line(curve, "live weights", kind="live")
    low, high = focus([made])
    outside = np.flatnonzero((made.y < low) | (made.y > high))
    assert len(outside) and outside.max() < EPOCHS / 10
    assert focus([made], [(3.0, 99.0, "a mark")])[1] > 99


def test_a_late_dip_of_one_seed_is_on_the_axis():
    curves = np.full((3, 40), 0.5)
    curves[1, 17] = 0.1
    low, _ = focus([line(curves, "live weights", kind="live")])
    assert low < 10


def test_the_axis_is_wide_enough_for_every_seed_and_passes_gaps_over():
    curves = np.full((2, 10), 0.5)
    curves[0] += 0.1
    curves[:, 3] = np.nan
    low, high = focus([line(curves, "live weights", kind="live")])
    assert low < 50 and high > 60


def test_a_mark_is_read_off_the_curves_at_each_seeds_own_epoch():
    ((x, y, label),) = mark_at(CURVES, [3, 12, 6], "live weights")
    values = 100 * np.array([CURVES[0, 2], CURVES[1, 11], CURVES[2, 5]])
    assert (x, y) == (7.0, pytest.approx(values.mean()))
    assert label == f"live weights: {values.mean():.1f} ± {values.std(ddof=1):.1f}% (n = 3), epochs 3, 12, 6"
    assert (
        mark_at(CURVES, [3, 13, 6], "") == mark_at(CURVES, [3, 12], "") == mark_at(CURVES * np.nan, [3, 3, 3], "") == []
    )


def test_what_validation_chose_is_marked_with_the_refits_test_accuracy():
    setting = made_setting()
    others = [dict(table, epochs=[1, 1, 1]) for table in setting.tables if table["trained_on"] == "80%"]
    setting = replace(setting, tables=[*others, *(each for each in setting.tables if each["trained_on"] == "100%")])
    values = setting.values("EMA (acc.)", "accuracy", trained_on="100%", split="test")
    ((x, y, label),) = chosen_mark(setting, "EMA (acc.)")
    assert (x, y) == (25.0, pytest.approx(100 * np.mean(values)))
    assert label == f"EMA (acc.), chosen on validation: {y:.1f} ± {100 * np.std(values, ddof=1):.1f}% (n = 3), epoch 25"


def test_without_a_whole_column_there_is_no_mark():
    setting = made_setting()
    assert chosen_mark(replace(setting, tables=[]), "EMA (acc.)") == []
    table = dict(setting.column("EMA (acc.)", trained_on="100%", split="test"), values={"accuracy": [0.5, None, 0.6]})
    assert chosen_mark(replace(setting, tables=[table]), "EMA (acc.)") == []


def test_numbers_come_with_their_spread_and_n():
    assert percent_of([0.25, 0.75]) == "50.0 ± 35.4% (n = 2)"
    assert epochs_of([3, 3, 4]) == "epochs 3, 3, 4"
