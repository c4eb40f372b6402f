"""Every table of the report: what stands in it, beside which numbers of the paper, and what its caption says."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from emabank.study.report import paper, series
from emabank.study.report.results import LIVE, TRANSFER, Overhead, Results, Setting
from emabank.study.report.series import (
    REFIT,
    TUNED,
    TUNED_ON_TEST,
    MakeCurve,
    OnTrain,
    Reached,
    Stage,
    by_seed,
    chosen_epoch,
    minus,
    peak,
)
from emabank.study.report.tables import (
    DASH,
    METRICS,
    MISSING,
    Cell,
    ColumnSpec,
    Lines,
    Row,
    Table,
    column_table,
    difference_cell,
    epoch_cell,
    has_values,
    label_of,
    labels_of,
    percent_cell,
    reference_note,
    selection_note,
    setting_table,
    settings_for,
    value_cell,
    with_best,
    with_best_by_column,
)
from emabank.study.studies.scales import CLEAN, MAIN, NOISY, PAIRS, Scale

OVER_SEEDS = "Mean ± standard deviation over seeds."
OVER_PAIRS = "Mean ± standard deviation over seeds, over pairs of seeds for churn and JS."
PAIRED = "Differences are paired: of each seed, then mean ± standard deviation."
JS_SCALE = (
    "JS: Jensen–Shannon divergence, natural logarithm, at most 0.693. The paper's JS has another scale (it prints up "
    "to 0.85), so only ratios compare."
)
SLOWEST = (
    "the average with the longest memory, batch-norm statistics recomputed where the network has any, at the epochs "
    "chosen on validation"
)
IF_CALIBRATED = "ECE if calibrated: the ECE that a perfectly calibrated model with these confidences would have."
ORACLE = (
    "oracle: read off the measured curve itself at its highest point, so it is a little too good; nobody who has to "
    "choose an epoch beforehand can see it."
)
ACC, LOSS = "slowest (acc.)", "slowest (loss)"
"""As in the paper, EMA is the slowest average, recomputed."""


def make_tables(results: Results) -> list[Table]:
    """Every table that the results allow, the largest scale first; last, what belongs to no scale.

    The name of a table begins with its scale, as that of a figure does.
    """
    tables = [table for scale in results.scales for make in _TABLES for table in make(results, scale)]
    tables = [replace(table, name=f"{table.scale}/{table.name}") for table in tables]
    return [*tables, equivalence(), *overhead(results)]


# Generalisation -------------------------------------------------------------------------------------------------------

BASELINES = {"SGD (best)": "SGD (best)", "SGD": "SGD (last)"}
"""The live weights of a refit at the epoch that tuning chose for them, as for an average; and at the last, as in the
paper."""
AVERAGES = {ACC: "EMA (acc.)", LOSS: "EMA (loss)"}


def headline(results: Results, scale: Scale) -> list[Table]:
    """Accuracy and loss on test of SGD, EMA by both criteria, and SWA's accuracy; then the paired differences."""
    settings = settings_for(results, scale, CLEAN)
    specs = [
        ColumnSpec(METRICS[metric].short, column, metric, group=title)
        for column, title in {**BASELINES, **AVERAGES, "SWA": "SWA"}.items()
        for metric in ("accuracy", "loss")
        if (column, metric) != ("SWA", "loss")
    ]
    gains = [spec._replace(title=spec.title.replace("%", "points"), op="minus") for spec in specs[4:]]
    notes = (
        f"EMA: {SLOWEST}. SGD (best): the live weights at the epoch that validation chose for them, so that both sides "
        "stop where they choose. SGD (last): at the last epoch, as in the paper.",
        *reference_note(settings),
    )

    return [
        *column_table(
            "generalization/headline", "Test accuracy and loss of SGD, its averages, and SWA", settings, specs, REFIT,
            source="Table 1", item="Table 1", scale=scale, notes=notes,
            caption=f"Trained on all training images. {OVER_SEEDS} Bold: the best accuracy and loss of a row.",
        ),
        *column_table(
            "generalization/differences", "Test accuracy and loss: paired difference to SGD", settings, gains, REFIT,
            source="Table 1", baselines={f"minus {title}": column for column, title in BASELINES.items()}, scale=scale,
            caption=f"Above 0 is better in accuracy, below 0 in loss. {PAIRED}", notes=(paper.OF_MEANS, *notes),
        ),
    ]  # fmt: skip


def summary(results: Results, scale: Scale) -> list[Table]:
    """Tuning: accuracy and loss on validation, and the mean epoch that was chosen."""
    settings = settings_for(results, scale, CLEAN)
    titles = {"accuracy": "acc., %", "loss": "loss", "epoch": "epoch"}
    specs = [
        ColumnSpec(titles[metric], column, metric, group=title)
        for column, title in {"SGD": "SGD", **AVERAGES}.items()
        for metric in titles
    ]

    return column_table(
        "generalization/summary-80", "Trained on 80%: accuracy, loss, and the epoch that was chosen", settings, specs,
        TUNED, source="Table 6", item="Table 6", scale=scale,
        caption=f"Measured on the validation images that epochs were chosen on. {OVER_SEEDS} "
        "Bold: the best accuracy and the lowest loss of a row.",
        notes=(
            f"EMA: {SLOWEST}. SGD: the live weights at their best epoch.",
            "The paper's text speaks of test accuracy here; what it prints is in its validation tables.",
            *reference_note(settings),
        ),
    )  # fmt: skip


def full(results: Results, scale: Scale) -> list[Table]:
    """All that the protocol measured of each setting, in tuning and of the refits, with what each seed chose."""
    tables: list[Table] = []
    for _, settings in groupby(settings_for(results, scale, (*CLEAN, *NOISY)), key=lambda setting: setting.pair):
        for place, setting in enumerate(settings, 1):
            for stage in (TUNED, REFIT):
                tables += _full(setting, stage, suffix="" if place == 1 else f"-{place}")
    return tables


