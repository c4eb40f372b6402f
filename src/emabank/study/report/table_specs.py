"""Every table of the report: its rows and columns, the paper's numbers beside ours, and its caption."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from emabank.study.report import paper, series
from emabank.study.report.results import LIVE, TRANSFER, Overhead, Results, Setting
from emabank.study.report.series import (
    REFIT,
    TUNED,
    TUNED_ON_TEST,
    BySeed,
    MakeCurve,
    Reached,
    Stage,
    average_of,
    best_of,
    by_seed,
    chosen_epoch,
    end,
    height,
    minus,
    peak_epoch,
    sgd,
)
from emabank.study.report.tables import (
    DASH,
    HELD_FROM,
    METRICS,
    MISSING,
    Cell,
    ColumnSpec,
    Lines,
    Row,
    Table,
    TableSpec,
    column_table,
    difference_cell,
    epoch_cell,
    has_values,
    label_of,
    labels_of,
    metric_of,
    percent_cell,
    reference_note,
    selection_note,
    settings_for,
    value_cell,
    with_best,
    with_best_by_column,
)
from emabank.study.studies.scales import CLEAN, MAIN, NOISY, PAIRS, Scale

PAIRED = "Differences are paired by seed."
PAIRS_OF_SEEDS = "seeds (pairs of seeds for churn and JS)"
JS_SCALE = (
    "JS: Jensen–Shannon divergence in nats, at most 0.693. The paper uses another scale (it prints up to 0.85), so "
    "only ratios compare."
)
SLOWEST = (
    "the average with the longest memory, batch-norm statistics recomputed if the network has any, at the epoch that "
    "validation chose"
)
IF_CALIBRATED = "ECE if calibrated: the ECE of a perfectly calibrated model with these confidences."
ORACLE = (
    "oracle: the maximum of the test curve itself, so slightly optimistic; unknown to anyone who must choose the epoch "
    "in advance."
)
CHOSEN = "chosen: at the epoch that validation chose for EMA (acc.), per seed."
ACC, LOSS = "slowest (acc.)", "slowest (loss)"
"""As in the paper, "EMA" is the slowest average, with recomputed batch-norm statistics."""
BASELINES = {"SGD (best)": "SGD (best)", "SGD": "SGD (last)"}
"""The live weights of a refit: at the epoch that tuning chose for them, as it does for an average; and at the last
epoch, as in the paper."""
AVERAGES = {ACC: "EMA (acc.)", LOSS: "EMA (loss)"}


def make_tables(results: Results) -> list[Table]:
    """Every table that the results allow, the largest scale first, and last the tables without a scale.

    Like a figure's, a table's name begins with its scale.
    """
    tables = [table for scale in results.scales for make in _TABLES for table in make(results, scale)]
    tables = [replace(table, name=f"{table.scale}/{table.name}") for table in tables]
    return [*tables, equivalence(), *overhead(results)]


# From the protocol's columns ------------------------------------------------------------------------------------------


def _grouped(columns: Mapping[str, str], *metrics: str) -> list[ColumnSpec]:
    """A group per column, with a column per metric."""
    titles = {"epoch": "epoch", **{name: metric.short for name, metric in METRICS.items()}}
    return [
        ColumnSpec(titles[metric], column, metric, group=title)
        for column, title in columns.items()
        for metric in metrics
    ]


_HEADLINE = _grouped({**BASELINES, **AVERAGES, "SWA": "SWA"}, "accuracy", "loss")[:-1]  # the paper has no loss of SWA
_HEADLINE_NOTES = (
    f"EMA: {SLOWEST}.",
    "SGD (best): the live weights at the epoch that validation chose for them. SGD (last): the live weights at the "
    "last epoch, as in the paper.",
)
HEADLINE = column_table(
    "generalization/headline", "Test accuracy and loss of SGD, its averages, and SWA", _HEADLINE, REFIT,
    pairs=CLEAN, source="Table 1", item="Table 1", notes=_HEADLINE_NOTES, caption="Trained on all training images.",
    bold="the best accuracy and loss in a row",
)  # fmt: skip
DIFFERENCES = column_table(
    "generalization/differences", "Test accuracy and loss: paired difference to SGD",
    [spec._replace(title=spec.title.replace("%", "points"), op="minus") for spec in _HEADLINE[4:]], REFIT,
    pairs=CLEAN, source="Table 1", baselines={f"minus {title}": column for column, title in BASELINES.items()},
    caption=f"Positive is better for accuracy, negative for loss. {PAIRED}", notes=_HEADLINE_NOTES,
)  # fmt: skip
SUMMARY = column_table(
    "generalization/summary-80", "Trained on 80%: accuracy, loss and chosen epoch",
    _grouped({"SGD": "SGD", **AVERAGES}, "accuracy", "loss", "epoch"), TUNED, pairs=CLEAN,
    source="Table 6", item="Table 6", caption="Measured on the validation images that epochs are chosen on.",
    bold="the best accuracy and loss in a row",
    notes=(
        f"EMA: {SLOWEST}. SGD: the live weights at their best epoch.",
        "The paper's text calls this test accuracy, but the numbers match its validation tables.",
    ),
)  # fmt: skip
_EMA_LOSS = f"EMA (loss): {SLOWEST} by the lowest loss. SGD: the live weights at"


def _co_distillation() -> list[Row]:
    """The rows of the paper's Table 3 that it quotes from other work."""
    wanted = [
        f"{metric}, {who}" for metric in ("Test Acc.", "Churn", "JS divergence") for who in ("Baseline", "Method")
    ]
    rows: list[Row] = []
    for label, values in paper.rows_of("Table 3").items():
        by_column = {value.column: Cell(text=value.text, best=value.mark == "bold") for value in values}
        if not any(value.ours for value in values):
            group, _, label = label.rpartition(": ")  # in numbers.json: the method, then data set and network
            rows.append(Row(label, [by_column.get(column, MISSING) for column in wanted], group))
    return rows


