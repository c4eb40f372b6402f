"""Claims 8, 9, 10 and 18: which columns of which table they are taken of, and in which unit."""

from dataclasses import replace

import pytest
from scipy import stats

from emabank.study.report.claims.all import claims
from emabank.study.report.claims.predictions import CALIBRATION, CONSISTENCY, CRITERION, FEATURES
from tests.study.report.claims.shapes import evidence, parts_of, setting, values


def measures(column: str, metric: str, trained_on: str = "100%") -> list[float]:
    found = setting().values(column, metric, trained_on=trained_on, split="test")
    assert found is not None
    return found


def differences(one: tuple, other: tuple) -> list[float]:
    return [100 * (a - b) for a, b in zip(measures(*one), measures(*other), strict=True)]


@pytest.mark.parametrize(
    ("question", "place", "one", "other"),
    [
        (CONSISTENCY, 0, ("slowest (loss)", "churn"), ("SGD", "churn")),
        (CALIBRATION, 0, ("slowest (loss)", "ece", "80%"), ("SGD", "ece", "80%")),
        (CALIBRATION, 1, ("slowest (loss)", "ece_ts", "80%"), ("SGD", "ece_ts", "80%")),
        (CALIBRATION, 2, ("slowest (loss)", "ece_ts", "80%"), ("slowest (loss)", "ece", "80%")),
        (FEATURES, 0, ("slowest (acc.)", "transfer:other"), ("SGD", "transfer:other")),
        (FEATURES, 1, ("slowest (loss)", "transfer:other"), ("SGD", "transfer:other")),
        (CRITERION, 0, ("slowest (loss)", "ece"), ("slowest (acc.)", "ece")),
        (CRITERION, 1, ("slowest (loss)", "churn"), ("slowest (acc.)", "churn")),
        (CRITERION, 2, ("slowest (loss)", "transfer:other"), ("slowest (acc.)", "transfer:other")),
    ],
)
def test_it_is_the_difference_of_two_columns_in_points(question, place, one, other):
    assert values(question, place, setting()) == [pytest.approx(differences(one, other))]


def test_the_interval_is_that_of_a_paired_test():
    part = parts_of(claims(evidence(setting()))[7], 0)[0]
    test = stats.ttest_rel(measures("slowest (loss)", "churn"), measures("SGD", "churn"))
    low, high = test.confidence_interval(0.95)
    assert (part.low, part.high) == (pytest.approx(100 * low), pytest.approx(100 * high))


def test_js_is_compared_as_a_ratio():
    ratios = [a / b for a, b in zip(measures("slowest (loss)", "js"), measures("SGD", "js"), strict=True)]
    assert values(CONSISTENCY, 1, setting()) == [pytest.approx([100 * (ratio - 1) for ratio in ratios])]


def test_a_ratio_to_nothing_is_left_out():
    whole = setting()
    tables = [
        {**table, "values": {**table["values"], "js": [0.0, 0.2, 0.4]}} if table["column"] == "SGD" else table
        for table in whole.tables
    ]
    assert len(values(CONSISTENCY, 1, replace(whole, tables=tables))[0]) == 2


def test_every_target_of_a_transfer_has_its_part():
    whole = setting("tiny-imagenet-resnet18")
    tables = [
        {**table, "values": {"transfer:cifar10": [0.5, 0.6, 0.7], "transfer:cifar100": [0.1, 0.2, 0.3]}}
        for table in whole.tables
    ]
    found = claims(evidence(replace(whole, tables=tables)))[9]
    assert [part.statistic.rpartition(", on ")[2] for part in found.parts] == ["cifar10", "cifar100"] * 2
    assert [part.paper.partition(" ")[0] for part in found.parts] == ["+4.09", "+4.53", "+4.52", "+5.01"]


def test_pairs_of_seeds_are_said_not_to_be_independent():
    found = claims(evidence(setting()))
    for part in (*found[7].parts, *parts_of(found[17], 1)):
        assert "pairs of seeds, which are not independent" in part.note
