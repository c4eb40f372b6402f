"""Observed: every value a tracker was given, in order, checked on the way in, and the best by criterion and average.

Numbers only, no weights. May import the standard library alone.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, NamedTuple, SupportsFloat

Criteria = Mapping[str, Literal["max", "min"]]


@dataclass(frozen=True)
class Best:
    """The best value of a criterion, and which average had it at which epoch.

    >>> Best("accuracy", average="ema-0.998", epoch=12, value=0.941).average
    'ema-0.998'
    """

    criterion: str
    """The metric that it is the best of."""
    average: str
    """The name of the average, or "live"."""
    epoch: int
    """Where it was seen."""
    value: float
    """Of the metric."""


class Observation(NamedTuple):
    """One row of the history: one measured value.

    >>> Observation(epoch=3, average="live", metric="loss", value=0.5, complete=True).value
    0.5
    """

    epoch: int
    average: str
    metric: str
    value: float
    complete: bool


# Smaller is better: the value (negated for "max"), then the place in the history, so that of equals the first wins.
_Ranked = tuple[float, int, Best]


class Observed:
    """The history, one row per value, and its bests; it never changes, `with_rows` makes the next one.

    >>> observed = Observed({"loss": "min"})
    >>> rows = observed.rows(1, {"live": {"loss": 0.5}, "slow": {"loss": 0.25}}, complete=True, resolve=str)
    >>> observed.with_rows(rows).best("loss")
    Best(criterion='loss', average='slow', epoch=1, value=0.25)
    >>> observed.best("loss") is None
    True
    """

    def __init__(self, criteria: Criteria, history: Iterable[Observation] = ()) -> None:
        self.criteria = dict(criteria)
        self._history: list[Observation] = []
        self._tables: dict[str, dict[str, _Ranked]] = {criterion: {} for criterion in criteria}  # then by average
        self._take_in(history)

    @property
    def history(self) -> Sequence[Observation]:
        return self._history

    # What is taken in ------------------------------------------------------------------------------------------------

    def rows(
        self,
        epoch: int,
        metrics: Mapping[Any, Mapping[str, SupportsFloat]],
        *,
        complete: bool,
        resolve: Callable[[Any], str],
    ) -> list[Observation]:
        """An observation as rows of the history; raises unless all of it may be taken in.

        `resolve` makes the name of an average out of what it was called.

        >>> Observed({"loss": "min"}).rows(1, {0.9: {"loss": 1}}, complete=True, resolve=lambda key: f"ema-{key}")
        [Observation(epoch=1, average='ema-0.9', metric='loss', value=1.0, complete=True)]
        """
        if not metrics:
            raise ValueError(f"Nothing was observed at epoch {epoch}; give at least one average with its metrics.")
        if self._history and epoch < self._history[-1].epoch:
            raise ValueError(
                f"Epoch {epoch} was observed after epoch {self._history[-1].epoch}; epochs only go forward."
            )
        this_epoch = takewhile(lambda row: row.epoch == epoch, reversed(self._history))
        taken = {row.average for row in this_epoch if complete and row.complete}
        rows: list[Observation] = []
        for key, values in metrics.items():
            average = resolve(key)
            if average in taken:
                raise ValueError(f"{average!r} was observed already at epoch {epoch}; once an epoch is enough.")
            taken.add(average)
            rows += self._rows_of(average, epoch, values, complete)
        return rows

    def _rows_of(
        self, average: str, epoch: int, values: Mapping[str, SupportsFloat], complete: bool
    ) -> list[Observation]:
        if not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{average!r} was given {values!r}; give its metrics, such as {{'accuracy': 0.9}}.")
        missing = [criterion for criterion in self.criteria if criterion not in values]
        if missing:
            raise ValueError(
                f"{average!r} at epoch {epoch} has no {' and no '.join(missing)}, only "
                f"{', '.join(values) or 'nothing'}; every criterion is needed, for partial validations too."
            )
        return [
            Observation(epoch, average, metric, _number(value, average, metric), complete)
            for metric, value in values.items()
        ]

    def with_rows(self, rows: Iterable[Observation]) -> "Observed":
        """All of this, and these rows after it.

        >>> len(Observed({"loss": "min"}).with_rows([Observation(1, "live", "loss", 0.5, True)]).history)
        1
        """
        following = Observed(self.criteria)
        following._history = list(self._history)
        following._tables = {criterion: dict(table) for criterion, table in self._tables.items()}
        following._take_in(rows)
        return following

    def _take_in(self, rows: Iterable[Observation]) -> None:
        for row in rows:
            if row.complete and row.metric in self._tables and math.isfinite(row.value):
                table = self._tables[row.metric]
                value = -row.value if self.criteria[row.metric] == "max" else row.value
                ranked = (value, len(self._history), Best(row.metric, row.average, row.epoch, row.value))
                table[row.average] = min(ranked, table.get(row.average, ranked))
            self._history.append(row)

    # What was best ---------------------------------------------------------------------------------------------------

    def best(self, criterion: str, averages: Iterable[str] | None = None) -> Best | None:
        """The best over everything, or among some averages; None when nothing complete and finite was observed.

        >>> rows = [Observation(1, "live", "loss", 0.5, True), Observation(2, "slow", "loss", 0.25, False)]
        >>> observed = Observed({"loss": "min"}, rows)
        >>> observed.best("loss").average, observed.best("loss", ["slow"])
        ('live', None)
        """
        table = self._table(criterion)
        ranked = [table[name] for name in (table if averages is None else averages) if name in table]
        return min(ranked)[2] if ranked else None

    def best_of_each(self, criterion: str) -> list[Best]:
        """The best of each average that has one.

        >>> observed = Observed({"loss": "min"}, [Observation(n, "live", "loss", 1 / n, True) for n in (1, 2)])
        >>> observed.best_of_each("loss")
        [Best(criterion='loss', average='live', epoch=2, value=0.5)]
        """
        return [best for _, _, best in self._table(criterion).values()]

    def epochs_without_better(self, criterion: str) -> int:
        """How many epochs the last complete one is after the best; what has never been finite counts from the first.

        >>> history = [Observation(n, "live", "loss", loss, True) for n, loss in enumerate([0.5, 0.3, 0.4, 0.4])]
        >>> Observed({"loss": "min"}, history).epochs_without_better("loss")
        2
        """
        best = self.best(criterion)
        last = next((row.epoch for row in reversed(self._history) if row.complete), None)
        if last is None:
            return 0
        return last - (best.epoch if best else next(row.epoch for row in self._history if row.complete))

    def _table(self, criterion: str) -> dict[str, _Ranked]:
        if criterion not in self._tables:
            raise KeyError(f"There is no criterion {criterion!r}; there are {', '.join(self.criteria)}.")
        return self._tables[criterion]


def whole(name: str, value: int) -> int:
    """The value of an argument as an int; raises unless it is a whole number.

    >>> whole("epoch", 7)
    7
    >>> whole("epoch", 7.5)
    Traceback (most recent call last):
    ValueError: epoch=7.5 is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name}={value!r} is not a whole number.") from error


def saved_rows(history: Iterable[Iterable[Any]]) -> list[Observation]:
    """The rows of a saved history; `TypeError` where one is not as it was saved.

    >>> saved_rows([[1, "live", "loss", 0.5, True]])
    [Observation(epoch=1, average='live', metric='loss', value=0.5, complete=True)]
    """
    return [_row(*item) for item in history]


def _row(epoch: int, average: str, metric: str, value: float, complete: bool) -> Observation:
    row = Observation(epoch, average, metric, value, complete)
    for field, kind in zip(row, (int, str, str, float, bool), strict=True):
        if type(field) is not kind:
            raise TypeError(f"{field!r} in its history is not of type {kind.__name__}")
    return row


def _number(value: SupportsFloat, average: str, metric: str) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError("Text is not a number")
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{metric!r} of {average!r} is {value!r}; give one number, or a tensor with one.") from error
