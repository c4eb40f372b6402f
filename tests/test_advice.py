"""advice.py and _paired.py: which average to ship, and how sure that is."""

import io
import itertools
import math
import re
from statistics import NormalDist, stdev
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, BestTracker, EMABank, recalibrate_batchnorm
from emabank._paired import paired_test
from emabank.advice import advise
from tests.support.models import BANK, BOTH, NAMES, Run, numbers
from tests.support.oracle import states_equal


def test_the_best_average_is_compared_with_the_best_live_weights_of_another_epoch():
    curves = {"live": {1: 0.5, 2: 0.8, 3: 0.7}, "fast": {1: 0.6, 2: 0.7, 3: 0.75}, "slow": {1: 0.1, 2: 0.6, 3: 0.9}}
    advice = advise(curves, criterion="accuracy", better="max", samples=400)
    assert (advice.average, advice.epoch, advice.value) == ("slow", 3, 0.9)
    assert (advice.live.epoch, advice.live.value) == (2, 0.8)
    assert advice.gain == pytest.approx(0.1)
    right = 361 / 402, 321 / 402  # with one more right and one more wrong
    assert advice.error == pytest.approx(math.sqrt(sum(p * (1 - p) for p in right) / 400))
    assert advice.critical == pytest.approx(NormalDist().inv_cdf(1 - 0.05 / 6))  # three epochs of two averages
    assert advice.bound == pytest.approx(advice.gain - advice.critical * advice.error)
    assert advice.is_clear


def test_a_loss_is_better_when_it_is_lower():
    curves = {"live": {1: 0.9, 2: 0.8}, "slow": {1: 0.7, 2: 0.75}}
    advice = advise(curves, criterion="loss", better="min", error=0.02)
    assert (advice.average, advice.epoch, advice.stop) == ("slow", 1, 1)
    assert advice.gain == pytest.approx(0.1)
    assert advice.saved == 0.5


@pytest.mark.parametrize(
    ("values", "options"),
    [((0.9, 1.0), {"samples": 10}), ((0.2, 0.9), {})],  # a share of 1 is uncertain too, and an unknown uncertainty
)
def test_a_gain_that_may_be_chance_is_not_clear(values: tuple[float, float], options: dict[str, int]):
    live, slow = (dict.fromkeys(range(9), value) for value in values)  # scatter between epochs would be 0
    advice = advise({"live": live, "slow": slow}, criterion="accuracy", better="max", **options)
    assert not advice.is_clear
    assert advice.average == "slow"
    assert (advice.error is None) == (not options)


@pytest.mark.parametrize("averaged", [0.8, 0.75])
def test_live_weights_are_shipped_if_no_average_is_better(averaged: float):
    curves = {"live": {1: 0.7, 2: 0.8}, "slow": {1: 0.6, 2: averaged}}
    advice = advise(curves, criterion="accuracy", better="max", samples=1000, has_batchnorm=True)
    assert (advice.average, advice.epoch, advice.batchnorm, advice.note) == ("live", 2, None, "")
    assert not advice.is_clear


def test_the_earliest_of_equal_averages_is_shipped():
    curves = {"live": {1: 0.1, 2: 0.1}, "slow": {1: 0.5, 2: 0.9}, "fast": {1: 0.9, 2: 0.5}}
    advice = advise(curves, criterion="accuracy", better="max")
    assert (advice.average, advice.epoch) == ("fast", 1)


def test_gain_is_unknown_without_live_weights():
    advice = advise({"slow": {1: 0.9}, "fast": {1: 0.8}}, criterion="accuracy", better="max", samples=10)
    assert (advice.average, advice.gain, advice.error) == ("slow", None, None)
    alone = advise({"live": {1: 0.9}}, criterion="accuracy", better="max")
    assert (alone.average, alone.gain) == ("live", None)


def test_nonfinite_values_are_ignored():
    curves = {"live": {1: math.nan, 2: 0.5}, "slow": {1: math.inf, 2: math.nan, 3: 0.6}, "bad": {1: math.nan}}
    advice = advise(curves, criterion="accuracy", better="max")
    assert (advice.average, advice.epoch, advice.live.epoch) == ("slow", 3, 2)
    with pytest.raises(LookupError, match=r"^No loss has been observed that is complete and finite"):
        advise({"live": {1: math.nan}}, criterion="loss", better="min")