def _full(setting: Setting, stage: Stage, *, suffix: str) -> list[Table]:
    columns = series.columns_of(setting, stage)

    def printed(column: str, metric: str) -> str:
        return paper.lookup_full(setting.pair, column, metric, trained_on=stage.trained_on)

    rows: list[Row] = []
    for name, metric in METRICS.items():
        cells = [
            value_cell(setting, column.title, name, stage, paper=printed(column.title, name)) for column in columns
        ]
        if has_values(cells):
            best = range(len(cells)) if name != "ece_if_calibrated" else ()
            rows.append(Row(metric.title, with_best(cells, best, lower=metric.lower_is_better)))
    if not rows:
        return []
    rates = [f"{choice['rate']:g}" for choice in setting.choices]
    listed = {
        "epochs": [_by_seed([str(epoch) for epoch in column.epochs], always=True) for column in columns],
        "decay (average)": [_by_seed([_short(weights) for weights in column.weights]) for column in columns],
        "learning rate": [_by_seed(rates)] * len(columns),
    }
    metrics = ("epochs", "decay", "rate")
    chosen = [
        Row(title, [Cell(text=text, paper=printed(column.title, metric))
                    for column, text in zip(columns, texts, strict=True)])
        for (title, texts), metric in zip(listed.items(), metrics, strict=True)
    ]  # fmt: skip
    titles = {ACC: "EMA (acc.) (BN)", LOSS: "EMA (loss) (BN)"}
    sgd = "at their best epoch" if stage == TUNED else "at the last epoch; SGD (best): at the epoch tuning chose"
    measured = "validation" if stage == TUNED else "test"
    return [
        Table(
            name=f"generalization/full-{setting.pair}-{stage.trained_on.rstrip('%')}{suffix}",
            title=f"{label_of(setting)}: trained on {stage.trained_on}, measured on {measured}",
            columns=["", *(titles.get(column.title, column.title) for column in columns)], rows=[*rows, *chosen],
            breaks=[len(rows)], study="generalization", scale=setting.scale,
            item=paper.full_table(setting.pair, stage.trained_on),
            caption=f"{OVER_PAIRS} Last, what each seed chose, once where all chose the same. Bold: the best of a row."
            f"{selection_note([setting])}",
            notes=(
                f"SGD: the live weights, {sgd}. EMA: the average that validation chose, averaged batch-norm "
                f"statistics. (BN): {SLOWEST}.",
                IF_CALIBRATED,
                JS_SCALE,
                *reference_note([setting]),
            ),
        )
    ]  # fmt: skip


def protocol_tables(setting: Setting) -> list[Table]:
    """The columns of one protocol for whoever ran it alone: a table for each stage and split."""
    metrics = {
        **{name: metric.title for name, metric in METRICS.items()},
        "clean_accuracy": "right labels, %",
        "memorised": "memorised, %",
        **{name: f"transfer to {name.removeprefix(TRANSFER)}, %" for name in series.transfers(setting)},
    }
    tables: list[Table] = []
    for stage, title in _STAGES.items():
        columns = series.columns_of(setting, stage)
        rows = [Row(words, [value_cell(setting, column.title, name, stage) for column in columns])
                for name, words in metrics.items()]  # fmt: skip
        chosen = {
            "epoch": [_by_seed([str(epoch) for epoch in column.epochs]) for column in columns],
            "average": [_by_seed([_short(weights) for weights in column.weights]) for column in columns],
        }
        rates = ", ".join(f"{choice['rate']:g}" for choice in setting.choices)
        if columns:
            tables.append(
                Table(
                    name="protocol", title=f"{title}; learning rate by seed: {rates}",
                    columns=["", *(column.title for column in columns)],
                    rows=[*(row for row in rows if has_values(row.cells)),
                          *(Row(label, [Cell(text=text) for text in texts]) for label, texts in chosen.items())],
                    caption=f"{OVER_PAIRS} Last, what each seed chose, once where all chose the same."
                    f"{selection_note([setting])}",
                )
            )  # fmt: skip
    notes = (
        "SGD: the live weights, in tuning of the best epoch, in a refit of the last one. EMA: the average that "
        f"validation chose, averaged batch-norm statistics. slowest: {SLOWEST} for EMA.",
        JS_SCALE,
        IF_CALIBRATED,
        *(["right labels, memorised: of the training images, the accuracy on those with a right label, and the share "
           "of those with a wrong one that are predicted as that."] if setting.validation_labels else []),
    )  # fmt: skip
    return [*tables[:-1], *(replace(table, notes=notes) for table in tables[-1:])]


_STAGES = {
    TUNED: "Trained on 80%, measured on the validation images that everything was chosen on",
    TUNED_ON_TEST: "Trained on 80%, measured on test",
    REFIT: "Trained on 100% with what validation chose, measured on test",
}


def _short(average: str) -> str:
    return {LIVE: "none", "swa": "uniform"}.get(average, average.removeprefix("ema-"))


def _by_seed(values: Sequence[str], *, always: bool = False) -> str:
    if not values:
        return DASH
    return f"[{', '.join(values)}]" if always or len(set(values)) > 1 else values[0]


# Predictions and features ---------------------------------------------------------------------------------------------

_EMA_LOSS = f"EMA (loss): {SLOWEST} by the lowest loss. SGD: the live weights at"


def agreement(results: Results, scale: Scale) -> list[Table]:
    """How far the refits of two seeds agree, beside the published co-distillation; then differences and ratios."""
    settings = settings_for(results, scale, CLEAN)
    titles = {"accuracy": "test accuracy, %", "churn": "churn, %", "js": "JS"}
    specs = [
        ColumnSpec(who, column, metric, group=title)
        for metric, title in titles.items()
        for who, column in (("SGD", "SGD"), ("EMA (loss)", LOSS))
    ]
    pairs = [
        ColumnSpec("churn, EMA − SGD, points", LOSS, "churn", "minus"),
        ColumnSpec("churn, EMA / SGD", LOSS, "churn", "ratio"),
        ColumnSpec("JS, EMA / SGD", LOSS, "js", "ratio"),
    ]
    notes = (f"{_EMA_LOSS} the last epoch.", JS_SCALE)

    return [
        *column_table(
            "consistency/agreement", "Agreement between the refits of all pairs of seeds", settings, specs, REFIT,
            source="Table 3", item="Table 3", scale=scale, quoted=_co_distillation(),
            caption=f"Trained on all training images, measured on test. {OVER_PAIRS} Churn and JS: the lower the "
            "better. Bold: the better of two.",
            notes=(
                *notes,
                "Below the rule: co-distillation as the paper quotes it, SGD's column being its own baseline; n not "
                "given.",
                *reference_note(settings),
            ),
        ),
        *column_table(
            "consistency/differences", "Agreement between refits: EMA (loss) against SGD, paired", settings, pairs,
            REFIT, source="Table 3", scale=scale, notes=(paper.OF_MEANS, *notes, *reference_note(settings)),
            caption="Below 0 and below 1: EMA agrees more. All are paired: of each pair of seeds, then mean ± standard "
            "deviation. Pairs that share a seed do so with their chance, so they are not independent.",
        ),
    ]  # fmt: skip


