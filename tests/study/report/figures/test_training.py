"""The paper's Figures 3, 5 and 8: step decay, bootstrapping, the rate held constant."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.figures.training import bootstrap, constant_rate, step_decay
from tests.study.report.made_evidence import AVERAGES, made_evidence, made_setting


def mean(setting, arm: str, weights: str, split: str) -> np.ndarray:
    """The mean of an accuracy in percent; of all averages the best if none is named."""
    if weights == "best":
        curves = np.max([setting.curves(arm, Curve(name, "averaged", split, "accuracy")) for name in AVERAGES], axis=0)
    else:
        curves = setting.curves(arm, Curve(weights, "own" if weights == LIVE else "averaged", split, "accuracy"))
    return 100 * curves.mean(axis=0)


def cut(setting, split: str):
    """Evidence of the setting without what was measured on one split."""
    arms = {
        arm: tuple(replace(run, curves={key: y for key, y in run.curves.items() if key.split != split}) for run in runs)
        for arm, runs in setting.arms.items()
    }
    return made_evidence(replace(setting, arms=arms))


def test_the_constant_rate_stands_against_the_cosine():
    setting = made_setting("cifar100n-resnet18")
    (figure,) = constant_rate(made_evidence(setting), "demo")
    (panel,) = figure.panels
    expected = [("refit", LIVE, False), ("refit", "best", False), ("constant", LIVE, True), ("constant", "best", True)]
    for line, (arm, weights, dashed) in zip(panel.lines, expected, strict=True):
        np.testing.assert_allclose(line.y, mean(setting, arm, weights, "test"))
        assert line.dashed == dashed and line.label.startswith("cosine" if arm == "refit" else "constant")
    np.testing.assert_allclose(panel.rate.y, setting.arms["constant"][0].rates)
    assert figure.item == "Figure 8" and figure.name == "demo/constant-lr/accuracy"
    assert "an oracle's choice" in figure.caption


def test_the_point_of_parting_is_on_the_shared_line():
    setting = made_setting("cifar100n-resnet18")
    (figure,) = constant_rate(made_evidence(setting), "demo")
    ((x, y, label),) = figure.panels[0].marks
    assert (x, y) == (25.0, pytest.approx(mean(setting, "refit", "best", "test")[24]))
    assert "epoch 25" in label


def test_the_point_of_parting_is_where_the_runs_held_the_rate_whatever_was_chosen():
    setting = made_setting("cifar100n-resnet18")
    runs = tuple(replace(run, constant_from=30) for run in setting.arms["constant"])
    held = made_evidence(replace(setting, arms={**setting.arms, "constant": runs}))
    ((x, _, label),) = constant_rate(held, "demo")[0].panels[0].marks
    assert x == 30.0 and "epoch 30" in label


def test_step_decay_has_the_live_weights_the_best_average_and_the_steps():
    setting = made_setting()
    (figure,) = step_decay(made_evidence(setting), "demo")
    (panel,) = figure.panels
    for line, weights in zip(panel.lines, (LIVE, "best"), strict=True):
        np.testing.assert_allclose(line.y, mean(setting, "step", weights, "test"))
    assert figure.item == "Figure 3" and panel.rate is not None and "an oracle's choice" in figure.caption


def test_bootstrapping_compares_the_third_average_and_the_live_weights_on_validation():
    setting = made_setting()
    (figure,) = bootstrap(made_evidence(setting), "demo")
    (panel,) = figure.panels
    expected = [(arm, weights) for arm in ("tune", "bootstrap") for weights in (LIVE, AVERAGES[2])]
    for line, (arm, weights) in zip(panel.lines, expected, strict=True):
        np.testing.assert_allclose(line.y, mean(setting, arm, weights, "val"))
        assert line.dashed == (arm == "bootstrap")
    assert panel.y_label == "validation accuracy, %" and figure.item == "Figure 5"


@pytest.mark.parametrize(
    ("make", "pair", "split"),
    [
        (constant_rate, "cifar100n-resnet18", "test"),
        (step_decay, "cifar100-resnet18", "test"),
        (bootstrap, "cifar100-resnet18", "val"),
    ],
)
def test_each_is_measured_where_the_paper_has_it(make, pair, split):
    other = {"test": "val", "val": "test"}[split]
    assert make(cut(made_setting(pair), split), "demo") == []
    assert make(cut(made_setting(pair), other), "demo")[0].panels


@pytest.mark.parametrize(
    ("make", "pair", "arm"),
    [
        (constant_rate, "cifar100n-resnet18", "constant"),
        (constant_rate, "cifar100n-resnet18", "refit"),
        (step_decay, "cifar100-resnet18", "step"),
        (bootstrap, "cifar100-resnet18", "bootstrap"),
        (bootstrap, "cifar100-resnet18", "tune"),
    ],
)
def test_without_an_arm_there_is_no_figure(make, pair, arm):
    assert len(make(made_evidence(made_setting(pair)), "demo")) == 1
    assert make(made_evidence(made_setting(pair, arms={arm: ()})), "demo") == []
    assert make(made_evidence(made_setting("cifar10-resnet18")), "demo") == []
