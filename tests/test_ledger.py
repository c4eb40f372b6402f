"""ledger.py: counts, names, and the weight each sample gets."""

import pytest

from emabank import EMA, PowerEMA, Uniform
from emabank._schedule import AverageSchedule


def test_a_float_is_an_ema_and_a_mapping_gives_names() -> None:
    assert AverageSchedule([0.9, Uniform()], 16).names == ("ema-0.9", "uniform")
    assert AverageSchedule({"slow": 0.999, "mean": Uniform()}, 16).names == ("slow", "mean")
    assert AverageSchedule(0.9, 16).names == ("ema-0.9",)


def test_before_its_start_an_average_copies_and_then_begins() -> None:
    schedule = AverageSchedule([EMA(0.5, warmup=None, start=5), Uniform(start=5)], 2)
    assert [schedule.sample_weights(step) for step in (2, 4)] == [[1.0, 1.0], [1.0, 1.0]]
    assert not schedule.has_begun("uniform-5")
    assert [schedule.sample_weights(step) for step in (6, 8)] == [[0.5, 1.0], [0.5, 0.5]]


def test_warmup_counts_from_the_start_of_the_average() -> None:
    schedule = AverageSchedule([EMA(0.999, start=100)], 1)
    schedule.sample_weights(100)
    schedule.sample_weights(101)
    assert schedule.decay("ema-0.999", 101) == 1 / 10


def test_reset_counts_afresh() -> None:
    schedule = AverageSchedule([EMA(0.9, warmup=None), Uniform(), PowerEMA(0.1)], 16)
    schedule.sample_weights(16)
    for name in schedule.names:
        schedule.reset(name, 20)
    assert not schedule.is_new(20)
    weights = schedule.sample_weights(32)
    assert weights == pytest.approx([1 - 0.9 ** (12 / 16), 1.0, 1.0])


def test_a_flush_and_the_next_sample_decay_as_one_period_would() -> None:
    schedule = AverageSchedule([EMA(0.9, warmup=None)], 16)
    left = 1.0
    for step in (5, 16):
        left *= 1 - schedule.sample_weights(step)[0]
    assert left == pytest.approx(0.9)


def test_the_decay_before_any_update_is_that_of_the_first() -> None:
    schedule = AverageSchedule([EMA(0.998), EMA(0.9, warmup=None, start=20), Uniform()], 16)
    assert schedule.decay("ema-0.998", 0) == 16 / 25
    assert schedule.decay("ema-0.9", 0) == 0.9
    assert schedule.decay("uniform", 0) == 0.0
    schedule.sample_weights(16)
    assert schedule.decay("ema-0.998", 16) == 16 / 25


@pytest.mark.parametrize("name", ["ema-0.9", 0.9])
def test_an_average_is_found_by_name_and_by_number(name: object) -> None:
    assert AverageSchedule([0.9, 0.99], 1).resolve(name) == "ema-0.9"


@pytest.mark.parametrize("name", ["ema-0.5", 0.5, None, True, ("a",)])
def test_an_unknown_average_is_a_key_error_that_lists_the_known(name: object) -> None:
    with pytest.raises(KeyError, match=r"ema-0\.9, ema-per-step-0\.5"):
        AverageSchedule([0.9, EMA(per_step=0.5)], 1).resolve(name)


def test_a_number_that_two_averages_have_is_not_guessed() -> None:
    with pytest.raises(KeyError, match="first, second"):
        AverageSchedule({"first": 0.9, "second": EMA(0.9, warmup=None)}, 1).resolve(0.9)


@pytest.mark.parametrize(
    ("averages", "every", "says"),
    [
        ([], 16, "at least one"),
        ([0.9, 0.9], 16, "Two averages are called 'ema-0.9'"),
        ([0.9, EMA(0.9, warmup=None)], 16, "Two averages"),
        ({"live": 0.9}, 16, "'live'"),
        ({"": 0.9}, 16, "''"),
        ({3: 0.9}, 16, "3 cannot name"),
        (["0.9"], 16, "'0.9' is not an average"),
        ("0.9", 16, "'0.9' is not an average"),
        ([1.5], 16, "from 0 to 1"),
        ([0.9], 0, "every must be .* got 0"),
        ([0.9], 1.5, "every must be .* got 1.5"),
        ([0.9], True, "every must be .* got True"),
    ],
)
def test_bad_input_gets_a_clear_sentence(averages: object, every: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AverageSchedule(averages, every)