def _co_distillation() -> list[Row]:
    """The rows of the paper's Table 3 that are no runs of its own."""
    wanted = [
        f"{metric}, {who}" for metric in ("Test Acc.", "Churn", "JS divergence") for who in ("Baseline", "Method")
    ]
    rows: list[Row] = []
    for label, values in paper.rows_of("Table 3").items():
        by_column = {value.column: Cell(text=value.text, best=value.mark == "bold") for value in values}
        if not any(value.ours for value in values):
            group, _, label = label.rpartition(": ")  # as numbers.json has it: the method, then data set and network
            rows.append(Row(label, [by_column.get(column, MISSING) for column in wanted], group))
    return rows


def calibration(results: Results, scale: Scale) -> list[Table]:
    """ECE with and without temperature scaling, of the models trained on 80%, measured on test."""
    settings = settings_for(results, scale, CLEAN)
    specs = [
        ColumnSpec("SGD", "SGD"),
        ColumnSpec("EMA (loss)", LOSS),
        ColumnSpec("EMA − SGD, points", LOSS, op="minus"),
    ]

    return column_table(
        "calibration/ece", "Expected calibration error (ECE), and after temperature scaling (TS)", settings, specs,
        TUNED_ON_TEST, source="Table 5", item="Table 5", scale=scale,
        metrics={METRICS[metric].title: metric for metric in ("accuracy", "ece", "ece_if_calibrated", "ece_ts")},
        caption=f"Trained on 80%, the temperature fitted on the other 20%, measured on test. {OVER_SEEDS} {PAIRED} "
        "ECE: the lower the better. Bold: the better of two.",
        notes=(
            f"{_EMA_LOSS} their best epoch.",
            IF_CALIBRATED,
            "The paper describes its table as measured on test; its numbers are those of its validation tables.",
            paper.OF_MEANS,
            *reference_note(settings),
        ),
    )  # fmt: skip


_TARGETS = {"cifar10": "cifar10-resnet18", "cifar100": "cifar100-resnet18"}
"""Data sets that the paper evaluates features on, in its order, with the pair that is its supervised training."""


class _Transfer(NamedTuple):
    setting: Setting
    source: str
    """The setting's label."""
    target: str

    @property
    def metric(self) -> str:
        return TRANSFER + self.target

    @property
    def paper_metric(self) -> str:
        """The metric of the paper that this stands for: its own target, or the only one that its pair has there."""
        values = paper.printed("Table 4", place="table", pair=self.setting.pair)
        metrics = {value.metric for value in values if value.metric.startswith(TRANSFER)}
        own = TRANSFER + self.target.split("-test")[0]  # where only test images were found, halves of them
        return own if own in metrics else metrics.pop() if len(metrics) == 1 and self.target not in _TARGETS else ""

    def printed(self, column: str) -> str:
        metric = self.paper_metric
        return paper.lookup("Table 4", pair=self.setting.pair, ours=column, metric=metric) if metric else ""


def transfer(results: Results, scale: Scale) -> list[Table]:
    """A linear head on the frozen features of the refits, on another data set, beside training on it outright."""
    settings = settings_for(results, scale)
    transfers = [
        _Transfer(setting, source, metric.removeprefix(TRANSFER))
        for setting, source in zip(settings, labels_of(settings), strict=True)
        for metric in series.transfers(setting)
    ]
    order = [*_TARGETS, *dict.fromkeys(way.target for way in transfers if way.target not in _TARGETS)]
    # The paper has Tiny-ImageNet, with the most images, first.
    transfers.sort(key=lambda way: (order.index(way.target), not way.setting.pair.startswith("tiny")))
    titles = {"SGD": "Baseline", **AVERAGES}
    values = [
        [value_cell(way.setting, column, way.metric, REFIT, paper=way.printed(column)) for way in transfers]
        for column in titles
    ]
    if not any(map(has_values, values)):
        return []
    rows = [Row(title, cells) for title, cells in
            zip(titles.values(), with_best_by_column(values, range(len(transfers))), strict=True)]  # fmt: skip
    supervised = [Row("Supervised", [_supervised(way, settings) for way in transfers])]
    supervised = [row for row in supervised if has_values(row.cells)]
    differences = [
        Row(f"{title} − Baseline, points", [
            difference_cell(way.setting, column, way.metric, REFIT,
                            paper=paper.difference(way.printed(column), way.printed("SGD")))
            for way in transfers
        ])
        for column, title in AVERAGES.items()
    ]  # fmt: skip
    targets = [way.target for way in transfers]
    sources = [way.setting for way in transfers]
    return [
        Table(
            name="transfer/linear", title="Linear evaluation of frozen features on another data set: accuracy, %",
            columns=["trained on", *(way.source for way in transfers)],
            groups=[("evaluated on", 1), *((target, targets.count(target)) for target in dict.fromkeys(targets))],
            rows=[*rows, *supervised, *differences], breaks=sorted({len(rows), len(rows) + len(supervised)}),
            study="transfer", scale=scale, item="Table 4",
            caption=f"Features of the models trained on all training images. {OVER_SEEDS} {PAIRED} Bold: the best of a "
            f"column.{selection_note(sources)}",
            notes=(
                f"EMA: {SLOWEST}. Baseline: the live weights at the last epoch. Supervised: the same kind of network "
                "trained on the target itself, SGD, last epoch.",
                paper.OF_MEANS,
                *reference_note(sources),
            ),
        )
    ]  # fmt: skip


def _supervised(transfer: _Transfer, settings: Sequence[Setting]) -> Cell:
    """The accuracy of training on the target: with the same network, if there is such a setting."""
    pair = _TARGETS.get(transfer.paper_metric.removeprefix(TRANSFER), "none")
    printed = paper.lookup("Table 4", row="Supervised", pair=pair)
    same = [setting for setting in settings if setting.dataset == transfer.target]
    same.sort(key=lambda setting: setting.network != transfer.setting.network)
    return value_cell(same[0], "SGD", "accuracy", REFIT, paper=printed) if same else replace(MISSING, paper=printed)


