"""Made-up results in which every claim of the paper holds, ways to change them, and ways to look into tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from emabank.study.config import DataConfig, ProtocolConfig
from emabank.study.report.claim_specs import CLAIMS
from emabank.study.report.claims import Claim, Finding
from emabank.study.report.render import group_titles
from emabank.study.report.results import LIVE, OF_PAIRS, Column, Curve, Overhead, Results, Run, Setting
from emabank.study.report.tables import Cell, Table
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
CHOSEN = AVERAGES[2], 25
T = np.arange(1, EPOCHS + 1) / EPOCHS
Change = Callable[[Curve, np.ndarray], np.ndarray]

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
        "SWA": (0.785, 0.85, 0.13, 0.035, 0.08, 0.03, 0.57),
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


def make_curves(seed: int, *, shift: float = 0.0) -> dict[Curve, np.ndarray]:
    """Averages are ahead of the live weights, most of all early; each peaks, falls and meets them at the end."""
    random = np.random.default_rng(seed)
    curves: dict[Curve, np.ndarray] = {}
    for split in ("val", "test"):
        live = 0.45 + 0.25 * T + shift
        curves[Curve(LIVE, "own", split, "accuracy")] = live + 0.001 * random.random(EPOCHS)
        for order, name in enumerate(AVERAGES):
            peak, height = 0.5 + 0.05 * order, 0.77 + 0.004 * order + shift
            recomputed = np.where(
                peak >= T, height - 0.1 * (peak - T), live[-1] + (height - live[-1]) * (1 - T) / (1 - peak)
            )
            averaged = recomputed - np.where(T < 0.25, 0.4 * order * (0.25 - T), 0.003)
            for batchnorm, curve in (("averaged", averaged), ("recomputed", recomputed)):
                curves[Curve(name, batchnorm, split, "accuracy")] = curve + 0.0001 * random.random(EPOCHS)
    for name, batchnorm, later in ((LIVE, "own", 1.0), *((average, "averaged", 3.0) for average in AVERAGES)):
        clean = np.clip(0.6 + 0.5 * T + 0.001 * random.random(EPOCHS), 0, 1)
        curves[Curve(name, batchnorm, "train", "clean_accuracy")] = clean
        curves[Curve(name, batchnorm, "train", "memorised")] = T**later
    return curves


def make_runs(
    variant: str, change: Change = lambda key, curve: curve, *, rate: float = 0.8, shift: float = 0.0
) -> tuple[Run, ...]:
    """One run per seed, with each curve changed by `change`."""
    return tuple(
        Run(id=f"{variant.replace(' ', '-')}-{seed}", seed=seed, rate=rate, rates=rate * (1 + np.cos(np.pi * T)) / 2,
            curves={key: change(key, curve) for key, curve in make_curves(seed, shift=shift).items()},
            conditions={"torch": "2.13.0", "emabank": "0.1.0", "cpu": "made up", "threads": 1},
            predictions=make_predictions)
        for seed in range(SEEDS)
    )  # fmt: skip


def constant_after_choice(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where(np.arange(EPOCHS) < CHOSEN[1], curve, curve[CHOSEN[1] - 1])


def matching(key: Curve, curve: np.ndarray) -> np.ndarray:
    """Live weights and averages are almost equal at every epoch."""
    return 0.6 + 0.0005 * len(key.weights) + 0 * curve


@cache
def make_variants() -> dict[str, tuple[Run, ...]]:
    every = {variant: make_runs(variant) for variant in VARIANTS}
    every["step"] = make_runs("step", matching)
    every["constant"] = tuple(replace(run, constant_from=CHOSEN[1]) for run in make_runs("c", constant_after_choice))
    every["bootstrap"] = tuple(replace(run, copied_back=AVERAGES[2]) for run in make_runs("b", shift=-0.02))
    every["posthoc"] = tuple(replace(run, posthoc=make_posthoc(run)) for run in every["posthoc"])
    tuned = {rate: make_runs(f"tune-{rate:g}", rate=rate, shift=-0.1 * abs(rate - 0.8)) for rate in RATES}
    return {**every, **{f"tune at {rate:g}": runs for rate, runs in tuned.items()}}


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
    variants: Mapping[str, tuple[Run, ...]] | None = None,
) -> Setting:  # fmt: skip
    """A setting with every variant; `changed` replaces means of the columns, `variants` whole variants."""
    choice = {"rate": 0.8, "live_epoch": 38, "averages": {"accuracy": CHOSEN, "loss": (AVERAGES[2], 20)}}
    return Setting(
        scale=scale, pair=pair, title=f"digits, ResNet-8 ({pair})", dataset="digits", network="resnet8",
        protocol=f"protocol-{pair}", averages=AVERAGES, has_batchnorm="vgg" not in pair,
        choices=[{"seed": seed, **choice} for seed in range(SEEDS)], columns=make_columns(changed),
        variants={**make_variants(), **(variants or {})}, config=ProtocolConfig(seeds=SEEDS, rates=RATES),
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


def paper_setting(pair: str, **changed: Any) -> Setting:
    """A setting with the full data set and the network of the paper."""
    dataset, network = pair.split("-resnet")
    fields = {"scale": "paper", "title": pair, "dataset": dataset, "network": f"resnet{network}", **changed}
    return replace(make_setting(pair), **fields)


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
    settings = [make_setting(pair, scale="paper", changed=changed) for pair in pairs]
    return make_results(*(replace(one, dataset=one.pair.partition("-")[0], network="resnet34") for one in settings))


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


# Looking into tables --------------------------------------------------------------------------------------------------


def table_named(tables: Sequence[Table], name: str) -> Table:
    (table,) = [table for table in tables if table.name == name]
    return table


def cell_at(table: Table, label: str, column: str, group: str = "") -> Cell:
    """The cell in the row with this label, in the column with this title (and group)."""
    (cells,) = [row.cells for row in table.rows if row.label == label]
    titles = list(zip(group_titles(table), table.columns, strict=True))[1:]
    (index,) = [index for index, (above, title) in enumerate(titles) if title == column and group in ("", above)]
    return cells[index]


def are_complete(tables: Sequence[Table]) -> bool:
    """Whether every row has a cell for each column, groups span all columns, and rules are between rows."""
    return all(
        len(row.cells) == len(table.columns) - 1
        and (not table.groups or sum(span for _, span in table.groups) == len(table.columns))
        and all(0 < place < len(table.rows) for place in table.breaks)
        for table in tables
        for row in table.rows
    )
