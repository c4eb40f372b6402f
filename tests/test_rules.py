"""rules.py: the maths, against the definitions in float64."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank import EMA, PowerEMA, Ramp, Uniform, rules

decays = st.floats(0.01, 0.99999)
periods = st.integers(1, 64)


@given(decays, periods)
def test_per_step_and_per_update_are_inverse(decay: float, every: int) -> None:
    assert rules.per_update(rules.per_step(decay, every), every) == pytest.approx(decay, rel=1e-9)


@given(decays)
def test_half_remains_after_a_half_life(decay: float) -> None:
    assert decay ** rules.half_life(decay) == pytest.approx(0.5)
    assert rules.from_half_life(rules.half_life(decay)) == pytest.approx(decay)


@given(st.floats(0.0, 0.99999))
def test_window_is_the_sum_of_the_powers(decay: float) -> None:
    assert rules.from_window(rules.window(decay)) == pytest.approx(decay, abs=1e-9)
    if decay < 0.99:
        assert sum(decay**k for k in range(5000)) == pytest.approx(rules.window(decay))


def test_the_papers_table_of_equivalent_decays() -> None:
    per_update = [0.998, 0.996, 0.992, 0.984, 0.968]
    # The paper rounds 0.997969 to 0.998 and so on.
    paper = [0.999875, 0.99975, 0.9995, 0.999, 0.998]
    assert [rules.per_step(decay, 16) for decay in per_update] == pytest.approx(paper, abs=4e-5)


def test_trap05_warmup_exact_first_decays_and_end() -> None:
    rule = EMA(per_update=0.998)
    first = [rule.decay_at(steps=t, elapsed=16, samples=0, every=16) for t in (1, 2, 3)]
    assert first == [1 / 10, 2 / 11, 3 / 12]
    assert rules.warmup_end(0.998) == 4490  # steps; not updates, which would be 71,840 steps
    counts = {"steps": 4800, "elapsed": 16, "samples": 299, "every": 16}
    assert rule.decay_at(**counts) == 0.998
    assert EMA(per_update=0.998, warmup="updates").decay_at(**counts) == pytest.approx(300 / 309)


@given(st.floats(0.0, 0.99999))
def test_trap05_warmup_ends_at_the_first_count_that_reaches_the_decay(decay: float) -> None:
    end = rules.warmup_end(decay)
    assert (end + 1) / (end + 10) >= decay
    assert end == 0 or end / (end + 9) < decay


@pytest.mark.parametrize("decay", [1 - 1e-9, 1 - 1e-14, math.nextafter(1.0, 0.0)])
def test_warmup_end_is_exact_and_fast_for_decays_near_one(decay: float) -> None:
    end = rules.warmup_end(decay)
    assert rules.warmup_decay(int(end)) >= decay > rules.warmup_decay(int(end) - 1)


def test_trap06_the_decay_is_exact_in_float64() -> None:
    assert EMA(0.99999999, warmup=None).decay_at(steps=1, elapsed=1, samples=0, every=1) == 0.99999999


@given(decays, st.integers(1, 32), st.integers(1, 1000))
def test_trap04_the_horizon_does_not_depend_on_the_period(decay: float, every: int, updates: int) -> None:
    rule = EMA(decay, warmup=None)
    remaining = rule.decay_at(steps=every, elapsed=every, samples=0, every=every) ** updates
    assert remaining == pytest.approx(decay ** (every * updates), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_a_ramp_begins_where_byol_and_dino_begin_and_stays_at_its_end(shape) -> None:
    ramp = Ramp(0.996, 1.0, steps=100, shape=shape)
    decays = [ramp.decay_at(steps=step, elapsed=1, samples=0, every=1) for step in range(1, 140)]
    assert decays[0] == 0.996
    assert decays[50] == pytest.approx(0.998)
    assert set(decays[100:]) == {1.0}
    quarter = 0.25 if shape == "linear" else (1 - math.cos(math.pi / 4)) / 2
    assert decays[25] == pytest.approx(0.996 + 0.004 * quarter)
    assert ramp.decay_at(steps=51, elapsed=4, samples=0, every=4) == pytest.approx(0.998**4)


@given(st.floats(0.01, 0.5), st.integers(100, 10_000))
def test_half_of_a_power_average_is_in_its_half_life_share(share: float, step: int) -> None:
    rule = PowerEMA(half_life_share=share)
    remaining = rule.decay_at(steps=step, elapsed=round(share * step), samples=1, every=1)
    assert remaining == pytest.approx((1 - round(share * step) / step) ** (rule.gamma + 1))
    assert (1 - share) ** (rule.gamma + 1) == pytest.approx(0.5)


def test_a_half_life_may_be_a_share_of_the_run() -> None:
    rule = EMA(half_life="3.5%", warmup=None, start=7)
    assert rule.name == "ema-3.5%"
    assert rule.resolved(20_000) == EMA(half_life=700, warmup=None, start=7)
    with pytest.raises(ValueError, match="steps="):
        rule.resolved(None)


def test_a_ramp_without_a_length_lasts_as_long_as_the_run() -> None:
    assert Ramp(0.996).resolved(500) == Ramp(0.996, 1.0, steps=500)
    with pytest.raises(ValueError, match="steps="):
        Ramp(0.996).resolved(None)


def test_power_gamma_of_edm2() -> None:
    assert rules.power_gamma(0.1) == pytest.approx(6.94, abs=5e-3)
    gamma = rules.power_gamma(0.1)
    assert (gamma + 1) / (gamma + 2) == pytest.approx(0.888, abs=5e-4)
    assert rules.power_gamma(12**-0.5) == pytest.approx(0.0, abs=1e-6)


@given(st.floats(0.01, 0.288))
def test_power_gamma_solves_its_equation(sigma: float) -> None:
    g = rules.power_gamma(sigma)
    assert (g + 1) / ((g + 2) ** 2 * (g + 3)) == pytest.approx(sigma**2, rel=1e-9)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (EMA(0.998), "ema-0.998"),
        (EMA(per_update=0.999), "ema-per-update-0.999"),
        (EMA(half_life=693), "ema-half-life-693"),
        (EMA(half_life="0.44%"), "ema-0.44%"),
        (EMA(math.tanh), "ema-tanh"),
        (Uniform(), "uniform"),
        (Uniform(start=100), "uniform-100"),
        (PowerEMA(), "power-0.1"),
        (PowerEMA(half_life_share=0.05), "power-half-life-0.05"),
        (Ramp(0.996), "ramp-0.996-1"),
        (EMA(half_life=700.0000000000001), "ema-half-life-700"),
        (EMA(half_life=math.log(0.5) / math.log(0.999)), "ema-half-life-693"),
        (EMA(half_life=1000 * math.pi), "ema-half-life-3142"),
        (EMA(half_life=1e-3), "ema-half-life-0.001"),
        (EMA(0.998 ** (1 / 16)), "ema-0.9998748827"),
        (EMA(0.1 + 0.2), "ema-0.3"),
        (EMA(0.9999999), "ema-0.9999999"),
        (EMA(1 - 1e-12), "ema-0.999999999999"),
        (EMA(1.0), "ema-1"),
        (EMA(0), "ema-0"),
        (PowerEMA(0.30000000000000004 / 3), "power-0.1"),
    ],
)
def test_default_names_have_only_significant_digits(rule: rules.Rule, name: str) -> None:
    assert rule.name == name


@pytest.mark.parametrize(
    "rule",
    [
        EMA(0.9, warmup="updates", start=3),
        EMA(per_update=0.9),
        EMA(half_life=9),
        Uniform(4),
        PowerEMA(0.2),
        PowerEMA(half_life_share=0.2),
        Ramp(0.9, steps=9),
    ],
)
def test_a_rule_is_restored_from_its_dict(rule: rules.Rule) -> None:
    assert rules.rule_from_dict(rules.rule_to_dict(rule)) == rule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EMA(1.1), "from 0 to 1"),
        (lambda: EMA(-0.1), "from 0 to 1"),
        (lambda: EMA(float("nan")), "from 0 to 1"),
        (lambda: EMA("0.9"), "from 0 to 1"),
        (lambda: EMA(True), "from 0 to 1"),
        (lambda: EMA(per_update=2), "from 0 to 1"),
        (lambda: EMA(), "exactly one of"),
        (lambda: EMA(0.9, half_life=3), "decay=0.9, half_life=3"),
        (lambda: EMA(half_life=0), "positive number"),
        (lambda: EMA(half_life=math.inf), "positive number"),
        (lambda: EMA(0.9, warmup="epochs"), "'epochs'"),
        (lambda: EMA(math.tanh, warmup="power"), "'power'"),
        (lambda: EMA(half_life="700"), "'700'"),
        (lambda: EMA(half_life="0%"), "'0%'"),
        (lambda: PowerEMA(0.1, half_life_share=0.1), "not both"),
        (lambda: PowerEMA(half_life_share=0.6), "at most 0.5"),
        (lambda: Ramp(0.9, 1.1), "end must be"),
        (lambda: Ramp(0.9, steps=0), "steps must be"),
        (lambda: Ramp(0.9, shape="step"), "'step'"),
        (lambda: EMA(lambda step: 2.0).decay_at(steps=1, elapsed=1, samples=0, every=1), "got 2.0"),
        (lambda: EMA(0.9, start=-1), "whole number"),
        (lambda: EMA(0.9, start=1.5), "whole number"),
        (lambda: Uniform(start=-1), "whole number"),
        (lambda: PowerEMA(0.3), "0.2887"),
        (lambda: PowerEMA(0), "above 0"),
        (lambda: rules.rule_from_dict({"rule": "Lookahead"}), "'Lookahead'"),
        (lambda: rules.rule_from_dict({"rule": "Uniform", "end": 3}), "end"),
    ],
)
def test_invalid_arguments_are_clear_errors(make, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()
