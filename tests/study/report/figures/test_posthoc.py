"""The heat map of window and stopping epoch: what is in its fields, which one is marked, what is said of the error."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import Curve
from emabank.study.report.figures.posthoc import heatmap
from tests.study.report.made_evidence import AVERAGES, EPOCHS, made_evidence, made_setting

WINDOWS = [*AVERAGES, "ema-10%", "ema-14%"]


def test_one_panel_has_all_windows_and_the_other_those_that_were_kept():
    setting = made_setting()
    (figure,) = heatmap(made_evidence(setting), "demo")
    made, kept = figure.panels
    assert (list(made.y_ticks), list(kept.y_ticks)) == (WINDOWS, list(AVERAGES))
    assert list(made.x_ticks) == [str(epoch) for epoch in range(2, EPOCHS + 1, 2)] == list(kept.x_ticks)
    for row, name in enumerate(WINDOWS):
        curve = Curve(name, "recomputed", "val", "accuracy")
        curves = [run.posthoc[curve][1::2] for run in setting.arms["posthoc"]]
        np.testing.assert_allclose(made.grid[row], 100 * np.mean(curves, axis=0))
        if name in AVERAGES:
            curves = [run.curves[curve][1::2] for run in setting.arms["posthoc"]]
            np.testing.assert_allclose(kept.grid[row], 100 * np.mean(curves, axis=0))


def test_the_best_field_is_marked_and_told():
    (figure,) = heatmap(made_evidence(made_setting()), "demo")
    for panel in figure.panels:
        ((column, row, words),) = panel.marks
        assert panel.grid[int(row), int(column)] == panel.grid.max()
        assert words == f"best: {panel.y_ticks[int(row)]} at epoch {panel.x_ticks[int(column)]}"
    assert figure.panels[0].marks[0][2] in figure.caption
    assert f"{figure.panels[0].grid.max():.1f}% in the mean of 3 seeds" in figure.caption


def test_the_measured_error_is_told():
    (figure,) = heatmap(made_evidence(made_setting()), "demo")
    # From 0.05 to 0.25, as they were made.
    assert "fields differ by 0.15 points in the median, 0.25 at most" in figure.caption


def test_without_batch_norm_statistics_are_those_of_the_average():
    setting = made_setting(has_batchnorm=False)
    (figure,) = heatmap(made_evidence(setting), "demo")
    curves = [r.posthoc[Curve("ema-10%", "averaged", "val", "accuracy")][1::2] for r in setting.arms["posthoc"]]
    np.testing.assert_allclose(figure.panels[0].grid[5], 100 * np.mean(curves, axis=0))
    assert "recomputed" not in figure.caption


def test_without_averages_to_compare_with_one_panel_is_left():
    setting = made_setting()
    bare = tuple(replace(run, curves={}) for run in setting.arms["posthoc"])
    (figure,) = heatmap(made_evidence(replace(setting, arms={"posthoc": bare})), "demo")
    assert len(figure.panels) == 1 and "differ" not in figure.caption


def test_a_seed_without_fields_leaves_nothing_to_show():
    setting = made_setting()
    first, *others = setting.arms["posthoc"]
    arms = {"posthoc": (first, *(replace(run, posthoc={}) for run in others))}
    assert heatmap(made_evidence(replace(setting, arms=arms)), "demo") == []