def test_stop_is_the_first_epoch_within_the_error_of_the_best():
    curves = {"live": dict.fromkeys(range(1, 6), 0.5), "slow": {1: 0.6, 2: 0.85, 3: 0.89, 4: 0.9, 5: 0.88}}
    assert advise(curves, criterion="accuracy", better="max", error=0.02).stop == 3
    assert advise(curves, criterion="accuracy", better="max", error=0.001).stop == 4
    several = {**curves, "fast": {1: 0.895, 2: 0.7}}  # any average counts
    assert advise(several, criterion="accuracy", better="max", error=0.02).stop == 1


@pytest.mark.parametrize("first", [0, 48])
def test_saved_is_a_share_of_the_observed_epochs_not_of_their_numbers(first: int):
    for values, stop, saved in (([0.5, 0.9, 0.8, 0.7], 1, 0.5), ([0.9, 0.8, 0.8], 0, 2 / 3), ([0.8, 0.9], 1, 0.0)):
        curve = {first + 16 * position: value for position, value in enumerate(values)}
        advice = advise({"live": dict.fromkeys(curve, 0.1), "slow": curve}, criterion="accuracy", better="max")
        assert (advice.stop, advice.epochs) == (first + 16 * stop, tuple(curve))
        assert advice.saved == pytest.approx(saved)


@pytest.mark.parametrize(("better", "amount"), [("max", "0.40 ± 0.60 points"), ("min", "0.0040 ± 0.0060 better")])
def test_advice_text_shows_the_gain_and_never_minus_zero(better: Any, amount: str):
    for error, gain in itertools.product((None, 0.006), (0.0, -0.0, -1e-9, 1e-9, 0.004)):
        curves = {"live": {1: 0.8}, "slow": {1: 0.8 + (gain if better == "max" else -gain)}}
        text = str(advise(curves, criterion="metric", better=better, error=error, unit="step"))
        assert not re.search(r"-0(\.0*)?\b", text)
    assert amount in text and " of step 1." in text


@pytest.mark.parametrize(
    ("better", "values"), [("max", (30.0, 31.0)), ("min", (0.3, 0.2)), ("max", (90.0, 91.0)), ("max", (-0.5, 0.5))]
)
def test_samples_are_refused_unless_the_metric_is_a_share(better: Any, values: tuple[float, float]):
    curves = {"live": {1: values[0]}, "slow": {1: values[1]}}
    with pytest.raises(ValueError, match=r"^samples must be None for 'metric'"):
        advise(curves, criterion="metric", better=better, samples=1000)


# How often chance is called clear ------------------------------------------------------------------------------------


def simulate(generator: torch.Generator, *, gain: float) -> tuple[Tensor, Tensor]:
    """Loss and correctness of 200 samples, for the live weights and three averages over eight epochs.

    The live weights match the averages only at the last epoch, so that only the averages can be lucky.
    """
    margins = torch.randn(4, 8, 200, generator=generator) + torch.randn(200, generator=generator)
    margins[0, :-1] -= 3.0
    margins[1:] += gain
    return -margins, (margins > 0).float()


def make_tracker(values: Tensor, metric: str, *, per_sample: bool) -> BestTracker:
    """A tracker that observed the means of these values, with or without the values."""
    bank = EMABank(nn.Linear(1, 1), {"a": 0.9, "b": 0.99, "c": 0.999})
    tracker = BestTracker(bank, {metric: "min" if metric == "loss" else "max"}, snapshots=None)
    for epoch in range(values.shape[1]):
        by_name = dict(zip(("live", *bank.names), values[:, epoch], strict=True))
        metrics = {name: {metric: samples.mean()} for name, samples in by_name.items()}
        tracker.observe(epoch, metrics, per_sample=by_name if per_sample else None)
    return tracker


@pytest.mark.parametrize("source", ["loss", "accuracy", "samples"])
def test_chance_is_called_a_clear_gain_in_at_most_5_percent_of_cases(source: str):
    generator, cases = torch.Generator().manual_seed(0), 200
    clear = 0
    for _ in range(cases):
        losses, right = simulate(generator, gain=0.0)
        if source == "samples":
            clear += make_tracker(right, "accuracy", per_sample=False).advice(samples=200).is_clear
        else:
            clear += make_tracker(losses if source == "loss" else right, source, per_sample=True).advice().is_clear
    assert clear <= 20  # at a rate of 5 %, more happens once in a thousand times


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_a_real_gain_is_called_clear(metric: str):
    generator = torch.Generator().manual_seed(0)
    clear = 0
    for _ in range(30):
        losses, right = simulate(generator, gain=0.5)
        clear += make_tracker(losses if metric == "loss" else right, metric, per_sample=True).advice().is_clear
    assert clear >= 24


