"""The kinds of runs that studies need: how many of each, and the configuration of a run of each. Imports no torch.

A kind is a stage of the protocol ("tune", "refit", "swa") or a variant beside it ("step", "constant", "bootstrap",
"posthoc", "every 4", "tune at 0.4"), which has the seed and learning rate of a refit and one thing changed.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from emabank.study.averages import CRITERIA, NOISY_CRITERIA, kept_by_refit
from emabank.study.config import AveragesConfig, MeasuringConfig, ProtocolConfig, RunConfig

_POSTHOC = 100  # snapshots in a run: about 9 GB of a ResNet-18
BOOTSTRAPPED = 2
"""Which of the five averages is copied back into training: the third, the paper's 0.992."""


def needs_refits(arm: str) -> bool:
    """Whether a variant starts from refits, or is one of them."""
    return arm == "constant" or arm.startswith("every ")


def equals_refit(arm: str, config: ProtocolConfig) -> bool:
    """Whether a variant is what the refits of a protocol are anyway."""
    return arm.startswith("every ") and with_period(config.averages, _period(arm)) == config.averages


def runs_needed(config: ProtocolConfig, stages: Collection[str], arms: Iterable[str]) -> Counter[str]:
    """How many runs of each kind there are, for these stages and variants of a protocol.

    >>> runs_needed(ProtocolConfig(rates=(0.1, 0.2), seeds=3), {"tune"}, ["constant"])
    Counter({'tune': 6, 'refit': 3, 'constant': 3})
    """
    arms, seeds = tuple(arms), len(config.seed_numbers)
    needed = Counter({"tune": len(config.rates) * seeds})
    if "refit" in stages or "swa" in stages or any(needs_refits(arm) for arm in arms):
        needed["refit"] = seeds
    if "swa" in stages and config.swa:
        needed["swa"] = seeds
    return needed + Counter({arm: seeds for arm in arms if not equals_refit(arm, config)})


def example_config(kind: str, config: ProtocolConfig) -> RunConfig:
    """The first run of a kind if every seed chose the first rate, and the slowest average at the end.

    It is what `placeholder_choices` makes of a protocol, without fingerprints: enough to know the cost.

    >>> example_config("swa", ProtocolConfig()).constant_from
    45
    """
    tuning = RunConfig(
        recipe=replace(config.recipe, measuring=MeasuringConfig()), rate=config.rates[0], seed=0, trained_on="80%"
    )
    if kind == "tune":
        return tuning
    end = config.training.epochs
    noisy = config.data.has_wrong_labels
    criteria = (*CRITERIA, *NOISY_CRITERIA) if noisy else tuple(CRITERIA)
    keep = kept_by_refit(
        config.averages,
        dict.fromkeys(("accuracy", "noisy-accuracy") if noisy else ("accuracy",), end),
        dict.fromkeys(criteria, (config.averages.names[-1], end)),
        has_batchnorm=True,
    )
    refit = replace(tuning, recipe=config.recipe, trained_on="100%", keep=keep, transfer=config.transfer)
    if kind == "refit":
        return refit
    if kind == "swa":
        return replace(refit, keep=(), constant_from=config.swa_epoch, swa=True)
    return variant_config(kind, config, refit, held_from=max(end - 1, math.ceil(config.training.warmup)))


def variant_config(arm: str, config: ProtocolConfig, refit: RunConfig, *, held_from: int) -> RunConfig:
    """The variant of a refit; where that is what the refit has, the refit.

    step: the rate falls in steps. constant: it is held from an epoch on. bootstrap: on 80% of the images, an average
    copied into the live weights after each epoch. posthoc: on 80% of the images, with snapshots from which windows and
    stopping epochs are chosen afterwards, and statistics recomputed after each epoch to compare with. every T: averages
    with the same horizon, sampled every T steps without a warm-up of the decay. tune at R: the tuning run at another
    learning rate.

    >>> config = ProtocolConfig()
    >>> variant_config("step", config, example_config("refit", config), held_from=1).recipe.training.schedule
    'step'
    """
    bare = replace(refit, keep=(), transfer=(), transfer_fingerprints=())
    curves = replace(config.measuring, recompute="chosen", on_train=False, train_every=1)
    if arm == "step":
        training = replace(config.training, schedule="step")
        return replace(bare, recipe=replace(refit.recipe, training=training, measuring=curves))
    if arm == "constant":
        return replace(bare, constant_from=held_from)
    if arm == "bootstrap":
        average = config.averages.names[min(BOOTSTRAPPED, len(config.averages.names) - 1)]
        training = replace(config.training, bootstrap=average)
        recipe = replace(refit.recipe, training=training, measuring=MeasuringConfig())
        return replace(bare, recipe=recipe, trained_on="80%")
    if arm == "posthoc":
        measuring = MeasuringConfig(recompute="each-epoch", curve_images=config.measuring.curve_images)
        recipe = replace(refit.recipe, measuring=measuring)
        return replace(bare, recipe=recipe, trained_on="80%", posthoc=_POSTHOC)
    if arm.startswith("every "):
        if equals_refit(arm, config):
            return refit
        averages = with_period(config.averages, _period(arm))
        return replace(bare, recipe=replace(refit.recipe, averages=averages, measuring=curves))
    if arm.startswith("tune at "):
        rate, recipe = float(arm.removeprefix("tune at ")), replace(refit.recipe, measuring=MeasuringConfig())
        return replace(bare, recipe=recipe, trained_on="80%", rate=rate)
    raise ValueError(f"there is no arm {arm!r}; give step, constant, bootstrap, posthoc, every or tune at and a number")


def _period(arm: str) -> int:
    return int(arm.removeprefix("every "))


def with_period(averages: AveragesConfig, period: int) -> AveragesConfig:
    """Averages with the same horizon in steps, sampled with another period, and no warm-up, which would confound them.

    >>> with_period(AveragesConfig(decays=(0.998,), every=16), 1).decays
    (0.9998748826609,)
    """
    decays = tuple(round(decay ** (period / averages.every), 13) for decay in averages.decays)
    return replace(averages, decays=decays, every=period, decay_warmup="none")