# Label noise ----------------------------------------------------------------------------------------------------------

OURS = {"SGD (best)": "SGD (best)", "SGD": "SGD (last)", ACC: "EMA (acc.)"}
"""Columns of the refits that stand in the leaderboard, with their titles; the fair baseline first."""
LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Accuracies on the training images with right labels, at which memorisation is compared; the paper's is 90%."""
_LEADERBOARD = NOISY[::-1]  # as the paper's table has them
_NOISE_TITLE = "Accuracy on clean test images after training with wrong labels"
_NOISE_NOTES = (
    f"EMA (acc.): {SLOWEST} by the best accuracy. SGD (best): the live weights at the epoch that validation chose for "
    "them. SGD (last): at the last epoch.",
)


def leaderboard(results: Results, scale: Scale) -> list[Table]:
    """Ours among the published methods, by accuracy, where it is the same data and network at the paper's scale.

    Other data have a table of their own, without the published methods: nothing in it could be compared with them.
    """
    settings = settings_for(results, scale, _LEADERBOARD)
    same = [setting for setting in settings if scale == "paper" and setting.compares]
    return [*_among_published(same), *_apart([setting for setting in settings if setting not in same])]


def _among_published(settings: Sequence[Setting]) -> list[Table]:
    ours = _leaderboard_rows(settings)
    if not ours:
        return []
    ranked: list[tuple[Row, list[float]]] = [(row, [cell.mean or -1.0 for cell in row.cells]) for row in ours]
    for label, values in paper.rows_of("Table 2").items():
        by_pair = {value.pair: value for value in values}
        texts = [Cell(text=by_pair[pair].text) if pair in by_pair else MISSING for pair in _LEADERBOARD]
        title = f"{label}, paper" if any(value.ours for value in values) else label
        means = [by_pair[pair].mean if pair in by_pair else None for pair in _LEADERBOARD]
        ranked.append((Row(title, texts), [-1.0 if mean is None else mean for mean in means]))
    # By the last column, as in the paper, unless ours are in the other alone; of equals the published first.
    by = -1 if any(row.cells[-1].mean is not None for row in ours) else 0
    ranked = [*ranked[len(ours) :], *ranked[: len(ours)]]
    ranked.sort(key=lambda ranking: -ranking[1][by])
    return [
        Table(
            name="label-noise/leaderboard", title=_NOISE_TITLE,
            columns=["method", *(PAIRS[pair].split(",")[0] + ", %" for pair in _LEADERBOARD)],
            rows=[row for row, _ in ranked], study="label-noise", scale="paper", item="Table 2",
            caption=f"Published: as the paper quotes them, a selection, without n. Ours: {OVER_SEEDS.lower()}"
            f"{selection_note(settings)}",
            notes=_NOISE_NOTES,
        )
    ]  # fmt: skip


def _leaderboard_rows(settings: Sequence[Setting]) -> list[Row]:
    """Our rows: of both data sets together where there is one setting for each, else each setting by itself."""
    together = len({setting.pair for setting in settings}) == len(settings)
    units = [settings] if together else [[setting] for setting in settings]
    groups = [""] if together else labels_of(settings)
    rows: list[Row] = []
    for unit, group in zip(units, groups, strict=True):
        by_pair = {setting.pair: setting for setting in unit}
        for column, title in OURS.items():
            cells = [value_cell(by_pair[pair], column, "accuracy", REFIT) if pair in by_pair else MISSING
                     for pair in _LEADERBOARD]  # fmt: skip
            # Ours is highlighted, as in the paper's table.
            cells = [cell if cell.mean is None else replace(cell, best=True) for cell in cells]
            if has_values(cells):
                rows.append(Row(title if group else f"{title}, ours", cells, group))
    return rows


def _apart(settings: Sequence[Setting]) -> list[Table]:
    """A column for each setting, under its own name."""
    titles = [setting.title for setting in settings]
    names = [title if titles.count(title) == 1 else f"{title}, {setting.protocol}"
             for title, setting in zip(titles, settings, strict=True)]  # fmt: skip
    rows = [
        Row(title, [value_cell(setting, column, "accuracy", REFIT) for setting in settings])
        for column, title in OURS.items()
    ]
    rows = [row for row in rows if has_values(row.cells)]
    if not rows:
        return []
    return [
        Table(
            name="label-noise/test-accuracy", title=_NOISE_TITLE, rows=rows,
            columns=["weights", *(f"{name}, %" for name in names)], study="label-noise", scale=settings[0].scale,
            caption=f"{OVER_SEEDS}{selection_note(settings)}", notes=_NOISE_NOTES,
        )
    ]  # fmt: skip


def memorisation(results: Results, scale: Scale) -> list[Table]:
    """The share of wrong labels that is memorised when so many of the right ones are learned."""
    return setting_table(
        "label-noise/memorisation", "Wrong labels memorised, by the accuracy on right ones",
        [setting for setting in settings_for(results, scale, NOISY) if _on_train(setting)], _memorised, scale=scale,
        item="Figure 7", columns=["clean accuracy reached", *("epoch", "clean, %", "memorised, %") * 2,
                                  "memorised, points"],
        groups=[("", 1), ("SGD", 3), ("EMA, slowest", 3), ("EMA − SGD", 1)],
        caption=f"On the training images, without augmentation. {OVER_SEEDS} A dash: not every seed reached it. The "
        "difference is paired: of each seed.",
        notes=(
            "clean: accuracy on the training images with a right label. memorised: of those with a wrong label, the "
            "share predicted as that label.",
            "The first epoch at which each seed reaches the accuracy. EMA: recomputed batch-norm statistics where they "
            "were measured at every epoch, else averaged ones.",
        ),
        paper_notes=("The paper's numbers (Appendix E.1) are of CIFAR-100N with ResNet-34.",),
    )  # fmt: skip


def _on_train(setting: Setting) -> list[OnTrain]:
    """The curves of the live weights and of the slowest average on right and on wrong labels; none unless both are."""
    curves = [series.on_train(setting, weights) for weights in (LIVE, setting.slowest) if weights]
    known = [curve for curve in curves if curve is not None]
    return known if len(known) == 2 else []


