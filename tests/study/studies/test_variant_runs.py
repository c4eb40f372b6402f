"""The runs beside a protocol's: each with one thing changed, and forks that change nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    HardwareConfig,
    MeasuringConfig,
    Place,
    ProtocolConfig,
    TrainingConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.protocol import Choice, Chosen, choose_all, plan_protocol, refit_job, tuning_jobs
from emabank.study.run_job import Job, folder_of, run_job
from emabank.study.runs.reader import RunFolder
from emabank.study.studies.scheduler import placeholder_choices, variant_jobs
from emabank.study.studies.variants import equals_refit
from tests.study.small_runs import left
from tests.study.small_runs import one_thread as one_thread

DIGITS = digits_dataset()
SMALL = ProtocolConfig(
    data=DataConfig(noise=0.4, subset=100, test_subset=50),
    training=TrainingConfig(width=4, epochs=4, batch=32, warmup_epochs=0.5),
    measuring=MeasuringConfig(test_curves=True, on_train=True, recompute="each-epoch"),
    hardware=HardwareConfig(device="cpu"),
    rates=(0.2,),
    seeds=1,
).completed()
PAPER = ProtocolConfig(
    training=SMALL.training,
    averages=AveragesConfig(decays=(0.968, 0.984, 0.992, 0.996, 0.998), every=16, decay_warmup="steps"),
    measuring=SMALL.measuring,
    hardware=SMALL.hardware,
    rates=(0.1, 0.2),
    seeds=2,
    transfer=("digits-0-4",),
).completed()


def chosen_for(config: ProtocolConfig, *, epoch: int = 3) -> Chosen:
    """As if tuning had chosen: for seed 0 the first rate, for seed 1 the second."""
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


# One thing is changed ------------------------------------------------------------------------------------------------


def test_with_fewer_averages_the_last_of_them_is_copied_back():
    two = replace(PAPER, averages=AveragesConfig(half_lives=(5.0, 1.0)))
    jobs = variant_jobs("bootstrap", two, chosen_for(two), Place())
    assert {job.config.recipe.training.bootstrap for job in jobs} == {"ema-5%"}


def test_the_seeds_keep_the_rates_that_they_chose():
    for arm in ("step", "every 4", "bootstrap", "posthoc", "constant", "every 16"):
        jobs = variant_jobs(arm, PAPER, chosen_for(PAPER), Place())
        assert [(job.config.seed, job.config.rate) for job in jobs] == [(0, 0.1), (1, 0.2)]


# What is the refit anyway, and what goes on from it -----------------------------------------------------------------

SHORT = AveragesConfig()


@pytest.mark.parametrize(
    ("averages", "same"),
    [
        (SHORT, "every 1"),
        (replace(SHORT, every=4), "every 4"),
        (replace(PAPER.averages, decay_warmup="none"), "every 16"),
        (PAPER.averages, None),  # a warm-up would confound the comparison
        (replace(SHORT, decay_warmup="updates"), None),
    ],
)
def test_where_the_refit_has_that_period_and_no_warm_up_it_is_the_arm(averages: AveragesConfig, same: str | None):
    config = replace(PAPER, averages=averages)
    chosen = chosen_for(config)
    for period in (1, 2, 4, 8, 16, 64):
        arm = f"every {period}"
        assert equals_refit(arm, config) is (arm == same)
        jobs = variant_jobs(arm, config, chosen, Place())
        assert (jobs == chosen.refits) is (arm == same)
        ids = {folder_of(job.config, Place()).id for job in [*jobs, *chosen.refits]}
        assert len(ids) == (2 if arm == same else 4)
    assert not any(equals_refit(arm, config) for arm in ("step", "constant", "bootstrap"))


def test_a_held_rate_goes_on_from_the_refits_own_checkpoint(tmp_path: Path):
    place = Place(runs=tmp_path)
    noisy = replace(PAPER, data=DataConfig(noise=0.4))
    chosen = chosen_for(noisy, epoch=2)
    for job, refit in zip(variant_jobs("constant", noisy, chosen, place), chosen.refits, strict=True):
        assert job.fork == folder_of(refit.config, place).path / "forks" / "epoch-2.pt"
        assert 2 in refit.forks
    assert all(
        job.fork is None for arm in ("step", "bootstrap", "every 1") for job in variant_jobs(arm, noisy, chosen, place)
    )


# Before tuning -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_trained_is_found_before_tuning():
    late = replace(PAPER, training=replace(PAPER.training, epochs=10, warmup_epochs=3.0))
    with pytest.raises(
        ValueError, match="milestones are 0.3 0.6 0.8; give rising shares of the run, after the warm-up"
    ):
        variant_jobs("step", late, placeholder_choices(late, Place()), Place())


# Trained -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Chosen]:
    """One seed, tuned and refitted."""
    place = Place(runs=tmp_path_factory.mktemp("runs"))
    planned = plan_protocol(SMALL, place, DIGITS)
    for job in planned.tuning:
        run_job(job, place, DIGITS)
    chosen = choose_all(SMALL, place, planned)
    for job in chosen.refits:
        run_job(job, place, DIGITS)
    return place, chosen


def one(arm: str, trained: tuple[Place, Chosen], *, runs: Path | None = None, fork: bool = True) -> RunFolder:
    """The only run of an arm, trained."""
    place, chosen = trained
    [job] = variant_jobs(arm, SMALL, chosen, place)
    return run_job(job if fork else job._replace(fork=None), Place(runs=runs or place.runs), DIGITS)


def test_a_held_rate_from_the_fork_is_byte_for_byte_one_from_the_beginning(
    trained: tuple[Place, Chosen], tmp_path: Path
):
    place, chosen = trained
    [job] = variant_jobs("constant", SMALL, chosen, place)
    assert job.fork is not None and job.fork.exists()
    forked, alone = one("constant", trained), one("constant", trained, runs=tmp_path, fork=False)
    assert forked.id == alone.id
    assert left(forked) == left(alone)
    epoch = forked.config()["constant_from"]
    refit = folder_of(chosen.refits[0].config, place).history()
    rates = [each["rate"] for each in forked.history()]
    assert forked.history()[:epoch] == refit[:epoch]
    assert len(set(rates[epoch:])) == 1 and rates[-1] > refit[-1]["rate"]


def test_a_bootstrapped_run_has_the_images_of_tuning_and_other_weights_from_its_second_epoch_on(
    trained: tuple[Place, Chosen],
):
    _, chosen = trained
    run, tuned = one("bootstrap", trained), chosen.tuned[0]
    assert len(run.load_predictions("live-last")["train"].labels) == 80
    assert run.history()[0] == tuned.history()[0]
    assert run.history()[1]["training_loss"] != tuned.history()[1]["training_loss"]
    assert {row.split for row in run.rows() if row.selected_by is None} == {"val"}


def test_averages_with_another_period_leave_the_training_as_it_is(trained: tuple[Place, Chosen]):
    place, chosen = trained
    refit = folder_of(chosen.refits[0].config, place)
    run = one("every 2", trained)
    assert run.history() == refit.history()
    assert one("every 1", trained).id == refit.id


def test_with_step_decay_the_warm_up_is_the_same_and_the_rest_is_not(trained: tuple[Place, Chosen]):
    place, chosen = trained
    refit, run = folder_of(chosen.refits[0].config, place), one("step", trained)
    rates = [each["rate"] for each in run.history()]
    peak = chosen.choices[0].rate
    assert rates == pytest.approx([peak, peak / 5, peak / 25, peak / 125]), "at 1.2, 2.4 and 3.2 of 4 epochs"
    assert run.history() != refit.history()
