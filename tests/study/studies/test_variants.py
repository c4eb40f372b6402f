"""The kinds of runs, known without torch: the very runs that protocol and arms ask for, and equal horizons."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from emabank.study.averages import rules
from emabank.study.config import AveragesConfig, DataConfig, MeasuringConfig, Place, ProtocolConfig, RunConfig
from emabank.study.protocol import tuning_jobs
from emabank.study.studies.scales import PERIODS, protocol_of
from emabank.study.studies.scheduler import placeholder_choices
from emabank.study.studies.variants import (
    equals_refit,
    needs_refits,
    runs_needed,
    variant_config,
    with_period,
)
from tests.support.processes import run

PAPER = AveragesConfig(decays=(0.968, 0.984, 0.992, 0.996, 0.998), every=16, decay_warmup="steps")
CONFIG = ProtocolConfig(rates=(0.1,), data=DataConfig(noise=0.2), measuring=MeasuringConfig(on_train=True))


def refit_of(config: ProtocolConfig) -> RunConfig:
    return placeholder_choices(config, Place()).refits[0].config


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
    for module in ("catalogue", "variants", "listing", "scales"):
        assert run(code.format(module)).returncode == 0, module
    assert "AssertionError" in run(code.format("scheduler")).stderr, "a control: what makes jobs of it does load torch"


def test_at_demo_and_small_scale_one_period_costs_nothing():
    for scale, own in (("demo", 1), ("small", 4)):
        config = protocol_of("cifar100-resnet18", scale)
        assert config is not None
        assert [period for period in PERIODS[scale] if equals_refit(f"every {period}", config)] == [own]


def test_a_tuning_run_at_another_rate_is_the_one_that_tuning_would_have():
    made = variant_config("tune at 0.25", CONFIG, refit_of(CONFIG), held_from=1)
    assert made == tuning_jobs(replace(CONFIG, rates=(0.25,)), data="")[0].config


def test_averages_are_copied_back_once_an_epoch_or_the_fastest_every_five_steps():
    plain, often = (
        variant_config(arm, CONFIG, refit_of(CONFIG), held_from=1) for arm in ("bootstrap", "bootstrap every 5")
    )
    assert (plain.recipe.training.bootstrap, plain.recipe.training.bootstrap_every) == ("ema-1.8%", None)
    assert (often.recipe.training.bootstrap, often.recipe.training.bootstrap_every) == ("ema-0.44%", 5)
    same = replace(often.recipe.training, bootstrap="ema-1.8%", bootstrap_every=None)
    assert replace(often, recipe=replace(often.recipe, training=same)) == plain


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
