"""The paper's Figure 6: one curve for each learning rate."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.figures.lr_search import lr_search
from tests.study.report.made_evidence import AVERAGES, RATES, made_evidence, made_setting

WIDE = "cifar100-wrn-28-10"


def with_rates(pair: str, rates: dict[float, float]):
    """A setting whose learning rates are others, in the order given."""
    setting = made_setting(pair)
    arms = {arm: runs for arm, runs in setting.arms.items() if not arm.startswith("tune at ")}
    for rate, new in rates.items():
        arms[f"tune at {new:g}"] = tuple(replace(run, rate=new) for run in setting.arms[f"tune at {rate:g}"])
    return replace(setting, arms=arms)


def cut(setting, split: str):
    """Evidence of the setting without what was measured on one split."""
    arms = {
        arm: tuple(replace(run, curves={key: y for key, y in run.curves.items() if key.split != split}) for run in runs)
        for arm, runs in setting.arms.items()
    }
    return made_evidence(replace(setting, arms=arms))


def test_live_weights_and_best_average_have_a_line_for_each_rate():
    setting = made_setting()
    (figure,) = lr_search(made_evidence(setting), "demo")
    live, best = figure.panels
    for order, rate in enumerate(RATES):
        arm = f"tune at {rate:g}"
        one = setting.curves(arm, Curve(LIVE, "own", "val", "accuracy"))
        each = [setting.curves(arm, Curve(name, "averaged", "val", "accuracy")) for name in AVERAGES]
        np.testing.assert_allclose(live.lines[order].y, 100 * one.mean(axis=0))
        np.testing.assert_allclose(best.lines[order].y, 100 * np.max(each, axis=0).mean(axis=0))
        assert live.lines[order].label == best.lines[order].label == f"rate {rate:g}"
    assert live.y_limits == best.y_limits and live.y_label == "validation accuracy, %"
    assert figure.item == "Figure 6" and figure.name == "demo/lr-search/curves"


def test_both_networks_are_there_and_a_rate_looks_the_same_in_both():
    other = with_rates(WIDE, {0.8: 1.2, 0.2: 0.1})
    (figure,) = lr_search(made_evidence(other, made_setting()), "demo")
    orders = {(line.label, line.order) for panel in figure.panels for line in panel.lines}
    assert sorted(orders) == [("rate 0.1", 0), ("rate 0.2", 1), ("rate 0.4", 2), ("rate 0.8", 3), ("rate 1.2", 4)]
    assert [line.label for line in figure.panels[2].lines] == ["rate 0.1", "rate 1.2"]


def test_more_rates_than_shades_are_named_with_their_setting():
    other = with_rates(WIDE, dict(zip(RATES, (0.05, 0.1, 0.3, 0.4), strict=True)))
    (figure,) = lr_search(made_evidence(made_setting(), other), "demo")
    for panels, setting in ((figure.panels[:2], made_setting()), (figure.panels[2:], other)):
        for panel in panels:
            assert [line.order for line in panel.lines] == [0, 1, 2, 3]
            assert all(line.label.startswith(f"{setting.title}: rate ") for line in panel.lines)


def test_a_rate_with_which_a_seed_diverged_is_left_out_and_the_others_stay():
    setting = made_setting()
    run, *others = setting.arms["tune at 1.2"]
    short = replace(run, rates=run.rates[:3], curves={key: y[:3] for key, y in run.curves.items()})
    (figure,) = lr_search(made_evidence(made_setting(arms={"tune at 1.2": (short, *others)})), "demo")
    assert [line.label for line in figure.panels[0].lines] == ["rate 0.2", "rate 0.4", "rate 0.8"]
    assert "diverged" in figure.caption


def test_rates_are_compared_on_validation_alone():
    assert lr_search(cut(made_setting(), "val"), "demo") == []
    assert len(lr_search(cut(made_setting(), "test"), "demo")) == 1


def test_one_rate_is_no_search():
    assert lr_search(made_evidence(with_rates("cifar100-resnet18", {0.8: 0.8})), "demo") == []
    assert lr_search(made_evidence(made_setting("cifar10-resnet18")), "demo") == []
