"""Generalisation: the headline table with paired differences, the summary of tuning, a full table of each pair."""

from collections.abc import Sequence
from itertools import groupby

from emabank.study.report.evidence import LIVE, Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import CLEAN, PAIRS, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import (
    JS_SCALE,
    MEASURES,
    OVER_PAIRS,
    OVER_SEEDS,
    PAIRED,
    REFIT,
    SLOWEST,
    TUNED,
    Stage,
    cell,
    difference,
    there,
    with_best,
)
from emabank.study.report.tables.settings import label, labels, orientation, standing_for

STUDY = "generalization"
FULL = tuple(PAIRS)[:7]
"""The pairs that have a full table."""
BASELINES = {"SGD (best)": "SGD (best)", "SGD": "SGD (last)"}
"""The live weights of a refit at the epoch that tuning chose for them, as for an average; and at the last, as in the
paper."""
AVERAGES = {"slowest (acc.)": "EMA (acc.)", "slowest (loss)": "EMA (loss)"}
"""As in the paper, EMA is the slowest average, recomputed."""
BN = {"slowest (acc.)": "EMA (acc.) (BN)", "slowest (loss)": "EMA (loss) (BN)"}
"""Titles of the full tables that are not those of the protocol."""


def headline(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """Accuracy and loss on test of SGD, EMA by both criteria, and SWA's accuracy; and paired differences to both SGD.

    >>> headline(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, CLEAN)
    titles = {**BASELINES, **AVERAGES, "SWA": "SWA"}
    places = [
        (column, metric) for column in titles for metric in ("accuracy", "loss") if (column, metric) != ("SWA", "loss")
    ]
    rows: list[tuple[str, list[Cell]]] = []
    gains: list[tuple[str, list[Cell]]] = []
    for setting, title in zip(settings, labels(settings), strict=True):
        printed = {place: beside.text("Table 1", pair=setting.pair, ours=place[0], metric=place[1]) for place in places}
        cells = [cell(setting, *place, REFIT, paper=printed[place]) for place in places]
        cells = with_best(with_best(cells, (0, 2, 4, 6, 8)), (1, 3, 5, 7), lower=True)
        rows += [(title, cells)] if there(cells) else []
        for baseline, short in BASELINES.items():
            minus = [
                difference(
                    setting, *place, REFIT, minus=baseline,
                    paper=beside.difference(printed[place], printed[baseline, place[1]]),
                )
                for place in places[4:]
            ]  # fmt: skip
            gains += [(f"{title}: minus {short}", minus)] if there(minus) else []
    notes = (
        f"EMA: {SLOWEST}. SGD (best): the live weights at the epoch that validation chose for them, so that both sides "
        "stop where they choose. SGD (last): at the last epoch, as in the paper.",
        *orientation(settings),
    )
    columns = [MEASURES[metric].short for _, metric in places]
    groups = [("", 1), *((title, 1 if title == "SWA" else 2) for title in titles.values())]
    made = [
        Sheet(
            name="generalization/headline", title="Test accuracy and loss of SGD, its averages, and SWA",
            columns=["", *columns], groups=groups, rows=rows, study=STUDY, scale=scale, item="Table 1", notes=notes,
            caption=f"Trained on all training images. {OVER_SEEDS} Bold: the best accuracy and loss of a row."
            f"{all_chosen_on(settings)}",
        ),
        Sheet(
            name="generalization/differences", title="Test accuracy and loss: paired difference to SGD",
            columns=["", *(each.replace("%", "points") for each in columns[4:])], groups=[groups[0], *groups[3:]],
            rows=gains, study=STUDY, scale=scale, caption=f"Above 0 is better in accuracy, below 0 in loss. {PAIRED}"
            f"{all_chosen_on(settings)}",
            notes=(beside.OF_MEANS, *notes),
        ),
    ]  # fmt: skip
    return [sheet for sheet in made if sheet.rows]


def summary(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """What was found in tuning: accuracy and loss on validation, and the mean epoch at which they were found.

    >>> summary(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, CLEAN)
    titles = {"SGD": "SGD", **AVERAGES}
    rows: list[tuple[str, list[Cell]]] = []
    for setting, title in zip(settings, labels(settings), strict=True):
        cells = [each for column in titles for each in _summed(setting, column)]
        cells = with_best(with_best(cells, (0, 3, 6)), (1, 4, 7), lower=True)
        rows += [(title, cells)] if there(cells) else []
    if not rows:
        return []
    return [
        Sheet(
            name="generalization/summary-80", title="Trained on 80%: accuracy, loss, and the epoch that was chosen",
            columns=["", *("acc., %", "loss", "epoch") * 3],
            groups=[("", 1), *((title, 3) for title in titles.values())], rows=rows, study=STUDY, scale=scale,
            item="Table 6",
            caption=f"Measured on the validation images that epochs were chosen on. {OVER_SEEDS} "
            f"Bold: the best accuracy and the lowest loss of a row.{all_chosen_on(settings)}",
            notes=(
                f"EMA: {SLOWEST}. SGD: the live weights at their best epoch.",
                "The paper's text speaks of test accuracy here; what it prints is in its validation tables.",
                *orientation(settings),
            ),
        )
    ]  # fmt: skip


def _summed(setting: Setting, column: str) -> list[Cell]:
    printed = {
        metric: beside.text("Table 6", pair=setting.pair, ours=column, metric=metric)
        for metric in ("accuracy", "loss", "epoch")
    }
    found = setting.column(column, trained_on=TUNED.trained_on, split=TUNED.split)
    epochs = Cell.of(found["epochs"] if found else (), digits=1, paper=printed["epoch"])
    return [*(cell(setting, column, metric, TUNED, paper=printed[metric]) for metric in ("accuracy", "loss")), epochs]


def full(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """All that the protocol measured of each setting, in tuning and of the refits, with what each seed chose.

    >>> full(Evidence(), "demo")
    []
    """
    made: list[Sheet] = []
    for _, same in groupby(standing_for(evidence, scale, FULL), key=lambda setting: setting.pair):
        for place, setting in enumerate(same, 1):
            for stage in (TUNED, REFIT):
                made += _full(setting, stage, suffix="" if place == 1 else f"-{place}")
    return made


def _full(setting: Setting, stage: Stage, *, suffix: str) -> list[Sheet]:
    columns: list[str] = [
        t["column"] for t in setting.tables if (t["trained_on"], t["split"]) == (stage.trained_on, stage.split)
    ]
    item = beside.full_table(setting.pair, stage.trained_on)
    rows: list[tuple[str, list[Cell]]] = []
    for metric, measure in MEASURES.items():
        cells = [
            cell(setting, column, metric, stage, paper=_printed(setting, column, metric, stage)) for column in columns
        ]
        if there(cells):
            best = range(len(cells)) if metric != "ece_if_calibrated" else ()
            rows.append((measure.title, with_best(cells, best, lower=measure.lower_is_better)))
    if not rows:
        return []
    measured = "validation" if stage == TUNED else "test"
    sgd = "at their best epoch" if stage == TUNED else "at the last epoch; SGD (best): at the epoch tuning chose"
    return [
        Sheet(
            name=f"generalization/full-{setting.pair}-{stage.trained_on.rstrip('%')}{suffix}",
            title=f"{label(setting)}: trained on {stage.trained_on}, measured on {measured}",
            columns=["", *(BN.get(column, column) for column in columns)], rows=[*rows, *_chosen(setting, stage)],
            breaks=[len(rows)], study=STUDY, scale=setting.scale, item=item,
            caption=f"{OVER_PAIRS} Last, what each seed chose, once where all chose the same. Bold: the best of a row."
            f"{all_chosen_on([setting])}",
            notes=(
                f"SGD: the live weights, {sgd}. EMA: the average that validation chose, averaged batch-norm "
                f"statistics. (BN): {SLOWEST}.",
                "ECE if calibrated: the ECE that a perfectly calibrated model with these confidences would have.",
                JS_SCALE,
                *orientation([setting]),
            ),
        )
    ]  # fmt: skip


def _chosen(setting: Setting, stage: Stage) -> list[tuple[str, list[Cell]]]:
    """What stands below the measures: epochs, averages and learning rates by seed."""
    rates = [f"{choice['rate']:g}" for choice in setting.choices]
    rows: dict[str, list[Cell]] = {"epochs": [], "decay (average)": [], "learning rate": []}
    for table in setting.tables:
        if (table["trained_on"], table["split"]) == (stage.trained_on, stage.split):
            listed = ([str(each) for each in table["epochs"]], [_short(each) for each in table["weights"]], rates)
            for (title, cells), each, metric in zip(rows.items(), listed, ("epochs", "decay", "rate"), strict=True):
                text = _by_seed(each, always=title == "epochs")
                cells.append(Cell(text=text, paper=_printed(setting, table["column"], metric, stage)))
    return list(rows.items())


def _printed(setting: Setting, column: str, metric: str, stage: Stage) -> str:
    return beside.full(setting.pair, column, metric, trained_on=stage.trained_on)


def _short(average: str) -> str:
    return {LIVE: "none", "swa": "uniform"}.get(average, average.removeprefix("ema-"))


def _by_seed(values: Sequence[str], *, always: bool) -> str:
    if not values:
        return "–"
    return f"[{', '.join(values)}]" if always or len(set(values)) > 1 else values[0]
