"""The statistics of the claims on small curves and columns, compared with values by hand and with numpy."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from emabank.study.report.claim_specs import columns, make_claims, paired
from emabank.study.report.results import Curve, Results
from tests.study.report.example_results import (
    AVERAGES,
    findings_of,
    leaderboard,
    make_curves,
    make_results,
    make_runs,
    make_setting,
    setting_from_curves,
    values,
    with_values,
)

NAN = float("nan")


# Samples --------------------------------------------------------------------------------------------------------------


def test_a_seed_without_a_value_has_none():
    (sample,) = columns("slowest (acc.)", "SGD")(with_values(make_setting(), {"accuracy": [0.5, None, 0.6]}, "SGD"))
    assert [value is None for value in sample.by_seed.values()] == [False, True, False]


def test_a_seed_has_the_mean_over_its_own_pairs():
    """Pairs 0 and 1, 0 and 2, 1 and 2."""
    whole = with_values(make_setting(), {"churn": [0.1, 0.2, 0.6]}, "slowest (loss)")
    (sample,) = columns("slowest (loss)", "SGD", "churn")(with_values(whole, {"churn": [0.0] * 3}, "SGD"))
    assert list(sample.by_seed.values()) == pytest.approx([15.0, 35.0, 40.0]) and sample.of_pairs


@pytest.mark.parametrize("found", [[0.5], [0.5] * 4])
def test_columns_that_cannot_be_paired_give_no_sample(found):
    assert columns("slowest (acc.)", "SGD")(with_values(make_setting(), {"accuracy": found}, "SGD")) == []
    assert columns("nothing", "SGD")(make_setting()) == []


def test_runs_of_two_variants_are_paired_by_seed_not_by_position():
    one, other = make_runs("a"), make_runs("b")
    whole = make_setting(variants={"a": (one[2], one[0]), "b": other})
    (sample,) = paired("a", "b", lambda setting, x, y: 10.0 * x.seed + y.seed)(whole)
    assert sample.by_seed == {2: 22.0, 0: 0.0}


# Through training -----------------------------------------------------------------------------------------------------


LIVE = ("live", "own", "test", "accuracy")
A = ("a", "averaged", "test", "accuracy")
B = ("b", "averaged", "test", "accuracy")


def four_epochs():
    """Validation chose a at epoch 2: it is ahead by 20, 0, -10 and -10 points, or 10, -, 10 and -10.

    The best average is ahead by 20, 10, 0 and -10 points with seed 0, by 10, -, 10 and 5 with seed 1.
    """
    return setting_from_curves(
        {
            LIVE: [[0.4, 0.5, 0.6, 0.7], [0.4, NAN, 0.6, 0.7]],
            A: [[0.6, 0.5, 0.5, 0.6], [0.5, 0.5, 0.7, 0.6]],
            B: [[0.3, 0.6, 0.6, 0.5], [0.4, 0.9, 0.6, 0.75]],
        }
    )


@pytest.mark.parametrize(
    ("number", "key", "expected"),
    [
        ("1", "chosen", [100 * 1.5 / 4, 100 * 2 / 3]),  # a tie is half a lead, and a NaN is not counted
        ("1", "early", [20.0, 10.0]),  # the first quarter is one epoch of four
        ("1", "most", [20.0 - 0.0, 10.0 - 7.5]),
        ("2", "afterwards", [10.0, 10.0]),  # the chosen average, from the chosen epoch to the end
        ("3", "end", [-10.0, -10.0]),
    ],
)
def test_statistics_of_four_epochs_match_values_by_hand(number, key, expected):
    assert values(number, key, four_epochs()) == [pytest.approx(value) for value in expected]


@pytest.mark.parametrize("metric", ["accuracy", "noisy_accuracy"])
def test_share_uses_the_average_with_the_best_validation_accuracy_at_each_epoch(metric):
    def on_validation(name):
        return (name, "averaged", "val", metric)

    # First at each epoch: a, b, b and, of equals, a with one seed; a, b, a and b with the other.
    tuned = setting_from_curves(
        {
            on_validation("a"): [[0.5, 0.1, NAN, 0.4], [0.5, 0.1, 0.5, 0.1]],
            on_validation("b"): [[0.4, 0.2, 0.1, 0.4], [0.4, 0.2, 0.4, 0.2]],
        },
        variant="tune",
    )
    both = replace(four_epochs(), variants={**four_epochs().variants, **tuned.variants})
    assert values("1", "share", both) == [pytest.approx(100 * 2.5 / 4), pytest.approx(100.0)]
    assert values("1", "share", four_epochs()) == []


def test_noisy_validation_accuracy_ranks_averages_if_both_were_measured():
    curves = {("a", "averaged", "val", "accuracy"): [[0.1]], ("b", "averaged", "val", "accuracy"): [[0.2]]}
    curves |= {("a", "averaged", "val", "noisy_accuracy"): [[0.2]], ("b", "averaged", "val", "noisy_accuracy"): [[0.1]]}
    test = setting_from_curves({LIVE: [[0.5]], A: [[0.6]], B: [[0.4]]})
    both = replace(test, variants={**test.variants, **setting_from_curves(curves, variant="tune").variants})
    assert values("1", "share", both) == [100.0]


def test_a_seed_without_a_last_epoch_has_no_value_at_the_end():
    lost = setting_from_curves({LIVE: [[0.4, 0.5], [0.4, NAN]], A: [[0.5, 0.7], [0.5, 0.6]]})
    assert values("3", "end", lost) == [pytest.approx(20.0), None]


def test_the_chosen_epoch_is_a_percentage_of_all_epochs():
    tuned = replace(four_epochs(), variants={"tune": four_epochs().variants["refit"]})
    assert values("2", "when", tuned) == [50.0, 50.0]
    assert values("17", "epochs", tuned) == [-25.0, -25.0], "the lowest loss was in epoch 1 of 4"


def test_a_higher_peak_on_test_does_not_count():
    """Higher at an epoch that validation did not choose, and equal at the chosen one and at the end."""
    assert values("2", "afterwards", setting_from_curves({A: [[0.9, 0.5, 0.5]], B: [[0.1, 0.1, 0.1]]})) == [0.0]


def test_steps_of_the_first_average_to_the_target_are_a_percentage_of_the_live_steps():
    """The live weights are best in epochs 4 (70%), 1 (90%) and 2 (80%); averages reach that in 2, never, and in 2."""
    tuned = setting_from_curves(
        {
            ("live", "own", "val", "accuracy"): [[0.4, 0.5, 0.6, 0.7], [0.9, 0.5, 0.5, 0.5], [0.1, 0.8, 0.8, 0.5]],
            ("a", "averaged", "val", "accuracy"): [[0.6, 0.6, 0.8, 0.9], [0.5] * 4, [0.5, 0.8, 0.9, 0.9]],
            ("b", "averaged", "val", "accuracy"): [[0.5, 0.7, 0.6, 0.7], [0.6] * 4, [0.1] * 4],
        },
        variant="tune",
    )
    assert values("c", "steps", tuned) == [50.0, 400.0, 100.0]


# Batch norm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("early", 40.0),  # the slowest average in the first quarter
        ("choice", (10.0 + 40.0) / 2),  # the mean of both chosen epochs
        ("later", 50.0),  # peaks at epochs 2 and 4 of 4
        ("higher", 10.0),  # peaks of 70% and 80%
    ],
)
def test_recomputed_batchnorm_matches_values_by_hand(key, expected):
    """Of a and b the slowest is b; validation chose epochs 2 (accuracy) and 1 (loss)."""
    recomputed = setting_from_curves(
        {
            ("a", "averaged", "test", "accuracy"): [[0.5, 0.5, 0.5, 0.5]],
            ("a", "recomputed", "test", "accuracy"): [[0.5, 0.7, 0.6, 0.5]],
            ("b", "averaged", "test", "accuracy"): [[0.1, 0.6, 0.7, 0.6]],
            ("b", "recomputed", "test", "accuracy"): [[0.5, 0.7, 0.7, 0.8]],
        }
    )
    assert values("5", key, recomputed) == [pytest.approx(expected)]


def test_slopes_match_least_squares():
    found = make_curves(0)
    recomputed = [found[Curve(name, "recomputed", "test", "accuracy")] for name in AVERAGES]
    epochs = [100 * (np.argmax(curve) + 1) / len(curve) for curve in recomputed]
    heights = [100 * curve.max() for curve in recomputed]
    assert values("5", "later", make_setting())[0] == pytest.approx(np.polyfit(range(5), epochs, 1)[0])
    assert values("5", "higher", make_setting())[0] == pytest.approx(np.polyfit(range(5), heights, 1)[0])


# Label noise ----------------------------------------------------------------------------------------------------------


def train(name: str, metric: str) -> tuple[str, str, str, str]:
    return name, "own" if name == "live" else "averaged", "train", metric


def training(live_clean: list[float], live_wrong: list[float]):
    """The slower of two averages, b, has memorised 20% in the first epoch with 90%."""
    return setting_from_curves(
        {
            train("live", "clean_accuracy"): [live_clean, [0.8, 0.9, 1.0]],
            train("live", "memorised"): [live_wrong, [0.0, 0.6, 1.0]],
            train("b", "clean_accuracy"): [[0.5, 0.8, 1.0]] * 2,
            train("b", "memorised"): [[0.0, 0.1, 0.2]] * 2,
        }
    )


def test_memorisation_is_compared_when_each_first_reaches_the_level():
    found = training([0.8, 0.9, 1.0], [0.0, 0.5, 1.0])
    assert values("6", "memorised", found) == [pytest.approx(-30.0), pytest.approx(-40.0)]


def test_a_seed_that_never_reaches_the_level_is_named():
    found = training([0.5, 0.6, 0.7], [0.0, 0.5, 1.0])
    (finding,) = findings_of(make_claims(make_results(found))[5], "memorised")
    assert (finding.verdict, finding.mean, finding.n) == ("too few runs", None, 0)
    assert finding.notes == ("SGD of seed 0 never reaches 90% on the clean images",)


def test_memorisation_needs_curves_on_train():
    assert values("6", "memorised", setting_from_curves({("a", "averaged", "test", "accuracy"): [[0.5]]})) == []


def branches(constant: list[float]):
    """Validation chose a at epoch 2; with a decayed rate it falls from 60% to 50%."""
    key = ("a", "averaged", "test", "accuracy")
    refit = setting_from_curves({key: [[0.4, 0.6, 0.5]]})
    return replace(
        refit, variants={**refit.variants, "constant": setting_from_curves({key: [constant]}).variants["refit"]}
    )


def test_both_branches_are_compared_with_the_epoch_where_they_part():
    found = branches([0.4, 0.6, 0.62])
    assert [values("7", key, found) for key in ("constant", "cosine", "difference")] == [
        [pytest.approx(2.0)], [pytest.approx(-10.0)], [pytest.approx(12.0)],
    ]  # fmt: skip


def test_a_branch_without_earlier_epochs_starts_from_the_common_trunk():
    assert values("7", "constant", branches([NAN, NAN, 0.62])) == [pytest.approx(2.0)]


def test_both_branches_start_at_the_epoch_from_which_the_rate_is_constant():
    """Here epoch 1, where the average has 40%; the chosen epoch is 2."""
    found = branches([0.4, 0.6, 0.62])
    constant = tuple(replace(run, constant_from=1) for run in found.variants["constant"])
    found = replace(found, variants={**found.variants, "constant": constant})
    assert (values("7", "constant", found), values("7", "cosine", found)) == (
        [pytest.approx(22.0)], [pytest.approx(10.0)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accuracy", "places", "verdict"),
    [(0.87, (1, 5), "reproduced"), (0.60, (7, 13), "not reproduced"), (0.70, (3, 13), "not reproduced")],
)
def test_leaderboard_place_is_that_of_the_mean_among_the_printed_methods(accuracy, places, verdict):
    found = make_claims(leaderboard(accuracy))[18]
    notes = [note.partition(" of ")[0].rpartition(" ")[2] for note in found.primary.notes]
    assert (notes, found.verdict) == ([*map(str, places)], verdict)


def test_the_lead_is_over_the_next_method_in_the_paper():
    one, other = (values("19", "place", whole) for whole in leaderboard(0.87).settings)
    assert np.mean(one) == pytest.approx(87 - 61.73, abs=0.05) and np.mean(other) == pytest.approx(87 - 85.36, abs=0.05)


# Other ways to train --------------------------------------------------------------------------------------------------


PAIR = "cifar100-resnet18"


def variants(split: str, **by_variant: dict[str, list[list[float]]]):
    """A setting with several variants, each with the curves of live weights and averages by seed."""
    by_name = {
        variant.replace("_", " "): setting_from_curves(
            {(name, "own" if name == "live" else "averaged", split, "accuracy"): curve for name, curve in found.items()}
        ).variants["refit"]
        for variant, found in by_variant.items()
    }
    first = setting_from_curves({("a", "averaged", split, "accuracy"): [[0.0]]})
    return replace(first, pair=PAIR, variants=by_name)


def test_the_third_period_is_used_if_there_is_no_period_of_sixteen():
    """Validation chose a at epoch 2; b, and a at epoch 1, are better on test but must not count."""

    def curves(accuracy: float) -> dict[str, list[list[float]]]:
        return {"a": [[0.99 - accuracy, accuracy]], "b": [[0.2, 0.95]]}

    short = variants("test", every_1=curves(0.5), every_2=curves(0.9), every_4=curves(0.6), every_8=curves(0.9))
    assert values("4", "choice", short) == [pytest.approx(10.0)]
    whole = variants("test", every_1=curves(0.5), every_4=curves(0.9), every_16=curves(0.7), every_64=curves(0.9))
    assert values("4", "choice", whole) == [pytest.approx(20.0)]
    assert values("4", "choice", variants("test", every_1=curves(0.5), every_2=curves(0.9))) == []
    assert values("4", "choice", variants("test", every_2=curves(0.5), every_4=curves(0.9), every_8=curves(0.9))) == []


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


def test_the_best_rate_of_averages_is_compared_with_that_of_the_live_weights():
    """With seed 0 the best rate is the same for both; with seed 1 the averages gain 5 points from another rate."""
    found = rates(
        at_0_1={"live": [[0.5, 0.6], [0.7, 0.6]], "a": [[0.6, 0.6], [0.7, 0.70]], "b": [[0.5, 0.5], [0.5, 0.5]]},
        at_0_2={"live": [[0.5, 0.7], [0.6, 0.6]], "a": [[0.8, 0.6], [0.7, 0.75]], "b": [[0.5, 0.5], [0.5, 0.5]]},
    )
    assert values("12", "rate", found) == [0.0, pytest.approx(-5.0)]
    (finding,) = make_claims(make_results(found))[11].findings
    assert "the same rate is best for both in 1 of 2 seeds" in finding.note


def test_the_lower_of_two_equally_good_rates_is_that_of_the_live_weights():
    found = rates(
        at_0_2={"live": [[0.7]], "a": [[0.8]], "b": [[0.5]]},
        at_0_1={"live": [[0.7]], "a": [[0.7]], "b": [[0.5]]},
    )
    assert values("12", "rate", found) == [pytest.approx(-10.0)]


def test_one_rate_is_no_search_and_a_diverged_rate_is_ignored():
    one = {"live": [[0.7], [0.7]], "a": [[0.8], [0.8]], "b": [[0.5], [0.5]]}
    assert values("12", "rate", rates(at_0_1=one)) == []
    diverged = {"live": [[NAN], [0.6]], "a": [[NAN], [0.8]], "b": [[NAN], [0.5]]}
    assert values("12", "rate", rates(at_0_1=one, at_0_4=diverged)) == [None, 0.0]


def test_step_decay_is_compared_at_the_chosen_epochs_and_at_the_end():
    """Of three epochs, validation chose 2 for the average a and 1 for the live weights."""
    found = variants("test", step={"live": [[0.7, 0.8, 0.6]], "a": [[0.5, 0.55, 0.65]], "b": [[0.6, 0.75, 0.9]]})
    assert values("13", "chosen", found) == [pytest.approx(-15.0)]
    assert values("13", "end", found) == [pytest.approx(5.0)]


# Columns --------------------------------------------------------------------------------------------------------------


def measures(column: str, metric: str, trained_on: str = "100%") -> np.ndarray:
    (values,) = [one.values[metric] for one in make_setting().columns
                 if (one.title, one.trained_on, one.split) == (column, trained_on, "test")]  # fmt: skip
    return np.array(values)


def mean_per_seed(pairs: np.ndarray) -> list[float]:
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
def test_calibration_is_that_of_the_tuning_runs(key, metric, one, other, other_metric):
    ours, base = measures(one, metric, "80%"), measures(other, other_metric, "80%")
    assert values("9", key, make_setting()) == pytest.approx(100 * (ours - base))


def test_loss_is_not_in_percent_and_churn_and_js_are_means_over_pairs():
    assert values("16", "loss", make_setting()) == pytest.approx(
        measures("slowest (acc.)", "loss") - measures("SGD", "loss")
    )
    churn = 100 * (measures("EMA (loss)", "churn") - measures("SGD (best)", "churn"))
    assert values("8", "chosen", make_setting()) == pytest.approx(mean_per_seed(churn))
    js = 100 * (measures("slowest (loss)", "js") / measures("SGD", "js") - 1)
    assert values("8", "js", make_setting()) == pytest.approx(mean_per_seed(js))
    zero = with_values(make_setting(), {"js": [0.0, 0.2, 0.4]}, "SGD")
    assert [value is None for value in values("8", "js", zero)] == [True, True, False], "division by zero"


def test_every_transfer_target_is_a_setting():
    transfers = {"transfer:cifar10": [0.5, 0.6, 0.7], "transfer:cifar100": [0.1, 0.2, 0.3]}
    whole = make_setting("tiny-imagenet-resnet18")
    whole = replace(whole, columns=[replace(column, values=transfers) for column in whole.columns])
    found = make_claims(make_results(whole))[9]
    assert found.primary.setting == "mean of 2 settings"
    own = [*findings_of(found, "acc"), *findings_of(found, "loss")]
    assert [finding.statistic.rpartition(", on ")[2] for finding in own] == ["cifar10", "cifar100"] * 2
    assert [finding.paper.partition(" ")[0] for finding in own] == ["+4.09", "+4.53", "+4.52", "+5.01"]


# The cost of averages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "verdict", "expected"),
    [
        (
            {"step_seconds": (0.1, 0.2, 0.1), "update_seconds": (0.004, 0.004, 0.002)},
            "reproduced",
            [0.25, 0.125, 0.125],
        ),
        ({"step_seconds": (0.0, 0.0, 0.1), "update_seconds": (0.004,) * 3}, "too few runs", [0.25]),
        ({"step_seconds": ()}, "too few runs", []),
        ({"every": 1}, "not run", []),
        ({"averages": 1}, "not run", []),
    ],
)
def test_each_repetition_with_five_averages_every_sixteen_steps_gives_the_cost_of_an_update(changed, verdict, expected):
    (overhead,) = make_results().overheads
    found = make_claims(Results(overheads=[replace(overhead, **changed)]))[14]
    assert (found.verdict, list(found.primary.values)) == (verdict, pytest.approx(expected))


def test_a_refit_that_diverged_before_its_tuning_run_is_named_and_not_counted():
    first, *others = make_runs("refit")
    cut = replace(first, rates=first.rates[:7], curves={key: curve[:7] for key, curve in first.curves.items()})
    claim = make_claims(make_results(make_setting(variants={"refit": (cut, *others)})))[0]
    assert claim.primary.skipped == (0,)