AGREEMENT = column_table(
    "consistency/agreement", "Agreement between the refits of all pairs of seeds",
    [ColumnSpec(who, column, metric, group=title)
     for metric, title in {"accuracy": "test accuracy, %", "churn": "churn, %", "js": "JS"}.items()
     for who, column in (("SGD", "SGD"), ("EMA (loss)", LOSS))],
    REFIT, pairs=CLEAN, source="Table 3", item="Table 3", quoted=_co_distillation(), over=PAIRS_OF_SEEDS,
    caption="Trained on all training images, measured on test. Lower churn and JS are better.",
    bold="the better of two",
    notes=(
        f"{_EMA_LOSS} the last epoch.",
        JS_SCALE,
        "Below the rule: co-distillation as the paper quotes it, without n; the SGD column is its own baseline.",
    ),
)  # fmt: skip
AGREEMENT_DIFFERENCES = column_table(
    "consistency/differences", "Agreement between refits: EMA (loss) against SGD, paired",
    [ColumnSpec("churn, EMA − SGD, points", LOSS, "churn", "minus"),
     ColumnSpec("churn, EMA / SGD", LOSS, "churn", "ratio"), ColumnSpec("JS, EMA / SGD", LOSS, "js", "ratio")],
    REFIT, pairs=CLEAN, source="Table 3", over="pairs of seeds", notes=(f"{_EMA_LOSS} the last epoch.", JS_SCALE),
    caption="A difference below 0 or a ratio below 1 means that EMA agrees more. Differences and ratios are paired. "
    "Pairs that share a seed are not independent.",
)  # fmt: skip
CALIBRATION = column_table(
    "calibration/ece", "Expected calibration error (ECE), and after temperature scaling (TS)",
    [ColumnSpec("SGD", "SGD"), ColumnSpec("EMA (loss)", LOSS), ColumnSpec("EMA − SGD, points", LOSS, op="minus")],
    TUNED_ON_TEST, pairs=CLEAN, source="Table 5", item="Table 5",
    metrics=("accuracy", "ece", "ece_if_calibrated", "ece_ts"),
    caption=f"Trained on 80%, temperature fitted on the other 20%, measured on test. {PAIRED} Lower ECE is better.",
    bold="the better of two",
    notes=(
        f"{_EMA_LOSS} their best epoch.",
        IF_CALIBRATED,
        "The paper says that its table is measured on test, but the numbers match its validation tables.",
    ),
)  # fmt: skip


def full(results: Results, scale: Scale) -> list[Table]:
    """Every metric of each setting, in tuning and after the refits, with the choices of each seed."""
    tables: list[Table] = []
    for pair, settings in groupby(settings_for(results, scale, (*CLEAN, *NOISY)), key=lambda setting: setting.pair):
        for index, setting in enumerate(settings, 1):
            for stage in (TUNED, REFIT):
                suffix = "" if index == 1 else f"-{index}"
                tables += _stage_table(
                    setting, stage, f"generalization/full-{pair}-{stage.trained_on.rstrip('%')}{suffix}"
                )
    return tables


def protocol_tables(setting: Setting) -> list[Table]:
    """The tables of one protocol that was run on its own: one per stage and split."""
    tables = [table for stage in (TUNED, TUNED_ON_TEST, REFIT) for table in _stage_table(setting, stage, "protocol")]
    return [*(replace(table, notes=()) for table in tables[:-1]), *tables[-1:]]


