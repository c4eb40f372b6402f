"""Curves of every seed and what they come to; what not every run has is not there at all."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.tables.peaks import average, best_average, chosen_epochs, end, live, minus, peak, peak_epoch
from tests.study.report.tables.looking import setting

KEY = Curve(LIVE, "own", "test", "accuracy")


def test_curves_are_those_of_the_runs_by_seed():
    found = live(setting(), "refit", "test")
    assert list(found) == [0, 1, 2]
    for run in setting().arms["refit"]:
        assert np.array_equal(found[run.seed], run.curves[KEY])


def test_the_best_average_is_the_highest_of_all_at_every_epoch():
    one = setting()
    found = best_average(one, "refit", "test")
    for run in one.arms["refit"]:
        curves = [run.curves[Curve(name, "averaged", "test", "accuracy")] for name in one.averages]
        assert found[run.seed].tolist() == [max(values) for values in zip(*curves, strict=True)]


def test_a_curve_that_one_run_lacks_or_has_shorter_is_no_curve_of_the_arm():
    one = setting()
    first, second, third = one.arms["refit"]
    without = replace(second, curves={key: found for key, found in second.curves.items() if key != KEY})
    shorter = replace(second, curves={key: found[:7] for key, found in second.curves.items()})
    for changed in (without, shorter):
        other = replace(one, arms={"refit": (first, changed, third)})
        assert live(other, "refit", "test") == {}
    assert best_average(replace(one, arms={"refit": (first, shorter, third)}), "refit", "test") == {}
    assert live(one, "no such arm", "test") == {} == average(one, "refit", "no such average", "test")


def test_peaks_and_ends_leave_out_epochs_that_were_not_measured():
    curves = {0: np.array([np.nan, 0.5, 0.7, 0.7, np.nan])}
    assert (peak(curves), peak_epoch(curves), end(curves)) == ({0: 0.7}, {0: 3}, {0: None})


def test_differences_are_of_the_seeds_that_both_have():
    assert minus({0: 1.0, 2: 3.0}, {1: 1.0, 2: 1.0}) == {2: 2.0}


def test_epochs_are_those_that_each_seed_chose_by_the_criterion():
    assert chosen_epochs(setting()) == {0: 25, 1: 25, 2: 25}
    assert chosen_epochs(setting(), "loss") == {0: 20, 1: 20, 2: 20}
    assert chosen_epochs(replace(setting(), choices=[])) == {}
