"""The kinds of runs that studies need: their number, their horizons, their changes, and their training."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emabank.study.averages import rules
from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    MeasuringConfig,
    Place,
    ProtocolConfig,
    RunConfig,
)
from emabank.study.run_job import Job, folder_of, run_job
from emabank.study.runs.manifest import Manifest
from emabank.study.runs.reader import RunFolder, read_json
from emabank.study.serialize import from_dict
from emabank.study.studies.scheduler import placeholder_choices, variant_jobs
from emabank.study.studies.variants import (
    equals_refit,
    runs_needed,
    with_period,
)
from tests.study.small_runs import files_in
from tests.study.small_runs import one_thread as one_thread
from tests.study.studies.small_studies import DIGITS, Counting

PAPER = AveragesConfig(decays=(0.968, 0.984, 0.992, 0.996, 0.998), every=16, decay_warmup="steps")
CONFIG = ProtocolConfig(rates=(0.1,), data=DataConfig(noise=0.2), measuring=MeasuringConfig(on_train=True))


def refit_of(config: ProtocolConfig) -> RunConfig:
    return placeholder_choices(config, Place()).refits[0].config


# Counts and changes ---------------------------------------------------------------------------------------------------


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
def test_needed_runs_include_those_they_start_from(stages: Any, arms: Any, needed: dict[str, int]):
    config = ProtocolConfig(rates=(0.1, 0.2), seeds=3)
    assert runs_needed(config, stages, arms) == Counter(needed)
    assert runs_needed(replace(config, swa=False), stages, arms) == Counter(
        {kind: count for kind, count in needed.items() if kind != "swa"}
    )


# Equal horizons ------------------------------------------------------------------------------------------------------

SHORT = AveragesConfig()


@pytest.mark.parametrize("averages", [PAPER, replace(SHORT, every=4)], ids=["paper", "short"])
@pytest.mark.parametrize("period", [1, 4, 64])
def test_every_period_has_the_same_horizon_in_steps(averages: AveragesConfig, period: int):
    changed = with_period(averages, period)
    assert (changed.every, changed.decay_warmup, len(changed.names)) == (period, "none", 5)
    before = [rule.per_step(averages.every) for rule in rules(averages, 5000).values()]
    after = [rule.per_step(period) for rule in rules(changed, 5000).values()]
    assert [math.log(decay) for decay in after] == pytest.approx([math.log(decay) for decay in before], rel=1e-8)
    at = {"elapsed": period, "every": period}
    for sample in (0, 1, 100):
        weights = [
            rule.decay_at(steps=(sample + 1) * period, samples=sample, **at) for rule in rules(changed, 5000).values()
        ]
        assert weights == pytest.approx([decay**period for decay in after]), "no warm-up"


# Jobs -----------------------------------------------------------------------------------------------------------------


PROTOCOL = ProtocolConfig(averages=PAPER, rates=(0.1, 0.2), seeds=2, transfer=("digits-0-4",)).completed()


def test_bootstrap_copies_the_last_of_fewer_averages():
    two = replace(PROTOCOL, averages=AveragesConfig(half_lives=(5.0, 1.0)))
    jobs = variant_jobs("bootstrap", two, placeholder_choices(two, Place()), Place())
    assert {job.config.recipe.training.bootstrap for job in jobs} == {"ema-5%"}


def test_every_seed_keeps_its_chosen_rate_and_only_a_constant_rate_starts_from_a_fork():
    chosen = placeholder_choices(PROTOCOL, Place())
    refits = [Job(replace(job.config, rate=rate)) for job, rate in zip(chosen.refits, PROTOCOL.rates, strict=True)]
    for arm in ("step", "every 4", "bootstrap", "posthoc", "constant", "every 16"):
        jobs = variant_jobs(arm, PROTOCOL, chosen._replace(refits=refits), Place())
        assert [(job.config.seed, job.config.rate) for job in jobs] == [(0, 0.1), (1, 0.2)]
        forks = [folder_of(refit.config, Place()).fork_path(59) if arm == "constant" else None for refit in refits]
        assert [job.fork for job in jobs] == forks


@pytest.mark.parametrize(
    ("averages", "same"),
    [
        (SHORT, "every 1"),
        (replace(SHORT, every=4), "every 4"),
        (replace(PROTOCOL.averages, decay_warmup="none"), "every 16"),
        (PROTOCOL.averages, None),  # a warm-up would confound the comparison
        (replace(SHORT, decay_warmup="updates"), None),
    ],
)
def test_a_refit_with_the_same_period_and_no_warm_up_is_the_arm(averages: AveragesConfig, same: str | None):
    config = replace(PROTOCOL, averages=averages)
    chosen = placeholder_choices(config, Place())
    for period in (1, 2, 4, 8, 16, 64):
        arm = f"every {period}"
        assert equals_refit(arm, config) is (arm == same)
        jobs = variant_jobs(arm, config, chosen, Place())
        assert (jobs == chosen.refits) is (arm == same)
        ids = {folder_of(job.config, Place()).id for job in [*jobs, *chosen.refits]}
        assert len(ids) == (2 if arm == same else 4)
    assert not any(equals_refit(arm, config) for arm in ("step", "constant", "bootstrap"))


Finished = tuple[dict[str, Manifest], Counting]


def run_of(arm: str, study: str, finished_studies: Finished) -> tuple[RunFolder, RunFolder]:
    """The only run of an arm, and its refit."""
    manifests, counting = finished_studies
    [pair] = manifests[study].pairs
    [refit] = read_json(counting.place.runs / str(pair.protocol) / "summary.json")["runs"]["refit"]
    return RunFolder(counting.place.runs / pair.arms[arm][0]), RunFolder(counting.place.runs / refit)


def test_a_constant_rate_run_from_the_fork_equals_one_from_the_start_byte_for_byte(
    finished_studies: Finished, tmp_path: Path
):
    forked, refit = run_of("constant", "constant-lr", finished_studies)
    config = from_dict(RunConfig, forked.config(), where="")
    assert refit.fork_path(config.constant_from or 0).exists()
    assert files_in(forked) == files_in(run_job(Job(config), Place(runs=tmp_path), DIGITS))
    start, rates = config.constant_from, [epoch["rate"] for epoch in forked.history()]
    assert forked.history()[:start] == refit.history()[:start]
    assert len(set(rates[start:])) == 1 and rates[-1] > refit.history()[-1]["rate"]


def test_step_decay_divides_the_peak_rate_by_5_at_each_milestone(finished_studies: Finished):
    run, _ = run_of("step", "step-decay", finished_studies)
    peak = run.config()["rate"]
    rates = [epoch["rate"] for epoch in run.history()]
    assert rates == pytest.approx([peak, peak / 5, peak / 25, peak / 125]), "at 1.2, 2.4 and 3.2 of 4 epochs"
