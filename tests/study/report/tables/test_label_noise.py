"""The leaderboard stands beside the paper's own data alone; memorised is what the first epoch that gets there has."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.tables.label_noise import leaderboard, memorisation
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, is_mean_of, setting, the_papers, whole, with_values

BOTH = ("cifar10n-resnet34", "cifar100n-resnet34")


def with_accuracies(one, sgd: float, best: float, ema: float):
    columns = {"SGD": sgd, "SGD (best)": best, "slowest (acc.)": ema}
    return with_values(one, {("100%", "test", c, "accuracy"): [v - 0.01, v, v + 0.01] for c, v in columns.items()})


def test_ours_are_sorted_in_among_the_published_where_data_and_network_are_the_same():
    ten, hundred = (the_papers(pair) for pair in BOTH)
    made = leaderboard(
        made_evidence(with_accuracies(ten, 0.7, 0.78, 0.85), with_accuracies(hundred, 0.5, 0.56, 0.63)), "paper"
    )
    (sheet,) = made
    assert [row for row, _ in sheet.rows] == [
        "DivideMix", "PES(semi)", "ELR+", "EMA (acc.), paper", "EMA (acc.), ours", "CAL", "CORES",
        "Co-Teaching", "JoCor", "ELR", "Negative-LS", "Co-Teaching+", "SGD (best), ours", "CORES*", "CE (standard)",
        "SGD (last), ours",
    ]  # fmt: skip
    assert is_mean_of(at(sheet, "EMA (acc.), ours", "CIFAR-10N, %"), [0.84, 0.85, 0.86])
    assert is_mean_of(at(sheet, "SGD (last), ours", "CIFAR-100N, %"), [0.49, 0.5, 0.51])
    assert at(sheet, "DivideMix", "CIFAR-100N, %").text == "71.13 ± 0.48"
    assert sheet.name == "label-noise/leaderboard" and sheet.item == "Table 2"


def test_with_cifar_10n_alone_that_column_sorts():
    (sheet,) = leaderboard(made_evidence(with_accuracies(the_papers(BOTH[0]), 0.7, 0.78, 0.92)), "paper")
    rows = [row for row, _ in sheet.rows]
    assert rows[:4] == ["PES(semi)", "DivideMix", "EMA (acc.), ours", "CORES*"] and rows[-1] == "SGD (last), ours"
    assert at(sheet, "EMA (acc.), ours", "CIFAR-100N, %").text == "–"


def test_other_data_have_columns_of_their_own_name_and_no_published_method_beside_them():
    (sheet,) = leaderboard(made_evidence(*map(setting, BOTH)), "demo")
    assert sheet.name == "label-noise/test-accuracy" and sheet.item == ""
    assert [row for row, _ in sheet.rows] == ["SGD (best)", "SGD (last)", "EMA (acc.)"]
    assert sheet.columns == ["weights", *(f"{setting(pair).title}, %" for pair in BOTH)]
    for pair in BOTH:
        one = setting(pair)
        for row, column in (("SGD (best)", "SGD (best)"), ("SGD (last)", "SGD"), ("EMA (acc.)", "slowest (acc.)")):
            expected = one.values(column, "accuracy", trained_on="100%", split="test")
            assert is_mean_of(at(sheet, row, f"{one.title}, %"), expected)


@pytest.mark.parametrize(
    ("changed", "scale"),
    [
        ({"config": {"data": {"subset": 4000}}}, "paper"),
        ({"network": "resnet18"}, "paper"),
        ({"scale": "small"}, "small"),
    ],
)
def test_a_subset_another_network_or_a_smaller_scale_is_not_in_the_leaderboard(changed, scale):
    (sheet,) = leaderboard(made_evidence(the_papers(BOTH[1], **changed)), scale)
    assert sheet.name == "label-noise/test-accuracy" and "DivideMix" not in [row for row, _ in sheet.rows]


def test_what_compares_and_what_does_not_are_two_tables():
    other = replace(the_papers(BOTH[1], config={"data": {"subset": 4000}}), title="some of it")
    made = leaderboard(made_evidence(the_papers(BOTH[0]), other), "paper")
    assert [sheet.name for sheet in made] == ["label-noise/leaderboard", "label-noise/test-accuracy"]
    assert made[1].columns == ["weights", "some of it, %"] and whole(made)


def test_two_tries_at_one_data_set_are_both_there_with_their_titles():
    one = the_papers(BOTH[1])
    (sheet,) = leaderboard(made_evidence(one, replace(one, title="longer"), the_papers(BOTH[0])), "paper")
    rows = [row for row, _ in sheet.rows]
    assert {"longer: EMA (acc.)", f"{BOTH[1]}: EMA (acc.)", f"{BOTH[0]}: EMA (acc.)"} <= set(rows) and whole([sheet])


def test_without_refits_under_label_noise_there_is_no_leaderboard():
    assert leaderboard(made_evidence(setting()), "demo") == []
    assert leaderboard(made_evidence(replace(setting(BOTH[0]), tables=[])), "demo") == []


def test_memorised_is_read_where_each_seed_first_reaches_the_accuracy():
    one = setting("cifar100n-resnet34")
    (sheet,) = memorisation(made_evidence(one), "demo")
    for group, weights, batchnorm in (("SGD", LIVE, "own"), ("EMA, slowest", one.slowest, "averaged")):
        epochs, shares = [], []
        for run in one.arms["refit"]:
            clean = run.curves[Curve(weights, batchnorm, "train", "clean_accuracy")]
            epoch = next(place for place, value in enumerate(clean, 1) if value >= 0.9)
            epochs.append(epoch)
            shares.append(run.curves[Curve(weights, batchnorm, "train", "memorised")][epoch - 1])
        assert is_mean_of(at(sheet, "90%", "epoch", group), epochs, scale=1)
        assert is_mean_of(at(sheet, "90%", "memorised, %", group), shares)
    ours = at(sheet, "90%", "memorised, points")
    assert ours.mean is not None and ours.mean < 0 and ours.paper == "-39.4"
    assert at(sheet, "90%", "epoch", "EMA, slowest").paper == "99" and at(sheet, "80%", "epoch", "SGD").paper == ""
    assert whole([sheet]) and [row for row, _ in sheet.rows][-2:] == ["at the EMA (acc.) epoch", "at the end"]


def test_an_accuracy_that_a_seed_never_reaches_is_a_dash():
    one = setting("cifar100n-resnet34")
    key = Curve(LIVE, "own", "train", "clean_accuracy")
    runs = tuple(
        replace(run, curves={**run.curves, key: np.minimum(run.curves[key], 0.85 if run.seed == 1 else 1.0)})
        for run in one.arms["refit"]
    )
    (sheet,) = memorisation(made_evidence(replace(one, arms={"refit": runs})), "demo")
    assert at(sheet, "90%", "memorised, %", "SGD").text == "–" == at(sheet, "90%", "memorised, points").text
    assert at(sheet, "80%", "memorised, %", "SGD").n == 3 == at(sheet, "90%", "memorised, %", "EMA, slowest").n


def test_without_curves_on_the_training_images_there_is_no_table():
    one = setting("cifar100n-resnet34")
    assert memorisation(made_evidence(replace(one, arms={})), "demo") == []
    assert memorisation(made_evidence(replace(one, averages=())), "demo") == []
