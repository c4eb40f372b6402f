"""Calibration: ECE with and without temperature scaling, of the models trained on 80%, measured on test."""

from emabank.study.report.evidence import Evidence, all_chosen_on
from emabank.study.report.pairs import CLEAN, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import (
    MEASURES,
    OVER_SEEDS,
    PAIRED,
    SLOWEST,
    TUNED_ON_TEST,
    cell,
    difference,
    there,
    with_best,
)
from emabank.study.report.tables.settings import orientation, standing_for, titled

ITEM = "Table 5"
METRICS = ("accuracy", "ece", "ece_if_calibrated", "ece_ts")


def ece(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """Accuracy and calibration errors of SGD and EMA, and the paired difference.

    >>> ece(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, CLEAN)
    title, begins = titled("Expected calibration error (ECE), and after temperature scaling (TS)", settings)
    rows: list[tuple[str, list[Cell]]] = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        before = len(rows)
        for metric in METRICS:
            printed = [
                beside.text(ITEM, pair=setting.pair, ours=column, metric=metric) for column in ("SGD", "slowest (loss)")
            ]
            cells = [
                cell(setting, "SGD", metric, TUNED_ON_TEST, paper=printed[0]),
                cell(setting, "slowest (loss)", metric, TUNED_ON_TEST, paper=printed[1]),
                difference(setting, "slowest (loss)", metric, TUNED_ON_TEST, paper=beside.difference(*printed[::-1])),
            ]
            measure = MEASURES[metric]
            best = () if metric == "ece_if_calibrated" else (0, 1)
            if there(cells):
                rows.append((begin + measure.title, with_best(cells, best, lower=measure.lower_is_better)))
        breaks += [before] if before and len(rows) > before else []
    if not rows:
        return []
    return [
        Sheet(
            name="calibration/ece", title=title, columns=["", "SGD", "EMA (loss)", "EMA − SGD, points"], rows=rows,
            breaks=breaks, study="calibration", scale=scale, item=ITEM,
            caption=f"Trained on 80%, the temperature fitted on the other 20%, measured on test. {OVER_SEEDS} {PAIRED} "
            f"ECE: the lower the better. Bold: the better of two.{all_chosen_on(settings)}",
            notes=(
                f"EMA (loss): {SLOWEST} by the lowest loss. SGD: the live weights at their best epoch.",
                "ECE if calibrated: the ECE that a perfectly calibrated model with these confidences would have.",
                "The paper describes its table as measured on test; its numbers are those of its validation tables.",
                beside.OF_MEANS,
                *orientation(settings),
            ),
        )
    ]  # fmt: skip
