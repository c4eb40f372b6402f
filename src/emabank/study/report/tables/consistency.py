"""Consistency: how far the refits of two seeds agree, SGD against EMA (loss), beside the published co-distillation."""

from collections.abc import Sequence

from emabank.study.report.evidence import Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import CLEAN, Scale
from emabank.study.report.paper.numbers import Printed
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import (
    JS_SCALE,
    MISSING,
    OVER_PAIRS,
    REFIT,
    SLOWEST,
    cell,
    difference,
    there,
    with_best,
)
from emabank.study.report.tables.settings import labels, orientation, standing_for

STUDY = "consistency"
ITEM = "Table 3"
METHODS = {"SGD": "SGD", "slowest (loss)": "EMA (loss)"}
METRICS = {"accuracy": ("test accuracy, %", "Test Acc."), "churn": ("churn, %", "Churn"), "js": ("JS", "JS divergence")}
"""What is compared, with our title and the paper's."""

_PAIRED = (
    "All are paired: of each pair of seeds, then mean ± standard deviation. Pairs that share a seed do so with their "
    "chance, so they are not independent."
)


def agreement(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """Accuracy, churn and JS of both; and the paired differences and ratios.

    >>> agreement(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, CLEAN)
    rows: list[tuple[str, list[Cell]]] = []
    compared: list[tuple[str, list[Cell]]] = []
    for setting, title in zip(settings, labels(settings), strict=True):
        cells = [
            cell(setting, column, metric, REFIT, paper=_printed(setting, column, metric))
            for metric in METRICS
            for column in METHODS
        ]
        for place, metric in enumerate(METRICS):
            cells = with_best(cells, (2 * place, 2 * place + 1), lower=metric != "accuracy")
        rows += [(title, cells)] if there(cells) else []
        against = [_difference(setting, "churn"), _ratio(setting, "churn"), _ratio(setting, "js")]
        compared += [(title, against)] if there(against) else []
    notes = (f"EMA (loss): {SLOWEST} by the lowest loss. SGD: the live weights at the last epoch.", JS_SCALE)
    made: list[Sheet] = []
    if rows:
        published = _published()
        groups = [("", 1), *((title, 2) for title, _ in METRICS.values())]
        said = (
            "Below the rule: co-distillation as the paper quotes it, SGD's column being its own baseline; n not given."
        )
        made.append(
            Sheet(
                name="consistency/agreement", title="Agreement between the refits of all pairs of seeds", groups=groups,
                columns=["", *list(METHODS.values()) * 3], rows=[*rows, *published], breaks=[len(rows)], study=STUDY,
                scale=scale, item=ITEM, caption=f"Trained on all training images, measured on test. {OVER_PAIRS} "
                f"Churn and JS: the lower the better. Bold: the better of two.{all_chosen_on(settings)}",
                notes=(*notes, *([said] if published else []), *orientation(settings)),
            )
        )  # fmt: skip
    if compared:
        made.append(
            Sheet(
                name="consistency/differences", title="Agreement between refits: EMA (loss) against SGD, paired",
                columns=["", "churn, EMA − SGD, points", "churn, EMA / SGD", "JS, EMA / SGD"], rows=compared,
                study=STUDY, scale=scale, notes=(beside.OF_MEANS, *notes, *orientation(settings)),
                caption=f"Below 0 and below 1: EMA agrees more. {_PAIRED}{all_chosen_on(settings)}",
            )
        )  # fmt: skip
    return made


def _printed(setting: Setting, column: str, metric: str) -> str:
    return beside.text(ITEM, pair=setting.pair, ours=column, metric=metric)


def _difference(setting: Setting, metric: str) -> Cell:
    printed = [_printed(setting, column, metric) for column in ("slowest (loss)", "SGD")]
    return difference(setting, "slowest (loss)", metric, REFIT, paper=beside.difference(*printed))


def _ratio(setting: Setting, metric: str) -> Cell:
    """The ratio of each pair of seeds; none where SGD's is zero."""
    ours, theirs = (
        setting.values(column, metric, trained_on=REFIT.trained_on, split=REFIT.split)
        for column in ("slowest (loss)", "SGD")
    )
    paper = beside.ratio(*(_printed(setting, column, metric) for column in ("slowest (loss)", "SGD")))
    if not ours or not theirs or len(ours) != len(theirs):
        return Cell(text=MISSING.text, paper=paper)
    found = [one / other if one is not None and other else None for one, other in zip(ours, theirs, strict=True)]
    return Cell.of(found, paper=paper)


def _published() -> list[tuple[str, list[Cell]]]:
    """The rows of the paper's table that are no runs of its own."""
    return [
        (
            row,
            [
                _quoted(values, f"{paper}, {column}")
                for _, paper in METRICS.values()
                for column in ("Baseline", "Method")
            ],
        )
        for row, values in beside.rows(ITEM).items()
        if not any(value.ours for value in values)
    ]


def _quoted(values: Sequence[Printed], column: str) -> Cell:
    found = [value for value in values if value.column == column]
    return Cell(text=found[0].text, best=found[0].mark == "bold") if found else MISSING