def _memorised(setting: Setting) -> Lines:
    both, runs = _on_train(setting), setting.variants["refit"]
    lines: dict[str, list[Cell]] = {}
    for level in LEVELS:
        reached = [
            [series.first_reached(*curves, level) for curves in zip(one.clean, one.memorised, strict=True)]
            for one in both
        ]
        lines[f"{100 * level:g}%"] = _compared(reached, setting, level)
    chosen, last = [chosen_epoch(setting, run.seed) for run in runs], [run.epochs for run in runs]
    lines["at the EMA (acc.) epoch"] = _compared([_at(one, chosen) for one in both], setting)
    lines["at the end"] = _compared([_at(one, last) for one in both], setting)
    return lines


def _at(curves: OnTrain, epochs: Sequence[int | None]) -> list[Reached | None]:
    """What each seed has at an epoch of its own."""
    return [
        Reached(epoch, float(clean[epoch - 1]), float(memorised[epoch - 1]))
        if epoch is not None and 1 <= epoch <= len(clean)
        else None
        for clean, memorised, epoch in zip(curves.clean, curves.memorised, epochs, strict=True)
    ]


def _compared(both: Sequence[Sequence[Reached | None]], setting: Setting, level: float = 0) -> list[Cell]:
    """Epoch, accuracy on right labels and share memorised, of SGD and EMA; then the difference of the shares."""

    def printed(weights: str, metric: str) -> str:
        ours = setting.pair == "cifar100n-resnet34" and level == series.REACHED
        return paper.lookup("Appendix E.1", column=weights, metric=metric).rstrip("%") if ours else ""

    cells: list[Cell] = []
    for seeds, weights in zip(both, ("SGD", "EMA"), strict=True):
        cells += [
            Cell.of([seed and seed.epoch for seed in seeds], digits=1, paper=printed(weights, "epoch")),
            Cell.of([seed and seed.clean for seed in seeds], scale=100),
            Cell.of([seed and seed.memorised for seed in seeds], scale=100, paper=printed(weights, "memorised")),
        ]
    differences = [ema.memorised - sgd.memorised if ema and sgd else None for sgd, ema in zip(*both, strict=True)]
    text = paper.difference(printed("EMA", "memorised"), printed("SGD", "memorised"))
    return [*cells, Cell.of(differences, scale=100, paper=text)]


# Peaks and ends of curves ---------------------------------------------------------------------------------------------

_PEAKS = ["", "peak, %", "epoch", "end, %", "end − peak"]
_BEST = "EMA: the best of all averages at each epoch, averaged batch-norm statistics, as in the paper's figures."
_ON_TEST = ("Measured on test, trained on all training images.", _BEST, ORACLE)


def _peaks_caption(oracle: str) -> str:
    return (
        f"Accuracy. {OVER_SEEDS} Peak and epoch are those of each seed's own curve{oracle}. Rows of differences are "
        "paired: of each seed, then mean ± standard deviation, in points."
    )


def _value(curve: np.ndarray) -> float | None:
    point = peak(curve)
    return point and point.value


def _epoch(curve: np.ndarray) -> float | None:
    point = peak(curve)
    return point and point.epoch


def _end(curve: np.ndarray) -> float | None:
    return series.at(curve, -1)


def _sgd(split: str) -> MakeCurve:
    return lambda run: series.live(run, split)


def _best(setting: Setting, split: str) -> MakeCurve:
    return lambda run: series.best(run, setting.averages, split)


Curves = tuple[str, MakeCurve]
"""A variant, and which curve of its runs."""


def _peak_cells(setting: Setting, ours: Curves, theirs: Curves | None = None, *, paper: str = "") -> list[Cell]:
    """Peak, its epoch, the end, and the end minus the peak; of a curve, or of the difference of two."""
    top, epoch, end = (by_seed(setting, *ours, point) for point in (_value, _epoch, _end))
    if theirs is not None:
        others = [by_seed(setting, *theirs, point) for point in (_value, _epoch, _end)]
        top, epoch, end = (minus(one, other) for one, other in zip((top, epoch, end), others, strict=True))
    return [percent_cell(top), epoch_cell(epoch), percent_cell(end, paper=paper), percent_cell(minus(end, top))]


def constant_rate(results: Results, scale: Scale) -> list[Table]:
    """From the epoch that EMA (acc.) chose, a constant learning rate against the cosine that continues to 0."""

    def lines(setting: Setting) -> Lines:
        curves = {"SGD": _sgd("test"), "EMA": _best(setting, "test")}
        rates = {"cosine": "refit", "constant": "constant"}
        rows = {f"{rate}, {weights}": _peak_cells(setting, (variant, curve))
                for rate, variant in rates.items() for weights, curve in curves.items()}  # fmt: skip
        rows |= {f"{weights}, constant − cosine": _peak_cells(setting, ("constant", curve), ("refit", curve))
                 for weights, curve in curves.items()}  # fmt: skip
        return rows

    return setting_table(
        "constant-lr/peak", "Constant learning rate from the EMA (acc.) epoch on, against the cosine",
        [setting for setting in settings_for(results, scale) if setting.variants.get("constant")], lines, scale=scale,
        item="Figure 8", columns=_PEAKS, caption=_peaks_caption(" (oracle)"), notes=_ON_TEST,
    )  # fmt: skip


def step_decay(results: Results, scale: Scale) -> list[Table]:
    """With a learning rate that falls in steps."""

    def lines(setting: Setting) -> Lines:
        sgd, ema = ("step", _sgd("test")), ("step", _best(setting, "test"))
        return {
            "SGD": _peak_cells(setting, sgd),
            "EMA": _peak_cells(setting, ema),
            "EMA − SGD": _peak_cells(setting, ema, sgd),
        }

    return setting_table(
        "step-decay/end", "Step decay of the learning rate",
        [setting for setting in settings_for(results, scale) if setting.variants.get("step")], lines, scale=scale,
        item="Figure 3", columns=_PEAKS, caption=_peaks_caption(" (oracle)"), notes=_ON_TEST,
    )  # fmt: skip


