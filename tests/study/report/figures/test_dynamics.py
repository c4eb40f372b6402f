"""The paper's Figures 1a and 4: the live weights, the best of the averages, the rate."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.figures.dynamics import dynamics, early
from tests.study.report.made_evidence import AVERAGES, PAIRS, made_evidence, made_setting

ITEMS = {"cifar100-resnet18": "1a", "cifar10n-resnet34": "4a", "cifar10-resnet18": "4b", "cifar100-vgg16": "4c",
         "cifar100-wrn-28-10": "4d", "tiny-imagenet-resnet18": "4e"}  # fmt: skip


def test_every_pair_has_a_figure_under_its_name_with_the_papers_number():
    made = dynamics(made_evidence(), "demo")
    assert [figure.name for figure in made] == [f"demo/dynamics/{pair}" for pair in PAIRS]
    for figure, pair in zip(made, PAIRS, strict=True):
        assert figure.item == (f"Figure {ITEMS[pair]}" if pair in ITEMS else "")
        assert figure.panels[0].title == made_setting(pair).title


def test_the_lines_are_the_live_weights_and_the_best_average_of_the_refits():
    setting = made_setting()
    (figure,) = dynamics(made_evidence(setting), "demo")
    (panel,) = figure.panels
    runs = setting.arms["refit"]
    live = [run.curves[Curve(LIVE, "own", "test", "accuracy")] for run in runs]
    each = [[run.curves[Curve(name, "averaged", "test", "accuracy")] for name in AVERAGES] for run in runs]
    best = [np.max(averages, axis=0) for averages in each]
    for line, expected in zip(panel.lines, (live, best), strict=True):
        np.testing.assert_allclose(line.y, 100 * np.mean(expected, axis=0))
        np.testing.assert_allclose(line.std, 100 * np.std(expected, axis=0, ddof=1), atol=1e-9)
        assert line.n == 3
    assert [line.kind for line in panel.lines] == ["live", "best"]
    np.testing.assert_allclose(panel.rate.y, runs[0].rates)


def test_the_caption_says_that_the_best_is_an_oracles_choice_and_marks_what_validation_chose():
    (figure,) = dynamics(made_evidence(made_setting()), "demo")
    assert "an oracle's choice" in figure.caption and "not smoothed" in figure.caption
    assert "chosen on test" in figure.panels[0].lines[1].label
    assert "chosen on validation" in figure.panels[0].marks[0][2]


def test_the_first_quarter_is_as_it_was_measured():
    setting = made_setting()
    (figure,) = early(made_evidence(setting), "demo")
    live, best = figure.panels[0].lines
    curves = setting.curves("refit", Curve(LIVE, "own", "test", "accuracy"))[:, :10]
    np.testing.assert_allclose(live.y, 100 * curves.mean(axis=0))
    assert best.x.tolist() == list(range(1, 11))
    assert figure.name == "demo/dynamics/early" and "not smoothed" in figure.caption and figure.item == ""


def test_early_training_shows_every_pair():
    (figure,) = early(made_evidence(), "demo")
    assert [panel.title for panel in figure.panels] == [made_setting(pair).title for pair in PAIRS]


def test_settings_that_stand_for_the_same_pair_have_a_panel_each():
    other = replace(made_setting(), title="digits, ResNet-20")
    (figure,) = dynamics(made_evidence(made_setting(), other), "demo")
    assert [panel.title for panel in figure.panels] == [made_setting().title, "digits, ResNet-20"]


def test_a_pair_that_the_paper_has_not_is_shown_as_well_and_stands_for_nothing():
    (figure,) = dynamics(made_evidence(made_setting("own-network")), "demo")
    assert figure.name == "demo/dynamics/own-network" and figure.notes == () and figure.item == ""


def test_scales_are_kept_apart():
    evidence = made_evidence(made_setting(scale="demo"), made_setting(scale="paper"))
    assert [figure.name for figure in dynamics(evidence, "paper")] == ["paper/dynamics/cifar100-resnet18"]
    assert dynamics(evidence, "small") == [] and early(evidence, "small") == []


@pytest.mark.parametrize("make", [dynamics, early])
def test_without_test_curves_there_is_no_figure(make):
    setting = made_setting()
    without = tuple(
        replace(run, curves={key: y for key, y in run.curves.items() if key.split != "test"})
        for run in setting.arms["refit"]
    )
    assert make(made_evidence(made_setting(arms={"refit": without})), "demo") == []
    assert make(made_evidence(made_setting(arms={"refit": ()})), "demo") == []
