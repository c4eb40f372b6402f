"""Made-up results in which every claim of the paper holds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from emabank.study.config import DataConfig, ProtocolConfig
from emabank.study.report.results import LIVE, OF_PAIRS, Column, Curve, Overhead, Results, Run, Setting
from emabank.study.runs.manifest import Manifest
from emabank.study.studies.scales import Scale

AVERAGES = ("ema-0.44%", "ema-0.88%", "ema-1.8%", "ema-3.5%", "ema-7.1%")
SEEDS = 3
EPOCHS = 40
PAIRS = (
    "cifar100-resnet18", "cifar100-vgg16", "cifar100-wrn-28-10", "cifar10-resnet18", "tiny-imagenet-resnet18",
    "cifar100n-resnet34", "cifar10n-resnet34", "cifar100n-resnet18",
)  # fmt: skip
VARIANTS = (
    "tune", "refit", "swa", "step", "constant", "bootstrap", "posthoc", "every 1", "every 2", "every 4", "every 8",
)  # fmt: skip
RATES = (0.2, 0.4, 0.8, 1.2)

# Test measures of the refits by column; churn and js have one value per pair of seeds: three as well.
MEASURES = ("accuracy", "loss", "churn", "js", "ece", "ece_ts", "transfer:other")
COLUMNS: dict[str, dict[str, float]] = {
    title: dict(zip(MEASURES, means, strict=True))
    for title, means in {
        "SGD": (0.76, 1.02, 0.19, 0.06, 0.11, 0.05, 0.50),
        "SGD (best)": (0.765, 1.00, 0.19, 0.06, 0.11, 0.05, 0.51),
        "EMA (acc.)": (0.78, 0.86, 0.15, 0.04, 0.09, 0.04, 0.54),
        "EMA (loss)": (0.775, 0.82, 0.13, 0.03, 0.07, 0.03, 0.56),
        "slowest (acc.)": (0.79, 0.84, 0.13, 0.035, 0.085, 0.035, 0.57),
        "slowest (loss)": (0.785, 0.81, 0.12, 0.025, 0.065, 0.025, 0.59),
        "SWA": (0.791, 0.85, 0.13, 0.035, 0.08, 0.03, 0.57),
    }.items()
}


def make_column(title: str, trained_on: str, split: str, values: Mapping[str, Sequence[float | None]]) -> Column:
    average = AVERAGES[-1 if title.startswith("slowest") else 2]
    weights = "live" if title.startswith("SGD") else "swa" if title == "SWA" else average
    return Column(
        title=title,
        trained_on=trained_on,
        split=split,
        epochs=[EPOCHS if title in ("SGD", "SWA") else 20 if "loss" in title else 25] * SEEDS,
        weights=[weights] * SEEDS,
        kept=[f"{weights}-accuracy" if weights == LIVE else f"{weights}-recomputed-loss"] * SEEDS,
        values=values,
    )


def jitter(value: float, size: float = 0.001) -> list[float]:
    """One value per seed; the differences between seeds are much the same everywhere, as in paired runs."""
    return [value + size * (seed - 1) + 0.1 * size * np.sin(97 * value + seed) for seed in range(SEEDS)]


def make_columns(changed: Mapping[tuple[str, str], float] | None = None) -> list[Column]:
    """The columns of all stages; `changed` replaces means by (column, metric)."""
    columns: list[Column] = []
    for trained_on, split in (("80%", "val"), ("80%", "test"), ("100%", "test")):
        for title, measures in COLUMNS.items():
            if title == "SWA" and trained_on == "80%":
                continue
            values = {metric: jitter((changed or {}).get((title, metric), mean)) for metric, mean in measures.items()
                      if trained_on == "100%" or not metric.startswith("transfer:")}  # fmt: skip
            columns.append(make_column(title, trained_on, split, values))
    return columns


def make_curves(*, gain: float = 0.03, peak: float = 0.6, late: float = 0.0) -> dict[Curve, np.ndarray]:
    """The curves of one run: averages are ahead of the live weights, most of all early, and peak at `peak` of the run.

    `gain` is their lead at the peak, `late` their difference at the end.
    """
    t = np.arange(1, EPOCHS + 1) / EPOCHS
    live = 0.4 + 0.36 * t
    curves: dict[Curve, np.ndarray] = {}
    for split in ("val", "test", "train"):
        curves[Curve(LIVE, "own", split, "accuracy")] = live
        curves[Curve(LIVE, "own", split, "loss")] = 2.0 - live
        for order, name in enumerate(AVERAGES):
            top = min(0.95, peak + 0.03 * order)
            shape = np.where(t <= top, t / top, np.clip((1 - t) / (1 - top), 0, 1))
            ahead = (gain + 0.004 * order) * (shape + 1.5 * np.exp(-((t - 0.12) ** 2) / 0.005)) + late * t
            recomputed = live + ahead
            averaged = recomputed - np.where(t < 0.2, 0.1 * order * (0.2 - t) / 0.2, 0.002)
            for batchnorm, found in (("averaged", averaged), ("recomputed", recomputed)):
                curves[Curve(name, batchnorm, split, "accuracy")] = found
                curves[Curve(name, batchnorm, split, "loss")] = 2.0 - found
    for name, batchnorm, later in ((LIVE, "own", 1.0), *((average, "averaged", 2.5) for average in AVERAGES)):
        curves[Curve(name, batchnorm, "train", "clean_accuracy")] = np.clip(
            0.5 + 0.6 * t * (1 + 0.4 * (later > 1)), 0, 1
        )
        curves[Curve(name, batchnorm, "train", "memorised")] = t**later
    return curves


def make_runs(variant: str, *, rate: float = 0.8, **shape: float) -> tuple[Run, ...]:
    """One run per seed."""
    runs: list[Run] = []
    for seed in range(SEEDS):
        curves = {key: found + 0.001 * (seed - 1) + 0.0001 * np.sin(seed + 5 * np.arange(EPOCHS))
                  for key, found in make_curves(**shape).items()}  # fmt: skip
        rates = rate * (1 + np.cos(np.pi * np.arange(1, EPOCHS + 1) / EPOCHS)) / 2
        runs.append(Run(id=f"{variant.replace(' ', '-')}-{seed}", seed=seed, rate=rate, rates=rates, curves=curves,
                        conditions={"torch": "2.13.0", "emabank": "0.1.0", "cpu": "made up", "threads": 1},
                        predictions=make_predictions))  # fmt: skip
    return tuple(runs)


def make_posthoc(run: Run) -> dict[Curve, np.ndarray]:
    """Post-hoc averages at every other epoch: those of the run with small errors, and two longer ones."""
    curves: dict[Curve, np.ndarray] = {}
    tried = np.where(np.arange(1, EPOCHS + 1) % 2 == 0, 1.0, np.nan)
    for order, name in enumerate((*AVERAGES, "ema-10%", "ema-14%")):
        for batchnorm in ("averaged", "recomputed"):
            curve = run.curves[Curve(AVERAGES[min(order, 4)], batchnorm, "val", "accuracy")]
            curves[Curve(name, batchnorm, "val", "accuracy")] = (curve + 0.0005 * (order + 1)) * tried
            curves[Curve(name, batchnorm, "val", "profile_error")] = 0.2 / (order + 1) * tried
        if name in AVERAGES:
            off = np.full(EPOCHS, np.nan)
            off[-1] = 0.001 * (5 - order)
            curves[Curve(name, "averaged", "val", "weight_distance")] = off
    return curves


def make_predictions(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits of 400 images in 10 classes, overconfident for live weights."""
    random = np.random.default_rng(len(name))
    labels = random.integers(0, 10, 400)
    logits = random.normal(size=(400, 10))
    logits[np.arange(400), labels] += 2.0
    return {split: ((3.0 if name.startswith(LIVE) else 1.2) * logits, labels) for split in ("val", "test")}