# Trackers ------------------------------------------------------------------------------------------------------------


def test_tracker_advice_uses_all_complete_observations():
    tracker = BestTracker(BANK)
    with pytest.raises(LookupError):
        tracker.advice()
    for epoch, values in enumerate([(0.5, 0.4, 0.3), (0.7, 0.8, 0.6), (0.6, 0.7, 0.9)], start=1):
        tracker.observe(epoch, {name: numbers(value, 1 - value) for name, value in zip(NAMES, values, strict=True)})
    tracker.observe(4, {"ema-0.5": numbers(1.0, 0.0)}, complete=False)
    advice = tracker.advice(samples=1000)
    assert (advice.criterion, advice.average, advice.epoch, advice.live.epoch) == ("accuracy", "ema-0.9", 3, 2)
    assert advice.epochs == (1, 2, 3)
    assert advice.batchnorm is None
    assert tracker.advice("loss").gain == pytest.approx(0.2)
    with pytest.raises(KeyError, match=r"There is no criterion 'f1'; there are accuracy, loss"):
        tracker.advice("f1")
    with pytest.raises(ValueError, match="^samples must .* got 0"):
        tracker.advice(samples=0)


def test_advice_on_averaged_statistics_suggests_recalibration():
    run = Run()
    run.epoch(1, {"live": numbers(0.5), 0.5: numbers(0.6)})
    assert run.tracker.advice().batchnorm == "averaged"
    assert "recalibrate_batchnorm" in run.tracker.advice().note
    recalibrate_batchnorm(run.bank, [torch.randn(9, 3)], averages=[0.9])
    run.tracker.observe(2, {0.9: numbers(0.9)}, batchnorm="recomputed")
    advice = run.tracker.advice()
    assert (advice.average, advice.batchnorm, advice.note) == ("ema-0.9", "recomputed", "")
    again = BestTracker(run.bank)
    again.load_state_dict(run.tracker.state_dict())
    assert again.advice() == advice


@pytest.mark.parametrize(
    ("options", "recalibrated", "batchnorm"),
    [({}, ["slow"], "averaged"), ({}, ["fast"], "recomputed"), ({"buffers": "copy"}, None, "recomputed")],
)
def test_advice_names_the_statistics_of_the_average_it_advises(options: Any, recalibrated: Any, batchnorm: str):
    rules = {"fast": EMA(0.9, warmup=None), "slow": EMA(0.99, warmup=None)}
    bank = EMABank(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), rules, **options)
    bank.update()
    recalibrate_batchnorm(bank, [torch.randn(32, 2)], averages=recalibrated)
    tracker = BestTracker(bank)
    tracker.observe(1, {"live": numbers(0.5), "fast": numbers(0.8), "slow": numbers(0.6)})
    assert tracker.advice().batchnorm == batchnorm == bank.statistics("fast")


def test_a_default_dtype_or_device_of_torch_changes_no_advice():
    live, slow = torch.rand(2, 100)
    tracker = make_loss_tracker({"live": [live], "slow": [slow - 0.5]})
    advice = tracker.advice()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert tracker.advice() == advice
    finally:
        torch.set_default_dtype(torch.float32)


# Sample by sample ----------------------------------------------------------------------------------------------------


def make_loss_tracker(values: dict[str, list[Any]]) -> BestTracker:
    tracker = BestTracker(EMABank(nn.Linear(2, 1), {"slow": 0.9}), {"loss": "min"})
    for epoch, (live, slow) in enumerate(zip(values["live"], values["slow"], strict=True), start=1):
        metrics = {"live": {"loss": live.mean()}, "slow": {"loss": slow.mean()}}
        tracker.observe(epoch, metrics, per_sample={"live": live, "slow": slow})
    return tracker


def test_the_error_is_that_of_paired_differences():
    live, noise = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    slow = live + 0.1 * noise - 0.05
    tracker = make_loss_tracker({"live": [live], "slow": [slow]})
    advice = tracker.advice()
    assert advice.gain == pytest.approx(float((live - slow).mean()), rel=1e-4)
    # Two made-up samples widen it a little.
    assert advice.error == pytest.approx(float((live - slow).std()) / math.sqrt(500), rel=0.03)
    assert advice.is_clear
    before = torch.get_rng_state()
    assert tracker.advice() == advice
    assert torch.equal(torch.get_rng_state(), before)


