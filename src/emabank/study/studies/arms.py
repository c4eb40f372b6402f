"""Runs beside those of a protocol: the same seed and learning rate with one thing changed. May import protocol."""

from dataclasses import replace

from emabank.study.carry_out import Job, folder_of
from emabank.study.config import ProtocolConfig
from emabank.study.place import Place
from emabank.study.protocol import CRITERIA, Choice, Chosen, held_from, refit_job, swa_job, tuning_jobs
from emabank.study.recipe import AveragesConfig, MeasuringConfig

_CURVES = MeasuringConfig(test_curves=True)
BOOTSTRAPPED = 2
"""Which of the five averages is copied back into training: the third, the paper's 0.992."""


def needs_refits(arm: str) -> bool:
    """Whether an arm starts from refits, or is one of them.

    >>> needs_refits("constant"), needs_refits("bootstrap")
    (True, False)
    """
    return arm == "constant" or arm.startswith("every ")


def is_the_refit(arm: str, config: ProtocolConfig) -> bool:
    """Whether an arm is what the refits of a protocol are anyway.

    >>> is_the_refit("every 1", ProtocolConfig()), is_the_refit("every 2", ProtocolConfig())
    (True, False)
    """
    return arm.startswith("every ") and with_period(config.averages, _period(arm)) == config.averages


def supposed(config: ProtocolConfig, place: Place) -> Chosen:
    """What would follow if every seed chose the first rate, and the slowest average at the end.

    Before tuning it shows whether all runs are possible, and what they cost.

    >>> [job.config.rate for job in supposed(ProtocolConfig(rates=(0.1, 0.2), seeds=2), Place()).refits]
    [0.1, 0.1]
    """
    slowest, end = config.averages.names[-1], config.training.epochs
    choices = [
        Choice(seed, config.rates[0], "", end, dict.fromkeys(CRITERIA, (slowest, end))) for seed in range(config.seeds)
    ]
    tuned = tuning_jobs(config, data="")[:: len(config.rates)]
    refits = [
        refit_job(config, choice, job.config, has_batchnorm=True) for choice, job in zip(choices, tuned, strict=True)
    ]
    return Chosen(choices, [], refits, [swa_job(config, refit, place) for refit in refits] if config.swa else [])


def arm_jobs(arm: str, config: ProtocolConfig, chosen: Chosen, place: Place) -> list[Job]:
    """The runs of an arm in the order of the seeds.

    step: the rate falls in steps. constant: it is held from the epoch chosen for the best accuracy of an average.
    bootstrap: on 80% of the images, an average copied into the live weights after each epoch. every T: averages with
    the same horizon, sampled every T steps without a warm-up of the decay; where that is what the refit has, the refit.
    """
    return [
        _job(arm, config, choice, refit, place) for choice, refit in zip(chosen.choices, chosen.refits, strict=True)
    ]


def _job(arm: str, config: ProtocolConfig, choice: Choice, refit: Job, place: Place) -> Job:
    run = refit.config
    bare = replace(run, keep=(), transfer=(), transfer_fingerprints=())
    if arm == "step":
        training = replace(config.training, schedule="step")
        return Job(replace(bare, recipe=replace(run.recipe, training=training, measuring=_CURVES)))
    if arm == "constant":
        epoch = held_from(config, choice)
        fork = folder_of(run, place).path / "forks" / f"epoch-{epoch}.pt"
        return Job(replace(bare, constant_from=epoch), fork=fork)
    if arm == "bootstrap":
        average = config.averages.names[min(BOOTSTRAPPED, len(config.averages.names) - 1)]
        recipe = replace(run.recipe, training=replace(config.training, bootstrap=average), measuring=MeasuringConfig())
        return Job(replace(bare, recipe=recipe, trained_on="80%"))
    if arm.startswith("every "):
        if is_the_refit(arm, config):
            return refit
        averages = with_period(config.averages, _period(arm))
        return Job(replace(bare, recipe=replace(run.recipe, averages=averages, measuring=_CURVES)))
    raise ValueError(f"there is no arm {arm!r}; give step, constant, bootstrap, or every and a number")


def _period(arm: str) -> int:
    return int(arm.removeprefix("every "))


def with_period(averages: AveragesConfig, period: int) -> AveragesConfig:
    """Averages with the same horizon in steps, sampled with another period, and no warm-up, which would confound them.

    >>> with_period(AveragesConfig(decays=(0.998,), every=16), 1).decays
    (0.9998748826609,)
    """
    decays = tuple(round(decay ** (period / averages.every), 13) for decay in averages.decays)
    return replace(averages, decays=decays, every=period, decay_warmup="none")
