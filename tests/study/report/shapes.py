"""Made-up results in which all claims hold, and ways to make one statistic false."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from emabank.study.report.claim_specs import CLAIMS
from emabank.study.report.claims import Claim, Finding
from emabank.study.report.results import LIVE, Curve, Results, Run, Setting
from emabank.study.studies.scales import Scale
from tests.study.report.example_results import (
    AVERAGES,
    EPOCHS,
    PAIRS,
    SEEDS,
    jitter,
    make_column,
    make_columns,
    make_results,
)

RATES = (0.2, 0.4, 0.8)
CHOSEN = AVERAGES[2], 25
T = np.arange(1, EPOCHS + 1) / EPOCHS
Change = Callable[[Curve, np.ndarray], np.ndarray]


def curves(seed: int, *, shift: float = 0.0) -> dict[Curve, np.ndarray]:
    """Averages are ahead of the live weights, most of all early; each peaks, falls and meets them at the end."""
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
    for name, batchnorm, later in ((LIVE, "own", 1.0), *((average, "averaged", 3.0) for average in AVERAGES)):
        clean = np.clip(0.6 + 0.5 * T + 0.001 * random.random(EPOCHS), 0, 1)
        found[Curve(name, batchnorm, "train", "clean_accuracy")] = clean
        found[Curve(name, batchnorm, "train", "memorised")] = T**later
    return found


def runs(variant: str, change: Change = lambda key, curve: curve, *, shift: float = 0.0) -> tuple[Run, ...]:
    """One run per seed, with each curve changed by `change`."""
    rates = 0.4 * (1 + np.cos(np.pi * T))
    return tuple(
        Run(id=f"{variant}-{seed}", seed=seed, rate=0.8, rates=rates,
            curves={key: change(key, curve) for key, curve in curves(seed, shift=shift).items()})
        for seed in range(SEEDS)
    )  # fmt: skip


def constant_after_choice(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where(np.arange(EPOCHS) < CHOSEN[1], curve, curve[CHOSEN[1] - 1])


def matching(key: Curve, curve: np.ndarray) -> np.ndarray:
    """Live weights and averages are almost equal at every epoch."""
    return 0.6 + 0.0005 * len(key.weights) + 0 * curve


@cache
def variants() -> dict[str, tuple[Run, ...]]:
    by_name = {variant: runs(variant) for variant in ("tune", "refit", "every 1", "every 2", "every 4", "every 8")}
    by_name |= {f"tune at {rate:g}": runs("t", shift=-abs(rate - 0.4)) for rate in RATES}
    by_name |= {"constant": runs("constant", constant_after_choice), "step": runs("step", matching)}
    by_name["bootstrap"] = runs("b", shift=-0.02)
    return by_name


def setting(
    pair: str = "cifar100-resnet18",
    *,
    scale: Scale = "demo",
    changed: Mapping[tuple[str, str], float] | None = None,
    **other: tuple[Run, ...],
) -> Setting:
    """A setting in which every claim holds but for the `changed` means and the `other` variants."""
    replaced = {variant.replace("_", " "): runs for variant, runs in other.items()}
    choice = {"rate": 0.8, "live_epoch": 38, "averages": {"accuracy": CHOSEN, "loss": (AVERAGES[2], 20)}}
    return Setting(
        scale=scale, pair=pair, title=f"digits, ResNet-8 ({pair})", dataset="digits", network="resnet8",
        protocol=f"protocol-{pair}", averages=AVERAGES, has_batchnorm="vgg" not in pair,
        choices=[{"seed": seed, **choice} for seed in range(SEEDS)],
        columns=make_columns({("SWA", "accuracy"): 0.785, **(changed or {})}),
        variants={**variants(), **replaced},
    )  # fmt: skip


def results(*settings: Setting) -> Results:
    """Results of these settings, by default of one for each pair of the paper."""
    return make_results(*(settings or (setting(pair) for pair in PAIRS)))


def chosen_with_noisy_labels(
    setting: Setting, *, average: float = 0.775, live: float = 0.75, epoch: int = 24
) -> Setting:
    """Add the columns chosen by noisy validation labels."""
    noisy = (("EMA (acc., noisy)", average, epoch), ("EMA (loss, noisy)", average, epoch - 10),
             ("SGD (best, noisy)", live, epoch))  # fmt: skip
    columns = [
        replace(make_column(title, "100%", "test", {"accuracy": jitter(mean)}), epochs=[chosen] * SEEDS)
        for title, mean, chosen in noisy
    ]
    return replace(setting, columns=[*setting.columns, *columns])


def leaderboard(accuracy: float) -> Results:
    changed = {("slowest (acc.)", "accuracy"): accuracy}
    pairs = ("cifar100n-resnet34", "cifar10n-resnet34")
    settings = [setting(pair, scale="paper", changed=changed) for pair in pairs]
    return results(*(replace(one, dataset=one.pair.partition("-")[0], network="resnet34") for one in settings))


def findings_of(claim: Claim, key: str) -> list[Finding]:
    """The findings of a statistic; of the primary one, the mean over settings is first."""
    return [finding for finding in claim.findings if finding.key == key]


def setting_from_curves(
    curves: Mapping[tuple[str, str, str, str], list[list[float]]],
    *,
    variant: str = "refit",
    averages: tuple[str, ...] = ("a", "b"),
) -> Setting:
    """A setting with one variant; each curve is a list per seed."""
    seeds = range(len(next(iter(curves.values()))))
    runs = tuple(
        Run(id=f"{variant}-{seed}", seed=seed, rate=0.8,
            rates=np.linspace(1, 0, len(next(iter(curves.values()))[seed])),
            curves={Curve(*key): np.array(by_seed[seed]) for key, by_seed in curves.items()})
        for seed in seeds
    )  # fmt: skip
    choice = {"rate": 0.8, "live_epoch": 1, "averages": {"accuracy": (averages[0], 2), "loss": (averages[0], 1)}}
    return Setting(
        scale="demo", pair="cifar100n-resnet34", title="by hand", dataset="digits", network="resnet8", protocol="p",
        averages=averages, has_batchnorm=True, choices=[{"seed": seed, **choice} for seed in seeds], columns=[],
        variants={variant: runs},
    )  # fmt: skip


def values(number: str, key: str, setting: Setting) -> list[float | None]:
    """The values of a statistic by seed in a setting that has at most one sample."""
    (statistic,) = [
        statistic for spec in CLAIMS for statistic in spec.statistics if (spec.number, statistic.key) == (number, key)
    ]
    return [value for sample in statistic.sample(setting) for value in sample.by_seed.values()]