def make_setting(
    pair: str = "cifar100-resnet18", *, scale: Scale = "demo", changed: Mapping[tuple[str, str], float] | None = None,
    variants: Mapping[str, tuple[Run, ...]] | None = None, has_batchnorm: bool = True,
) -> Setting:  # fmt: skip
    """A setting with every variant; `changed` replaces means of the columns, `variants` whole variants."""
    every = {variant: make_runs(variant) for variant in VARIANTS}
    constant = make_runs("constant", gain=0.03, peak=0.95, late=0.03)
    every["constant"] = tuple(replace(run, constant_from=25) for run in constant)
    every["bootstrap"] = tuple(
        Run(id=f"bootstrap-{run.seed}", seed=run.seed, rate=run.rate, rates=run.rates, conditions=run.conditions,
            copied_back=AVERAGES[2], curves={key: found - 0.02 for key, found in run.curves.items()})
        for run in make_runs("bootstrap")
    )  # fmt: skip
    every["posthoc"] = tuple(replace(run, posthoc=make_posthoc(run)) for run in make_runs("posthoc"))
    for rate in RATES:
        worse = 0.02 * abs(RATES.index(rate) - 2)
        every[f"tune at {rate:g}"] = tuple(
            Run(id=f"tune-{rate:g}-{run.seed}", seed=run.seed, rate=rate, rates=run.rates, conditions=run.conditions,
                curves={key: found - worse for key, found in run.curves.items()})
            for run in make_runs("tune", rate=rate)
        )  # fmt: skip
    choice = {"rate": 0.8, "live_epoch": 38, "averages": {"accuracy": (AVERAGES[2], 25), "loss": (AVERAGES[2], 20)}}
    return Setting(
        scale=scale, pair=pair, title=f"digits, ResNet-8 ({pair})", dataset="digits", network="resnet8",
        protocol=f"protocol-{pair}", averages=AVERAGES, has_batchnorm=has_batchnorm,
        choices=[{"seed": seed, **choice} for seed in range(SEEDS)], columns=make_columns(changed),
        variants={**every, **(variants or {})}, config=ProtocolConfig(seeds=SEEDS, rates=RATES),
    )  # fmt: skip