def _stage_table(setting: Setting, stage: Stage, name: str) -> list[Table]:
    columns = series.columns_of(setting, stage)

    def printed(column: str, metric: str) -> str:
        return paper.lookup_full(setting.pair, column, metric, trained_on=stage.trained_on)

    rows: list[Row] = []
    for metric in (*METRICS, *series.transfers(setting)):
        shown = metric_of(metric)
        cells = [value_cell(setting, column.title, metric, stage, paper=printed(column.title, metric))
                 for column in columns]  # fmt: skip
        if has_values(cells):
            rows.append(Row(shown.title, with_best(cells, range(len(cells)), lower=shown.lower_is_better)))
    if not rows:
        return []
    choices = (
        ("epochs", "epochs", [[str(epoch) for epoch in column.epochs] for column in columns]),
        ("decay", "decay (average)", [[_short(weights) for weights in column.weights] for column in columns]),
        ("rate", "learning rate", [[f"{choice['rate']:g}" for choice in setting.choices]] * len(columns)),
    )
    chosen = [
        Row(title, [Cell(text=_by_seed(values), paper=printed(column.title, metric))
                    for column, values in zip(columns, by_column, strict=True)])
        for metric, title, by_column in choices
    ]  # fmt: skip
    bn = {ACC: "EMA (acc.) (BN)", LOSS: "EMA (loss) (BN)"}
    measured = "validation" if stage == TUNED else "test"
    return [
        Table(
            name=name, title=f"{label_of(setting)}: trained on {stage.trained_on}, measured on {measured}",
            columns=["", *(bn.get(column.title, column.title) for column in columns)], rows=[*rows, *chosen],
            breaks=[len(rows)], study=name.partition("/")[0], scale=setting.scale, over=PAIRS_OF_SEEDS, folded=True,
            item=paper.full_table(setting.pair, stage.trained_on), bold="the best in a row",
            caption="Below the rule: what each seed chose, once if all chose the same." + selection_note([setting]),
            notes=(
                "SGD: the live weights, at their best epoch if trained on 80%, at the last epoch if trained on 100%; "
                "SGD (last), SGD (best): at the other of the two. EMA: the average that validation chose, averaged "
                f"batch-norm statistics. (BN): {SLOWEST}.",
                IF_CALIBRATED,
                JS_SCALE,
                *(["right labels: accuracy on training images with a right label. memorised: share of training images "
                   "with a wrong label that are predicted as that label."] if setting.validation_labels else []),
                *(reference_note([setting]) if any(cell.paper for row in rows for cell in row.cells) else ()),
            ),
        )
    ]  # fmt: skip


def _short(average: str) -> str:
    return {LIVE: "none", "swa": "uniform"}.get(average, average.removeprefix("ema-"))


def _by_seed(values: Sequence[str]) -> str:
    if not values:
        return DASH
    return f"[{', '.join(values)}]" if len(set(values)) > 1 else values[0]


# Transfer -------------------------------------------------------------------------------------------------------------

_TARGETS = {"cifar10": "cifar10-resnet18", "cifar100": "cifar100-resnet18"}
"""The data sets on which the paper evaluates features, each with the pair that trains on it supervised."""


def transfer(results: Results, scale: Scale) -> list[Table]:
    """A linear head on frozen features of the refits, on another data set, beside supervised training on that set."""
    settings = settings_for(results, scale)
    return TableSpec(
        name="transfer/linear", title="Linear evaluation of frozen features on another data set", item="Table 4",
        columns=["evaluated on", "Baseline", *AVERAGES.values(), "Supervised", *AVERAGES.values()],
        groups=[("", 1), ("accuracy, %", 4), ("minus Baseline, points", 2)],
        lines=lambda setting: {
            metric.removeprefix(TRANSFER): _transfer_cells(setting, metric, settings)
            for metric in series.transfers(setting)
        },
        caption=f"Features of the models trained on all training images. {PAIRED}", bold="the best features in a row",
        notes=(
            f"EMA: {SLOWEST}. Baseline: the live weights at the last epoch. Supervised: the same kind of network "
            "trained on the target itself with SGD, at the last epoch; a dash if that was not run.",
        ),
        paper_notes=[paper.OF_MEANS],
    )(results, scale)  # fmt: skip


def _transfer_cells(setting: Setting, metric: str, settings: Sequence[Setting]) -> list[Cell]:
    target = metric.removeprefix(TRANSFER)
    # The paper's transfer beside this one: to the same target, or to the only target that the paper has for the pair.
    metrics = {value.metric for value in paper.printed("Table 4", place="table", pair=setting.pair)
               if value.metric.startswith(TRANSFER)}  # fmt: skip
    own = TRANSFER + target.split("-test")[0]  # "…-test-halves" where only the test images were found
    theirs = own if own in metrics else metrics.pop() if len(metrics) == 1 and target not in _TARGETS else ""

    def printed(column: str) -> str:
        return paper.lookup("Table 4", pair=setting.pair, ours=column, metric=theirs) if theirs else ""

    supervised = paper.lookup("Table 4", row="Supervised", pair=_TARGETS.get(theirs.removeprefix(TRANSFER), "none"))
    alike = (target, setting.network, setting.config.data.size)
    same = [other for other in settings if (other.dataset, other.network, other.config.data.size) == alike]
    features = [value_cell(setting, column, metric, REFIT, paper=printed(column)) for column in ("SGD", *AVERAGES)]
    return [
        *with_best(features, range(3)),
        value_cell(same[0], "SGD", "accuracy", REFIT, paper=supervised) if same else replace(MISSING, paper=supervised),
        *(difference_cell(setting, column, metric, REFIT, paper=paper.difference(printed(column), printed("SGD")))
          for column in AVERAGES),
    ]  # fmt: skip


