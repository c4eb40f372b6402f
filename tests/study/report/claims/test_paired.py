"""Values are paired by their seeds, what is missing is left out and named, and nothing is smoothed."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claims.paired import (
    at,
    best,
    chosen,
    gap,
    live,
    mean,
    of_both,
    of_columns,
    of_runs,
    peak,
)
from emabank.study.report.evidence import Curve
from tests.study.report.claims.shapes import AVERAGES, runs, setting
from tests.study.report.made_evidence import COLUMNS

ACCURACY = ("slowest (acc.)", "accuracy"), ("SGD", "accuracy")


def with_values(column: str, metric: str, values: list):
    whole = setting()
    tables = [
        {**table, "values": {**table["values"], metric: values}} if table["column"] == column else table
        for table in whole.tables
    ]
    return replace(whole, tables=tables)


def test_columns_are_subtracted_seed_by_seed_in_points():
    whole = setting()
    ours, base = (whole.values(column, "accuracy", trained_on="100%", split="test") for column, _ in ACCURACY)
    (found,) = of_columns(whole, *ACCURACY, trained_on="100%")
    assert found.values == pytest.approx([100 * (a - b) for a, b in zip(ours, base, strict=True)])
    expected = 100 * (COLUMNS["slowest (acc.)"]["accuracy"] - COLUMNS["SGD"]["accuracy"])
    assert np.mean(found.values) == pytest.approx(expected, abs=0.05)


def test_a_seed_without_a_value_is_left_out_and_named():
    (found,) = of_columns(with_values("SGD", "accuracy", [0.5, None, float("nan")]), *ACCURACY, trained_on="100%")
    assert len(found.values) == 1
    assert found.note == "no value for seed 1, seed 2"


def test_pairs_of_seeds_count_as_many_as_there_are_seeds():
    churn = ("slowest (loss)", "churn"), ("SGD", "churn")
    (found,) = of_columns(setting(), *churn, trained_on="100%")
    assert found.independent == 3
    (found,) = of_columns(with_values("SGD", "churn", [0.1, None, 0.2]), *churn, trained_on="100%")
    assert found.note == "no value for pair 2 of seeds"


@pytest.mark.parametrize("values", [[0.5], [0.5] * 4])
def test_columns_that_cannot_be_paired_are_not_there(values):
    assert of_columns(with_values("SGD", "accuracy", values), *ACCURACY, trained_on="100%") == []
    assert of_columns(setting(), ("nothing", "accuracy"), ACCURACY[1], trained_on="100%") == []


def test_runs_of_two_arms_are_paired_by_seed_and_not_by_place():
    one, other = runs("a"), runs("b")
    whole = setting(a=(one[2], one[0]), b=(other[0], other[1], other[2]))
    (found,) = of_both(whole, "a", "b", lambda x, y: 10.0 * x.seed + y.seed)
    assert found.values == [22.0, 0.0]


def test_an_arm_that_is_not_there_gives_nothing():
    assert of_runs(setting(), "nothing", lambda run: 1.0) == []
    assert of_both(setting(), "refit", "nothing", lambda one, other: 1.0) == []
    assert of_runs(setting(), "refit", lambda run: None) == []


def test_the_best_average_is_the_highest_at_each_epoch():
    run = runs("refit")[0]
    found = best(run, AVERAGES, "test")
    for epoch in range(run.epochs):
        values = [run.curves[Curve(name, "averaged", "test", "accuracy")][epoch] for name in AVERAGES]
        assert found[epoch] == max(values)
    assert best(run, (*AVERAGES, "another"), "test") is None
    assert best(run, (), "test") is None


def test_the_best_average_ignores_what_was_not_measured():
    key = Curve(AVERAGES[0], "averaged", "test", "accuracy")
    run = replace(runs("refit")[0], curves={key: np.array([np.nan, 0.5]),
                  Curve(AVERAGES[1], "averaged", "test", "accuracy"): np.array([np.nan, np.nan])})  # fmt: skip
    np.testing.assert_array_equal(best(run, AVERAGES[:2], "test"), [np.nan, 0.5])
    assert live(run, "test") is None


def test_epochs_are_counted_from_one():
    curve = np.array([0.1, 0.2, np.nan])
    assert [at(curve, epoch) for epoch in (1, 2, 3, 4, 0, -1, -2, -4)] == [0.1, 0.2, None, None, None, None, 0.2, None]
    assert peak(curve) == (0.2, 2)
    assert peak(np.array([np.nan])) is None and peak(None) is None


def test_curves_of_other_lengths_are_not_compared():
    assert gap(np.zeros(3), np.zeros(4)) is None and gap(None, np.zeros(4)) is None
    assert mean(gap(np.array([0.5, np.nan]), np.array([0.25, 1.0]))) == 25.0
    assert mean(None) is None


def test_the_choice_of_a_seed_comes_as_validation_made_it():
    whole = replace(setting(), choices=[{"seed": 4, "averages": {"loss": ["ema", 7]}}])  # a list, as JSON has it
    assert chosen(whole, 4, "loss") == ("ema", 7)
    assert chosen(whole, 4, "accuracy") is None and chosen(whole, 0, "loss") is None
