"""Which average to ship: gains, their uncertainty by hand, the epoch to stop at, and the words for all of it."""

import math
import random

import pytest
from observing import BANK, NAMES, Run, numbers
from torch import nn

from emabank import BestTracker, EMABank
from emabank.advice import advise, is_clear, scatter


def test_the_best_average_is_held_against_the_best_live_weights_of_another_epoch():
    curves = {"live": {1: 0.5, 2: 0.8, 3: 0.7}, "fast": {1: 0.6, 2: 0.7, 3: 0.75}, "slow": {1: 0.1, 2: 0.6, 3: 0.9}}
    advice = advise(curves, criterion="accuracy", better="max", samples=400)
    assert (advice.average, advice.epoch, advice.value) == ("slow", 3, 0.9)
    assert (advice.live.epoch, advice.live.value) == (2, 0.8)
    assert advice.gain == pytest.approx(0.1)
    assert advice.error == pytest.approx(math.sqrt((0.9 * 0.1 + 0.8 * 0.2) / 400))
    assert advice.is_clear
    assert "A clear gain" in str(advice)
    assert "Ship slow of epoch 3." in str(advice)


def test_a_loss_is_better_when_it_is_lower():
    curves = {"live": {1: 0.9, 2: 0.8}, "slow": {1: 0.7, 2: 0.75}}
    advice = advise(curves, criterion="loss", better="min", error=0.02)
    assert (advice.average, advice.epoch, advice.stop) == ("slow", 1, 1)
    assert advice.gain == pytest.approx(0.1)
    assert advice.saved == 0.5


def test_no_clear_gain_is_said():
    curves = {"live": {1: 0.80}, "slow": {1: 0.81}}
    advice = advise(curves, criterion="accuracy", better="max", samples=100)
    assert not advice.is_clear
    assert advice.average == "slow"
    assert "No clear gain" in advice.reason


@pytest.mark.parametrize("averaged", [0.8, 0.75])
def test_where_no_average_is_better_the_live_weights_are_shipped(averaged: float):
    curves = {"live": {1: 0.7, 2: 0.8}, "slow": {1: 0.6, 2: averaged}}
    advice = advise(curves, criterion="accuracy", better="max", samples=1000, has_batchnorm=True)
    assert (advice.average, advice.epoch, advice.batchnorm, advice.note) == ("live", 2, None, "")
    assert advice.reason.startswith("No gain")


def test_an_unknown_uncertainty_is_called_unknown_and_never_clear():
    advice = advise({"live": {1: 0.2}, "slow": {1: 0.9}}, criterion="accuracy", better="max")
    assert advice.error is None
    assert not advice.is_clear
    assert "uncertainty is not known" in advice.reason


def test_without_the_live_weights_no_gain_is_told():
    advice = advise({"slow": {1: 0.9}, "fast": {1: 0.8}}, criterion="accuracy", better="max", samples=10)
    assert (advice.average, advice.gain, advice.error) == ("slow", None, None)
    assert "no gain can be told" in advice.reason
    alone = advise({"live": {1: 0.9}}, criterion="accuracy", better="max")
    assert (alone.average, alone.gain) == ("live", None)
    assert "No average was observed" in alone.reason


def test_values_that_are_not_finite_count_for_nothing():
    curves = {"live": {1: math.nan, 2: 0.5}, "slow": {1: math.inf, 2: math.nan, 3: 0.6}, "bad": {1: math.nan}}
    advice = advise(curves, criterion="accuracy", better="max")
    assert (advice.average, advice.epoch, advice.live.epoch) == ("slow", 3, 2)
    with pytest.raises(LookupError, match=r"^No loss has been observed that is complete and finite"):
        advise({"live": {1: math.nan}}, criterion="loss", better="min")


def test_the_epoch_to_stop_at_is_the_first_within_the_error_of_the_best():
    curves = {"live": dict.fromkeys(range(1, 6), 0.5), "slow": {1: 0.6, 2: 0.85, 3: 0.89, 4: 0.9, 5: 0.88}}
    assert advise(curves, criterion="accuracy", better="max", error=0.02).stop == 3
    assert advise(curves, criterion="accuracy", better="max", error=0.001).stop == 4
    several = {**curves, "fast": {1: 0.895, 2: 0.7}}  # any average may have been there first
    assert advise(several, criterion="accuracy", better="max", error=0.02).stop == 1