# Label noise ----------------------------------------------------------------------------------------------------------

OURS = {**BASELINES, ACC: "EMA (acc.)"}
"""The refits' columns in the leaderboard, with their titles; the fair baseline first."""
LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Accuracies on the training images with right labels at which memorisation is compared; the paper uses 90%."""


def leaderboard(results: Results, scale: Scale) -> list[Table]:
    """Accuracy under label noise: beside the published methods if data and network are the paper's own.

    All other settings go into a second table without published methods, because their numbers do not compare.
    """
    settings = settings_for(results, scale, NOISY[::-1])  # in the order of the paper's table
    same = [setting for setting in settings if scale == "paper" and setting.compares]
    others = [setting for setting in settings if setting not in same]
    return [
        *_noise_table("label-noise/leaderboard", same, published=paper.rows_of("Table 2"), item="Table 2"),
        *_noise_table("label-noise/test-accuracy", others, published={}),
    ]


def _noise_table(
    name: str, settings: Sequence[Setting], *, published: Mapping[str, Sequence[paper.Printed]], item: str = ""
) -> list[Table]:
    """A column per setting. Our rows are sorted in among the published methods and bold, as in the paper's table."""
    ours = {title: [value_cell(setting, column, "accuracy", REFIT) for setting in settings]
            for column, title in OURS.items()}  # fmt: skip
    ours = {title: cells for title, cells in ours.items() if has_values(cells)}
    if not ours:
        return []
    ranked: list[tuple[Row, list[float | None]]] = []
    for label, values in published.items():
        by_pair = {value.pair: value for value in values}
        title = f"{label}, paper" if any(value.ours for value in values) else label
        shown = [by_pair.get(setting.pair) for setting in settings]
        cells = [Cell(text=value.text) if value else MISSING for value in shown]
        ranked.append((Row(title, cells), [value and value.mean for value in shown]))
    for title, cells in ours.items():
        bold = [replace(cell, best=bool(published) and cell.mean is not None) for cell in cells]
        ranked.append((Row(f"{title}, ours" if published else title, bold), [cell.mean for cell in cells]))
    if published:  # by the last column with a value of ours, as in the paper; on a tie, the published method first
        by = max(index for cells in ours.values() for index, cell in enumerate(cells) if cell.mean is not None)
        ranked.sort(key=lambda entry: -(entry[1][by] or 0.0))
    return [
        Table(
            name=name, title="Accuracy on clean test images after training with wrong labels", item=item,
            columns=["method" if published else "weights", *(f"{label}, %" for label in labels_of(settings))],
            rows=[row for row, _ in ranked], study="label-noise", scale=settings[0].scale, bold="ours",
            caption=("Published methods: a selection, as the paper quotes them, without n." if published else "")
            + selection_note(settings),
            notes=(
                f"EMA (acc.): {SLOWEST} by the best accuracy. SGD (best): the live weights at the epoch that "
                "validation chose for them. SGD (last): the live weights at the last epoch.",
            ),
        )
    ]  # fmt: skip


def _memorised(setting: Setting) -> Lines:
    live, slowest = (series.on_train(setting, weights) for weights in (LIVE, setting.slowest))
    if live is None or slowest is None:
        return {}
    runs = setting.variants["refit"]
    chosen, last = [chosen_epoch(setting, run.seed) for run in runs], [run.epochs for run in runs]
    return {
        **{f"{100 * level:g}%": _compared(live.first_reached(level), slowest.first_reached(level), setting, level)
           for level in LEVELS},
        "at the EMA (acc.) epoch": _compared(live.at(chosen), slowest.at(chosen), setting),
        "at the end": _compared(live.at(last), slowest.at(last), setting),
    }  # fmt: skip


def _compared(
    live: Sequence[Reached | None], slowest: Sequence[Reached | None], setting: Setting, level: float = 0
) -> list[Cell]:
    """Epoch, accuracy on right labels and share memorised, for SGD and EMA; then the difference of the shares."""

    def printed(weights: str, metric: str) -> str:
        ours = setting.pair == "cifar100n-resnet34" and level == series.REACHED
        return paper.lookup("Appendix E.1", column=weights, metric=metric).rstrip("%") if ours else ""

    cells: list[Cell] = []
    for seeds, weights in ((live, "SGD"), (slowest, "EMA")):
        cells += [
            Cell.of([seed and seed.epoch for seed in seeds], digits=1, paper=printed(weights, "epoch")),
            Cell.of([seed and seed.clean for seed in seeds], scale=100),
            Cell.of([seed and seed.memorised for seed in seeds], scale=100, paper=printed(weights, "memorised")),
        ]
    pairs = zip(live, slowest, strict=True)
    differences = [ema.memorised - sgd.memorised if ema and sgd else None for sgd, ema in pairs]
    text = paper.difference(printed("EMA", "memorised"), printed("SGD", "memorised"))
    return [*cells, Cell.of(differences, scale=100, paper=text)]


