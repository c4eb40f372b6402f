"""Statements against numbers: each rule finds its conflict in the paper, and none once the numbers are as said."""

import pytest

from emabank.study.report.paper import statements
from emabank.study.report.paper.numbers import FULL, Printed, everything
from tests.study.report.paper.made_values import changed, without


def cell(item: str, ours: str, metric: str):
    return lambda each: (each.item, each.place, each.ours, each.metric) == (item, "table", ours, metric)


def places(conflicts) -> set[str]:
    return {each.item for conflict in conflicts for each in conflict.printed[1:]}


def test_late_epochs_are_found_and_early_ones_are_not():
    assert places(statements.stopped_early(everything())) == {"Table 7", "Table 8", "Table 11", "Table 13", "Table 14"}

    def is_list(each: Printed) -> bool:
        return each.metric == "epochs" and each.ours.startswith("EMA")

    assert list(statements.stopped_early(changed(is_list, by_seed=(112, 100, 90)))) == []
    late = changed(cell("Table 16", "EMA (acc.)", "epochs"), by_seed=(113, 99, 101))  # of 150, 3/4 is 112.5
    assert "Table 16" in places(statements.stopped_early(late))


def test_the_decay_said_to_be_best_is_held_against_those_chosen():
    assert places(statements.best_decay(everything())) == {"Table 7", "Table 8"}
    slow = changed(lambda each: each.metric == "decay" and each.ours == "EMA (acc.)", by_seed=(0.998, 0.998, 0.998))
    assert list(statements.best_decay(slow)) == []


def test_a_peak_at_the_epoch_that_is_said_is_no_conflict():
    assert places(statements.peak_under_noise(everything())) == {"Section 4.3", "Table 18"}
    other = changed(cell("Table 18", "slowest (acc.)", "accuracy"), mean=64.0)
    assert list(statements.peak_under_noise(other)) == [], "another number, so another model"


def test_columns_said_to_have_the_largest_decay_are_held_against_their_lists():
    assert places(statements.largest_decay(everything())) == {"Table 5", "Table 6", "Table 11"}
    slow = changed(cell("Table 11", "EMA (loss)", "decay"), by_seed=(0.998, 0.998, 0.998))
    assert list(statements.largest_decay(slow)) == []


def test_one_other_value_is_enough_for_a_table_not_to_be_the_validation_tables():
    assert [each.about[:7] for each in statements.measured_on(everything())] == ["Table 5", "Table 6"]

    def is_one(each: Printed) -> bool:
        return cell("Table 5", "SGD", "ece")(each) and each.pair == "cifar10-resnet18"

    assert [each.about[:7] for each in statements.measured_on(changed(is_one, mean=3.0))] == ["Table 6"]


def test_the_search_over_rates_is_held_against_the_tuning_tables():
    found = {(each.about.split(", ")[1], each.printed[1].text) for each in statements.rate_search(everything())}
    assert found == {
        ("cifar100-resnet18", "75.9"),
        ("cifar100-wrn-28-10", "79.0"),
        ("cifar100-wrn-28-10", "80.0"),
    }
    assert len(list(statements.rate_search(changed(cell("Table 7", "SGD", "accuracy"), mean=75.93)))) == 2
    assert len(list(statements.rate_search(changed(cell("Table 9", "SGD", "accuracy"), mean=79.04)))) == 2


def test_averages_worse_than_the_baseline_are_found():
    (conflict,) = statements.always_better(everything())
    worse = conflict.printed[1::2]
    assert {each.text for each in worse} == {"72.3 ± 0.19", "72.08 ± 0.06", "95.24 ± 0.04"}
    baselines = changed(lambda each: each.ours == "SGD" and each.metric == "accuracy", mean=50.0)
    assert list(statements.always_better(baselines)) == []
    losses = changed(cell("Table 10", "SGD", "loss"), mean=0.7)
    assert "0.72 ± 0.01" in [each.text for each in next(iter(statements.always_better(losses))).printed]


def test_recomputed_columns_that_are_worse_are_found_in_networks_with_batch_norm_only():
    (conflict,) = statements.recomputing_helps(everything())
    assert {(each.item, each.metric) for each in conflict.printed[1:]} == {
        (f"Table {number}", "loss") for number in (7, 8, 15, 16)
    }
    worse = changed(cell("Table 14", "slowest (acc.)", "accuracy"), mean=95.0)
    assert "Table 14" in places(statements.recomputing_helps(worse))
    vgg = changed(cell("Table 12", "slowest (acc.)", "accuracy"), mean=50.0)
    assert "Table 12" not in places(statements.recomputing_helps(vgg))


def test_calibration_errors_above_the_baselines_are_found():
    without_scaling, scaled = statements.better_calibrated(everything())
    assert [each.text for each in without_scaling.printed[1:]] == ["5.03 ± 0.29", "4.88 ± 0.1"]
    assert {each.item for each in scaled.printed[1:]} == {"Table 15", "Table 17", "Table 19", "Table 20"}
    better = changed(cell("Table 10", "slowest (loss)", "ece"), mean=4.0)
    assert len(list(statements.better_calibrated(better))) == 1


def test_measures_in_which_the_best_accuracy_is_ahead_are_found():
    (conflict,) = statements.loss_beats_accuracy(everything())
    assert {each.metric for each in conflict.printed[1:]} == {"ece", "ece_ts", "transfer:cifar100"}
    churn = changed(cell("Table 12", "slowest (loss)", "churn"), mean=21.0)
    assert "churn" in {each.metric for each in next(iter(statements.loss_beats_accuracy(churn))).printed}


@pytest.mark.parametrize(
    ("rule", "section"),
    [
        (statements.stopped_early, "Section 3.2"),
        (statements.best_decay, "Section 3.2"),
        (statements.peak_under_noise, "Section 4.3"),
        (statements.largest_decay, "Section 4.1"),
        (statements.always_better, "Section 4.2"),
        (statements.recomputing_helps, "Section 3.4"),
        (statements.better_calibrated, "Section 4.6"),
        (statements.loss_beats_accuracy, "Section 4.2"),
    ],
)
def test_without_the_statement_or_the_tables_there_is_no_conflict(rule, section):
    assert list(rule(everything()))
    assert list(rule(without(lambda each: each.item == section))) == []
    assert list(rule(without(lambda each: each.item in ("Table 1", "Table 4", *FULL.values())))) == []
