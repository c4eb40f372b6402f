"""Transfer: sources under their targets, what training on the target gives, and differences by seed."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import Setting
from emabank.study.report.tables.transfer import linear
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, is_mean_of, setting, the_papers, whole, with_values


def to(one: Setting, *targets: str) -> Setting:
    """The same, evaluated on these data sets instead of the made-up one."""
    tables = []
    for table in one.tables:
        values = {metric: found for metric, found in table["values"].items() if not metric.startswith("transfer:")}
        given = table["values"].get("transfer:other")
        values.update({f"transfer:{target}": given for target in targets} if given else {})
        tables.append({**table, "values": values})
    return replace(one, tables=tables)


@pytest.fixture(scope="module")
def four() -> list[Setting]:
    """The four ways of the paper."""
    return [
        to(the_papers("cifar100-resnet18"), "cifar10"),
        to(the_papers("cifar10-resnet18"), "cifar100"),
        to(the_papers("tiny-imagenet-resnet18"), "cifar100", "cifar10"),
    ]


def test_columns_and_numbers_are_those_of_the_papers_table(four: list[Setting]):
    (sheet,) = linear(made_evidence(*four), "paper")
    assert list(sheet.groups) == [("evaluated on", 1), ("cifar10", 2), ("cifar100", 2)]
    assert list(sheet.columns) == [
        "trained on", "tiny-imagenet-resnet18", "cifar100-resnet18", "tiny-imagenet-resnet18", "cifar10-resnet18",
    ]  # fmt: skip
    rows = dict(sheet.rows)
    assert [cell.paper for cell in rows["EMA (loss)"]] == [
        "79.13 ± 0.76",
        "85.02 ± 0.03",
        "57.78 ± 0.09",
        "36.09 ± 0.86",
    ]
    assert [cell.paper for cell in rows["Supervised"]] == ["95.25 ± 0.11"] * 2 + ["77.63 ± 0.14"] * 2
    assert list(rows) == [
        "Baseline", "EMA (acc.)", "EMA (loss)", "Supervised", "EMA (acc.) − Baseline, points",
        "EMA (loss) − Baseline, points",
    ]  # fmt: skip
    assert sheet.breaks == [3, 4] and whole([sheet])


def test_supervised_is_the_refit_of_sgd_on_the_target_with_the_same_network(four: list[Setting]):
    wider = with_values(replace(four[1], network="wrn-28-10"), {("100%", "test", "SGD", "accuracy"): [0.1, 0.2, 0.3]})
    (sheet,) = linear(made_evidence(wider, *four), "paper")
    expected = four[1].values("SGD", "accuracy", trained_on="100%", split="test")
    assert expected is not None and is_mean_of(at(sheet, "Supervised", "cifar100-resnet18", "cifar10"), expected)


def test_without_a_setting_on_the_target_there_is_no_supervised_row():
    (sheet,) = linear(made_evidence(setting()), "demo")
    assert "Supervised" not in dict(sheet.rows) and sheet.breaks == [3]


def test_differences_are_paired_by_seed_and_the_best_of_a_column_is_bold():
    one = setting()
    (sheet,) = linear(made_evidence(one), "demo")
    sgd, ema = (
        one.values(column, "transfer:other", trained_on="100%", split="test") for column in ("SGD", "slowest (loss)")
    )
    assert sgd is not None and ema is not None
    column = sheet.columns[1]
    assert is_mean_of(at(sheet, "EMA (loss) − Baseline, points", column), np.subtract(ema, sgd).tolist())
    assert [at(sheet, row, column).best for row in ("Baseline", "EMA (acc.)", "EMA (loss)")] == [False, False, True]


@pytest.mark.parametrize(
    ("pair", "target", "expected"),
    [
        ("cifar100-resnet18", "digits-5-9", "82.10 ± 0.21"),  # the paper has one target for this pair
        ("tiny-imagenet-resnet18", "digits-5-9", ""),  # and two for this one
        ("cifar100-resnet18", "cifar100", ""),  # which the paper has, but not from there
        ("cifar10-resnet18", "cifar100-test-halves", "33.72 ± 1.67"),
        ("cifar100-vgg16", "cifar10", ""),
    ],
)
def test_the_papers_number_is_that_of_the_way_it_stands_for(pair: str, target: str, expected: str):
    (sheet,) = linear(made_evidence(to(setting(pair), target)), "demo")
    assert sheet.rows[0][1][0].paper == expected


def test_without_transfer_there_is_no_table():
    assert linear(made_evidence(to(setting())), "demo") == []
