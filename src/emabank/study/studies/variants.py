"""The kinds of runs that studies need: how many of each, and the configurations of variants. Imports no torch.

A kind is a stage of the protocol ("tune", "refit", "swa") or a variant ("step", "constant", "bootstrap", "bootstrap
every 5", "posthoc", "every 4", "tune at 0.4"): a refit with the same seed, in which a part of the settings is changed.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from emabank.study.config import AveragesConfig, MeasuringConfig, ProtocolConfig, RunConfig

_POSTHOC = 100  # snapshots per run: about 9 GB for a ResNet-18
BOOTSTRAPPED = 2
"""Index of the average that is copied back into training: the third of the five, the paper's 0.992."""
EVERY_5 = "bootstrap every 5"


def needs_refits(arm: str) -> bool:
    """Whether a kind of run starts from refits, or may be identical to them (`equals_refit`)."""
    return arm in ("swa", "constant") or arm.startswith("every ")


def equals_refit(arm: str, config: ProtocolConfig) -> bool:
    """Whether a variant is identical to the refits of the protocol."""
    return arm.startswith("every ") and with_period(config.averages, _period(arm)) == config.averages


def runs_needed(config: ProtocolConfig, stages: Collection[str], arms: Iterable[str]) -> Counter[str]:
    """The number of runs of each kind, for these stages and variants of a protocol."""
    arms, seeds = tuple(arms), len(config.seed_numbers)
    needed = Counter({"tune": len(config.rates) * seeds})
    if "refit" in stages or "swa" in stages or any(needs_refits(arm) for arm in arms):
        needed["refit"] = seeds
    if "swa" in stages and config.swa:
        needed["swa"] = seeds
    return needed + Counter({arm: seeds for arm in arms if not equals_refit(arm, config)})


def variant_config(arm: str, config: ProtocolConfig, refit: RunConfig, *, held_from: int) -> RunConfig:
    """The configuration of a variant of a refit, unless it is the refit itself (`equals_refit`).

    - step: the learning rate falls in steps.
    - constant: the learning rate is held from epoch `held_from` on.
    - bootstrap: on 80% of the images; an average is copied into the live weights after each epoch.
    - bootstrap every 5: the same with the fastest average every 5 steps, as in lookahead: over 5 steps it moves about
      a fifth of the way to the live weights.
    - posthoc: on 80% of the images, with snapshots from which windows and stopping epochs are chosen after the run.
      Statistics are recomputed after each epoch, for comparison.
    - every T: averages with the same horizon, sampled every T steps, without warm-up of the decay.
    - tune at R: the tuning run at learning rate R.
    """
    bare = replace(refit, keep=(), transfer=(), transfer_fingerprints=())
    curves = replace(config.measuring, recompute="chosen", on_train=False, train_every=1)
    if arm == "step":
        training = replace(config.training, schedule="step")
        return replace(bare, recipe=replace(refit.recipe, training=training, measuring=curves))
    if arm == "constant":
        return replace(bare, constant_from=held_from)
    if arm in ("bootstrap", EVERY_5):
        names = config.averages.names
        training = replace(config.training, bootstrap=names[min(BOOTSTRAPPED, len(names) - 1)])
        if arm == EVERY_5:
            training = replace(config.training, bootstrap=names[0], bootstrap_every=5)
        recipe = replace(refit.recipe, training=training, measuring=MeasuringConfig())
        return replace(bare, recipe=recipe, trained_on="80%")
    if arm == "posthoc":
        measuring = MeasuringConfig(recompute="each-epoch", curve_images=config.measuring.curve_images)
        recipe = replace(refit.recipe, measuring=measuring)
        return replace(bare, recipe=recipe, trained_on="80%", posthoc=_POSTHOC)
    if arm.startswith("every "):
        averages = with_period(config.averages, _period(arm))
        return replace(bare, recipe=replace(refit.recipe, averages=averages, measuring=curves))
    rate, recipe = float(arm.removeprefix("tune at ")), replace(refit.recipe, measuring=MeasuringConfig())
    return replace(bare, recipe=recipe, trained_on="80%", rate=rate)


def _period(arm: str) -> int:
    return int(arm.removeprefix("every "))


def with_period(averages: AveragesConfig, period: int) -> AveragesConfig:
    """Averages with the same horizon in steps and another sampling period. No warm-up: it would confound the two."""
    decays = tuple(round(decay ** (period / averages.every), 13) for decay in averages.decays)
    return replace(averages, decays=decays, every=period, decay_warmup="none")
