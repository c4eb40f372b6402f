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
    HardwareConfig,
    MeasuringConfig,
    Place,
    ProtocolConfig,
    RunConfig,
    TrainingConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.protocol import Choice, Chosen, choose_all, plan_protocol, refit_job, tuning_jobs
from emabank.study.run_job import Job, folder_of, run_job
from emabank.study.runs.reader import RunFolder
from emabank.study.studies.scales import PERIODS, protocol_of
from emabank.study.studies.scheduler import placeholder_choices, variant_jobs
from emabank.study.studies.variants import (
    equals_refit,
    needs_refits,
    runs_needed,
    variant_config,
    with_period,
)
from tests.study.small_runs import files_in
from tests.study.small_runs import one_thread as one_thread
from tests.support.processes import run

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


def test_planning_modules_do_not_import_torch():
    code = "import sys\nimport emabank.study.studies.{0}\nassert 'torch' not in sys.modules"
    for module in ("catalogue", "variants", "scales"):
        assert run(code.format(module)).returncode == 0, module
    assert "AssertionError" in run(code.format("scheduler")).stderr, "a control: the scheduler imports torch"


def test_one_sampling_period_equals_the_refit_at_demo_and_small_scale():
    for scale, own in (("demo", 1), ("small", 4)):
        config = protocol_of("cifar100-resnet18", scale)
        assert config is not None
        assert [period for period in PERIODS[scale] if equals_refit(f"every {period}", config)] == [own]


def test_a_tuning_run_at_another_rate_equals_that_of_tuning_at_this_rate():
    config = variant_config("tune at 0.25", CONFIG, refit_of(CONFIG), held_from=1)
    assert config == tuning_jobs(replace(CONFIG, rates=(0.25,)), data="")[0].config


def test_bootstrap_copies_an_average_once_an_epoch_or_the_fastest_every_five_steps():
    plain, often = (
        variant_config(arm, CONFIG, refit_of(CONFIG), held_from=1) for arm in ("bootstrap", "bootstrap every 5")
    )
    assert (plain.recipe.training.bootstrap, plain.recipe.training.bootstrap_every) == ("ema-1.8%", None)
    assert (often.recipe.training.bootstrap, often.recipe.training.bootstrap_every) == ("ema-0.44%", 5)
    same = replace(often.recipe.training, bootstrap="ema-1.8%", bootstrap_every=None)
    assert replace(often, recipe=replace(often.recipe, training=same)) == plain


def test_only_arms_that_use_a_refit_need_one():
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
    assert [math.log(decay) for decay in after] == pytest.approx([math.log(decay) for decay in before], rel=1e-8)
    at = {"elapsed": period, "every": period}
    for sample in (0, 1, 100):
        weights = [
            rule.decay_at(steps=(sample + 1) * period, samples=sample, **at) for rule in rules(changed, 5000).values()
        ]
        assert weights == pytest.approx([decay**period for decay in after]), "no warm-up"


def test_decays_per_step_are_those_of_the_papers_table_and_convert_back():
    per_step = with_period(PAPER, 1)
    assert per_step.decays == pytest.approx([0.998, 0.999, 0.9995, 0.99975, 0.999875], abs=4e-5)
    assert with_period(per_step, 16).decays == pytest.approx(PAPER.decays, rel=1e-10)


# Jobs -----------------------------------------------------------------------------------------------------------------


DIGITS = digits_dataset()
SMALL = ProtocolConfig(
    data=DataConfig(noise=0.4, subset=100, test_subset=50),
    training=TrainingConfig(width=4, epochs=4, batch=32, warmup_epochs=0.5),
    measuring=MeasuringConfig(test_curves=True, on_train=True, recompute="each-epoch"),
    hardware=HardwareConfig(device="cpu"),
    rates=(0.2,),
    seeds=1,
).completed()
PROTOCOL = ProtocolConfig(
    training=SMALL.training,
    averages=PAPER,
    measuring=SMALL.measuring,
    hardware=SMALL.hardware,
    rates=(0.1, 0.2),
    seeds=2,
    transfer=("digits-0-4",),
).completed()


def chosen_for(config: ProtocolConfig, *, epoch: int = 3) -> Chosen:
    """The choices of a tuning in which seed 0 chose the first rate and seed 1 the second."""
    choices: list[Choice] = []
    refits: list[Job] = []
    for seed in range(config.seeds):
        average = config.averages.names[0]
        choice = Choice(
            seed, config.rates[seed], f"run-{seed}", 2, dict.fromkeys(("accuracy", "loss"), (average, epoch))
        )
        tuned = next(
            job.config
            for job in tuning_jobs(config, data="abc")
            if (job.config.seed, job.config.rate) == (seed, choice.rate)
        )
        choices.append(choice)
        refits.append(refit_job(config, choice, tuned, has_batchnorm=True, targets=("def",)))
    return Chosen(choices, [], refits, [])


