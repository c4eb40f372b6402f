"""Batch norm and the decay: how good each average gets with recomputed statistics, and when; beside averaged ones."""

from emabank.study.report.evidence import Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import OVER_SEEDS, there, with_best
from emabank.study.report.tables.peaks import (
    ORACLE,
    at,
    average,
    chosen_epochs,
    epochs,
    peak,
    peak_epoch,
    percent,
)
from emabank.study.report.tables.settings import orientation, standing_for, titled

ITEM = "Table 24"


def sensitivity(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """A row for each average of the settings in which statistics were recomputed after every epoch.

    >>> sensitivity(Evidence(), "demo")
    []
    """
    settings = [setting for setting in standing_for(evidence, scale) if _lines(setting)]
    title, begins = titled("Best test accuracy of each average, and when", settings)
    rows: list[tuple[str, list[Cell]]] = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        breaks += [len(rows)] if rows else []
        rows += [(begin + name, cells) for name, cells in _lines(setting)]
    if not rows:
        return []
    return [
        Sheet(
            name="batchnorm/sensitivity", title=title,
            columns=["average", "best, %", "epoch", "accuracy, %", "best, %", "epoch", "accuracy, %"],
            groups=[("", 1), ("recomputed, oracle", 2), ("recomputed, chosen", 1), ("averaged, oracle", 2),
                    ("averaged, chosen", 1)],
            rows=rows, breaks=breaks, study="batchnorm", scale=scale, item=ITEM,
            caption=f"Trained on all training images, measured on test. {OVER_SEEDS} recomputed, averaged: the "
            f"batch-norm statistics. Bold: the best of a column.{all_chosen_on(settings)}",
            notes=(
                ORACLE,
                "chosen: at the epoch that each seed chose on validation for EMA (acc.), the same for all averages.",
                "average: the decay per update; a percentage is the half-life as a share of the run, for which the "
                "paper's five decays stand in the same order.",
                *orientation(settings),
            ),
        )
    ]  # fmt: skip


def _lines(setting: Setting) -> list[tuple[str, list[Cell]]]:
    """A row for each average; none where statistics were not recomputed after every epoch."""
    chosen = chosen_epochs(setting)
    made: list[list[Cell]] = []
    for place, name in enumerate(setting.averages):
        recomputed = average(setting, "refit", name, "test", batchnorm="recomputed")
        averaged = average(setting, "refit", name, "test")
        printed = [_printed(setting, place, column) for column in ("Best test accuracy", "Epoch")]
        made.append(
            [
                percent(peak(recomputed), paper=printed[0]),
                epochs(peak_epoch(recomputed), paper=printed[1]),
                percent(at(recomputed, chosen)),
                percent(peak(averaged)),
                epochs(peak_epoch(averaged)),
                percent(at(averaged, chosen)),
            ]
        )
    if not any(there(cells[:1]) for cells in made):
        return []
    columns = [list(column) for column in zip(*made, strict=True)]
    marked = [with_best(cells, range(len(made))) if at not in (1, 4) else cells for at, cells in enumerate(columns)]
    lines = [list(line) for line in zip(*marked, strict=True)]
    return [(name.removeprefix("ema-"), line) for name, line in zip(setting.averages, lines, strict=True)]


def _printed(setting: Setting, place: int, column: str) -> str:
    """The paper's decays stand for ours by their order, from fast to slow."""
    decays = list(beside.rows(ITEM))
    there = setting.pair == "cifar100-resnet18" and len(setting.averages) == len(decays)
    return beside.text(ITEM, row=decays[place], column=column) if there else ""
