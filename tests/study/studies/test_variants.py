"""The kinds of runs, known without torch: the very runs that protocol and arms ask for, and equal horizons."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from emabank.study.averages import rules
from emabank.study.config import AveragesConfig, DataConfig, MeasuringConfig, Place, ProtocolConfig
from emabank.study.protocol import resolve, tuning_jobs
from emabank.study.studies.scales import CLEAN, CONSTANT, NOISY, PERIODS, SCALES, protocol_of
from emabank.study.studies.scheduler import placeholder_choices, variant_jobs
from emabank.study.studies.variants import (
    equals_refit,
    example_config,
    needs_refits,
    runs_needed,
    variant_config,
    with_period,
)
from tests.support.processes import run

PAPER = AveragesConfig(decays=(0.968, 0.984, 0.992, 0.996, 0.998), every=16, decay_warmup="steps")
ARMS = ("step", "constant", "bootstrap", "posthoc", "every 1", "every 4", "every 64")
PAIRS = [(pair, scale) for scale in SCALES for pair in (*CLEAN, *NOISY, CONSTANT) if protocol_of(pair, scale)]


# What a run is told --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair", "scale"), PAIRS)
def test_a_run_of_a_kind_is_what_protocol_and_arms_make_of_it_before_tuning(pair: str, scale: Any):
    config = resolve(protocol_of(pair, scale))  # type: ignore[arg-type]
    place = Place()
    chosen = placeholder_choices(config, place)
    assert example_config("tune", config) == tuning_jobs(config, data="")[0].config
    assert example_config("refit", config) == chosen.refits[0].config
    assert example_config("swa", config) == chosen.swa[0].config
    for arm in ARMS:
        assert example_config(arm, config) == variant_jobs(arm, config, chosen, place)[0].config, arm
    assert len({example_config(kind, config) for kind in ("tune", "refit", "swa", *ARMS[:4])}) == 7


@pytest.mark.parametrize("kind", ["", "steps", "every", "SWA"])
def test_an_unknown_kind_is_one_sentence(kind: str):
    with pytest.raises(
        ValueError, match=f"^there is no arm {kind!r}; give step, constant, bootstrap, posthoc, every or tune at"
    ):
        example_config(kind, ProtocolConfig())


# How many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "arms", "needed"),
    [
        ((), (), {"tune": 6}),
        (("tune", "refit"), (), {"tune": 6, "refit": 3}),
        (("tune", "refit", "swa"), (), {"tune": 6, "refit": 3, "swa": 3}),
        (("tune",), ("bootstrap",), {"tune": 6, "bootstrap": 3}),
        (("tune",), ("constant",), {"tune": 6, "refit": 3, "constant": 3}),
        (("tune",), ("every 1", "every 2"), {"tune": 6, "refit": 3, "every 2": 3}),
    ],
)
def test_what_is_wanted_is_counted_with_what_it_starts_from(stages: Any, arms: Any, needed: dict[str, int]):
    config = ProtocolConfig(rates=(0.1, 0.2), seeds=3)
    assert runs_needed(config, stages, arms) == Counter(needed)
    assert runs_needed(replace(config, swa=False), stages, arms) == Counter(
        {kind: count for kind, count in needed.items() if kind != "swa"}
    )


def test_what_is_known_before_tuning_loads_no_torch():
    code = "import sys\nimport emabank.study.studies.{0}\nassert 'torch' not in sys.modules"
    for module in ("catalogue", "cost", "variants", "listing", "scales"):
        assert run(code.format(module)).returncode == 0, module
    assert "AssertionError" in run(code.format("scheduler")).stderr, "a control: what makes jobs of it does load torch"


def test_at_demo_and_small_scale_one_period_costs_nothing():
    for scale, own in (("demo", 1), ("small", 4)):
        config = protocol_of("cifar100-resnet18", scale)
        assert config is not None
        assert [period for period in PERIODS[scale] if equals_refit(f"every {period}", config)] == [own]


def test_a_tuning_run_at_another_rate_is_the_one_that_tuning_would_have():
    config = ProtocolConfig(rates=(0.1,), data=DataConfig(noise=0.2), measuring=MeasuringConfig(on_train=True))
    made = variant_config("tune at 0.25", config, example_config("refit", config), held_from=1)
    assert made == example_config("tune", replace(config, rates=(0.25,)))


def test_only_what_starts_from_a_refit_or_is_one_waits_for_it():
    arms = ("step", "bootstrap", "posthoc", "tune at 0.4", "constant", "every 1", "every 64")
    assert [needs_refits(arm) for arm in arms] == [False, False, False, False, True, True, True]


# Equal horizons ------------------------------------------------------------------------------------------------------

SHORT = AveragesConfig()


@pytest.mark.parametrize("averages", [PAPER, SHORT, replace(SHORT, every=4)], ids=["paper", "short", "fourth"])
@pytest.mark.parametrize("period", [1, 2, 4, 8, 16, 64])
def test_every_period_has_the_same_horizon_in_steps(averages: AveragesConfig, period: int):
    changed = with_period(averages, period)
    assert (changed.every, changed.decay_warmup, len(changed.names)) == (period, "none", 5)
    before = [rule.per_step(averages.every) for rule in rules(averages, 5000).values()]
    after = [rule.per_step(period) for rule in rules(changed, 5000).values()]
    assert [math.log(each) for each in after] == pytest.approx([math.log(each) for each in before], rel=1e-8)
    at = {"elapsed": period, "every": period}
    for sample in (0, 1, 100):
        weights = [
            rule.decay_at(steps=(sample + 1) * period, samples=sample, **at) for rule in rules(changed, 5000).values()
        ]
        assert weights == pytest.approx([each**period for each in after]), "from the first sample on: no warm-up"


def test_the_decays_of_the_papers_table():
    found = with_period(PAPER, 1).decays
    assert found == pytest.approx([0.998, 0.999, 0.9995, 0.99975, 0.999875], abs=4e-5)


def test_a_period_and_back_is_the_same_average():
    there_and_back = with_period(with_period(PAPER, 1), 16)
    assert there_and_back.decays == pytest.approx(PAPER.decays, rel=1e-10)
