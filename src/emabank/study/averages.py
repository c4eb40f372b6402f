"""The averages of a run: which it trains with, which are columns of the tables, and which are tried afterwards."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from emabank import EMA
from emabank.study.config import AveragesConfig, Keep
from emabank.study.runs.rows import BatchNorm, Row


def rules(averages: AveragesConfig, steps: int) -> dict[str, EMA]:
    """The averages, by name, of a run of `steps` steps."""
    warmup = None if averages.decay_warmup == "none" else averages.decay_warmup
    if averages.decays:
        made = [EMA(per_update=decay, warmup=warmup) for decay in sorted(averages.decays)]
    else:
        made = [EMA(half_life=share / 100 * steps, warmup=warmup) for share in sorted(averages.half_lives)]
    return dict(zip(averages.names, made, strict=True))


LONGER = (2**0.5, 2.0, 2**1.5)
"""Longer windows to try after a run, as multiples of the longest one that it kept."""
_MOST_STOPS = 40


def windows(averages: AveragesConfig, steps: int) -> dict[str, EMA]:
    """The windows to try after a run of `steps` steps: those of its averages, and longer ones."""
    if averages.decays:
        longer = [float(f"{max(averages.decays) ** (1 / times):.6g}") for times in LONGER]
        return rules(replace(averages, decays=tuple(dict.fromkeys((*averages.decays, *longer)))), steps)
    longer = [float(f"{min(100.0, max(averages.half_lives) * times):.2g}") for times in LONGER]
    return rules(replace(averages, half_lives=tuple(dict.fromkeys((*averages.half_lives, *longer)))), steps)


def stops(epochs: int, snapshots: int) -> list[int]:
    """The stopping epochs to try after a run: those that end with a snapshot, or evenly spaced ones of a long run."""
    every = math.ceil(epochs / snapshots)  # as `PosthocRecorder` has it
    every *= math.ceil(epochs / every / _MOST_STOPS)
    return [*range(every, epochs, every), epochs]


CRITERIA = {"accuracy": "acc.", "loss": "loss"}
"""The criteria that choose epochs and averages, with their short names for titles of columns."""
NOISY_CRITERIA = {f"noisy-{criterion}": f"{short}, noisy" for criterion, short in CRITERIA.items()}
"""The same criteria on the given labels of the validation images, if some of these are wrong."""


def columns(
    averages: AveragesConfig, average: str, epoch: int, criterion: str, has_batchnorm: bool
) -> tuple[Keep, ...]:
    """The columns of a criterion: the average it chose, and the slowest at the same epoch with recomputed statistics.

    A criterion on noisy labels has only the first.
    """
    chosen = Keep(weights=average, epoch=epoch, batchnorm="averaged", selected_by=criterion)  # type: ignore[arg-type]
    if criterion in NOISY_CRITERIA:
        return (chosen,)
    statistics: BatchNorm = "recomputed" if has_batchnorm else "averaged"
    slowest = Keep(weights=averages.names[-1], epoch=epoch, batchnorm=statistics, selected_by=criterion)  # type: ignore[arg-type]
    return chosen, slowest


def kept_by_refit(
    averages: AveragesConfig, live: Mapping[str, int], chosen: Mapping[str, tuple[str, int]], *, has_batchnorm: bool
) -> tuple[Keep, ...]:
    """What a refit keeps: for each criterion, the live weights at their chosen epoch, and the criterion's columns."""
    keep = [
        Keep(weights="live", epoch=epoch, batchnorm="own", selected_by=criterion)  # type: ignore[arg-type]
        for criterion, epoch in live.items()
    ]
    for criterion, (average, epoch) in chosen.items():
        keep += columns(averages, average, epoch, criterion, has_batchnorm)
    return tuple({weights.name: weights for weights in keep}.values())


def kept_name(row: Row) -> str:
    """The name under which a run keeps the weights of a row."""
    assert row.selected_by is not None
    return Keep(weights=row.weights, epoch=row.epoch or 0, batchnorm=row.batchnorm, selected_by=row.selected_by).name


RowsByName = Mapping[tuple[str, str, str, str, str | None], Row]
"""Rows by run, name of the kept weights, split, metric and other run."""


def rows_by_name(rows: Iterable[Row]) -> RowsByName:
    """Index the rows of kept weights; skips other rows."""
    return {
        (row.run, kept_name(row), row.split, row.metric, row.other): row for row in rows if row.selected_by is not None
    }


class TableStage(NamedTuple):
    """The columns of one of the protocol's tables: which runs, measured on which split, and which of their weights."""

    variant: str
    """"tune", "refit" or "swa"."""
    trained_on: str
    split: str
    columns: Mapping[str, tuple[str, ...]]
    """By title, the name of the kept weights in each seed's run."""


def table_stages(
    averages: AveragesConfig, choices: Sequence[Mapping[str, tuple[str, int]]], *, has_batchnorm: bool
) -> list[TableStage]:
    """The columns of all tables of a protocol.

    `choices` holds what validation chose for each seed: an average and an epoch per criterion. The column "SGD" has the
    live weights of the best epoch in tuning and of the last epoch in a refit; the next column has the other. Choices by
    noisy labels, if there are any, come last.
    """
    seeds = len(choices)
    best, last = ("live-accuracy",) * seeds, ("live-last",) * seeds

    def chosen_by(criteria: Mapping[str, str], title: str, place: int) -> dict[str, tuple[str, ...]]:
        """The chosen (`place` 0) or the slowest (1) average of each criterion, by column title."""
        kept = {
            short: [columns(averages, *choice[criterion], criterion, has_batchnorm)[place] for choice in choices]
            for criterion, short in criteria.items()
        }
        return {f"{title} ({short})": tuple(keep.name for keep in keeps) for short, keeps in kept.items()}

    chosen, slowest = chosen_by(CRITERIA, "EMA", 0), chosen_by(CRITERIA, "slowest", 1)
    noisy: dict[str, tuple[str, ...]] = {}
    if all(set(NOISY_CRITERIA) <= set(choice) for choice in choices):
        noisy = {**chosen_by(NOISY_CRITERIA, "EMA", 0), "SGD (best, noisy)": ("live-noisy-accuracy",) * seeds}
    swa = Keep(weights="swa", epoch=0, batchnorm="recomputed" if has_batchnorm else "averaged", selected_by="last")
    tuning = {"SGD": best, "SGD (last)": last, **chosen, **slowest, **noisy}
    return [
        TableStage("tune", "80%", "val", tuning),
        TableStage("tune", "80%", "test", tuning),
        TableStage("refit", "100%", "test", {"SGD": last, "SGD (best)": best, **chosen, **slowest, **noisy}),
        TableStage("swa", "100%", "test", {"SWA": (swa.name,) * seeds}),
    ]
