"""Claims 6, 7 and 19 on curves and tables that are written down."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claims.all import claims
from emabank.study.report.claims.noise import CONSTANT, NOISE, PLACE
from tests.study.report.claims.shapes import by_hand, evidence, leaderboard, parts_of, setting, values

NAN = float("nan")


def train(name: str, metric: str) -> tuple[str, str, str, str]:
    return name, "own" if name == "live" else "averaged", "train", metric


def training(live_clean: list[float], live_wrong: list[float]):
    """Two averages of which the slowest, b, has 20% memorised at the first epoch with 90%."""
    return by_hand(
        {
            train("live", "clean_accuracy"): [live_clean, [0.8, 0.9, 1.0]],
            train("live", "memorised"): [live_wrong, [0.0, 0.6, 1.0]],
            train("b", "clean_accuracy"): [[0.5, 0.8, 1.0]] * 2,
            train("b", "memorised"): [[0.0, 0.1, 0.2]] * 2,
        }
    )


def test_average_and_live_weights_are_each_taken_when_they_get_there():
    found = training([0.8, 0.9, 1.0], [0.0, 0.5, 1.0])
    assert values(NOISE, 1, found) == [[pytest.approx(-30.0), pytest.approx(-40.0)]]


def test_recomputed_statistics_are_taken_where_they_were_measured():
    found = training([0.8, 0.9, 1.0], [0.0, 0.5, 1.0])
    more = by_hand(
        {
            ("b", "recomputed", "train", "clean_accuracy"): [[0.9, 1.0, 1.0]] * 2,
            ("b", "recomputed", "train", "memorised"): [[0.05, 0.1, 0.2]] * 2,
        }
    )
    runs = tuple(
        replace(one, curves={**one.curves, **other.curves})
        for one, other in zip(found.arms["refit"], more.arms["refit"], strict=True)
    )
    assert values(NOISE, 1, replace(found, arms={"refit": runs})) == [[pytest.approx(-45.0), pytest.approx(-55.0)]]


def test_a_seed_that_never_gets_there_leaves_too_few_runs_and_is_named():
    found = training([0.5, 0.6, 0.7], [0.0, 0.5, 1.0])
    part = parts_of(claims(evidence(found))[5], 1)[0]
    assert (part.verdict, part.mean, part.n) == ("too few runs", None, 1)
    assert part.values == (pytest.approx(-40.0),)
    assert "SGD of seed 0 never reaches 90% on the clean images" in part.note


def test_without_curves_on_train_there_is_nothing_to_say_about_memorising():
    assert values(NOISE, 1, by_hand({("a", "averaged", "test", "accuracy"): [[0.5]]})) == []


def branches(constant: list[float]):
    """Validation chose a at epoch 2; decayed, it goes from 60% to 50%."""
    key = ("a", "averaged", "test", "accuracy")
    refit = by_hand({key: [[0.4, 0.6, 0.5]]})
    return replace(refit, arms={**refit.arms, "constant": by_hand({key: [constant]}).arms["refit"]})


def test_both_branches_fall_from_the_epoch_where_they_part():
    found = branches([0.4, 0.6, 0.62])
    assert [values(CONSTANT, place, found) for place in range(3)] == [
        [[pytest.approx(2.0)]], [[pytest.approx(-10.0)]], [[pytest.approx(12.0)]],
    ]  # fmt: skip


def test_a_branch_that_was_measured_from_there_on_starts_from_the_common_trunk():
    assert values(CONSTANT, 0, branches([NAN, NAN, 0.62])) == [[pytest.approx(2.0)]]


def test_without_a_constant_branch_the_cosine_says_nothing_either():
    found = branches([0.4, 0.6, 0.62])
    assert values(CONSTANT, 1, replace(found, arms={"refit": found.arms["refit"]})) == []


def test_a_rise_at_a_constant_rate_is_no_overfitting():
    found = claims(evidence(replace(setting("cifar100n-resnet18"), arms=branches([0.4, 0.6, 0.9]).arms)))[6]
    assert found.parts[0].rule == "above -1"


@pytest.mark.parametrize(
    ("accuracy", "places", "verdict"),
    [(0.87, (1, 5), "reproduced"), (0.60, (7, 13), "not reproduced"), (0.70, (3, 13), "not reproduced")],
)
def test_the_place_is_counted_by_the_mean_among_the_printed_methods(accuracy, places, verdict):
    found = claims(leaderboard(accuracy))[18]
    assert [part.note.partition(";")[0] for part in found.parts] == [
        f"place {place} of 13 printed methods" for place in places
    ]
    assert found.verdict == verdict


def test_other_data_have_no_place_in_the_leaderboard():
    found = leaderboard(0.87).settings
    assert values(PLACE, 0, *(replace(each, dataset="digits") for each in found)) == []
    assert values(PLACE, 0, *(replace(each, config={"data": {"subset": 4000}}) for each in found)) == []


def test_the_lead_is_over_the_method_that_the_paper_has_below():
    (one, other) = values(PLACE, 0, *leaderboard(0.87).settings)
    assert np.mean(one) == pytest.approx(87 - 61.73, abs=0.05) and np.mean(other) == pytest.approx(87 - 85.36, abs=0.05)