def config_with(**data: Any) -> ProtocolConfig:
    return ProtocolConfig(data=DataConfig(**data))


def make_results(*settings: Setting) -> Results:
    """Results with these settings, by default one for each pair of the paper."""
    return Results(
        settings=settings or tuple(make_setting(pair) for pair in PAIRS),
        studies=(Manifest(study="generalization", scale="demo", command="emabank run generalization", state="done"),),
        overheads=(
            Overhead(network="resnet8", parameters=78042, averages=5, every=16, step_seconds=(0.1, 0.11, 0.1),
                     update_seconds=(0.001, 0.0011, 0.001), bytes=5 * 78042 * 4, conditions={"threads": 1}),
        ),
    )  # fmt: skip


# Variations -----------------------------------------------------------------------------------------------------------


@cache
def distinct_setting(pair: str = "cifar100-resnet18") -> Setting:
    """A setting with every variant, made once; no two columns, variants or splits are the same."""
    setting = make_setting(pair)
    columns = [
        replace(column, values={metric: [value + 1e-4 * index for value in values]  # type: ignore[operator]
                                for metric, values in column.values.items()})
        for index, column in enumerate(setting.columns)
    ]  # fmt: skip
    variants = {
        variant: tuple(
            replace(
                run, curves={key: curve + 1e-4 * index + 1e-5 * len(key.split) for key, curve in run.curves.items()}
            )
            for run in runs
        )
        for index, (variant, runs) in enumerate(setting.variants.items())
    }
    return replace(setting, columns=columns, variants=variants)


def paper_setting(pair: str, **changed: Any) -> Setting:
    """A setting with the full data set and the network of the paper."""
    dataset, network = pair.split("-resnet")
    fields = {"scale": "paper", "title": pair, "dataset": dataset, "network": f"resnet{network}", **changed}
    return replace(distinct_setting(pair), **fields)


def with_values(setting: Setting, values: Mapping[str, Sequence[float | None]], *titles: str) -> Setting:
    """Replace values, by metric, in the columns with these titles (by default in all)."""
    columns = [
        replace(column, values={**column.values, **values}) if not titles or column.title in titles else column
        for column in setting.columns
    ]
    return replace(setting, columns=columns)


def first_seeds(setting: Setting, count: int) -> Setting:
    """Only the first seeds, and the pairs of these."""
    pairs = count * (count - 1) // 2
    columns = [
        replace(
            column,
            epochs=column.epochs[:count],
            weights=column.weights[:count],
            kept=column.kept[:count],
            values={metric: list(values[: pairs if metric in OF_PAIRS else count])
                    for metric, values in column.values.items()},
        )
        for column in setting.columns
    ]  # fmt: skip
    variants = {variant: runs[:count] for variant, runs in setting.variants.items()}
    return replace(setting, columns=columns, choices=list(setting.choices)[:count], variants=variants)


def fewer_averages(setting: Setting, count: int) -> Setting:
    """Only the first averages: validation chose the last of them, and bootstrap copies the third if there is one."""
    names = AVERAGES[:count]

    def cut(run: Run) -> Run:
        curves = {key: curve for key, curve in run.curves.items() if key.weights in (LIVE, *names)}
        return replace(run, curves=curves, copied_back=run.copied_back and names[min(2, count - 1)])

    variants = {variant: tuple(map(cut, runs)) for variant, runs in setting.variants.items()}
    choices = [{**choice, "averages": {key: (names[-1], epoch) for key, (_, epoch) in choice["averages"].items()}}
               for choice in setting.choices]  # fmt: skip
    return replace(setting, averages=names, variants=variants, choices=choices)