def test_error_is_unknown_unless_all_candidates_have_per_sample_values():
    live, noise = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    tracker = make_loss_tracker({"live": [live], "slow": [live - 1.0 + 0.1 * noise]})
    assert tracker.advice().is_clear
    tracker.observe(2, {"slow": {"loss": 9.0}}, complete=False)
    tracker.observe(2, {"live": {"loss": 9.0}})  # not the best live weights, and no candidate
    assert tracker.advice().is_clear
    tracker.observe(3, {"slow": {"loss": 9.0}})
    assert (tracker.advice().error, tracker.advice().is_clear) == (None, False)
    few = make_loss_tracker({"live": [live[:19]], "slow": [live[:19] - 1.0]})
    assert few.advice().error is None


def test_samples_must_equal_the_number_of_per_sample_values():
    right = torch.arange(100) % 2
    tracker = BestTracker(EMABank(nn.Linear(2, 1), {"slow": 0.9}), {"accuracy": "max"})
    tracker.observe(
        1, {"live": {"accuracy": 0.5}, "slow": {"accuracy": 0.5}}, per_sample={"live": right, "slow": right}
    )
    assert tracker.advice(samples=100) == tracker.advice()
    with pytest.raises(ValueError, match=r"^samples must be 100, as many as per-sample values; got 99"):
        tracker.advice(samples=99)


# Paired differences ---------------------------------------------------------------------------------------------------


NORMAL = NormalDist()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def error_and_critical(candidates: Tensor, live: Tensor, chosen: int = 0, better: Any = "max") -> tuple[float, float]:
    result = paired_test(list(candidates), live, chosen=chosen, better=better, level=0.05)
    assert result is not None
    return result


def test_paired_error_adds_one_sample_for_and_one_against():
    live, candidate = noise(2, 40)
    difference = (candidate - live).tolist()
    largest = max(map(abs, difference))
    squares = stdev(difference) ** 2 * 39 + 2 * largest**2
    expected = pytest.approx(math.sqrt(squares / (40 * 39)), rel=1e-4)
    for better in ("max", "min"):
        assert error_and_critical(candidate[None], live, better=better)[0] == expected


@pytest.mark.parametrize("candidates", [1, 10, 100])
def test_critical_value_of_independent_candidates_depends_on_their_number(candidates: int):
    critical = error_and_critical(noise(candidates, 2000) + 0.001, torch.zeros(2000))[1]
    assert critical == pytest.approx(NORMAL.inv_cdf(0.95 ** (1 / candidates)), abs=0.12)


def test_identical_candidates_count_once():
    one = noise(1, 500)
    again = error_and_critical(one.repeat(50, 1), torch.zeros(500))[1]
    assert again == pytest.approx(error_and_critical(one, torch.zeros(500))[1], rel=1e-5)


def test_far_worse_candidates_do_not_raise_the_critical_value():
    good, bad = noise(1, 500), torch.randn(200, 500, generator=torch.Generator().manual_seed(2)) - 5.0
    live = torch.zeros(500)
    assert error_and_critical(torch.cat([good, bad]), live)[1] == error_and_critical(good, live)[1]
    assert error_and_critical(torch.cat([good, bad + 5.0]), live)[1] > error_and_critical(good, live)[1] + 0.5


def test_candidates_equal_to_live_have_no_error_and_are_ignored():
    live = noise(100)
    error, critical = error_and_critical(live[None], live)
    assert error == 0.0
    assert critical == pytest.approx(NORMAL.inv_cdf(0.95))
    both = torch.stack([live, live + noise(2, 100)[1]])
    assert error_and_critical(both, live, chosen=1) == error_and_critical(both[1:], live)


@pytest.mark.parametrize(("wins", "is_clear"), [(3, False), (4, False), (5, True)])
def test_a_few_differences_are_judged_as_by_the_sign_test(wins: int, is_clear: bool):
    assert (0.5**wins < 0.05) == is_clear
    live, better = torch.zeros(2, 1000)
    better[:wins] = 1.0
    error, critical = error_and_critical(better[None], live)
    assert (wins / 1000 > critical * error) == is_clear


# Per-sample values ---------------------------------------------------------------------------------------------------


