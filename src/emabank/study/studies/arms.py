"""Runs beside those of a protocol: the same seed and learning rate with one thing changed. May import protocol."""

from emabank.study.carry_out import Job, folder_of
from emabank.study.config import Place, ProtocolConfig
from emabank.study.protocol import CRITERIA, Choice, Chosen, held_from, refit_job, swa_job, tuning_jobs
from emabank.study.studies.kinds import arm_of, is_the_refit


def supposed(config: ProtocolConfig, place: Place) -> Chosen:
    """What would follow if every seed chose the first rate, and the slowest average at the end.

    Before tuning it shows whether all runs are possible.

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
    """The runs of an arm in the order of the seeds, as `arm_of` has them.

    A rate that is held is held from the epoch chosen for the best accuracy of an average, where the refit left a
    checkpoint.
    """
    return [
        _job(arm, config, choice, refit, place) for choice, refit in zip(chosen.choices, chosen.refits, strict=True)
    ]


def _job(arm: str, config: ProtocolConfig, choice: Choice, refit: Job, place: Place) -> Job:
    if is_the_refit(arm, config):
        return refit
    epoch = held_from(config, choice)
    run = arm_of(arm, config, refit.config, held_from=epoch)
    if arm == "constant":
        return Job(run, fork=folder_of(refit.config, place).fork_path(epoch))
    return Job(run)