MEMORISATION = TableSpec(
    name="label-noise/memorisation", title="Wrong labels memorised, by the accuracy on right ones", item="Figure 7",
    pairs=NOISY, lines=_memorised, curves=True,
    columns=["clean accuracy reached", *("epoch", "clean, %", "memorised, %") * 2, "memorised, points"],
    groups=[("", 1), ("SGD", 3), ("EMA, slowest", 3), ("EMA − SGD", 1)],
    caption="On the training images, without augmentation. A dash: not every seed reached it, or that epoch was not "
    f"measured. {PAIRED}",
    notes=(
        "clean: accuracy on training images with a right label. memorised: share of training images with a wrong label "
        "that are predicted as that label.",
        "The first measured epoch at which each seed has the accuracy. EMA: averaged batch-norm statistics.",
    ),
    paper_notes=("The paper's numbers (Appendix E.1) are for CIFAR-100N with ResNet-34.",),
)  # fmt: skip


# Peaks and ends of curves ---------------------------------------------------------------------------------------------

_PEAKS = ["", "peak, %", "epoch", "end, %", "end − peak"]
_PEAKS_CAPTION = (
    "Accuracy; peak and epoch from each seed's own curve. Rows of differences are paired by seed, in points."
)
_PEAKS_NOTES = (
    "Trained on all training images, measured on test.",
    "EMA: the best of all averages at each epoch, averaged batch-norm statistics, as in the paper's figures.",
    f"peak, {ORACLE}",
)


def _at_chosen(setting: Setting, variant: str, curve: MakeCurve) -> dict[int, float | None]:
    """Each seed's value at the epoch that validation chose for it."""
    curves = by_seed(setting, variant, curve, lambda curve: curve)
    return {seed: series.at(own, chosen_epoch(setting, seed)) for seed, own in curves.items()}


Curves = tuple[str, MakeCurve]
"""A variant, and the curve to take from each of its runs."""


def _peak_cells(setting: Setting, ours: Curves, theirs: Curves | None = None, *, paper: str = "") -> list[Cell]:
    """Peak, its epoch, the end, and the end minus the peak; with `theirs`, each of them as ours minus theirs."""

    def values(point: Callable[[np.ndarray], float | None]) -> BySeed:
        own = by_seed(setting, *ours, point)
        return own if theirs is None else minus(own, by_seed(setting, *theirs, point))

    top, last = values(height), values(end)
    cells = [percent_cell(top), epoch_cell(values(peak_epoch)), percent_cell(last, paper=paper)]
    return [*cells, percent_cell(minus(last, top))]


def _constant_lines(setting: Setting) -> Lines:
    if "constant" not in setting.variants:
        return {}
    curves = {"SGD": sgd("test"), "EMA": best_of(setting, "test")}
    lines = {f"{schedule}, {weights}": _peak_cells(setting, (variant, curve))
             for schedule, variant in (("cosine", "refit"), ("constant", "constant"))
             for weights, curve in curves.items()}  # fmt: skip
    differences = {f"{weights}, constant − cosine": _peak_cells(setting, ("constant", curve), ("refit", curve))
                   for weights, curve in curves.items()}  # fmt: skip
    return {**lines, **differences}


def _step_lines(setting: Setting) -> Lines:
    live, ema = ("step", sgd("test")), ("step", best_of(setting, "test"))
    return {
        "SGD": _peak_cells(setting, live),
        "EMA": _peak_cells(setting, ema),
        "EMA − SGD": _peak_cells(setting, ema, live),
    }


def _bootstrap_lines(setting: Setting) -> Lines:
    copied = series.copied_back(setting)
    if copied is None:
        return {}
    curves = {"SGD": sgd("val"), copied: average_of(copied, "val")}
    lines: dict[str, list[Cell]] = {}
    for weights, curve in curves.items():
        printed = [
            paper.lookup("Appendix C", metric=metric).rstrip("%") if (weights, setting.pair) == ("SGD", MAIN) else ""
            for metric in ("accuracy", "bootstrapped_accuracy")
        ]
        plain, bootstrapped = ("tune", curve), ("bootstrap", curve)
        lines[weights] = _peak_cells(setting, plain, paper=printed[0])
        lines[f"{weights}, bootstrapped"] = _peak_cells(setting, bootstrapped, paper=printed[1])
        lines[f"{weights}, difference"] = _peak_cells(setting, bootstrapped, plain)
    return lines


