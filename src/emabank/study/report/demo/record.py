"""What a run leaves for the report: one row a measurement, what was chosen, and under which conditions."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """The live weights or one average, measured at the end of one epoch. Accuracies are fractions of 1."""

    epoch: int
    average: str
    """The name of the average; "live" for the live weights."""
    statistics: Literal["live", "averaged", "recomputed"]
    """Which batch-norm statistics the weights were measured with."""
    validation_accuracy: float
    test_accuracy: float
    memorised: float | None
    """Share of the wrongly labelled training images that are predicted as that wrong label; None: there are none, or it
    is not measured, as with recomputed statistics."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The epoch that validation chose for the live weights or for one average, and what is true there."""

    average: str
    half_life: float | None
    """In optimizer steps; None for the live weights."""
    epoch: int
    at_choice: Row
    at_choice_recomputed: Row | None
    """The same weights with recomputed batch-norm statistics; nothing was chosen a second time."""
    at_end: Row


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything a run of the demo has to tell; `as_json` is what rows.json holds."""

    conditions: dict[str, Any]
    """Settings, versions, threads and the time it took."""
    learning_rate: list[float]
    """At the last step of each epoch."""
    best: str
    """The average that validation chose among all, the live weights included."""
    chosen: list[Chosen]
    rows: list[Row]

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings."""
        return asdict(self)
