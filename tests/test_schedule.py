"""Counts, names, periods, and the weight of each sample."""

import warnings

import pytest

from emabank import EMA, PowerEMA, Ramp, Uniform
from emabank._schedule import AverageSchedule


def test_a_float_is_an_ema_and_a_mapping_gives_names() -> None:
    assert AverageSchedule([0.9, Uniform()]).names == ("ema-0.9", "uniform")
    assert AverageSchedule({"slow": 0.999, "mean": Uniform()}).names == ("slow", "mean")
    assert AverageSchedule(0.9).names == ("ema-0.9",)


def test_default_averages_are_the_papers_five_half_lives() -> None:
    schedule = AverageSchedule(None, steps=10_000)
    assert schedule.names == ("ema-0.44%", "ema-0.88%", "ema-1.8%", "ema-3.5%", "ema-7.1%")
    halves = [0.5 ** (1 / steps) for steps in (44, 88, 180, 350, 710)]
    assert [schedule.decay(name, 0) for name in schedule.names] == pytest.approx(halves)  # no warm-up


@pytest.mark.parametrize(
    ("averages", "steps", "every"),
    [
        (None, 1_000, 1),  # the fastest half-life is 4.4 steps
        (None, 10_000, 2),  # 44 steps
        (None, 100_000, 16),  # 440 steps
        ([0.999], 10**6, 16),  # 692.8 steps
        ([0.99], 10**6, 4),  # 69.0 steps
        ([EMA(half_life=256)], 10**6, 16),
        ([EMA(half_life=255.9)], 10**6, 8),
        ([EMA(half_life="1%"), 0.5], 10**6, 1),
        ([Uniform()], 10**6, 16),
        ([PowerEMA(0.1)], 10**6, 16),
        ([Ramp(0.99)], 10**6, 4),
        ([EMA(lambda step: 0.999)], 10**6, 1),
        ([0.999], None, 1),
    ],
)
def test_the_period_is_the_longest_that_samples_the_fastest_average_often_enough(averages, steps, every) -> None:
    assert AverageSchedule(averages, steps=steps).every == every


def test_a_half_life_shorter_than_four_periods_warns() -> None:
    with pytest.warns(UserWarning, match=r"ema-0\.9 has a half-life of 6\.58 steps"):
        AverageSchedule([0.9, 0.999], 2).warn_if_undersampled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AverageSchedule([0.9], 1).warn_if_undersampled()  # the shortest period
        AverageSchedule([EMA(per_update=0.9), EMA(half_life=8), Uniform(), PowerEMA(0.1)], 2).warn_if_undersampled()


def test_averages_are_equal_while_warmup_limits_their_decays() -> None:
    rules = {"fast": EMA(0.99), "slow": EMA(0.999), "slower": EMA(0.9999), "other": EMA(0.999, warmup=None)}
    schedule = AverageSchedule(rules, 1)
    assert schedule.equal_by_warmup() == []
    remaining = dict.fromkeys(schedule.names, 1.0)
    for step in range(1, 700):
        weights = schedule.sample_weights(step)
        remaining = {name: remaining[name] * (1 - weight) for name, weight in zip(remaining, weights, strict=True)}
        equal = [name for name in ("fast", "slow", "slower") if remaining[name] == remaining["slower"]]
        assert schedule.equal_by_warmup() == (equal if len(equal) > 1 else [])
    assert equal == ["slower"]


def make_schedule(function) -> AverageSchedule:
    return AverageSchedule({"own": EMA(function)}, 1)


def state_after(schedule: AverageSchedule, steps: int) -> dict:
    for step in range(1, steps + 1):
        schedule.sample_weights(step)
    averages = {name: {**schedule.state(name), "tensors": {}} for name in schedule.names}
    counts = {"num_steps": steps, "num_updates": steps, "num_skipped": 0}
    return {"format": 2, "every": 1, **counts, "averages": averages, "recomputed": {}}


def test_a_function_is_saved_by_name_and_its_decays_are_compared() -> None:
    state = state_after(make_schedule(lambda step: 1 - 1 / (step + 9)), 1000)
    assert "lambda" in state["averages"]["own"]["rule"]["decay"]["function"]
    make_schedule(lambda step: (step + 8) / (step + 9)).check_state(state)
    with pytest.raises(ValueError, match="same function"):
        make_schedule(lambda step: 1 - 1 / (step + 8)).check_state(state)
    with pytest.raises(ValueError, match="same function"):
        make_schedule(lambda step: 1 - 1 / (step + 9) if step < 1000 else 0.9).check_state(state)
    with pytest.raises(ValueError, match="same rule"):
        AverageSchedule({"own": EMA(0.9)}, 1).check_state(state)
    with pytest.raises(ValueError, match="same rule"):
        make_schedule(lambda step: 0.9).check_state(state_after(AverageSchedule({"own": EMA(0.9)}, 1), 3))


def test_the_decay_before_any_update_is_that_of_the_first_update() -> None:
    schedule = AverageSchedule([EMA(0.9999), EMA(0.99, warmup=None, start=20), Uniform()], 16)
    assert schedule.decay("ema-0.9999", 0) == pytest.approx((16 / 25) ** (1 / 16))
    assert schedule.decay("ema-0.99", 0) == pytest.approx(0.99)
    assert schedule.decay("uniform", 0) == 0.0
    schedule.sample_weights(16)
    assert schedule.decay("ema-0.9999", 16) == pytest.approx((16 / 25) ** (1 / 16))


@pytest.mark.parametrize("name", ["ema-0.9", 0.9])
def test_an_average_is_found_by_name_and_by_number(name: object) -> None:
    assert AverageSchedule([0.9, 0.99], 1).resolve(name) == "ema-0.9"


@pytest.mark.parametrize("name", ["ema-0.5", 0.5, None, True, ("a",)])
def test_an_unknown_average_is_a_key_error_that_lists_the_known_ones(name: object) -> None:
    with pytest.raises(KeyError, match=r"ema-0\.9, ema-per-update-0\.5"):
        AverageSchedule([0.9, EMA(per_update=0.5)], 1).resolve(name)


def test_a_decay_that_two_averages_share_is_ambiguous() -> None:
    with pytest.raises(KeyError, match="first, second"):
        AverageSchedule({"first": 0.9, "second": EMA(0.9, warmup=None)}, 1).resolve(0.9)


@pytest.mark.parametrize(
    ("averages", "every", "message"),
    [
        ([], 16, "at least one"),
        ([0.9, 0.9], 16, "Two averages are called 'ema-0.9'"),
        ([0.9, EMA(0.9, warmup=None)], 16, "Two averages"),
        ({"live": 0.9}, 16, "'live'"),
        ({"": 0.9}, 16, "''"),
        ({3: 0.9}, 16, "3 cannot name"),
        (["0.9"], 16, "got '0.9'"),
        ("0.9", 16, "got '0.9'"),
        ([1.5], 16, "from 0 to 1"),
        (None, 16, "steps="),
        ([EMA(half_life="1%")], 16, "steps="),
        ([0.9], 0, "every must be .* got 0"),
        ([0.9], 1.5, "every must be .* got 1.5"),
        ([0.9], True, "every must be .* got True"),
    ],
)
def test_invalid_arguments_are_clear_errors(averages: object, every: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AverageSchedule(averages, every)
