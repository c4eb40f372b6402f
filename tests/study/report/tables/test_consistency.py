"""Agreement between refits: both methods, the published rows below, differences and ratios by pair of seeds."""

from dataclasses import replace

import numpy as np

from emabank.study.report.pairs import CLEAN
from emabank.study.report.tables.consistency import agreement
from emabank.study.report.tables.settings import label
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, is_mean_of, named, setting, whole, with_values

SGD = ("100%", "test", "SGD", "js")
EMA = ("100%", "test", "slowest (loss)", "js")


def test_both_methods_stand_beside_each_other_and_the_published_below():
    made = agreement(made_evidence(*map(setting, CLEAN)), "demo")
    sheet = named(made, "consistency/agreement")
    row, one = label(setting()), setting()
    for group, metric, scale in (("test accuracy, %", "accuracy", 100), ("churn, %", "churn", 100), ("JS", "js", 1)):
        for title, column in (("SGD", "SGD"), ("EMA (loss)", "slowest (loss)")):
            values = one.values(column, metric, trained_on="100%", split="test")
            assert values is not None and is_mean_of(at(sheet, row, title, group), values, scale=scale)
    assert at(sheet, row, "EMA (loss)", "churn, %").best and at(sheet, row, "SGD", "JS").paper == "0.32 ± 0.01"
    assert sheet.breaks == [5] and whole(made)
    assert at(sheet, "CIFAR-10, ResNet-56", "EMA (loss)", "churn, %").text == "4.21 ± 0.15"
    assert at(sheet, "CIFAR-10, ResNet-56", "SGD", "JS").text == "–"


def test_differences_and_ratios_are_of_each_pair_of_seeds():
    sgd, ema = [0.06, 0.05, 0.08], [0.03, 0.02, 0.04]
    sheet = named(
        agreement(made_evidence(with_values(setting(), {SGD: sgd, EMA: ema})), "demo"), "consistency/differences"
    )
    assert is_mean_of(at(sheet, label(setting()), "JS, EMA / SGD"), np.divide(ema, sgd).tolist(), scale=1)
    assert at(sheet, label(setting()), "JS, EMA / SGD").paper == "0.28"
    assert at(sheet, label(setting()), "churn, EMA − SGD, points").paper == "-7.15"


def test_every_sheet_with_js_says_that_only_ratios_compare():
    assert all(
        any("only ratios" in note for note in sheet.notes) for sheet in agreement(made_evidence(setting()), "demo")
    )


def test_a_zero_or_missing_divergence_has_no_ratio_and_nothing_at_all_makes_no_table():
    for sgd in ([0.0, 0.1, 0.1], [None, 0.1, 0.1], [0.1, 0.1]):
        made = agreement(made_evidence(with_values(setting(), {SGD: sgd})), "demo")
        assert at(named(made, "consistency/differences"), label(setting()), "JS, EMA / SGD").text == "–"
    assert agreement(made_evidence(replace(setting(), tables=[])), "demo") == []