CONSTANT_RATE = TableSpec(
    name="constant-lr/peak", title="Learning rate held constant from the EMA (acc.) epoch on, against the cosine",
    item="Figure 8", columns=_PEAKS, lines=_constant_lines, caption=_PEAKS_CAPTION, curves=True,
    notes=(*_PEAKS_NOTES, HELD_FROM),
)  # fmt: skip
STEP_DECAY = TableSpec(
    name="step-decay/end", title="Step decay of the learning rate", item="Figure 3", columns=_PEAKS, lines=_step_lines,
    caption=_PEAKS_CAPTION, notes=_PEAKS_NOTES, curves=True,
)  # fmt: skip
BOOTSTRAP = TableSpec(
    name="bootstrap/accuracy", title="The average copied back into training after each epoch (bootstrap)",
    item="Figure 5", columns=_PEAKS, lines=_bootstrap_lines, caption=_PEAKS_CAPTION,
    notes=(
        "Trained on 80%, measured on validation. The paper prints the final accuracy of SGD alone.",
        "Below SGD: the average that is copied back (0.992 in the paper), averaged batch-norm statistics.",
    ),
)  # fmt: skip


def _sensitivity_lines(setting: Setting) -> Lines:
    """A row per average; none unless the statistics were recomputed after every epoch."""
    decays = list(paper.rows_of("Table 24"))
    compares = setting.pair == MAIN and len(setting.averages) == len(decays)
    lines: dict[str, list[Cell]] = {}
    for index, name in enumerate(setting.averages):
        cells: list[Cell] = []
        for batchnorm in ("recomputed", "averaged"):
            curve = average_of(name, "test", batchnorm=batchnorm)
            # The paper's decays are matched with ours by rank, from fast to slow.
            printed = [
                paper.lookup("Table 24", row=decays[index], column=column)
                if compares and batchnorm == "recomputed" else ""
                for column in ("Best test accuracy", "Epoch")
            ]  # fmt: skip
            cells += [
                percent_cell(by_seed(setting, "refit", curve, height), paper=printed[0]),
                epoch_cell(by_seed(setting, "refit", curve, peak_epoch), paper=printed[1]),
                percent_cell(_at_chosen(setting, "refit", curve)),
            ]
        lines[name.removeprefix("ema-")] = cells
    measured = any(has_values(cells[:1]) for cells in lines.values())
    return with_best_by_column(lines, (0, 2, 3, 5)) if measured else {}


SENSITIVITY = TableSpec(
    name="batchnorm/sensitivity", title="Best test accuracy of each average, and when", item="Table 24",
    lines=_sensitivity_lines, curves=True,
    columns=["average", "best, %", "epoch", "accuracy, %", "best, %", "epoch", "accuracy, %"],
    groups=[("", 1), ("recomputed, oracle", 2), ("recomputed, chosen", 1), ("averaged, oracle", 2),
            ("averaged, chosen", 1)],
    caption="Trained on all training images, measured on test. recomputed, averaged: the batch-norm statistics.",
    bold="the best in a column",
    notes=(
        ORACLE,
        f"{CHOSEN} All averages share it.",
        "average: the decay per update, or the half-life in percent of the run. The paper's five decays are matched by "
        "rank, from fast to slow.",
    ),
)  # fmt: skip


def _rate_lines(setting: Setting) -> Lines:
    lines = {f"{rate:g}": _rate_cells(setting, rate, variant) for rate, variant in setting.rates().items()}
    return with_best_by_column(lines, (0, 1)) if len(lines) > 1 else {}


def _rate_cells(setting: Setting, rate: float, variant: str) -> list[Cell]:
    live, ema = (by_seed(setting, variant, curve, height) for curve in (sgd("val"), best_of(setting, "val")))
    row = next((row for row, values in paper.rows_of("Table 21").items()
                if row.endswith(f", {rate:g}") and values[0].pair == setting.pair), "")  # fmt: skip
    printed = [paper.lookup("Table 21", row=row, pair=setting.pair, column=f"{weights} Acc.") if row else ""
               for weights in ("SGD", "EMA")]  # fmt: skip
    return [
        percent_cell(live, paper=printed[0]),
        percent_cell(ema, paper=printed[1]),
        percent_cell(minus(ema, live), paper=paper.difference(printed[1], printed[0])),
    ]


LR_SEARCH = TableSpec(
    name="lr-search/rates", title="Best validation accuracy by peak learning rate", item="Table 21", lines=_rate_lines,
    pairs=tuple(dict.fromkeys((MAIN, "cifar100-wrn-28-10", *PAIRS))),
    columns=["learning rate", "SGD, %", "EMA, %", "EMA − SGD, points"],
    caption=f"Trained on 80%, measured on validation. {PAIRED}", bold="the best in a column",
    notes=(
        "SGD: the best epoch of the live weights. EMA: the best epoch and average, averaged batch-norm statistics.",
    ),
    paper_notes=("The paper prints no spread here.",),
)  # fmt: skip