def empty_tracker(criteria: Any = None) -> BestTracker:
    return BestTracker(EMABank(nn.Linear(2, 1), [0.9]), criteria or {"accuracy": "max"}, snapshots=None)


@pytest.mark.parametrize(
    ("per_sample", "message"),
    [
        ({"live": [0, 1]}, "mean of its per-sample values, 0.5; got 0.75"),
        ({"live": [0, 100, 100, 100]}, "per-sample values, 75; got 0.75"),
        ({"live": [math.nan, 1.0]}, "per-sample values, nan; got 0.75"),
        ({"live": 0.75}, "1-D tensor"),
        ({"live": [[0, 1, 1, 1]]}, "1-D tensor"),
        ({"live": []}, "1-D tensor"),
        ({"live": "0111"}, "one number per sample"),
        ({"live": [0, 1, 1, 1], 0.9: [0, 1, 1, 1]}, "metrics must have 'accuracy' of 'ema-0.9'"),
    ],
)
def test_invalid_per_sample_values_are_refused_and_change_nothing(per_sample: Any, message: str):
    tracker = empty_tracker()
    tracker.observe(1, {"live": {"accuracy": 0.5}}, per_sample={"live": [1, 0, 1, 0]})
    before = tracker.state_dict()
    with pytest.raises(ValueError, match=message):
        tracker.observe(2, {"live": {"accuracy": 0.75}}, per_sample=per_sample)
    with pytest.raises(ValueError, match="the same samples every time, 4 of them; got 8"):
        tracker.observe(2, {"live": {"accuracy": 0.75}}, per_sample={"live": [0, 1, 1, 1] * 2})
    with pytest.raises(KeyError, match="There is no average"):
        tracker.observe(2, {"live": {"accuracy": 0.75}}, per_sample={"fast": [0, 1, 1, 1]})
    assert states_equal(tracker.state_dict(), before)


def test_per_sample_values_are_copied_in_the_smallest_dtype():
    tracker = empty_tracker(BOTH)
    right, losses = torch.tensor([True, False, True, True]), torch.tensor([0.25, 0.5, 0.5, 0.75])
    per_sample = {"live": {"accuracy": right, "loss": losses, "f1": right}, 0.9: [1.0, 0.0, 1.0, 1.0]}
    tracker.observe(1, {"live": numbers(0.75, 0.5), 0.9: numbers(0.75, 9.0)}, per_sample=per_sample)
    right.zero_(), losses.zero_()
    saved = tracker.state_dict()["per_sample"]
    stored = {(item["criterion"], item["average"]): item["values"] for item in saved}
    assert {key: values.dtype for key, values in stored.items()} == {
        ("accuracy", "live"): torch.bool, ("loss", "live"): torch.float32, ("accuracy", "ema-0.9"): torch.bool,
    }  # fmt: skip
    assert stored["accuracy", "live"].tolist() == [1, 0, 1, 1]
    assert stored["loss", "live"].tolist() == [0.25, 0.5, 0.5, 0.75]


def test_values_of_partial_and_diverged_validations_are_not_stored():
    tracker = empty_tracker()
    tracker.observe(1, {"live": {"accuracy": 0.5}}, per_sample={"live": [0, 1]}, complete=False)
    tracker.observe(1, {"live": {"accuracy": math.nan}}, per_sample={"live": [math.nan, 1.0, 0.0]})
    assert tracker.state_dict()["per_sample"] == []


def make_run_with_values() -> Run:
    run = Run()
    by_epoch = noise(3, 3, 50)
    for epoch in range(3):
        by_name = dict(zip(("live", 0.5, 0.9), by_epoch[epoch], strict=True))
        metrics = {name: numbers(0.5, float(values.mean())) for name, values in by_name.items()}
        run.epoch(epoch, metrics, per_sample={name: {"loss": values} for name, values in by_name.items()})
    return run


def test_trap40_trap44_values_are_in_the_state_and_load_with_weights_only():
    run = make_run_with_values()
    buffer = io.BytesIO()
    torch.save(run.tracker.state_dict(), buffer)
    buffer.seek(0)
    resumed = BestTracker(run.bank, BOTH)
    state = torch.load(buffer, weights_only=True)
    resumed.load_state_dict(state)
    state["per_sample"][0]["values"].zero_()  # trap 43
    assert states_equal(resumed.state_dict(), run.tracker.state_dict())
    assert resumed.advice("loss") == run.tracker.advice("loss")
    assert resumed.advice("loss").error is not None
