"""The same horizon sampled every T steps."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import Curve
from emabank.study.report.figures.sampling_period import sampling_period
from tests.study.report.made_evidence import AVERAGES, made_evidence, made_setting


def best(setting, period: int) -> np.ndarray:
    curves = [setting.curves(f"every {period}", Curve(name, "averaged", "test", "accuracy")) for name in AVERAGES]
    return np.max(curves, axis=0)


def shifted(period: int, by: float):
    """The setting with one period's averages better by so much, more with each seed."""
    setting = made_setting()
    runs = tuple(
        replace(run, curves={key: y + by * (1 + run.seed) for key, y in run.curves.items()})
        for run in setting.arms[f"every {period}"]
    )
    return replace(setting, arms={**setting.arms, f"every {period}": runs})


def test_there_is_a_line_for_each_period_in_order_and_the_live_weights():
    setting = made_setting()
    (figure,) = sampling_period(made_evidence(setting), "demo")
    accuracy = figure.panels[0]
    assert [line.label for line in accuracy.lines] == ["live weights", "T = 1", "T = 2", "T = 4", "T = 8"]
    for line, period in zip(accuracy.lines[1:], (1, 2, 4, 8), strict=True):
        np.testing.assert_allclose(line.y, 100 * best(setting, period).mean(axis=0))
    assert figure.name == "demo/sampling-period/accuracy" and figure.item == ""
    assert "an oracle's choice" in figure.caption


def test_periods_are_ordered_as_numbers():
    setting = made_setting()
    arms = {arm: runs for arm, runs in setting.arms.items() if not arm.startswith("every")}
    arms |= {
        "every 64": setting.arms["every 8"],
        "every 16": setting.arms["every 4"],
        "every 4": setting.arms["every 2"],
    }
    (figure,) = sampling_period(made_evidence(replace(setting, arms=arms)), "demo")
    assert [line.label for line in figure.panels[0].lines[1:]] == ["T = 4", "T = 16", "T = 64"]
    assert "T = 4" in figure.panels[1].title


def test_the_difference_is_paired_by_seed():
    (figure,) = sampling_period(made_evidence(shifted(4, 0.01)), "demo")
    differences = {line.label: line for line in figure.panels[1].lines}
    assert list(differences) == ["T = 2", "T = 4", "T = 8"]
    np.testing.assert_allclose(differences["T = 4"].y, 2.0)
    np.testing.assert_allclose(differences["T = 4"].std, 1.0)
    np.testing.assert_allclose(differences["T = 8"].y, 0.0, atol=1e-9)
    assert figure.panels[1].y_label == "above T = 1, points"


def test_one_period_alone_is_no_comparison():
    arms = {f"every {period}": () for period in (2, 4, 8)}
    assert sampling_period(made_evidence(made_setting(arms=arms)), "demo") == []
    assert sampling_period(made_evidence(made_setting("cifar10-resnet18")), "demo") == []