def bootstrap(results: Results, scale: Scale) -> list[Table]:
    """With the average copied into the live weights after each epoch, against the same training without."""
    settings = [setting for setting in settings_for(results, scale) if series.copied_back(setting)]
    names = dict.fromkeys(series.copied_back(setting) or "" for setting in settings)

    def lines(setting: Setting) -> Lines:
        copied = series.copied_back(setting) or ""
        curves: dict[str, MakeCurve] = {"SGD": _sgd("val"), "EMA": lambda run: series.average(run, copied, "val")}
        rows: dict[str, list[Cell]] = {}
        for weights, curve in curves.items():
            printed = [
                paper.lookup("Appendix C", metric=metric).rstrip("%")
                if (weights, setting.pair) == ("SGD", MAIN)
                else ""
                for metric in ("accuracy", "bootstrapped_accuracy")
            ]
            plain, bootstrapped = ("tune", curve), ("bootstrap", curve)
            rows[weights] = _peak_cells(setting, plain, paper=printed[0])
            rows[f"{weights}, bootstrapped"] = _peak_cells(setting, bootstrapped, paper=printed[1])
            rows[f"{weights}, difference"] = _peak_cells(setting, bootstrapped, plain)
        return rows

    return setting_table(
        "bootstrap/accuracy", "The average copied back into training after each epoch (bootstrap)", settings, lines,
        scale=scale, item="Figure 5", columns=_PEAKS, caption=_peaks_caption(""),
        notes=(
            "Trained on 80%, measured on validation; the paper prints the accuracy of SGD alone, as final.",
            f"EMA: the average that is copied back, {', '.join(names)} (in the paper 0.992), averaged batch-norm "
            "statistics.",
            "peak: of the validation curve of each seed, as an epoch is chosen.",
        ),
        paper_notes=reference_note(settings),
    )  # fmt: skip


def sensitivity(results: Results, scale: Scale) -> list[Table]:
    """How good each average gets with recomputed statistics, and when; beside averaged ones."""
    settings = [setting for setting in settings_for(results, scale) if _sensitivity_lines(setting)]
    return setting_table(
        "batchnorm/sensitivity", "Best test accuracy of each average, and when", settings, _sensitivity_lines,
        scale=scale, item="Table 24", keep_empty=True,
        columns=["average", "best, %", "epoch", "accuracy, %", "best, %", "epoch", "accuracy, %"],
        groups=[("", 1), ("recomputed, oracle", 2), ("recomputed, chosen", 1), ("averaged, oracle", 2),
                ("averaged, chosen", 1)],
        caption=f"Trained on all training images, measured on test. {OVER_SEEDS} recomputed, averaged: the batch-norm "
        "statistics. Bold: the best of a column.",
        notes=(
            ORACLE,
            "chosen: at the epoch that each seed chose on validation for EMA (acc.), the same for all averages.",
            "average: the decay per update; a percentage is the half-life as a share of the run, for which the paper's "
            "five decays stand in the same order.",
            *reference_note(settings),
        ),
    )  # fmt: skip


def _sensitivity_lines(setting: Setting) -> Lines:
    """A row for each average; none where statistics were not recomputed after every epoch."""
    decays = list(paper.rows_of("Table 24"))
    compares = setting.pair == MAIN and len(setting.averages) == len(decays)
    rows: list[list[Cell]] = []
    for place, name in enumerate(setting.averages):
        cells: list[Cell] = []
        for batchnorm in ("recomputed", "averaged"):
            curve: MakeCurve = lambda run, n=name, b=batchnorm: series.average(run, n, "test", batchnorm=b)  # noqa: E731
            # The paper's decays stand for ours by their order, from fast to slow.
            printed = [
                paper.lookup("Table 24", row=decays[place], column=column)
                if compares and batchnorm == "recomputed" else ""
                for column in ("Best test accuracy", "Epoch")
            ]  # fmt: skip
            cells += [
                percent_cell(by_seed(setting, "refit", curve, _value), paper=printed[0]),
                epoch_cell(by_seed(setting, "refit", curve, _epoch), paper=printed[1]),
                percent_cell(_at_chosen(setting, "refit", curve)),
            ]
        rows.append(cells)
    if not any(has_values(cells[:1]) for cells in rows):
        return {}
    names = [name.removeprefix("ema-") for name in setting.averages]
    return dict(zip(names, with_best_by_column(rows, (0, 2, 3, 5)), strict=True))


def _at_chosen(setting: Setting, variant: str, curve: MakeCurve) -> dict[int, float | None]:
    """The value of each seed at the epoch that it chose on validation."""
    stacked = series.stack(setting, variant, curve)
    runs = setting.variants.get(variant, ())
    if stacked is None:
        return {}
    return {run.seed: series.at(own, chosen_epoch(setting, run.seed)) for run, own in zip(runs, stacked, strict=True)}


def lr_search(results: Results, scale: Scale) -> list[Table]:
    """The best validation accuracy of the live weights and of their averages, by learning rate."""
    first = (MAIN, "cifar100-wrn-28-10")
    once: dict[str, Setting] = {}
    for setting in settings_for(results, scale, (*first, *(pair for pair in PAIRS if pair not in first))):
        once.setdefault(setting.protocol, setting)  # at smaller scales one protocol may stand for two pairs
    settings = [setting for setting in once.values() if len(setting.rates()) > 1]

    def lines(setting: Setting) -> Lines:
        rows = with_best_by_column([_rate_cells(setting, rate) for rate in setting.rates()], (0, 1))
        return {f"{rate:g}": cells for rate, cells in zip(setting.rates(), rows, strict=True)}

    printed = any(cell.paper for setting in settings for cells in lines(setting).values() for cell in cells)
    return setting_table(
        "lr-search/rates", "Best validation accuracy by peak learning rate", settings, lines, scale=scale,
        item="Table 21", keep_empty=True, columns=["learning rate", "SGD, %", "EMA, %", "EMA − SGD, points"],
        caption=f"Trained on 80%, measured on validation. {OVER_SEEDS} The difference is paired: of each seed. Bold: "
        "the best rate of a column.",
        notes=(
            "SGD: the best epoch of the live weights. EMA: the best epoch and average, averaged batch-norm statistics.",
            *(["The paper prints no spread here."] if printed else []),
            *reference_note(settings),
        ),
    )  # fmt: skip