def lr_search(results: Results, scale: Scale) -> list[Table]:
    """Each protocol once: at a smaller scale, one protocol may stand in for two pairs."""
    once = {setting.protocol: setting for setting in reversed(settings_for(results, scale, LR_SEARCH.pairs))}
    return LR_SEARCH(replace(results, settings=tuple(once.values())), scale)


# The sampling period --------------------------------------------------------------------------------------------------

PERIODS = (1, 4, 16, 64)
PAPER_PERIOD = 16


def _period_lines(setting: Setting) -> Lines:
    periods = setting.periods()
    if len(periods) < 2:
        return {}
    return {f"T = {period}": _period_cells(setting, variant, periods[min(periods)])
            for period, variant in periods.items()}  # fmt: skip


def _period_cells(setting: Setting, variant: str, shortest: str) -> list[Cell]:
    best = best_of(setting, "test")
    tops, ends = (by_seed(setting, variant, best, point) for point in (height, end))
    chosen = _at_chosen(setting, variant, best)
    slowest = by_seed(setting, variant, average_of(setting.slowest, "test"), height)
    differences = [
        percent_cell(minus(tops, by_seed(setting, shortest, best, height))),
        percent_cell(minus(chosen, _at_chosen(setting, shortest, best))),
    ]
    cells = [percent_cell(values) for values in (tops, chosen, ends, slowest)]
    return [*cells, *([MISSING] * 2 if variant == shortest else differences)]


SAMPLING_PERIOD = TableSpec(
    name="sampling-period/accuracy", title="Test accuracy of averages by sampling period, equal horizons",
    lines=_period_lines, curves=True,
    columns=["sampling period", "peak, %", "chosen, %", "end, %", "peak, %", "peak", "chosen"],
    groups=[("", 1), ("best average", 3), ("slowest average", 1), ("best, minus the shortest T", 2)],
    caption="Trained on all training images, no warm-up of the decay, averaged batch-norm statistics. Differences, in "
    "points, are paired by seed.",
    notes=(
        f"best average: the best of all at each epoch. {CHOSEN}",
        f"peak, {ORACLE}",
        "The paper uses T = 16 in runs of tens of thousands of steps and says that T = 1 gives the same. In a short "
        "run the third period stands in for its 16.",
    ),
)  # fmt: skip


def equivalence() -> Table:
    """The paper's decays, converted to other sampling periods so that the horizon in steps stays the same."""
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
        caption="Computed, not measured: the decay α at T = 16 is α^(T/16) at T. The paper rounds, and prints T = 1 "
        "and T = 16 only.",
    )  # fmt: skip


def overhead(results: Results) -> list[Table]:
    """The cost of the averages per network, relative to its training step; the last row is the paper's example."""
    if not results.overheads:
        return []
    (parameters,), (memory,) = (paper.printed("Section 3.1", metric=name) for name in ("parameters", "megabytes"))
    example = [Cell(text=parameters.text), Cell(text="1"), MISSING, Cell(text=f"{memory.mean:.2f}"), *[MISSING] * 3]
    return [
        Table(
            name="sampling-period/overhead", title="Time and memory of the averages",
            columns=["network", "parameters", "averages", "every, steps", "MiB per average", "update, ms", "step, ms",
                     "share of a step, %"],
            rows=[*map(_costs, results.overheads), Row("ResNet-50, paper", example)], breaks=[len(results.overheads)],
            study="sampling-period", item="Section 3.1", over="repetitions of one interleaved run on this machine",
            caption="Sizes are counted, not measured.",
            notes=(
                "update: one update of all averages. step: one training step without averages. share: the time of an "
                "update divided by that of the steps between two updates, per repetition.",
                f"The paper (Section 3.1) says that a ResNet-50 with {parameters.text} parameters needs {memory.text}: "
                "float32, and a MB of 2^20 bytes. It gives no times.",
            ),
        )
    ]  # fmt: skip


def _costs(cost: Overhead) -> Row:
    cells = [
        Cell(text=f"{cost.parameters:,}"),
        Cell(text=str(cost.averages)),
        Cell(text=str(cost.every)),
        Cell(text=f"{cost.bytes / cost.averages / 2**20:.2f}"),
        Cell.of(cost.update_seconds, scale=1000, digits=3),
        Cell.of(cost.step_seconds, scale=1000, digits=2),
        Cell.of(cost.shares, scale=100, digits=3),
    ]
    return Row(cost.network, cells)


# After the training ---------------------------------------------------------------------------------------------------


def _window_lines(setting: Setting) -> Lines:
    """Windows chosen after training, each at its best stopping epoch, beside the same averages kept during training."""
    accuracy, errors, distances = (
        series.posthoc(setting, metric) for metric in ("accuracy", "profile_error", "weight_distance")
    )
    lines: dict[str, list[Cell]] = {}
    for name, curves in accuracy.items():
        at = int(np.nanargmax(curves.mean(axis=0)))
        kept = series.kept_during_training(setting, name)
        beside = kept[:, at] if kept is not None and kept.shape == curves.shape else None
        lines[name.removeprefix("ema-")] = [
            Cell(text=str(at + 1)),
            Cell.of(curves[:, at], scale=100),
            Cell.of(() if beside is None else beside, scale=100),
            Cell.of(() if beside is None else curves[:, at] - beside, scale=100),
            Cell.of(errors[name][:, at] if name in errors else (), digits=4),
            Cell.of(distances[name][:, -1] if name in distances else (), scale=100, digits=3),
        ]
    return with_best_by_column(lines, (1, 2))


