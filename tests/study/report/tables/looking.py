"""Ways to find a cell in sheets, and evidence that is not so perfect, for the tests of the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from emabank.study.report.evidence import Setting
from emabank.study.report.forms.words import over
from emabank.study.report.sheet import Cell, Sheet
from tests.study.report.made_evidence import made_setting


@cache
def setting(pair: str = "cifar100-resnet18") -> Setting:
    """A setting with every arm, made once: the tests change copies. No two columns, arms or splits are the same."""
    made = made_setting(pair)
    tables = [
        {
            **table,
            "values": {metric: [value + 1e-4 * at for value in found] for metric, found in table["values"].items()},
        }
        for at, table in enumerate(made.tables)
    ]
    arms = {
        arm: tuple(
            replace(run, curves={key: found + 1e-4 * at + 1e-5 * len(key.split) for key, found in run.curves.items()})
            for run in runs
        )
        for at, (arm, runs) in enumerate(made.arms.items())
    }
    return replace(made, tables=tables, arms=arms)


def the_papers(pair: str, **changed: Any) -> Setting:
    """A setting that is what the paper had: its own data set, in full, and its own network."""
    dataset, network = pair.split("-resnet")
    given = {"scale": "paper", "title": pair, "dataset": dataset, "network": f"resnet{network}", **changed}
    return replace(setting(pair), **given)


def with_values(one: Setting, values: Mapping[tuple[str, str, str, str], Sequence[float | None]]) -> Setting:
    """The same with other values in its tables, by (trained on, split, column, metric)."""
    tables = []
    for table in one.tables:
        key = (table["trained_on"], table["split"], table["column"])
        changed = {metric: list(found) for (*where, metric), found in values.items() if tuple(where) == key}
        tables.append({**table, "values": {**table["values"], **changed}})
    return replace(one, tables=tables)


def first_seeds(one: Setting, count: int) -> Setting:
    """The same with fewer seeds: pairs of seeds are those of the first ones."""
    pairs = count * (count - 1) // 2
    tables = [
        {
            **table,
            "epochs": table["epochs"][:count],
            "weights": table["weights"][:count],
            "values": {
                metric: list(found[: pairs if metric in ("churn", "js") else count])
                for metric, found in table["values"].items()
            },
        }
        for table in one.tables
    ]
    arms = {arm: runs[:count] for arm, runs in one.arms.items()}
    return replace(one, tables=tables, choices=list(one.choices)[:count], arms=arms)


def named(sheets: Sequence[Sheet], name: str) -> Sheet:
    (found,) = [sheet for sheet in sheets if sheet.name == name]
    return found


def at(sheet: Sheet, row: str, column: str, group: str = "") -> Cell:
    """The cell in a row whose label ends like this and in a column with this title, in this group if it is given."""
    (cells,) = [cells for label, cells in sheet.rows if label == row or label.endswith(f": {row}")]
    titles = list(zip(over(sheet), sheet.columns, strict=True))[1:]
    (place,) = [at for at, (over_it, title) in enumerate(titles) if title == column and group in ("", over_it)]
    return cells[place]


def is_mean_of(cell: Cell, values: Sequence[float | None], *, scale: float = 100) -> bool:
    """Whether a cell has the mean, the spread and n of these values, by numpy."""
    found = scale * np.array(values, dtype=float)
    spread = None if len(found) == 1 else np.std(found, ddof=1)
    same = (
        cell.std == spread
        if spread is None or cell.std is None
        else np.isclose(cell.std, spread, rtol=1e-9, atol=1e-12)
    )
    return bool(cell.mean is not None and np.isclose(cell.mean, found.mean()) and same and cell.n == len(found))


def whole(sheets: Sequence[Sheet]) -> bool:
    """Whether every row has a cell for each column, groups fill the columns, and rules stand between rows."""
    return all(
        len(cells) == len(sheet.columns) - 1
        and (not sheet.groups or sum(span for _, span in sheet.groups) == len(sheet.columns))
        and all(0 < place < len(sheet.rows) for place in sheet.breaks)
        for sheet in sheets
        for _, cells in sheet.rows
    )