def test_the_scatter_finds_the_noise_of_a_curve_and_not_its_trend():
    generator = random.Random(0)
    noisy = [epoch / 100 + generator.gauss(0, 0.01) for epoch in range(2000)]
    assert scatter(noisy) == pytest.approx(0.01, rel=0.1)
    assert scatter([math.nan, *noisy[:4]]) is None
    curves = {"live": dict(enumerate(noisy, 1)), "slow": {e: value + 0.5 for e, value in enumerate(noisy, 1)}}
    advice = advise(curves, criterion="reward", better="max")
    assert advice.error == pytest.approx(math.sqrt(2) * scatter(noisy))
    assert advice.is_clear


def test_samples_say_nothing_about_what_is_no_share():
    curves = {"live": {1: 30.0}, "slow": {1: 31.0}}
    assert advise(curves, criterion="psnr", better="max", samples=1000).error is None
    assert advise(curves, criterion="loss", better="min", samples=1000).error is None


def test_is_clear_needs_two_standard_errors():
    assert is_clear(0.021, 0.01)
    assert not is_clear(0.02, 0.01)
    assert not is_clear(None, 0.01)


# In a loop -----------------------------------------------------------------------------------------------------------


def test_a_tracker_advises_on_what_it_observed():
    tracker = BestTracker(BANK)
    for epoch, values in enumerate([(0.5, 0.4, 0.3), (0.7, 0.8, 0.6), (0.6, 0.7, 0.9)], start=1):
        tracker.observe(epoch, {name: numbers(value, 1 - value) for name, value in zip(NAMES, values, strict=True)})
    tracker.observe(4, {"ema-0.5": numbers(1.0, 0.0)}, complete=False)
    advice = tracker.advice(samples=1000)
    assert (advice.criterion, advice.average, advice.epoch, advice.live.epoch) == ("accuracy", "ema-0.9", 3, 2)
    assert advice.epochs == 3
    assert advice.batchnorm is None
    assert tracker.advice("loss").gain == pytest.approx(0.2)
    with pytest.raises(KeyError, match=r"There is no criterion 'f1'; there are accuracy, loss"):
        tracker.advice("f1")
    with pytest.raises(ValueError, match=r"^samples=0: give the number of validation samples"):
        tracker.advice(samples=0)


def test_a_tracker_that_saw_nothing_has_no_advice():
    with pytest.raises(LookupError):
        BestTracker(BANK).advice()


def test_averaged_statistics_come_with_the_advice_to_recompute_them():
    run = Run()
    run.epoch(1, {"live": numbers(0.5), 0.5: numbers(0.6)})
    assert run.tracker.advice().batchnorm == "averaged"
    assert "recalibrate_batchnorm" in str(run.tracker.advice())
    run.bank.keep_recomputed("ema-0.9", {"1.running_mean": run.bank.weights(0.9)["1.running_mean"],
                                         "1.running_var": run.bank.weights(0.9)["1.running_var"]})  # fmt: skip
    run.tracker.observe(2, {0.9: numbers(0.9)}, batchnorm="recomputed")
    advice = run.tracker.advice()
    assert (advice.average, advice.batchnorm, advice.note) == ("ema-0.9", "recomputed", "")
    again = BestTracker(run.bank)
    again.load_state_dict(run.tracker.state_dict())
    assert again.advice() == advice
    older = {key: value for key, value in run.tracker.state_dict().items() if key != "recomputed"}
    again.load_state_dict(older)
    assert again.advice().batchnorm == "averaged"


def test_a_model_without_batch_norm_is_not_told_to_recalibrate():
    tracker = BestTracker(EMABank(nn.Linear(2, 1), [0.5]), {"accuracy": "max"})
    tracker.observe(1, {"live": {"accuracy": 0.5}, 0.5: {"accuracy": 0.9}})
    assert tracker.advice().batchnorm is None
    assert "batch" not in str(tracker.advice())