def test_bootstrap_copies_the_last_of_fewer_averages():
    two = replace(PROTOCOL, averages=AveragesConfig(half_lives=(5.0, 1.0)))
    jobs = variant_jobs("bootstrap", two, chosen_for(two), Place())
    assert {job.config.recipe.training.bootstrap for job in jobs} == {"ema-5%"}


def test_every_seed_keeps_its_chosen_rate():
    for arm in ("step", "every 4", "bootstrap", "posthoc", "constant", "every 16"):
        jobs = variant_jobs(arm, PROTOCOL, chosen_for(PROTOCOL), Place())
        assert [(job.config.seed, job.config.rate) for job in jobs] == [(0, 0.1), (1, 0.2)]


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
    chosen = chosen_for(config)
    for period in (1, 2, 4, 8, 16, 64):
        arm = f"every {period}"
        assert equals_refit(arm, config) is (arm == same)
        jobs = variant_jobs(arm, config, chosen, Place())
        assert (jobs == chosen.refits) is (arm == same)
        ids = {folder_of(job.config, Place()).id for job in [*jobs, *chosen.refits]}
        assert len(ids) == (2 if arm == same else 4)
    assert not any(equals_refit(arm, config) for arm in ("step", "constant", "bootstrap"))


def test_a_constant_rate_run_starts_from_its_refits_fork(tmp_path: Path):
    place = Place(runs=tmp_path)
    noisy = replace(PROTOCOL, data=DataConfig(noise=0.4))
    chosen = chosen_for(noisy, epoch=2)
    for job, refit in zip(variant_jobs("constant", noisy, chosen, place), chosen.refits, strict=True):
        assert job.fork == folder_of(refit.config, place).path / "forks" / "epoch-2.pt"
        assert 2 in refit.forks
    assert all(
        job.fork is None for arm in ("step", "bootstrap", "every 1") for job in variant_jobs(arm, noisy, chosen, place)
    )


# Training -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Chosen]:
    """The place and the choices of one seed, tuned and refitted."""
    place = Place(runs=tmp_path_factory.mktemp("runs"))
    planned = plan_protocol(SMALL, place, DIGITS)
    for job in planned.tuning:
        run_job(job, place, DIGITS)
    chosen = choose_all(SMALL, place, planned)
    for job in chosen.refits:
        run_job(job, place, DIGITS)
    return place, chosen


def run_arm(arm: str, trained: tuple[Place, Chosen], *, runs: Path | None = None, fork: bool = True) -> RunFolder:
    """Train the only run of an arm."""
    place, chosen = trained
    [job] = variant_jobs(arm, SMALL, chosen, place)
    return run_job(job if fork else job._replace(fork=None), Place(runs=runs or place.runs), DIGITS)


def test_a_constant_rate_run_from_the_fork_equals_one_from_the_start_byte_for_byte(
    trained: tuple[Place, Chosen], tmp_path: Path
):
    place, chosen = trained
    [job] = variant_jobs("constant", SMALL, chosen, place)
    assert job.fork is not None and job.fork.exists()
    forked, whole = run_arm("constant", trained), run_arm("constant", trained, runs=tmp_path, fork=False)
    assert forked.id == whole.id
    assert files_in(forked) == files_in(whole)
    start = forked.config()["constant_from"]
    refit = folder_of(chosen.refits[0].config, place).history()
    rates = [epoch["rate"] for epoch in forked.history()]
    assert forked.history()[:start] == refit[:start]
    assert len(set(rates[start:])) == 1 and rates[-1] > refit[-1]["rate"]


def test_a_bootstrap_run_equals_its_tuning_run_in_the_first_epoch_only(trained: tuple[Place, Chosen]):
    _, chosen = trained
    run, tuned = run_arm("bootstrap", trained), chosen.tuned[0]
    assert len(run.load_predictions("live-last")["train"].labels) == 80
    assert run.history()[0] == tuned.history()[0]
    assert run.history()[1]["training_loss"] != tuned.history()[1]["training_loss"]
    assert {row.split for row in run.rows() if row.selected_by is None} == {"val"}


def test_another_sampling_period_does_not_change_the_training(trained: tuple[Place, Chosen]):
    place, chosen = trained
    refit = folder_of(chosen.refits[0].config, place)
    run = run_arm("every 2", trained)
    assert run.history() == refit.history()
    assert run_arm("every 1", trained).id == refit.id


def test_step_decay_divides_the_peak_rate_by_5_at_each_milestone(trained: tuple[Place, Chosen]):
    place, chosen = trained
    refit, run = folder_of(chosen.refits[0].config, place), run_arm("step", trained)
    rates = [epoch["rate"] for epoch in run.history()]
    peak = chosen.choices[0].rate
    assert rates == pytest.approx([peak, peak / 5, peak / 25, peak / 125]), "at 1.2, 2.4 and 3.2 of 4 epochs"
    assert run.history() != refit.history()
