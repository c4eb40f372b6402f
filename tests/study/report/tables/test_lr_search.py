"""The learning-rate search: the best epoch of each seed at each rate, and which rate is best for both."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.tables.lr_search import rates, tried
from tests.study.report.made_evidence import RATES, made_evidence
from tests.study.report.tables.looking import at, is_mean_of, setting, whole


def test_rows_are_the_rates_with_the_best_epoch_and_the_best_average_of_each_seed():
    one = setting()
    (sheet,) = rates(made_evidence(one), "demo")
    assert [row for row, _ in sheet.rows] == [f"{rate:g}" for rate in RATES]
    for rate in RATES:
        runs = one.arms[f"tune at {rate:g}"]
        sgd = [max(run.curves[Curve(LIVE, "own", "val", "accuracy")]) for run in runs]
        ema = [
            max(max(run.curves[Curve(name, "averaged", "val", "accuracy")]) for name in one.averages) for run in runs
        ]
        assert is_mean_of(at(sheet, f"{rate:g}", "SGD, %"), sgd) and is_mean_of(at(sheet, f"{rate:g}", "EMA, %"), ema)
        assert is_mean_of(at(sheet, f"{rate:g}", "EMA − SGD, points"), np.subtract(ema, sgd).tolist())


def test_the_best_rate_of_each_column_is_bold_and_no_difference_is():
    (sheet,) = rates(made_evidence(setting()), "demo")
    assert [[cell.best for cell in cells] for _, cells in sheet.rows] == [
        [False] * 3, [False] * 3, [True, True, False], [False] * 3,
    ]  # fmt: skip


def test_the_paper_stands_beside_the_same_rate_of_the_same_pair():
    (sheet,) = rates(made_evidence(setting()), "demo")
    assert [at(sheet, "1.2", column).paper for column in sheet.columns[1:]] == ["75.9", "76.1", "0.2"]
    assert at(sheet, "0.2", "SGD, %").paper == ""
    (wide,) = rates(made_evidence(setting("cifar100-wrn-28-10")), "demo")
    assert at(wide, "0.2", "SGD, %").paper == "79.0"


def test_a_setting_with_one_rate_is_no_search_and_the_papers_pairs_come_first():
    one = setting("cifar10-resnet18")
    alone = replace(one, arms={"tune at 0.8": one.arms["tune at 0.8"]})
    assert tried(alone) == [0.8] and rates(made_evidence(alone), "demo") == []
    made = rates(made_evidence(one, setting("cifar100-wrn-28-10")), "demo")
    assert "wrn" in made[0].rows[0][0] and made[0].breaks == [4] and whole(made)


def test_one_protocol_that_stands_for_two_pairs_is_one_search():
    main, other = setting(), setting("cifar10-resnet18")
    made = rates(made_evidence(other, replace(other, pair="cifar100n-resnet18"), main), "demo")
    assert [row.rpartition(": ")[2] for row, _ in made[0].rows] == [f"{rate:g}" for rate in RATES] * 2
    assert "CIFAR-100, ResNet-18" in made[0].rows[0][0] and "CIFAR-10, ResNet-18" in made[0].rows[4][0]


def test_arms_without_runs_are_a_dash_or_nothing():
    one = setting()
    (sheet,) = rates(
        made_evidence(replace(one, arms={"tune at 0.4": (), "tune at 0.8": one.arms["tune at 0.8"]})), "demo"
    )
    assert at(sheet, "0.4", "SGD, %").text == "–"
    assert rates(made_evidence(replace(one, arms={"tune at 0.4": (), "tune at 0.8": ()})), "demo") == []
