"""From the seeds' curves to lines: mean, spread, n, percent, nothing smoothed; and what stands beside a figure."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.figures import (
    Line,
    Panel,
    average_note,
    drawable,
    figure,
    focus,
    line,
    mark_at,
    rate_line,
    seeds_note,
    seeds_text,
    statistics_note,
)
from emabank.study.report.results import LIVE, Curve
from emabank.study.report.series import live
from tests.study.report.made_results import EPOCHS, made_curves, made_runs, made_setting

CURVES = np.random.default_rng(1).random((3, 12))


def test_a_line_is_the_mean_of_the_seeds_in_percent_with_their_standard_deviation():
    made = line(CURVES, "live weights", kind="live")
    np.testing.assert_allclose(made.y, [100 * sum(column) / 3 for column in CURVES.T])
    np.testing.assert_allclose(made.std, 100 * np.sqrt(((CURVES - CURVES.mean(axis=0)) ** 2).sum(axis=0) / 2))
    assert made.n == 3 and made.x.tolist() == list(range(1, 13))
    np.testing.assert_array_equal(made.seeds, 100 * CURVES)
    one = line(CURVES[:1], "live weights", kind="live")
    assert one.std is None and one.seeds is None, "one seed has no spread"


def test_the_peak_of_a_line_is_the_peak_that_was_measured():
    """One epoch far above its neighbours: any smoothing would lower it."""
    spike = np.full((3, 11), 0.3)
    spike[:, 5] = 0.43
    assert line(spike, "live weights", kind="live").y.max() == pytest.approx(43.0)


def test_there_is_a_mean_only_where_every_seed_has_a_value():
    curves = CURVES.copy()
    curves[1, 4] = np.nan
    assert np.flatnonzero(np.isnan(line(curves, "live weights", kind="live").y)).tolist() == [4]


def test_a_line_can_end_early():
    made, beginning = (line(CURVES, "live weights", kind="live", until=until) for until in (None, 4))
    np.testing.assert_array_equal(beginning.y, made.y[:4])
    np.testing.assert_array_equal(beginning.seeds, 100 * CURVES[:, :4])


def test_the_rate_is_the_mean_over_the_seeds():
    one, other = made_runs("refit", rate=0.4)[0], made_runs("refit", rate=0.8)[1]
    made = rate_line([one, other])
    np.testing.assert_allclose(made.y, (one.rates + other.rates) / 2)
    assert made.kind == "rate" and made.n == 2


def test_a_curve_that_is_nowhere_measured_by_all_seeds_is_not_drawn():
    run, *others = made_runs("refit")
    empty = replace(run, curves=dict.fromkeys(run.curves, np.full(EPOCHS, np.nan)))
    diverged = replace(run, rates=run.rates[:7], curves={key: y[:7] for key, y in run.curves.items()})
    for changed in (empty, diverged):
        setting = made_setting(variants={"refit": (changed, *others)})
        assert drawable(setting, "refit", lambda run: live(run, "test")) is None


def test_the_axis_leaves_out_the_first_rise_and_nothing_else():
    curve = made_curves()[Curve(LIVE, "own", "test", "accuracy")][None]
    made = line(curve, "live weights", kind="live")
    low, high = focus([made])
    outside = np.flatnonzero((made.y < low) | (made.y > high))
    assert len(outside) and outside.max() < EPOCHS / 10
    assert focus([made], [(3.0, 99.0, "a mark")])[1] > 99
    dip = np.full((3, 40), 0.5)
    dip[1, 17] = 0.1
    assert focus([line(dip, "live weights", kind="live")])[0] < 10, "a late dip of one seed"


def test_a_mark_is_read_off_the_curves_at_each_seeds_own_epoch():
    ((x, y, label),) = mark_at(CURVES, [3, 12, 6], "live weights")
    values = 100 * np.array([CURVES[0, 2], CURVES[1, 11], CURVES[2, 5]])
    assert (x, y) == (7.0, pytest.approx(values.mean()))
    assert label == f"live weights: {values.mean():.1f} ± {values.std(ddof=1):.1f}% (n = 3), epochs 3, 12, 6"
    assert mark_at(CURVES, [3, 13, 6], "") == mark_at(CURVES, [3, 12], "") == []
    assert mark_at(CURVES * np.nan, [3, 3, 3], "") == []


def panel(*counts: int) -> Panel:
    lines = [Line(label=str(n), x=np.arange(2), y=np.arange(2), n=n) for n in counts]
    return Panel(title="", lines=[*lines, Line(label="", x=np.arange(2), y=np.arange(2), kind="ideal")])


def test_the_number_of_seeds_is_told_and_an_ideal_line_does_not_count():
    assert (seeds_text([panel(3)]), seeds_text([panel(3), panel(2, 5)]), seeds_text([panel()])) == ("3", "2 to 5", "")
    assert seeds_note([panel(3)]).startswith("Bold: the mean of 3 seeds; thin: each seed.")
    assert seeds_note([panel(1)]).startswith("One seed. ")


def test_names_and_statistics_are_explained():
    assert "half-life is 7.1% of the run" in average_note("ema-7.1%")
    assert "decay of 0.998 per update" in average_note("ema-0.998")
    assert statistics_note([made_setting(has_batchnorm=False)]) == ""
    assert "averaged" in statistics_note([made_setting()])


def test_a_stand_in_says_what_it_stands_for_and_the_papers_own_scale_has_none():
    for scale, count in (("demo", 1), ("small", 1), ("paper", 0)):
        setting = made_setting("cifar10-resnet18", scale=scale)
        (made,) = figure("dynamics/x", [setting], [panel(3)], scale=scale, title="", caption="", notes=["a note"])
        assert made.name == f"{scale}/dynamics/x" and made.study == "dynamics" and made.scale == scale
        assert made.notes[-1] == "a note" and len(made.notes) == count + 1
        assert all(setting.title in note and "CIFAR-10 with ResNet-18" in note for note in made.notes[:-1])
    assert figure("dynamics/x", [], [], scale="demo", title="", caption="") == []
