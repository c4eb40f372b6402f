"""The door to the paper's numbers: the one value in a place, and arithmetic with the digits that are printed."""

import pytest

from emabank.study.report.paper.numbers import refit, tuning
from emabank.study.report.tables import beside
from tests.study.report.made_evidence import COLUMNS


def test_a_place_with_no_value_or_several_gives_nothing():
    assert beside.text("Table 1", pair="cifar100-resnet18", ours="SGD", metric="accuracy") == "77.63 ± 0.14"
    assert beside.text("Table 1", ours="SGD", metric="accuracy") == ""
    assert beside.text("Table 99") == beside.text("") == ""


def test_full_tables_say_what_the_papers_own_look_up_says():
    metrics = ("accuracy", "epochs", "rate")
    found = 0
    for pair in ("cifar100-resnet18", "cifar100-vgg16", "cifar10n-resnet34", "cifar100n-resnet18"):
        for column in (*COLUMNS, "SGD (last)"):
            for metric in metrics:
                assert beside.full(pair, column, metric, trained_on="100%") == refit(pair, column, metric)
                assert beside.full(pair, column, metric, trained_on="80%") == tuning(pair, column, metric)
                found += bool(refit(pair, column, metric))
    assert found > 30


def test_rows_are_in_the_order_of_the_paper():
    assert list(beside.rows("Table 24")) == ["0.968", "0.984", "0.992", "0.996", "0.998"]
    assert beside.rows("none") == {}


@pytest.mark.parametrize(
    ("ours", "theirs", "difference", "ratio"),
    [("78.55 ± 0.28", "77.63 ± 0.14", "0.92", "1.01"), ("0.82", "1.02", "-0.20", "0.80"),
     ("28.8%", "68.2%", "-39.4", "0.42"), ("", "1", "", ""), ("1", "0.0", "1.0", ""), ("[1, 2]", "1", "", "")],
)  # fmt: skip
def test_differences_and_ratios_are_those_of_the_printed_means(ours, theirs, difference, ratio):
    assert (beside.difference(ours, theirs), beside.ratio(ours, theirs)) == (difference, ratio)
