"""The statistics of the claims on curves and columns that are written down, with numpy beside them."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from emabank.study.report.claim_specs import columns, make_claims, paired
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


def test_a_seed_has_its_own_value_or_none():
    (sample,) = columns("slowest (acc.)", "SGD")(with_values(setting(), {"accuracy": [0.5, None, 0.6]}, "SGD"))
    assert [value is None for value in sample.by_seed.values()] == [False, True, False]


def test_of_pairs_a_seed_has_the_mean_over_its_own():
    """Pairs 0 and 1, 0 and 2, 1 and 2."""
    whole = with_values(setting(), {"churn": [0.1, 0.2, 0.6]}, "slowest (loss)")
    (sample,) = columns("slowest (loss)", "SGD", "churn")(with_values(whole, {"churn": [0.0] * 3}, "SGD"))
    assert list(sample.by_seed.values()) == pytest.approx([15.0, 35.0, 40.0]) and sample.of_pairs


@pytest.mark.parametrize("found", [[0.5], [0.5] * 4])
def test_columns_that_cannot_be_paired_are_not_there(found):
    assert columns("slowest (acc.)", "SGD")(with_values(setting(), {"accuracy": found}, "SGD")) == []
    assert columns("nothing", "SGD")(setting()) == []


def test_runs_of_two_variants_are_paired_by_seed_and_not_by_place():
    one, other = runs("a"), runs("b")
    whole = setting(a=(one[2], one[0]), b=(other[0], other[1], other[2]))
    (sample,) = paired("a", "b", lambda setting, x, y: 10.0 * x.seed + y.seed)(whole)
    assert sample.by_seed == {2: 22.0, 0: 0.0}


# Through training -----------------------------------------------------------------------------------------------------


LIVE = ("live", "own", "test", "accuracy")
A = ("a", "averaged", "test", "accuracy")
B = ("b", "averaged", "test", "accuracy")


def four_epochs():
    """Validation chose a at epoch 2: it is ahead by 20, 0, -10 and -10 points, or 10, -, 10 and -10.

    The best average is ahead by 20, 10, 0 and -10 points with one seed, by 10 twice and 5 with the other.
    """
    return by_hand(
        {
            LIVE: [[0.4, 0.5, 0.6, 0.7], [0.4, NAN, 0.6, 0.7]],
            A: [[0.6, 0.5, 0.5, 0.6], [0.5, 0.5, 0.7, 0.6]],
            B: [[0.3, 0.6, 0.6, 0.5], [0.4, 0.9, 0.6, 0.75]],
        }
    )


def test_a_tie_is_half_a_lead_and_what_was_not_measured_is_none():
    assert values("1", "chosen", four_epochs()) == [pytest.approx(100 * 1.5 / 4), pytest.approx(100 * 2 / 3)]


@pytest.mark.parametrize("metric", ["accuracy", "noisy_accuracy"])
def test_at_each_epoch_the_average_counts_that_validation_of_tuning_has_first(metric):
    def on_validation(name):
        return (name, "averaged", "val", metric)

    # First at each epoch: a, b, b and, of equals, a with one seed; a, b, a and b with the other.
    tuned = by_hand(
        {
            on_validation("a"): [[0.5, 0.1, NAN, 0.4], [0.5, 0.1, 0.5, 0.1]],
            on_validation("b"): [[0.4, 0.2, 0.1, 0.4], [0.4, 0.2, 0.4, 0.2]],
        },
        variant="tune",
    )
    both = replace(four_epochs(), variants={**four_epochs().variants, **tuned.variants})
    assert values("1", "share", both) == [pytest.approx(100 * 2.5 / 4), pytest.approx(100.0)]
    assert values("1", "share", four_epochs()) == []


def test_noisy_labels_rank_where_both_were_measured():
    curves = {("a", "averaged", "val", "accuracy"): [[0.1]], ("b", "averaged", "val", "accuracy"): [[0.2]]}
    curves |= {("a", "averaged", "val", "noisy_accuracy"): [[0.2]], ("b", "averaged", "val", "noisy_accuracy"): [[0.1]]}
    test = by_hand({LIVE: [[0.5]], A: [[0.6]], B: [[0.4]]})
    both = replace(test, variants={**test.variants, **by_hand(curves, variant="tune").variants})
    assert values("1", "share", both) == [100.0]


def test_the_first_quarter_is_one_epoch_of_four():
    assert values("1", "early", four_epochs()) == [pytest.approx(20.0), pytest.approx(10.0)]
    assert values("1", "most", four_epochs()) == [pytest.approx(20.0 - 0.0), pytest.approx(10.0 - 7.5)]


def test_the_end_is_the_last_epoch():
    assert values("3", "end", four_epochs()) == [pytest.approx(-10.0), pytest.approx(-10.0)]
    lost = by_hand({LIVE: [[0.4, 0.5], [0.4, NAN]], A: [[0.5, 0.7], [0.5, 0.6]]})
    assert values("3", "end", lost) == [pytest.approx(20.0), None]


def test_the_chosen_epoch_is_a_share_of_all():
    tuned = replace(four_epochs(), variants={"tune": four_epochs().variants["refit"]})
    assert values("2", "when", tuned) == [50.0, 50.0]
    assert values("17", "epochs", tuned) == [-25.0, -25.0], "the lowest loss was in epoch 1 of 4"


def test_from_the_chosen_epoch_to_the_end_the_chosen_average_is_looked_at():
    assert values("2", "afterwards", four_epochs()) == [pytest.approx(10.0), pytest.approx(10.0)]


def test_a_peak_on_test_is_not_what_counts():
    """Higher at an epoch that validation did not choose, and equal at the chosen one and at the end."""
    assert values("2", "afterwards", by_hand({A: [[0.9, 0.5, 0.5]], B: [[0.1, 0.1, 0.1]]})) == [0.0]


def test_steps_to_the_target_are_those_of_the_first_average_in_percent_of_those_of_the_live_weights():
    """The live weights are best in epoch 4 (70%), 1 (90%) and 2 (80%); averages are there in 2, never, and in 2."""
    tuned = by_hand(
        {
            ("live", "own", "val", "accuracy"): [[0.4, 0.5, 0.6, 0.7], [0.9, 0.5, 0.5, 0.5], [0.1, 0.8, 0.8, 0.5]],
            ("a", "averaged", "val", "accuracy"): [[0.6, 0.6, 0.8, 0.9], [0.5] * 4, [0.5, 0.8, 0.9, 0.9]],
            ("b", "averaged", "val", "accuracy"): [[0.5, 0.7, 0.6, 0.7], [0.6] * 4, [0.1] * 4],
        },
        variant="tune",
    )
    assert values("c", "steps", tuned) == [50.0, 400.0, 100.0]


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
    assert values("5", "early", recomputed_epochs()) == [pytest.approx(40.0)]


def test_the_gain_at_the_choice_is_the_mean_of_both_chosen_epochs():
    assert values("5", "choice", recomputed_epochs()) == [pytest.approx((10.0 + 40.0) / 2)]


def test_slopes_go_from_one_average_to_the_next_slower():
    """Peaks at epochs 2 and 4 of 4, 70% and 80%."""
    assert values("5", "later", recomputed_epochs()) == [pytest.approx(50.0)]
    assert values("5", "higher", recomputed_epochs()) == [pytest.approx(10.0)]


def test_slopes_are_those_of_least_squares():
    found = curves(0)
    recomputed = [found[Curve(name, "recomputed", "test", "accuracy")] for name in AVERAGES]
    epochs = [100 * (np.argmax(curve) + 1) / len(curve) for curve in recomputed]
    heights = [100 * curve.max() for curve in recomputed]
    assert values("5", "later", setting())[0] == pytest.approx(np.polyfit(range(5), epochs, 1)[0])
    assert values("5", "higher", setting())[0] == pytest.approx(np.polyfit(range(5), heights, 1)[0])


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
    assert values("6", "memorised", found) == [pytest.approx(-30.0), pytest.approx(-40.0)]


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
    assert values("6", "memorised", replace(found, variants={"refit": runs})) == [
        pytest.approx(-45.0),
        pytest.approx(-55.0),
    ]


def test_a_seed_that_never_gets_there_leaves_too_few_runs_and_is_named():
    found = training([0.5, 0.6, 0.7], [0.0, 0.5, 1.0])
    (finding,) = findings_of(make_claims(results(found))[5], "memorised")
    assert (finding.verdict, finding.mean, finding.n) == ("too few runs", None, 0)
    assert finding.notes == ("SGD of seed 0 never reaches 90% on the clean images",)


def test_without_curves_on_train_there_is_nothing_to_say_about_memorising():
    assert values("6", "memorised", by_hand({("a", "averaged", "test", "accuracy"): [[0.5]]})) == []


def branches(constant: list[float]):
    """Validation chose a at epoch 2; decayed, it goes from 60% to 50%."""
    key = ("a", "averaged", "test", "accuracy")
    refit = by_hand({key: [[0.4, 0.6, 0.5]]})
    return replace(refit, variants={**refit.variants, "constant": by_hand({key: [constant]}).variants["refit"]})


def test_both_branches_fall_from_the_epoch_where_they_part():
    found = branches([0.4, 0.6, 0.62])
    assert [values("7", key, found) for key in ("constant", "cosine", "difference")] == [
        [pytest.approx(2.0)], [pytest.approx(-10.0)], [pytest.approx(12.0)],
    ]  # fmt: skip


def test_a_branch_that_was_measured_from_there_on_starts_from_the_common_trunk():
    assert values("7", "constant", branches([NAN, NAN, 0.62])) == [pytest.approx(2.0)]


def test_both_are_counted_from_the_epoch_from_which_the_rate_was_held():
    """It may be another one than the chosen epoch: epoch 1, where the average has 40%."""
    found = branches([0.4, 0.6, 0.62])
    held = tuple(replace(run, constant_from=1) for run in found.variants["constant"])
    found = replace(found, variants={**found.variants, "constant": held})
    assert (values("7", "constant", found), values("7", "cosine", found)) == (
        [pytest.approx(22.0)], [pytest.approx(10.0)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accuracy", "places", "verdict"),
    [(0.87, (1, 5), "reproduced"), (0.60, (7, 13), "not reproduced"), (0.70, (3, 13), "not reproduced")],
)
def test_the_place_is_counted_by_the_mean_among_the_printed_methods(accuracy, places, verdict):
    found = make_claims(leaderboard(accuracy))[18]
    notes = [note.partition(" of ")[0].rpartition(" ")[2] for note in found.primary.notes]
    assert (notes, found.verdict) == ([*map(str, places)], verdict)


def test_the_lead_is_over_the_method_that_the_paper_has_below():
    (one, other) = (values("19", "place", whole) for whole in leaderboard(0.87).settings)
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
    """Validation chose a at epoch 2; b is better, and so is a at epoch 1, but nobody could know."""

    def at(accuracy: float) -> dict[str, list[list[float]]]:
        return {"a": [[0.99 - accuracy, accuracy]], "b": [[0.2, 0.95]]}

    short = variants("test", every_1=at(0.5), every_2=at(0.9), every_4=at(0.6), every_8=at(0.9))
    assert values("4", "choice", short) == [pytest.approx(10.0)]
    whole = variants("test", every_1=at(0.5), every_4=at(0.9), every_16=at(0.7), every_64=at(0.9))
    assert values("4", "choice", whole) == [pytest.approx(20.0)]
    assert values("4", "choice", variants("test", every_1=at(0.5), every_2=at(0.9))) == []
    assert values("4", "choice", variants("test", every_2=at(0.5), every_4=at(0.9), every_8=at(0.9))) == []


def test_the_curves_of_two_periods_are_compared_average_by_average():
    every_1 = {"a": [[0.1, 0.2]], "b": [[0.3, 0.4]]}
    sampled = {"a": [[0.2, 0.2]], "b": [[0.3, 0.6]]}  # by 10, 0, 0 and 20 points higher
    found = variants("test", every_1=every_1, every_2=every_1, every_4=sampled)
    assert values("4", "curves", found) == [pytest.approx(7.5)]


def test_bootstrapping_is_compared_by_the_best_validation_accuracy():
    found = variants(
        "val",
        tune={"live": [[0.5, 0.7], [0.6, 0.5]], "a": [[0.8, 0.7], [0.7, 0.7]], "b": [[0.9, 0.1], [0.1, 0.1]]},
        bootstrap={"live": [[0.6, 0.5], [0.7, 0.5]], "a": [[0.6, 0.7], [0.8, 0.7]]},
    )
    assert values("11", "live", found) == [pytest.approx(-10.0), pytest.approx(10.0)]
    # Of the averages only those that both have: b is not in the bootstrapped runs.
    assert values("11", "average", found) == [pytest.approx(-10.0), pytest.approx(10.0)]


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
    assert values("12", "rate", found) == [0.0, pytest.approx(-5.0)]
    (finding,) = make_claims(results(found))[11].findings
    assert "the same rate is best for both in 1 of 2 seeds" in finding.note


def test_of_equal_rates_the_lower_is_that_of_the_live_weights():
    found = rates(
        at_0_2={"live": [[0.7]], "a": [[0.8]], "b": [[0.5]]},
        at_0_1={"live": [[0.7]], "a": [[0.7]], "b": [[0.5]]},
    )
    assert values("12", "rate", found) == [pytest.approx(-10.0)]


def test_one_rate_is_no_search_and_a_rate_that_diverged_does_not_take_part():
    nan = float("nan")
    one = {"live": [[0.7], [0.7]], "a": [[0.8], [0.8]], "b": [[0.5], [0.5]]}
    assert values("12", "rate", rates(at_0_1=one)) == []
    diverged = {"live": [[nan], [0.6]], "a": [[nan], [0.8]], "b": [[nan], [0.5]]}
    found = rates(at_0_1=one, at_0_4=diverged)
    assert values("12", "rate", found) == [None, 0.0]


def test_with_step_decay_each_is_taken_at_its_chosen_epoch_and_at_the_end():
    """Validation chose epoch 2 for the average a, epoch 1 for the live weights; there are three."""
    found = variants("test", step={"live": [[0.7, 0.8, 0.6]], "a": [[0.5, 0.55, 0.65]], "b": [[0.6, 0.75, 0.9]]})
    assert values("13", "chosen", found) == [pytest.approx(-15.0)]
    assert values("13", "end", found) == [pytest.approx(5.0)]


# Columns --------------------------------------------------------------------------------------------------------------


def measures(column: str, metric: str, trained_on: str = "100%") -> np.ndarray:
    (found,) = [
        each for each in setting().columns if (each.title, each.trained_on, each.split) == (column, trained_on, "test")
    ]
    return np.array(found.values[metric])


def of_seeds(pairs: np.ndarray) -> list[float]:
    places = list(combinations(range(3), 2))
    return [np.mean([value for value, place in zip(pairs, places, strict=True) if seed in place]) for seed in range(3)]


@pytest.mark.parametrize(
    ("key", "metric", "one", "other", "other_metric"),
    [
        ("chosen", "ece", "EMA (loss)", "SGD", "ece"),
        ("ece_ts", "ece_ts", "slowest (loss)", "SGD", "ece_ts"),
        ("scaled", "ece_ts", "slowest (loss)", "slowest (loss)", "ece"),
    ],
)
def test_calibration_is_that_of_tuning_where_sgd_is_at_its_best_epoch(key, metric, one, other, other_metric):
    ours, base = measures(one, metric, "80%"), measures(other, other_metric, "80%")
    assert values("9", key, setting()) == pytest.approx(100 * (ours - base))


def test_loss_has_its_own_unit_and_churn_and_js_are_of_pairs():
    assert values("16", "loss", setting()) == pytest.approx(
        measures("slowest (acc.)", "loss") - measures("SGD", "loss")
    )
    churn = 100 * (measures("EMA (loss)", "churn") - measures("SGD (best)", "churn"))
    assert values("8", "chosen", setting()) == pytest.approx(of_seeds(churn))
    js = 100 * (measures("slowest (loss)", "js") / measures("SGD", "js") - 1)
    assert values("8", "js", setting()) == pytest.approx(of_seeds(js))
    nothing = with_values(setting(), {"js": [0.0, 0.2, 0.4]}, "SGD")
    assert [value is None for value in values("8", "js", nothing)] == [True, True, False], "a ratio to nothing"


def test_every_target_of_a_transfer_takes_part():
    transfers = {"transfer:cifar10": [0.5, 0.6, 0.7], "transfer:cifar100": [0.1, 0.2, 0.3]}
    whole = setting("tiny-imagenet-resnet18")
    whole = replace(whole, columns=[replace(column, values=transfers) for column in whole.columns])
    found = make_claims(results(whole))[9]
    assert found.primary.setting == "mean of 2 settings"
    own = [*findings_of(found, "acc"), *findings_of(found, "loss")]
    assert [finding.statistic.rpartition(", on ")[2] for finding in own] == ["cifar10", "cifar100"] * 2
    assert [finding.paper.partition(" ")[0] for finding in own] == ["+4.09", "+4.53", "+4.52", "+5.01"]


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


def test_other_numbers_of_averages_and_other_periods_are_not_the_claims():
    assert overhead_claim(every=1).verdict == "not run"
    assert overhead_claim(averages=1).verdict == "not run"
    assert overhead_claim(every=1).findings[0].note.startswith("emabank run sampling-period")


@pytest.mark.parametrize("steps", [(), (0.1,), (0.0, 0.0, 0.1)])
def test_repetitions_without_a_time_are_left_out(steps):
    found = overhead_claim(step_seconds=steps)
    assert found.verdict == "too few runs"
    assert found.findings[0].n == (1 if steps else 0)
