"""What is measured of several runs at once: agreement between seeds, and refits with the temperatures of tuning.

Reads finished runs; may import metrics, rows, folders and config.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from emabank.study.averages import TableStage, rows_by_name
from emabank.study.metrics.agreement import churn, jensen_shannon
from emabank.study.metrics.calibration import apply_temperature, ece
from emabank.study.metrics.classification import loss, softmax
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import Row


def pairwise_rows(stage: TableStage, runs: Sequence[RunFolder]) -> list[Row]:
    """Churn and Jensen-Shannon divergence between all pairs of seeds, for each column; each number once.

    `runs` are those of the stage, one per seed. Pairs with a run that has rows only are skipped.
    """
    index = rows_by_name(row for run in runs for row in run.rows())
    rows: list[Row] = []
    rows_only = [run.is_rows_only() for run in runs]
    for kept in stage.columns.values():
        logits = [
            np.empty(0) if without else run.load_predictions(name)[stage.split].logits
            for run, name, without in zip(runs, kept, rows_only, strict=True)
        ]
        for holder, other in _pairs_of(stage, kept):
            if rows_only[holder] or rows_only[other]:
                continue
            like = index[runs[holder].id, kept[holder], stage.split, "accuracy", None]  # any metric
            values = _agreement(logits[min(holder, other)], logits[max(holder, other)])
            rows += [
                replace(like, metric=metric, value=value, other=runs[other].id) for metric, value in values.items()
            ]
    return list(dict.fromkeys(rows))  # without batch norm two columns may be the same weights, in all seeds or in some


def temperature_rows(tuned: Iterable[RunFolder], refitted: Iterable[RunFolder]) -> list[Row]:
    """Calibration of the refits on test with the temperatures that the tuning runs fitted on validation.

    Each refit gets the temperature of the same average with the same statistics, chosen by the same criterion.
    So the last live weights of a refit get that of the last live weights in tuning. SWA has no counterpart there and so
    no temperature, and a refit that has rows only is skipped.
    """
    rows: list[Row] = []
    for before, after in zip(tuned, refitted, strict=True):
        temperatures = {
            name: row.value
            for (_, name, _, metric, _), row in rows_by_name(before.rows()).items()
            if metric == "temperature" and row.value is not None
        }
        index = rows_by_name(after.rows())
        for name in after.predictions():
            logits, labels = after.load_predictions(name)["test"]
            if name not in temperatures or not np.isfinite(logits).all():
                continue
            like = index[after.id, name, "test", "accuracy", None]
            scaled = apply_temperature(logits, temperatures[name])
            values = {
                "temperature": temperatures[name],
                "ece_ts": ece(softmax(scaled), labels),
                "loss_ts": loss(scaled, labels),
            }
            rows += [replace(like, metric=metric, value=value) for metric, value in values.items()]
    return rows


def _agreement(one: np.ndarray, other: np.ndarray) -> dict[str, float | None]:
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return {"churn": None, "js": None}
    return {"churn": churn(one, other), "js": jensen_shannon(softmax(one), softmax(other))}


def _pairs_of(stage: TableStage, kept: Sequence[str]) -> Iterator[tuple[int, int]]:
    """All pairs of seeds as (the one whose row it is, the other).

    A row names the weights of its own run alone. Without batch norm the chosen average may be the slowest in one run
    and not in the other: the row belongs to the run in which the two columns differ.
    """
    for one, other in combinations(range(len(kept)), 2):
        alike = [names for names in stage.columns.values() if names[one] == kept[one]]
        yield (one, other) if all(names[other] == kept[other] for names in alike) else (other, one)
