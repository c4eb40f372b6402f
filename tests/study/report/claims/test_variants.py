"""Claims 4, 11, 12 and 13 on curves that are written down."""

from dataclasses import replace

import pytest

from emabank.study.report.claims.all import claims
from emabank.study.report.claims.variants import BOOTSTRAP, PERIOD, RATE, STEP
from tests.study.report.claims.shapes import by_hand, evidence, setting, values

PAIR = "cifar100-resnet18"


def arms(split: str, **by_arm: dict[str, list[list[float]]]):
    """A setting with several arms: for each the curves of live weights and averages by seed."""
    made = {
        arm: by_hand(
            {(name, "own" if name == "live" else "averaged", split, "accuracy"): curve for name, curve in found.items()}
        ).arms["refit"]
        for arm, found in by_arm.items()
    }
    first = by_hand({("a", "averaged", split, "accuracy"): [[0.0]]})
    return replace(first, pair=PAIR, arms={arm.replace("_", " "): runs for arm, runs in made.items()})


def test_the_third_period_stands_for_sixteen_unless_sixteen_is_there():
    def at(accuracy: float) -> dict[str, list[list[float]]]:
        return {"a": [[0.1, accuracy]], "b": [[0.2, 0.2]]}

    short = arms("test", every_1=at(0.5), every_2=at(0.9), every_4=at(0.6), every_8=at(0.9))
    assert values(PERIOD, 0, short) == [[pytest.approx(10.0)]]
    whole = arms("test", every_1=at(0.5), every_4=at(0.9), every_16=at(0.7), every_64=at(0.9))
    assert values(PERIOD, 0, whole) == [[pytest.approx(20.0)]]
    assert values(PERIOD, 0, arms("test", every_1=at(0.5), every_2=at(0.9))) == []
    assert values(PERIOD, 0, arms("test", every_2=at(0.5), every_4=at(0.9), every_8=at(0.9))) == []


def test_the_curves_of_two_periods_are_compared_average_by_average():
    every_1 = {"a": [[0.1, 0.2]], "b": [[0.3, 0.4]]}
    sampled = {"a": [[0.2, 0.2]], "b": [[0.3, 0.6]]}  # by 10, 0, 0 and 20 points higher
    found = arms("test", every_1=every_1, every_2=every_1, every_4=sampled)
    assert values(PERIOD, 1, found) == [[pytest.approx(7.5)]]


def test_a_stand_in_for_sixteen_is_named():
    found = claims(evidence(setting()))[3]
    assert "T = 4 stands for 16" in found.parts[0].note


def test_bootstrapping_is_compared_by_the_best_validation_accuracy():
    found = arms(
        "val",
        tune={"live": [[0.5, 0.7], [0.6, 0.5]], "a": [[0.8, 0.7], [0.7, 0.7]], "b": [[0.9, 0.1], [0.1, 0.1]]},
        bootstrap={"live": [[0.6, 0.5], [0.7, 0.5]], "a": [[0.6, 0.7], [0.8, 0.7]]},
    )
    assert values(BOOTSTRAP, 0, found) == [[pytest.approx(-10.0), pytest.approx(10.0)]]
    # Of the averages only those that both have: b is not in the bootstrapped runs.
    assert values(BOOTSTRAP, 1, found) == [[pytest.approx(-10.0), pytest.approx(10.0)]]


def rates(**by_rate: dict[str, list[list[float]]]):
    return arms(
        "val", **{f"tune at {rate.removeprefix('at_').replace('_', '.')}": found for rate, found in by_rate.items()}
    )


def test_the_averages_own_rate_is_compared_with_that_of_the_live_weights():
    """Seed 0 has the same best rate for both; with seed 1 the averages would gain 5 points from the other."""
    found = rates(
        at_0_1={"live": [[0.5, 0.6], [0.7, 0.6]], "a": [[0.6, 0.6], [0.7, 0.70]], "b": [[0.5, 0.5], [0.5, 0.5]]},
        at_0_2={"live": [[0.5, 0.7], [0.6, 0.6]], "a": [[0.8, 0.6], [0.7, 0.75]], "b": [[0.5, 0.5], [0.5, 0.5]]},
    )
    assert values(RATE, 0, found) == [[0.0, pytest.approx(5.0)]]
    (part,) = claims(evidence(found))[11].parts
    assert "the same rate is best for both in 1 of 2 seeds" in part.note


def test_of_equal_rates_the_lower_is_that_of_the_live_weights():
    found = rates(
        at_0_2={"live": [[0.7]], "a": [[0.8]], "b": [[0.5]]},
        at_0_1={"live": [[0.7]], "a": [[0.7]], "b": [[0.5]]},
    )
    assert values(RATE, 0, found) == [[pytest.approx(10.0)]]


def test_one_rate_is_no_search_and_a_rate_that_diverged_does_not_take_part():
    nan = float("nan")
    one = {"live": [[0.7], [0.7]], "a": [[0.8], [0.8]], "b": [[0.5], [0.5]]}
    assert values(RATE, 0, rates(at_0_1=one)) == []
    diverged = {"live": [[nan], [0.6]], "a": [[nan], [0.8]], "b": [[nan], [0.5]]}
    found = rates(at_0_1=one, at_0_4=diverged)
    assert values(RATE, 0, found) == [[0.0]]
    assert "no value for seed 0" in claims(evidence(found))[11].parts[0].note


def test_with_step_decay_both_are_taken_at_their_best_and_at_the_end():
    found = arms("test", step={"live": [[0.7, 0.6]], "a": [[0.5, 0.5]], "b": [[0.6, 0.75]]})
    assert values(STEP, 0, found) == [[pytest.approx(5.0)]]
    assert values(STEP, 1, found) == [[pytest.approx(15.0)]]
