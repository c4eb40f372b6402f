"""The statistics of the claims on curves and columns that are written down, with scipy and numpy beside them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from emabank.study.report.claim_specs import columns, make_claims, paired
from emabank.study.report.claim_specs import runs as of_runs
from emabank.study.report.results import Curve, Results
from tests.study.report.made_results import with_values
from tests.study.report.shapes import (
    AVERAGES,
    by_hand,
    curves,
    findings_of,
    leaderboard,
    results,
    runs,
    setting,
    values,
)

NAN = float("nan")


# How samples are taken ------------------------------------------------------------------------------------------------


def test_a_seed_without_a_value_is_left_out_and_named():
    (sample,) = columns("slowest (acc.)", "SGD")(with_values(setting(), {"accuracy": [0.5, None, NAN]}, "SGD"))
    assert len(sample.values) == 1 and sample.notes == ("no value for seed 1, seed 2",)


def test_pairs_of_seeds_count_as_many_as_there_are_seeds():
    churn = columns("slowest (loss)", "SGD", "churn")
    assert [sample.independent for sample in churn(setting())] == [3]
    (sample,) = churn(with_values(setting(), {"churn": [0.1, None, 0.2]}, "SGD"))
    assert sample.notes == ("no value for pair 2 of seeds",)


@pytest.mark.parametrize("found", [[0.5], [0.5] * 4])
def test_columns_that_cannot_be_paired_are_not_there(found):
    assert columns("slowest (acc.)", "SGD")(with_values(setting(), {"accuracy": found}, "SGD")) == []
    assert columns("nothing", "SGD")(setting()) == []


def test_runs_of_two_variants_are_paired_by_seed_and_not_by_place():
    one, other = runs("a"), runs("b")
    whole = setting(a=(one[2], one[0]), b=(other[0], other[1], other[2]))
    (sample,) = paired("a", "b", lambda setting, x, y: 10.0 * x.seed + y.seed)(whole)
    assert sample.values == [22.0, 0.0]


def test_a_variant_that_is_not_there_gives_nothing():
    assert of_runs("nothing", lambda setting, run: 1.0)(setting()) == []
    assert paired("refit", "nothing", lambda setting, one, other: 1.0)(setting()) == []
    assert of_runs("refit", lambda setting, run: None)(setting()) == []


# Through training -----------------------------------------------------------------------------------------------------


LIVE = ("live", "own", "test", "accuracy")
A = ("a", "averaged", "test", "accuracy")
B = ("b", "averaged", "test", "accuracy")


def four_epochs():
    """The best average is ahead by 20, 10, 0 and -10 points with one seed, by 10 twice and 5 with the other."""
    return by_hand(
        {
            LIVE: [[0.4, 0.5, 0.6, 0.7], [0.4, NAN, 0.6, 0.7]],
            A: [[0.6, 0.5, 0.5, 0.6], [0.5, 0.5, 0.7, 0.6]],
            B: [[0.3, 0.6, 0.6, 0.5], [0.4, 0.9, 0.6, 0.75]],
        }
    )


def test_a_tie_is_half_a_lead_and_what_was_not_measured_is_none():
    assert values(1, 0, four_epochs()) == [[pytest.approx(100 * 2.5 / 4), pytest.approx(100.0)]]


def test_the_first_quarter_is_one_epoch_of_four():
    assert values(1, 1, four_epochs()) == [[pytest.approx(20.0), pytest.approx(10.0)]]
    assert values(1, 2, four_epochs()) == [[pytest.approx(20.0 - 0.0), pytest.approx(10.0 - 7.5)]]


def test_the_end_is_the_last_epoch():
    assert values(3, 0, four_epochs()) == [[pytest.approx(-10.0), pytest.approx(5.0)]]


def test_a_run_without_a_last_value_is_left_out():
    lost = by_hand({LIVE: [[0.4, 0.5], [0.4, NAN]], A: [[0.5, 0.7], [0.5, 0.6]], B: [[0.5, 0.6], [0.5, 0.6]]})
    assert values(3, 0, lost) == [[pytest.approx(20.0)]]


def test_the_chosen_epoch_is_a_share_of_all():
    assert values(2, 0, four_epochs()) == [[50.0, 50.0]]


def test_from_the_chosen_epoch_to_the_end_the_chosen_average_is_looked_at():
    assert values(2, 1, four_epochs()) == [[pytest.approx(10.0), pytest.approx(10.0)]]


def test_a_peak_on_test_is_not_what_counts():
    """Higher at an epoch that validation did not choose, and equal at the chosen one and at the end."""
    found = by_hand({A: [[0.9, 0.5, 0.5]], B: [[0.1, 0.1, 0.1]]})
    assert values(2, 1, found) == [[0.0]]


def test_epochs_of_both_criteria_are_subtracted_by_seed():
    choices = [
        {"seed": seed, "averages": {"accuracy": ("a", epoch), "loss": ("a", other)}}
        for seed, epoch, other in ((0, 4, 1), (1, 3, 3))
    ]
    assert values(17, 0, replace(four_epochs(), choices=choices)) == [[-3.0, 0.0]]


# Batch norm -----------------------------------------------------------------------------------------------------------


def accuracy(name: str, batchnorm: str) -> tuple[str, str, str, str]:
    return name, batchnorm, "test", "accuracy"


def recomputed_epochs():
    """Of a and b the slowest is b; validation chose epochs 2 (accuracy) and 1 (loss)."""
    return by_hand(
        {
            accuracy("a", "averaged"): [[0.5, 0.5, 0.5, 0.5]],
            accuracy("a", "recomputed"): [[0.5, 0.7, 0.6, 0.5]],
            accuracy("b", "averaged"): [[0.1, 0.6, 0.7, 0.6]],
            accuracy("b", "recomputed"): [[0.5, 0.7, 0.7, 0.8]],
        }
    )


def test_early_is_the_first_quarter_of_the_slowest_average():
    assert values(5, 0, recomputed_epochs()) == [[pytest.approx(40.0)]]


def test_the_gain_at_the_choice_is_the_mean_of_both_chosen_epochs():
    assert values(5, 1, recomputed_epochs()) == [[pytest.approx((10.0 + 40.0) / 2)]]


def test_slopes_go_from_one_average_to_the_next_slower():
    """Peaks at epochs 2 and 4 of 4, 70% and 80%."""
    assert values(5, 2, recomputed_epochs()) == [[pytest.approx(50.0)]]
    assert values(5, 3, recomputed_epochs()) == [[pytest.approx(10.0)]]


def test_slopes_are_those_of_least_squares():
    found = curves(0)
    recomputed = [found[Curve(name, "recomputed", "test", "accuracy")] for name in AVERAGES]
    epochs = [100 * (np.argmax(curve) + 1) / len(curve) for curve in recomputed]
    heights = [100 * curve.max() for curve in recomputed]
    assert values(5, 2, setting())[0][0] == pytest.approx(np.polyfit(range(5), epochs, 1)[0])
    assert values(5, 3, setting())[0][0] == pytest.approx(np.polyfit(range(5), heights, 1)[0])


def test_networks_without_batch_norm_do_not_take_part():
    for place in range(4):
        assert values(5, place, replace(recomputed_epochs(), has_batchnorm=False)) == []


def test_runs_that_were_not_recomputed_each_epoch_do_not_take_part():
    bare = by_hand({accuracy("a", "averaged"): [[0.5]], accuracy("b", "averaged"): [[0.5]]})
    assert [values(5, place, bare) for place in range(4)] == [[]] * 4


# Label noise ----------------------------------------------------------------------------------------------------------


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
    assert values(6, 1, found) == [[pytest.approx(-30.0), pytest.approx(-40.0)]]


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
        for one, other in zip(found.variants["refit"], more.variants["refit"], strict=True)
    )
    assert values(6, 1, replace(found, variants={"refit": runs})) == [[pytest.approx(-45.0), pytest.approx(-55.0)]]


def test_a_seed_that_never_gets_there_leaves_too_few_runs_and_is_named():
    found = training([0.5, 0.6, 0.7], [0.0, 0.5, 1.0])
    finding = findings_of(make_claims(results(found))[5], 1)[0]
    assert (finding.verdict, finding.mean, finding.n) == ("too few runs", None, 1)
    assert finding.values == (pytest.approx(-40.0),)
    assert "SGD of seed 0 never reaches 90% on the clean images" in finding.note


def test_without_curves_on_train_there_is_nothing_to_say_about_memorising():
    assert values(6, 1, by_hand({("a", "averaged", "test", "accuracy"): [[0.5]]})) == []


def branches(constant: list[float]):
    """Validation chose a at epoch 2; decayed, it goes from 60% to 50%."""
    key = ("a", "averaged", "test", "accuracy")
    refit = by_hand({key: [[0.4, 0.6, 0.5]]})
    return replace(refit, variants={**refit.variants, "constant": by_hand({key: [constant]}).variants["refit"]})


def test_both_branches_fall_from_the_epoch_where_they_part():
    found = branches([0.4, 0.6, 0.62])
    assert [values(7, place, found) for place in range(3)] == [
        [[pytest.approx(2.0)]], [[pytest.approx(-10.0)]], [[pytest.approx(12.0)]],
    ]  # fmt: skip


def test_a_branch_that_was_measured_from_there_on_starts_from_the_common_trunk():
    assert values(7, 0, branches([NAN, NAN, 0.62])) == [[pytest.approx(2.0)]]


def test_without_a_constant_branch_the_cosine_says_nothing_either():
    found = branches([0.4, 0.6, 0.62])
    assert values(7, 1, replace(found, variants={"refit": found.variants["refit"]})) == []


def test_a_rise_at_a_constant_rate_is_no_overfitting():
    found = make_claims(results(replace(setting("cifar100n-resnet18"), variants=branches([0.4, 0.6, 0.9]).variants)))[6]
    assert found.findings[0].rule.text == "above -1"


@pytest.mark.parametrize(
    ("accuracy", "places", "verdict"),
    [(0.87, (1, 5), "reproduced"), (0.60, (7, 13), "not reproduced"), (0.70, (3, 13), "not reproduced")],
)
def test_the_place_is_counted_by_the_mean_among_the_printed_methods(accuracy, places, verdict):
    found = make_claims(leaderboard(accuracy))[18]
    assert [finding.note.partition(";")[0] for finding in found.findings] == [
        f"place {place} of 13 printed methods" for place in places
    ]
    assert found.verdict == verdict


def test_other_data_have_no_place_in_the_leaderboard():
    found = leaderboard(0.87).settings
    assert values(19, 0, *(replace(each, dataset="digits") for each in found)) == []
    assert values(19, 0, *(replace(each, config={"data": {"subset": 4000}}) for each in found)) == []


def test_the_lead_is_over_the_method_that_the_paper_has_below():
    (one, other) = values(19, 0, *leaderboard(0.87).settings)
    assert np.mean(one) == pytest.approx(87 - 61.73, abs=0.05) and np.mean(other) == pytest.approx(87 - 85.36, abs=0.05)


# Other ways to train --------------------------------------------------------------------------------------------------


PAIR = "cifar100-resnet18"


def variants(split: str, **by_variant: dict[str, list[list[float]]]):
    """A setting with several variants: for each the curves of live weights and averages by seed."""
    made = {
        variant: by_hand(
            {(name, "own" if name == "live" else "averaged", split, "accuracy"): curve for name, curve in found.items()}
        ).variants["refit"]
        for variant, found in by_variant.items()
    }
    first = by_hand({("a", "averaged", split, "accuracy"): [[0.0]]})
    return replace(first, pair=PAIR, variants={variant.replace("_", " "): runs for variant, runs in made.items()})


def test_the_third_period_stands_for_sixteen_unless_sixteen_is_there():
    def at(accuracy: float) -> dict[str, list[list[float]]]:
        return {"a": [[0.1, accuracy]], "b": [[0.2, 0.2]]}

    short = variants("test", every_1=at(0.5), every_2=at(0.9), every_4=at(0.6), every_8=at(0.9))
    assert values(4, 0, short) == [[pytest.approx(10.0)]]
    whole = variants("test", every_1=at(0.5), every_4=at(0.9), every_16=at(0.7), every_64=at(0.9))
    assert values(4, 0, whole) == [[pytest.approx(20.0)]]
    assert values(4, 0, variants("test", every_1=at(0.5), every_2=at(0.9))) == []
    assert values(4, 0, variants("test", every_2=at(0.5), every_4=at(0.9), every_8=at(0.9))) == []


def test_the_curves_of_two_periods_are_compared_average_by_average():
    every_1 = {"a": [[0.1, 0.2]], "b": [[0.3, 0.4]]}
    sampled = {"a": [[0.2, 0.2]], "b": [[0.3, 0.6]]}  # by 10, 0, 0 and 20 points higher
    found = variants("test", every_1=every_1, every_2=every_1, every_4=sampled)
    assert values(4, 1, found) == [[pytest.approx(7.5)]]


def test_a_stand_in_for_sixteen_is_named():
    found = make_claims(results(setting()))[3]
    assert "T = 4 stands for 16" in found.findings[0].note


def test_bootstrapping_is_compared_by_the_best_validation_accuracy():
    found = variants(
        "val",
        tune={"live": [[0.5, 0.7], [0.6, 0.5]], "a": [[0.8, 0.7], [0.7, 0.7]], "b": [[0.9, 0.1], [0.1, 0.1]]},
        bootstrap={"live": [[0.6, 0.5], [0.7, 0.5]], "a": [[0.6, 0.7], [0.8, 0.7]]},
    )
    assert values(11, 0, found) == [[pytest.approx(-10.0), pytest.approx(10.0)]]
    # Of the averages only those that both have: b is not in the bootstrapped runs.
    assert values(11, 1, found) == [[pytest.approx(-10.0), pytest.approx(10.0)]]


def rates(**by_rate: dict[str, list[list[float]]]):
    return variants(
        "val", **{f"tune at {rate.removeprefix('at_').replace('_', '.')}": found for rate, found in by_rate.items()}
    )


def test_the_averages_own_rate_is_compared_with_that_of_the_live_weights():
    """Seed 0 has the same best rate for both; with seed 1 the averages would gain 5 points from the other."""
    found = rates(
        at_0_1={"live": [[0.5, 0.6], [0.7, 0.6]], "a": [[0.6, 0.6], [0.7, 0.70]], "b": [[0.5, 0.5], [0.5, 0.5]]},
        at_0_2={"live": [[0.5, 0.7], [0.6, 0.6]], "a": [[0.8, 0.6], [0.7, 0.75]], "b": [[0.5, 0.5], [0.5, 0.5]]},
    )
    assert values(12, 0, found) == [[0.0, pytest.approx(5.0)]]
    (finding,) = make_claims(results(found))[11].findings
    assert "the same rate is best for both in 1 of 2 seeds" in finding.note


def test_of_equal_rates_the_lower_is_that_of_the_live_weights():
    found = rates(
        at_0_2={"live": [[0.7]], "a": [[0.8]], "b": [[0.5]]},
        at_0_1={"live": [[0.7]], "a": [[0.7]], "b": [[0.5]]},
    )
    assert values(12, 0, found) == [[pytest.approx(10.0)]]


def test_one_rate_is_no_search_and_a_rate_that_diverged_does_not_take_part():
    nan = float("nan")
    one = {"live": [[0.7], [0.7]], "a": [[0.8], [0.8]], "b": [[0.5], [0.5]]}
    assert values(12, 0, rates(at_0_1=one)) == []
    diverged = {"live": [[nan], [0.6]], "a": [[nan], [0.8]], "b": [[nan], [0.5]]}
    found = rates(at_0_1=one, at_0_4=diverged)
    assert values(12, 0, found) == [[0.0]]
    assert "no value for seed 0" in make_claims(results(found))[11].findings[0].note


def test_with_step_decay_both_are_taken_at_their_best_and_at_the_end():
    found = variants("test", step={"live": [[0.7, 0.6]], "a": [[0.5, 0.5]], "b": [[0.6, 0.75]]})
    assert values(13, 0, found) == [[pytest.approx(5.0)]]
    assert values(13, 1, found) == [[pytest.approx(15.0)]]


# Columns --------------------------------------------------------------------------------------------------------------


def measures(column: str, metric: str, trained_on: str = "100%") -> list[float]:
    (found,) = [
        each for each in setting().columns if (each.title, each.trained_on, each.split) == (column, trained_on, "test")
    ]
    return list(found.values[metric])  # type: ignore[arg-type]


CASES = [
    (14, 0, "slowest (acc.)", "SWA", "accuracy", 100),
    (16, 0, "slowest (acc.)", "SGD", "accuracy", 100),
    (16, 1, "slowest (acc.)", "SGD", "loss", 1),
    (16, 2, "SWA", "SGD", "accuracy", 100),
]


@pytest.mark.parametrize(("number", "place", "one", "other", "metric", "unit"), CASES)
def test_it_is_the_difference_of_two_columns_with_the_interval_of_a_paired_test(
    number, place, one, other, metric, unit
):
    ours, base = measures(one, metric), measures(other, metric)
    assert values(number, place, setting()) == [
        pytest.approx([unit * (a - b) for a, b in zip(ours, base, strict=True)])
    ]
    finding = make_claims(results(setting()))[number - 1].findings[place]
    low, high = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert (finding.low, finding.high) == (pytest.approx(unit * low), pytest.approx(unit * high))


# Predictions ----------------------------------------------------------------------------------------------------------


def differences(one: tuple, other: tuple) -> list[float]:
    return [100 * (a - b) for a, b in zip(measures(*one), measures(*other), strict=True)]


@pytest.mark.parametrize(
    ("number", "place", "one", "other"),
    [
        (8, 0, ("slowest (loss)", "churn"), ("SGD", "churn")),
        (9, 0, ("slowest (loss)", "ece", "80%"), ("SGD", "ece", "80%")),
        (9, 1, ("slowest (loss)", "ece_ts", "80%"), ("SGD", "ece_ts", "80%")),
        (9, 2, ("slowest (loss)", "ece_ts", "80%"), ("slowest (loss)", "ece", "80%")),
        (10, 0, ("slowest (acc.)", "transfer:other"), ("SGD", "transfer:other")),
        (10, 1, ("slowest (loss)", "transfer:other"), ("SGD", "transfer:other")),
        (18, 0, ("slowest (loss)", "ece"), ("slowest (acc.)", "ece")),
        (18, 1, ("slowest (loss)", "churn"), ("slowest (acc.)", "churn")),
        (18, 2, ("slowest (loss)", "transfer:other"), ("slowest (acc.)", "transfer:other")),
    ],
)
def test_it_is_the_difference_of_two_columns_in_points(number, place, one, other):
    assert values(number, place, setting()) == [pytest.approx(differences(one, other))]


def test_the_interval_is_that_of_a_paired_test():
    finding = findings_of(make_claims(results(setting()))[7], 0)[0]
    test = stats.ttest_rel(measures("slowest (loss)", "churn"), measures("SGD", "churn"))
    low, high = test.confidence_interval(0.95)
    assert (finding.low, finding.high) == (pytest.approx(100 * low), pytest.approx(100 * high))


def test_js_is_compared_as_a_ratio():
    ratios = [a / b for a, b in zip(measures("slowest (loss)", "js"), measures("SGD", "js"), strict=True)]
    assert values(8, 1, setting()) == [pytest.approx([100 * (ratio - 1) for ratio in ratios])]


def test_a_ratio_to_nothing_is_left_out():
    assert len(values(8, 1, with_values(setting(), {"js": [0.0, 0.2, 0.4]}, "SGD"))[0]) == 2


def test_every_target_of_a_transfer_has_its_part():
    transfers = {"transfer:cifar10": [0.5, 0.6, 0.7], "transfer:cifar100": [0.1, 0.2, 0.3]}
    whole = setting("tiny-imagenet-resnet18")
    whole = replace(whole, columns=[replace(column, values=transfers) for column in whole.columns])
    found = make_claims(results(whole))[9]
    assert [finding.statistic.rpartition(", on ")[2] for finding in found.findings] == ["cifar10", "cifar100"] * 2
    assert [finding.paper.partition(" ")[0] for finding in found.findings] == ["+4.09", "+4.53", "+4.52", "+5.01"]


def test_pairs_of_seeds_are_said_not_to_be_independent():
    found = make_claims(results(setting()))
    for finding in (*found[7].findings, *findings_of(found[17], 1)):
        assert "pairs of seeds, which are not independent" in finding.note


# The cost of averages -------------------------------------------------------------------------------------------------


(OVERHEAD,) = results(setting()).overheads


def overhead_claim(**changed):
    return make_claims(Results(overheads=[replace(OVERHEAD, **changed)]))[14]


def test_each_repetition_gives_a_share():
    found = overhead_claim(step_seconds=(0.1, 0.2, 0.1), update_seconds=(0.004, 0.004, 0.002))
    (finding,) = found.findings
    assert finding.values == (pytest.approx(0.25), pytest.approx(0.125), pytest.approx(0.125))
    assert (found.verdict, finding.rule.text, finding.n, finding.setting) == ("reproduced", "below 1", 3, "resnet8")
    assert finding.paper and "ours" in found.note


def test_a_costly_update_refutes_the_claim():
    assert overhead_claim(update_seconds=(0.05, 0.06, 0.05)).verdict == "not reproduced"
    assert overhead_claim(update_seconds=(0.001, 0.05, 0.001)).verdict == "inconclusive"


def test_other_numbers_of_averages_and_other_periods_are_not_the_claims():
    assert overhead_claim(every=1).verdict == "not run"
    assert overhead_claim(averages=1).verdict == "not run"
    assert overhead_claim(every=1).findings[0].note.startswith("emabank run sampling-period")


@pytest.mark.parametrize("steps", [(), (0.1,), (0.0, 0.0, 0.1), (float("nan"), 0.0, 0.1)])
def test_repetitions_without_a_time_are_left_out(steps):
    found = overhead_claim(step_seconds=steps)
    assert found.verdict == "too few runs"
    assert found.findings[0].n == (1 if steps else 0)
