"""Rows: the measurements of a run, for selection and the report, one JSON line per row.

Standard library only; the report reads rows without torch.
"""

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

TrainedOn = Literal["80%", "100%"]
BatchNorm = Literal["averaged", "recomputed", "own"]
SelectedBy = Literal["accuracy", "loss", "noisy-accuracy", "noisy-loss", "last"]
"""The criterion that chose an epoch and an average; "noisy-" ones use validation labels that are partly wrong."""
Part = Literal["train", "val", "test"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement, and everything needed to identify it."""

    run: str
    """The run's id."""
    dataset: str
    network: str
    trained_on: TrainedOn
    """The share of the training data that the network learnt from; the rest is the validation part."""
    seed: int
    weights: str
    """"live", or the name of an average."""
    batchnorm: BatchNorm
    """The batch-norm statistics used: "own" for the live weights."""
    selected_by: SelectedBy | None
    """The criterion that chose this epoch and average on the validation part; None: nothing was chosen."""
    epoch: int | None
    """Counted from 1; 0 is the untrained network. None if the value belongs to no epoch."""
    split: Part
    metric: str
    value: float | None
    """Finite; None if the metric is not defined, or was not a finite number."""
    other: str | None
    """The id of the other run, for a metric of two runs."""

    def __post_init__(self) -> None:
        for name, (is_allowed, allowed) in _RULES.items():
            if not is_allowed(getattr(self, name)):
                raise ValueError(f"{name} of a row is {getattr(self, name)!r}; give {allowed}")
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))


COLUMNS = tuple(field.name for field in fields(Row))
_NAMES = set(COLUMNS)


def to_json_line(row: Row) -> str:
    """The row as one line of JSON, without a newline; floats are restored bit for bit."""
    return json.dumps(asdict(row), allow_nan=False, ensure_ascii=False)


def from_json_line(line: str, *, place: str = "the line") -> Row:
    """The row in a line of JSON; `place` names the line in errors."""
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is damaged: it is not a line of JSON; measure that run again") from error
    if not isinstance(values, dict) or values.keys() != _NAMES:
        raise ValueError(
            f"{place} is not a row, which has exactly {', '.join(COLUMNS)}; measure that run again with this emabank"
        )
    try:
        return Row(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def rows_text(rows: Iterable[Row]) -> str:
    """The text of a file of rows: one line per row, each ending in a newline."""
    return "".join(f"{to_json_line(row)}\n" for row in rows)


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The rows in a file; errors name the file and line."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is not UTF-8 text; measure that run again") from error
    if text and not text.endswith("\n"):
        raise ValueError(f"{path} is damaged: its last line is cut short; measure that run again")
    # Not splitlines(): a name may contain a Unicode line separator.
    lines = text.split("\n")[:-1]
    return [from_json_line(line, place=f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


# What a field may hold -----------------------------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _one_of(*allowed: object) -> tuple[Callable[[object], bool], str]:
    # Only strings and None can be equal to an allowed value; others might not compare at all.
    return lambda value: (value is None or isinstance(value, str)) and value in allowed, " or ".join(map(repr, allowed))


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("run", "dataset", "network", "weights", "metric"), (_is_text, "a string with something in it")),
    "trained_on": _one_of(*get_args(TrainedOn)),
    "batchnorm": _one_of(*get_args(BatchNorm)),
    "selected_by": _one_of(*get_args(SelectedBy), None),
    "split": _one_of(*get_args(Part)),
    "seed": (_is_count, "a whole number, 0 or more"),
    "epoch": (lambda value: value is None or _is_count(value), "a whole number, 0 or more, or None"),
    "value": (lambda value: value is None or _is_finite(value), "a finite number, or None"),
    "other": (lambda value: value is None or _is_text(value), "another run's id, or None"),
}