def _rate_cells(setting: Setting, rate: float) -> list[Cell]:
    variant = setting.rates()[rate]
    sgd, ema = (by_seed(setting, variant, curve, _value) for curve in (_sgd("val"), _best(setting, "val")))
    row = next((row for row, values in paper.rows_of("Table 21").items()
                if row.endswith(f", {rate:g}") and values[0].pair == setting.pair), "")  # fmt: skip
    printed = [paper.lookup("Table 21", row=row, pair=setting.pair, column=f"{weights} Acc.") if row else ""
               for weights in ("SGD", "EMA")]  # fmt: skip
    return [
        percent_cell(sgd, paper=printed[0]),
        percent_cell(ema, paper=printed[1]),
        percent_cell(minus(ema, sgd), paper=paper.difference(printed[1], printed[0])),
    ]


# The sampling period --------------------------------------------------------------------------------------------------

PERIODS = (1, 4, 16, 64)
PAPER_PERIOD = 16


def sampling_period(results: Results, scale: Scale) -> list[Table]:
    """Averages with equal horizons, sampled every T steps of the same training."""

    def lines(setting: Setting) -> Lines:
        shortest = min(setting.periods())
        return {f"T = {period}": _period_cells(setting, period, shortest) for period in setting.periods()}

    return setting_table(
        "sampling-period/accuracy", "Test accuracy of averages by sampling period, equal horizons",
        [setting for setting in settings_for(results, scale) if len(setting.periods()) > 1], lines, scale=scale,
        keep_empty=True, columns=["sampling period", "peak, %", "chosen, %", "end, %", "peak, %", "peak", "chosen"],
        groups=[("", 1), ("best average", 3), ("slowest average", 1), ("best, minus the shortest T", 2)],
        caption="Trained on all training images, no warm-up of the decay, averaged batch-norm statistics. "
        f"{OVER_SEEDS} The differences, in points, are paired: of each seed.",
        notes=(
            "best average: the best of all at each epoch. chosen: at the epoch that each seed chose on validation for "
            "EMA (acc.).",
            f"peak, {ORACLE}",
            "The paper has T = 16 in runs of tens of thousands of steps and says that T = 1 gives the same; in a short "
            "run the third period stands for its 16.",
        ),
    )  # fmt: skip


def _period_cells(setting: Setting, period: int, shortest: int) -> list[Cell]:
    variant, other = setting.periods()[period], setting.periods()[shortest]
    best = _best(setting, "test")
    tops, ends = (by_seed(setting, variant, best, point) for point in (_value, _end))
    chosen = _at_chosen(setting, variant, best)
    slowest = by_seed(setting, variant, lambda run: series.average(run, setting.slowest, "test"), _value)
    differences = [
        percent_cell(minus(tops, by_seed(setting, other, best, _value))),
        percent_cell(minus(chosen, _at_chosen(setting, other, best))),
    ]
    return [
        percent_cell(tops),
        percent_cell(chosen),
        percent_cell(ends),
        percent_cell(slowest),
        *([MISSING] * 2 if period == shortest else differences),
    ]


def equivalence() -> Table:
    """The paper's decays as decays per update at other periods: the same horizon in steps."""
    rows: list[Row] = []
    for decay in paper.rows_of("Table 23"):
        alpha = float(decay)
        cells = [
            Cell(
                text=f"{alpha ** (period / PAPER_PERIOD):.6g}",
                paper=paper.lookup("Table 23", row=decay, column=f"T={period}"),
            )
            for period in PERIODS
        ]
        rows.append(Row(decay, [*cells, Cell(text=f"{PAPER_PERIOD * math.log(0.5) / math.log(alpha):.1f}")]))
    return Table(
        name="sampling-period/equivalence", title="Decay per update for the same horizon, by sampling period T",
        columns=["decay at T = 16", *(f"T = {period}" for period in PERIODS), "half-life, steps"], rows=rows,
        study="sampling-period", item="Table 23",
        caption="Computed: the decay α at T = 16 is α^(T/16) at T. Arithmetic, not measured. The paper rounds, and has "
        "T = 1 and T = 16.",
    )  # fmt: skip


def overhead(results: Results) -> list[Table]:
    """What the averages of each network cost beside its training step; the paper's example in the last line."""
    if not results.overheads:
        return []
    (parameters,), (memory,) = (paper.printed("Section 3.1", metric=name) for name in ("parameters", "megabytes"))
    example = [Cell(text=parameters.text), Cell(text="1"), MISSING, Cell(text=f"{memory.mean:.2f}"), *[MISSING] * 3]
    return [
        Table(
            name="sampling-period/overhead", title="Time and memory of the averages",
            columns=["network", "parameters", "averages", "every, steps", "MiB an average", "update, ms", "step, ms",
                     "share of a step, %"],
            rows=[*map(_costs, results.overheads), Row("ResNet-50, paper", example)], breaks=[len(results.overheads)],
            study="sampling-period", item="Section 3.1",
            caption="Times: mean ± standard deviation over repetitions of one interleaved run on this machine; sizes "
            "are counted, not measured.",
            notes=(
                "update: one update of all averages. step: one training step without averages. share: the time of an "
                "update divided by that of all steps from one to the next, in each repetition.",
                f"The paper (Section 3.1) says that a ResNet-50 with {parameters.text} parameters needs {memory.text}: "
                "float32, and a MB of 2^20 bytes. It gives no times.",
            ),
        )
    ]  # fmt: skip


def _costs(cost: Overhead) -> Row:
    updates, steps = cost.update_seconds, cost.step_seconds
    shares = series.combined(updates, steps, lambda update, step: update / (cost.every * step) if step else None)
    cells = [
        Cell(text=f"{cost.parameters:,}"),
        Cell(text=str(cost.averages)),
        Cell(text=str(cost.every)),
        Cell(text=f"{cost.bytes / cost.averages / 2**20:.2f}"),
        Cell.of(updates, scale=1000, digits=3),
        Cell.of(steps, scale=1000, digits=2),
        Cell.of(shares or (), scale=100, digits=3),
    ]
    return Row(cost.network, cells)


# After the training ---------------------------------------------------------------------------------------------------


