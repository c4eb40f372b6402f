"""Made-up results in which all claims hold, curves included, and ways to make one thing in it false."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from emabank.study.report.claim_specs import CLAIMS
from emabank.study.report.claims import Claim, Finding
from emabank.study.report.results import LIVE, Curve, Results, Run, Setting
from emabank.study.studies.scales import Scale
from tests.study.report.made_results import AVERAGES, EPOCHS, PAIRS, SEEDS, column, jitter, made_columns, made_results

RATES = (0.2, 0.4, 0.8)
CHOSEN = AVERAGES[2], 25
T = np.arange(1, EPOCHS + 1) / EPOCHS
Change = Callable[[Curve, np.ndarray], np.ndarray]


def curves(seed: int, *, shift: float = 0.0) -> dict[Curve, np.ndarray]:
    """Averages ahead of the live weights, most of all early; each peaks, falls and meets them at the end."""
    random = np.random.default_rng(seed)
    found: dict[Curve, np.ndarray] = {}
    for split in ("val", "test"):
        live = 0.45 + 0.25 * T + shift
        found[Curve(LIVE, "own", split, "accuracy")] = live + 0.001 * random.random(EPOCHS)
        for order, name in enumerate(AVERAGES):
            peak, height = 0.5 + 0.05 * order, 0.77 + 0.004 * order + shift
            recomputed = np.where(
                peak >= T, height - 0.1 * (peak - T), live[-1] + (height - live[-1]) * (1 - T) / (1 - peak)
            )
            averaged = recomputed - np.where(T < 0.25, 0.4 * order * (0.25 - T), 0.003)
            for batchnorm, curve in (("averaged", averaged), ("recomputed", recomputed)):
                found[Curve(name, batchnorm, split, "accuracy")] = curve + 0.0001 * random.random(EPOCHS)
    for name, batchnorm, later in ((LIVE, "own", 1.0), *((each, "averaged", 3.0) for each in AVERAGES)):
        clean = np.clip(0.6 + 0.5 * T + 0.001 * random.random(EPOCHS), 0, 1)
        found[Curve(name, batchnorm, "train", "clean_accuracy")] = clean
        found[Curve(name, batchnorm, "train", "memorised")] = T**later
    return found


def runs(variant: str, change: Change = lambda key, curve: curve, *, shift: float = 0.0) -> tuple[Run, ...]:
    """One run a seed, each curve as `change` has it."""
    rates = 0.4 * (1 + np.cos(np.pi * T))
    return tuple(
        Run(id=f"{variant}-{seed}", seed=seed, rate=0.8, rates=rates,
            curves={key: change(key, curve) for key, curve in curves(seed, shift=shift).items()})
        for seed in range(SEEDS)
    )  # fmt: skip


def held(key: Curve, curve: np.ndarray) -> np.ndarray:
    """A curve that stays where it is from the chosen epoch on."""
    return np.where(np.arange(EPOCHS) < CHOSEN[1], curve, curve[CHOSEN[1] - 1])


def matching(key: Curve, curve: np.ndarray) -> np.ndarray:
    """Live weights and averages that are all but the same, at every epoch."""
    return 0.6 + 0.0005 * len(key.weights) + 0 * curve


@cache
def variants() -> dict[str, tuple[Run, ...]]:
    made = {variant: runs(variant) for variant in ("tune", "refit", "every 1", "every 2", "every 4", "every 8")}
    made |= {"constant": runs("constant", held), "step": runs("step", matching), "bootstrap": runs("b", shift=-0.02)}
    made |= {f"tune at {rate:g}": runs("t", shift=-abs(rate - 0.4)) for rate in RATES}
    return made


def setting(
    pair: str = "cifar100-resnet18",
    *,
    scale: Scale = "demo",
    changed: Mapping[tuple[str, str], float] | None = None,
    **other: tuple[Run, ...],
) -> Setting:
    """A setting in which every claim holds; `changed` measures and `other` variants aside."""
    named = {variant.replace("_", " "): own for variant, own in other.items()}
    choice = {"rate": 0.8, "live_epoch": 38, "averages": {"accuracy": CHOSEN, "loss": (AVERAGES[2], 20)}}
    return Setting(
        scale=scale, pair=pair, title=f"digits, ResNet-8 ({pair})", dataset="digits", network="resnet8",
        protocol=f"protocol-{pair}", averages=AVERAGES, has_batchnorm="vgg" not in pair,
        choices=[{"seed": seed, **choice} for seed in range(SEEDS)],
        columns=made_columns({("SWA", "accuracy"): 0.785, **(changed or {})}),
        variants={**variants(), **named},
    )  # fmt: skip


def results(*settings: Setting) -> Results:
    """Results of these settings, or of one for each of the paper's pairs."""
    return made_results(*(settings or (setting(pair) for pair in PAIRS)))


def chosen_with_noisy_labels(
    setting: Setting, *, average: float = 0.775, live: float = 0.75, epoch: int = 24
) -> Setting:
    """The same with what noisy validation labels chose beside it."""
    made = [column("EMA (acc., noisy)", "100%", "test", {"accuracy": jitter(average)}),
            column("EMA (loss, noisy)", "100%", "test", {"accuracy": jitter(average)}),
            column("SGD (best, noisy)", "100%", "test", {"accuracy": jitter(live)})]  # fmt: skip
    epochs = [epoch, epoch - 10, epoch]
    noisy = [replace(own, epochs=[at] * SEEDS) for own, at in zip(made, epochs, strict=True)]
    return replace(setting, columns=[*setting.columns, *noisy])


def leaderboard(accuracy: float) -> Results:
    changed = {("slowest (acc.)", "accuracy"): accuracy}
    pairs = ("cifar100n-resnet34", "cifar10n-resnet34")
    made = [setting(pair, scale="paper", changed=changed) for pair in pairs]
    return results(*(replace(each, dataset=each.pair.partition("-")[0], network="resnet34") for each in made))


def findings_of(claim: Claim, key: str) -> list[Finding]:
    """The findings of a statistic, the mean over settings first if it is the primary one."""
    return [finding for finding in claim.findings if finding.key == key]


def by_hand(
    curves: Mapping[tuple[str, str, str, str], list[list[float]]],
    *,
    variant: str = "refit",
    averages: tuple[str, ...] = ("a", "b"),
) -> Setting:
    """A setting with one variant whose curves are written down: for each of them a list a seed."""
    seeds = range(len(next(iter(curves.values()))))
    made = tuple(
        Run(id=f"{variant}-{seed}", seed=seed, rate=0.8,
            rates=np.linspace(1, 0, len(next(iter(curves.values()))[seed])),
            curves={Curve(*key): np.array(by_seed[seed]) for key, by_seed in curves.items()})
        for seed in seeds
    )  # fmt: skip
    choice = {"rate": 0.8, "live_epoch": 1, "averages": {"accuracy": (averages[0], 2), "loss": (averages[0], 1)}}
    return Setting(
        scale="demo", pair="cifar100n-resnet34", title="by hand", dataset="digits", network="resnet8", protocol="p",
        averages=averages, has_batchnorm=True, choices=[{"seed": seed, **choice} for seed in seeds], columns=[],
        variants={variant: made},
    )  # fmt: skip


def values(number: str, key: str, setting: Setting) -> list[float | None]:
    """The values of a statistic by seed, as the claim takes them of a setting that has one sample at the most."""
    (statistic,) = [
        statistic for spec in CLAIMS for statistic in spec.statistics if (spec.number, statistic.key) == (number, key)
    ]
    return [value for sample in statistic.sample(setting) for value in sample.by_seed.values()]