WINDOWS = TableSpec(
    name="posthoc/windows", title="Windows chosen after the training, at their best stopping epoch",
    lines=_window_lines,
    columns=["window", "epoch", "post hoc, %", "kept live, %", "difference, points", "profile error",
             "weights off, %"],
    caption=f"Trained on 80%, measured on validation. {PAIRED}", bold="the best in a column",
    notes=(
        "window: the decay per update, or the half-life in percent of the run. A dash: no run kept that average.",
        "post hoc: synthesized from snapshots, at the stopping epoch with the best mean over seeds on validation. kept "
        "live: the same average, kept during training, at that epoch.",
        "profile error: how far the sample weights of the synthesized average are from the true ones, at that epoch. "
        "weights off: the distance between the two averages relative to their norm, at the last epoch.",
    ),
)  # fmt: skip


# The set-up -----------------------------------------------------------------------------------------------------------

_AVERAGES = "averages.decays or averages.half_lives"
_HYPERPARAMETERS = {
    "data": ("data.dataset", "", ""),
    "labels": ("data.labels", "", ""),
    "share of labels made wrong": ("data.noise", "", ""),
    "training images, if not all": ("data.subset", "", ""),
    "size of the images, if shrunk": ("data.size", "", ""),
    "network": ("training.network", "", ""),
    "width": ("training.width", "", ""),
    "Nesterov momentum of SGD": ("training.momentum", "Table 22", "momentum"),
    "learning rates tried": ("rates", "Table 22", "rate"),
    "schedule": ("training.schedule", "", ""),
    "warm-up of the learning rate, epochs": ("training.warmup_epochs", "Section 4.1", "warmup_epochs"),
    "weight decay": ("training.weight_decay", "Table 22", "weight_decay"),
    "batch size": ("training.batch", "Table 22", "batch"),
    "epochs": ("training.epochs", "Table 22", "budget"),
    "averages: decays per update, or half-lives in % of the run": (_AVERAGES, "Table 22", "decays"),
    "sampling period, steps": ("averages.every", "Table 22", "period"),
    "warm-up of the decay": ("averages.decay_warmup", "Section 4.1", "decay_warmup"),
    "crop, pixels": ("data.crop", "", ""),
    "mirrored": ("data.flip", "", ""),
    "precision": ("hardware.precision", "", ""),
    "images for curves, if not all": ("measuring.curve_images", "", ""),
    "epochs between measurements on training images": ("measuring.train_every", "", ""),
    "seeds": ("seeds", "Section 4.1", "runs"),
}
"""By row title: the option's path in the configuration, then the item and metric under which the paper prints it."""


def hyperparameters(results: Results, scale: Scale) -> list[Table]:
    """A column per setting, and one for the paper; a row that is empty in every configuration is skipped."""
    settings = settings_for(results, scale)
    rows: list[Row] = []
    for title, (path, item, metric) in _HYPERPARAMETERS.items():
        texts = [_text(_option(setting, path)) for setting in settings]
        if any(texts):
            printed = paper.printed(item, metric=metric) if item else []
            theirs = [value.text if value.column in ("", "Value") else f"{value.column}: {value.text}"
                      for value in printed]  # fmt: skip
            rows.append(Row(title, [Cell(text=text or DASH) for text in (*texts, "; ".join(theirs))]))
    if not rows:
        return []
    return [
        Table(
            name="setup/hyperparameters", title="Hyper-parameters, beside the paper's",
            columns=["", *labels_of(settings), "paper"], rows=rows, study="setup", scale=scale, item="Table 22",
            caption=selection_note(settings).strip(),
        )
    ]  # fmt: skip


def _option(setting: Setting, path: str) -> Any:
    """The first option that is set in a path such as "averages.decays or averages.half_lives"."""
    options = [attrgetter(name)(setting.config) for name in path.split(" or ")]
    return next((option for option in options if option or len(options) == 1), None)


def _text(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        values: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return ", ".join(_text(part) for part in values)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


_TABLES: Sequence[Callable[[Results, Scale], list[Table]]] = (
    HEADLINE, DIFFERENCES, SUMMARY, full, SENSITIVITY, leaderboard, MEMORISATION, CONSTANT_RATE, AGREEMENT,
    AGREEMENT_DIFFERENCES, CALIBRATION, transfer, STEP_DECAY, BOOTSTRAP, lr_search, SAMPLING_PERIOD, WINDOWS,
    hyperparameters,
)  # fmt: skip
"""Each makes tables of one scale."""