def windows(results: Results, scale: Scale) -> list[Table]:
    """Windows that were chosen after the training, each at its best stopping epoch, beside averages that were kept."""
    pairs = dict.fromkeys((*PAIRS, *(setting.pair for setting in results.settings)))
    return setting_table(
        "posthoc/windows", "Windows chosen after the training, at their best stopping epoch",
        [setting for setting in settings_for(results, scale, pairs) if series.posthoc(setting)], _window_lines,
        scale=scale, keep_empty=True,
        columns=["window", "epoch", "afterwards, %", "kept live, %", "difference, points", "profile error",
                 "weights off, %"],
        caption=f"Trained on 80%, measured on validation. {OVER_SEEDS} The difference is paired: of each seed. Bold: "
        "the best of a column.",
        notes=(
            "window: the decay per update; a percentage is the half-life as a share of the run. A dash: nobody kept "
            "that average.",
            "afterwards: put together from snapshots, at the stopping epoch at which the mean over the seeds is best "
            "on validation. kept live: the same average, kept beside the training, at that epoch.",
            "profile error: how far the weights of the samples are from those in the true average, at that epoch. "
            "weights off: the distance of the network's weights from those of the average that was kept, over their "
            "length, at the end of the run.",
        ),
    )  # fmt: skip


def _window_lines(setting: Setting) -> Lines:
    accuracy, errors, distances = (
        series.posthoc(setting, metric) for metric in ("accuracy", "profile_error", "weight_distance")
    )
    rows: list[list[Cell]] = []
    for name, curves in accuracy.items():
        at = int(np.nanargmax(curves.mean(axis=0)))
        kept = series.kept_beside(setting, name)
        beside = kept[:, at] if kept is not None and kept.shape == curves.shape else None
        rows.append(
            [
                Cell(text=str(at + 1)),
                Cell.of(curves[:, at], scale=100),
                Cell.of(() if beside is None else beside, scale=100),
                Cell.of(() if beside is None else curves[:, at] - beside, scale=100),
                Cell.of(errors[name][:, at] if name in errors else (), digits=4),
                Cell.of(distances[name][:, -1] if name in distances else (), scale=100, digits=3),
            ]
        )
    names = [name.removeprefix("ema-") for name in accuracy]
    return dict(zip(names, with_best_by_column(rows, (1, 2)), strict=True))


# The set-up -----------------------------------------------------------------------------------------------------------


def hyperparameters(results: Results, scale: Scale) -> list[Table]:
    """A column for each setting, and the paper's; rows that no configuration says anything about are left out."""
    settings = [setting for setting in settings_for(results, scale) if setting.config]
    rows: list[Row] = []
    for title, (read, item, metric) in _HYPERPARAMETERS.items():
        texts = [read(setting) for setting in settings]
        if any(texts):
            cells = [Cell(text=text or DASH) for text in (*texts, _printed_values(item, metric))]
            rows.append(Row(title, cells))
    if not rows:
        return []
    return [
        Table(
            name="setup/hyperparameters", title="Hyper-parameters of what was run, beside the paper's",
            columns=["", *labels_of(settings), "paper"], rows=rows, study="setup", scale=scale, item="Table 22",
            caption="A percentage among the averages is the half-life as a share of the run."
            f"{selection_note(settings)}",
        )
    ]  # fmt: skip


def _printed_values(item: str, metric: str) -> str:
    """What the paper prints about a hyper-parameter, with the titles of columns where there are several values."""
    values = paper.printed(item, metric=metric) if item else []
    texts = [value.text if value.column in ("", "Value") else f"{value.column}: {value.text}" for value in values]
    return "; ".join(texts)


def _text(value: Any) -> str:
    if value is None or value == "" or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        values: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return ", ".join(_text(part) for part in values)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _option(section: str, name: str) -> Callable[[Setting], str]:
    return lambda setting: _text(setting.part(section).get(name))


def _data(setting: Setting) -> str:
    data = setting.part("data")
    texts = [
        _text(data.get("dataset")),
        _text(data.get("labels")) and f"{data['labels']} labels",
        f"{100 * data['noise']:g}% wrong labels" if data.get("noise") else "",
        f"{data['subset']} images" if data.get("subset") else "",
    ]
    return ", ".join(text for text in texts if text)


def _network(setting: Setting) -> str:
    training = setting.part("training")
    width = f", width {training['width']}" if training.get("width") else ""
    return f"{training['network']}{width}" if training.get("network") else ""


def _schedule(setting: Setting) -> str:
    training = setting.part("training")
    warmup = training.get("warmup_epochs")
    suffix = f", warm-up {warmup:g} epochs" if isinstance(warmup, int | float) else ""
    return f"{training['schedule']}{suffix}" if training.get("schedule") else ""


def _averages(setting: Setting) -> str:
    averages = setting.part("averages")
    shares: Any = averages.get("half_lives") or ()
    return _text(averages.get("decays")) or ", ".join(f"{share:g}%" for share in shares)


_HYPERPARAMETERS: Mapping[str, tuple[Callable[[Setting], str], str, str]] = {
    "data": (_data, "", ""),
    "network": (_network, "", ""),
    "optimizer": (lambda setting: "SGD, Nesterov" if setting.part("training") else "", "Table 22", "optimizer"),
    "momentum": (_option("training", "momentum"), "Table 22", "momentum"),
    "learning rates tried": (lambda setting: _text(setting.config.get("rates")), "Table 22", "rate"),
    "schedule": (_schedule, "", ""),
    "weight decay": (_option("training", "weight_decay"), "Table 22", "weight_decay"),
    "batch size": (_option("training", "batch"), "Table 22", "batch"),
    "epochs": (_option("training", "epochs"), "Table 22", "budget"),
    "averages": (_averages, "Table 22", "decays"),
    "sampling period, steps": (_option("averages", "every"), "Table 22", "period"),
    "warm-up of the decay": (_option("averages", "decay_warmup"), "Section 4.1", "decay_warmup"),
    "crop, pixels": (_option("data", "crop"), "", ""),
    "mirrored": (_option("data", "flip"), "", ""),
    "seeds": (lambda setting: _text(setting.config.get("seeds")), "Section 4.1", "runs"),
}
"""What is shown, how it is read from a configuration, and where the paper says it: item and metric."""


_TABLES: Sequence[Callable[[Results, Scale], list[Table]]] = (
    headline, summary, full, sensitivity, leaderboard, memorisation, constant_rate, agreement, calibration, transfer,
    step_decay, bootstrap, lr_search, sampling_period, windows, hyperparameters,
)  # fmt: skip
"""What makes the tables of one scale."""
