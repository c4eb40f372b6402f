"""The paper's Figures 1b and 9, and the heat map: every average with both kinds of statistics."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import Curve
from emabank.study.report.figures.batchnorm import decays, heatmap
from tests.study.report.made_evidence import AVERAGES, EPOCHS, made_evidence, made_setting

KINDS = ("averaged", "recomputed")


def test_each_panel_has_the_live_weights_and_every_average_with_its_statistics():
    setting = made_setting()
    (figure,) = decays(made_evidence(setting), "demo")
    assert figure.item == "Figure 1b, Figure 9" and figure.name == "demo/batchnorm/decays"
    for panel, kind in zip(figure.panels, KINDS, strict=True):
        assert kind in panel.title and panel.rate is not None
        assert [line.label for line in panel.lines] == ["live weights", *AVERAGES]
        for order, (line, name) in enumerate(zip(panel.lines[1:], AVERAGES, strict=True)):
            curves = setting.curves("refit", Curve(name, kind, "test", "accuracy"))
            np.testing.assert_allclose(line.y, 100 * curves.mean(axis=0))
            assert (line.kind, line.order) == ("average", order)


def test_both_panels_have_one_axis_on_which_everything_is():
    (figure,) = decays(made_evidence(made_setting()), "demo")
    (low, high), other = (panel.y_limits for panel in figure.panels)
    assert (low, high) == other
    assert all(low < line.y.min() and line.y.max() < high for panel in figure.panels for line in panel.lines)


def test_the_heat_map_holds_the_mean_of_the_seeds_as_measured():
    setting = made_setting()
    (figure,) = heatmap(made_evidence(setting), "demo")
    for panel, kind in zip(figure.panels, KINDS, strict=True):
        expected = [
            np.mean([run.curves[Curve(name, kind, "test", "accuracy")] for run in setting.arms["refit"]], axis=0)
            for name in AVERAGES
        ]
        np.testing.assert_allclose(panel.grid, 100 * np.array(expected))
        assert list(panel.y_ticks) == list(AVERAGES) and list(panel.x_ticks) == [str(e) for e in range(1, EPOCHS + 1)]


def test_the_heat_map_marks_the_best_epoch_of_each_average_and_calls_it_an_oracles_choice():
    (figure,) = heatmap(made_evidence(made_setting()), "demo")
    for panel in figure.panels:
        assert [(x, y) for x, y, _ in panel.marks] == [(row.argmax(), i) for i, row in enumerate(panel.grid)]
        assert panel.marks[0][2] == f"{AVERAGES[0]}: best at epoch {panel.grid[0].argmax() + 1}"
    assert "an oracle's choice" in figure.caption and figure.item == ""


def test_the_heat_map_says_how_many_seeds_and_how_far_they_are_apart():
    setting = made_setting()
    (figure,) = heatmap(made_evidence(setting), "demo")
    fields = [
        100 * setting.curves("refit", Curve(name, kind, "test", "accuracy")).std(axis=0, ddof=1)
        for kind in KINDS
        for name in AVERAGES
    ]
    assert f"Mean of 3 seeds; their standard deviation is {np.median(fields):.1f} points" in figure.caption
    (figure,) = heatmap(made_evidence(made_setting(arms={"refit": setting.arms["refit"][:1]})), "demo")
    assert "One seed." in figure.caption


@pytest.mark.parametrize("make", [decays, heatmap])
def test_without_statistics_recomputed_each_epoch_there_is_no_figure(make):
    runs = made_setting().arms["refit"]
    for missing in (
        Curve(AVERAGES[1], "recomputed", "test", "accuracy"),
        Curve(AVERAGES[4], "averaged", "test", "accuracy"),
    ):
        without = tuple(replace(run, curves={k: y for k, y in run.curves.items() if k != missing}) for run in runs)
        assert make(made_evidence(made_setting(arms={"refit": without})), "demo") == []
    assert make(made_evidence(made_setting("cifar10-resnet18")), "demo") == []
