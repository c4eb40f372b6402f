"""Per-sample values: what is kept and refused, and the test of a gain against known distributions."""

import copy
import io
import math
from statistics import NormalDist, stdev
from typing import Any

import pytest
import torch
from observing import BOTH, Run, assert_same_state, numbers
from torch import Tensor, nn

from emabank import BestTracker, EMABank
from emabank._paired import paired_test

NORMAL = NormalDist()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def error_and_critical(candidates: Tensor, live: Tensor, chosen: int = 0, better: Any = "max") -> tuple[float, float]:
    result = paired_test(list(candidates), live, chosen=chosen, better=better, level=0.05)
    assert result is not None
    return result


# The test ------------------------------------------------------------------------------------------------------------


def test_the_error_is_that_of_the_mean_difference_with_one_more_for_and_one_against():
    live, candidate = noise(2, 40)
    difference = (candidate - live).tolist()
    largest = max(map(abs, difference))
    squares = stdev(difference) ** 2 * 39 + 2 * largest**2
    expected = pytest.approx(math.sqrt(squares / (40 * 39)), rel=1e-4)
    for better in ("max", "min"):
        assert error_and_critical(candidate[None], live, better=better)[0] == expected


@pytest.mark.parametrize("candidates", [1, 10, 100])
def test_independent_candidates_have_the_critical_value_of_their_number(candidates: int):
    critical = error_and_critical(noise(candidates, 2000) + 0.001, torch.zeros(2000))[1]
    assert critical == pytest.approx(NORMAL.inv_cdf(0.95 ** (1 / candidates)), abs=0.12)


def test_candidates_that_are_alike_count_once():
    one = noise(1, 500)
    again = error_and_critical(one.repeat(50, 1), torch.zeros(500))[1]
    assert again == pytest.approx(error_and_critical(one, torch.zeros(500))[1], rel=1e-5)


def test_candidates_that_are_far_worse_have_no_say():
    good, bad = noise(1, 500), torch.randn(200, 500, generator=torch.Generator().manual_seed(2)) - 5.0
    live = torch.zeros(500)
    assert error_and_critical(torch.cat([good, bad]), live)[1] == error_and_critical(good, live)[1]
    assert error_and_critical(torch.cat([good, bad + 5.0]), live)[1] > error_and_critical(good, live)[1] + 0.5


def test_equal_predictions_have_no_error_and_no_say():
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


# What is kept --------------------------------------------------------------------------------------------------------


def tracker_of(criteria: Any = None) -> BestTracker:
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
def test_values_that_do_not_fit_are_refused_and_change_nothing(per_sample: Any, message: str):
    tracker = tracker_of()
    tracker.observe(1, {"live": {"accuracy": 0.5}}, per_sample={"live": [1, 0, 1, 0]})
    before = tracker.state_dict()
    with pytest.raises(ValueError, match=message):
        tracker.observe(2, {"live": {"accuracy": 0.75}}, per_sample=per_sample)
    with pytest.raises(ValueError, match="the same samples every time, 4 of them; got 8"):
        tracker.observe(2, {"live": {"accuracy": 0.75}}, per_sample={"live": [0, 1, 1, 1] * 2})
    with pytest.raises(KeyError, match="There is no average"):
        tracker.observe(2, {"live": {"accuracy": 0.75}}, per_sample={"fast": [0, 1, 1, 1]})
    assert_same_state(tracker.state_dict(), before)


def test_values_are_copies_as_small_as_they_can_be():
    tracker = tracker_of(BOTH)
    right, losses = torch.tensor([True, False, True, True]), torch.tensor([0.25, 0.5, 0.5, 0.75])
    per_sample = {"live": {"accuracy": right, "loss": losses, "f1": right}, 0.9: [1.0, 0.0, 1.0, 1.0]}
    tracker.observe(1, {"live": numbers(0.75, 0.5), 0.9: numbers(0.75, 9.0)}, per_sample=per_sample)
    right.zero_(), losses.zero_()
    saved = tracker.state_dict()["per_sample"]
    kept = {(item["criterion"], item["average"]): item["values"] for item in saved}
    assert {key: values.dtype for key, values in kept.items()} == {
        ("accuracy", "live"): torch.bool, ("loss", "live"): torch.float32, ("accuracy", "ema-0.9"): torch.bool,
    }  # fmt: skip
    assert kept["accuracy", "live"].tolist() == [1, 0, 1, 1]
    assert kept["loss", "live"].tolist() == [0.25, 0.5, 0.5, 0.75]


def test_values_of_partial_and_diverged_validations_are_not_kept():
    tracker = tracker_of()
    tracker.observe(1, {"live": {"accuracy": 0.5}}, per_sample={"live": [0, 1]}, complete=False)
    tracker.observe(1, {"live": {"accuracy": math.nan}}, per_sample={"live": [math.nan, 1.0, 0.0]})
    assert tracker.state_dict()["per_sample"] == []


def run_with_values() -> Run:
    run = Run()
    by_epoch = noise(3, 3, 50)
    for epoch in range(3):
        by_name = dict(zip(("live", 0.5, 0.9), by_epoch[epoch], strict=True))
        metrics = {name: numbers(0.5, float(values.mean())) for name, values in by_name.items()}
        run.epoch(epoch, metrics, per_sample={name: {"loss": values} for name, values in by_name.items()})
    return run


def test_trap40_trap44_values_are_in_the_state_and_load_with_weights_only():
    run = run_with_values()
    buffer = io.BytesIO()
    torch.save(run.tracker.state_dict(), buffer)
    buffer.seek(0)
    resumed = BestTracker(run.bank, BOTH)
    state = torch.load(buffer, weights_only=True)
    resumed.load_state_dict(state)
    state["per_sample"][0]["values"].zero_()  # trap 43
    assert_same_state(resumed.state_dict(), run.tracker.state_dict())
    assert resumed.advice("loss") == run.tracker.advice("loss")
    assert resumed.advice("loss").error is not None


@pytest.mark.parametrize(
    "change",
    [
        {"values": [0.5]},
        {"values": torch.zeros(50)},
        {"values": torch.zeros(1, 50)},
        {"values": torch.zeros(50, dtype=torch.int64)},
        {"values": torch.zeros(50).to_sparse()},
        {"epoch": 9},
        {"criterion": []},
    ],
)
def test_trap41_damaged_values_are_refused_and_change_nothing(change: dict[str, Any]):
    run = run_with_values()
    good = run.tracker.state_dict()
    bad = copy.deepcopy(good)
    bad["per_sample"][0].update(change)
    with pytest.raises(ValueError, match="The state of the tracker is damaged"):
        run.tracker.load_state_dict(bad)
    bad["per_sample"][0] = {"epoch": 1}
    with pytest.raises(ValueError, match="The state of the tracker is damaged"):
        run.tracker.load_state_dict(bad)
    assert_same_state(run.tracker.state_dict(), good)
