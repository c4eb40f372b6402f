"""BestTracker: which average was best by which criterion at which epoch, its weights, and when to stop.

It sees the numbers that it is given and asks the bank for weights, never for data. May import kept, ledger and torch.
"""

import math
import operator
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsFloat

from torch import Tensor

from emabank.kept import Kept, Place
from emabank.ledger import LIVE

if TYPE_CHECKING:
    from emabank.bank import EMABank

VERSION = 1

Name = str | float


@dataclass(frozen=True)
class Best:
    """The best value of a criterion, and which average had it at which epoch.

    >>> Best("accuracy", average="ema-0.998", epoch=12, value=0.941).average
    'ema-0.998'
    """

    criterion: str
    average: str
    epoch: int
    value: float


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
_Tables = dict[str, dict[str, _Ranked]]  # by criterion, then by average


class BestTracker:
    """Keeps, per criterion, the best average and epoch, and a copy of its weights.

    `snapshots="best"` keeps one copy per criterion, `"each"` one per criterion and average, `None` none. They are kept
    in memory (on the CPU), or with `folder` as files in that folder, which belongs to this tracker alone.

    >>> import torch
    >>> from emabank import EMABank
    >>> bank = EMABank(torch.nn.Linear(2, 1), [0.9, 0.99])
    >>> tracker = BestTracker(bank, {"accuracy": "max"})
    >>> tracker.observe(1, {"live": {"accuracy": 0.7}, 0.9: {"accuracy": 0.8}, 0.99: {"accuracy": 0.6}})
    >>> tracker.observe(2, {"live": {"accuracy": 0.7}, 0.9: {"accuracy": 0.8}, 0.99: {"accuracy": 0.9}})
    >>> tracker.best("accuracy")
    Best(criterion='accuracy', average='ema-0.99', epoch=2, value=0.9)
    >>> tracker.best("accuracy", 0.9)
    Best(criterion='accuracy', average='ema-0.9', epoch=1, value=0.8)
    >>> sorted(tracker.weights("accuracy"))
    ['bias', 'weight']
    """

    def __init__(
        self,
        bank: "EMABank",
        criteria: Mapping[str, Literal["max", "min"]] = MappingProxyType({"accuracy": "max", "loss": "min"}),
        *,
        snapshots: Literal["best", "each"] | None = "best",
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if not criteria or any(direction not in ("max", "min") for direction in criteria.values()):
            raise ValueError(f"criteria={dict(criteria)} must map at least one metric to 'max' or 'min'.")
        if snapshots not in ("best", "each", None):
            raise ValueError(f"snapshots={snapshots!r} is none of 'best', 'each' and None.")
        if folder is not None and snapshots is None:
            raise ValueError(f"folder={os.fspath(folder)!r} with snapshots=None: nothing would be kept there.")
        self._bank = bank
        self._criteria = dict(criteria)
        self._mode: Literal["best", "each"] | None = snapshots
        self._history: list[Observation] = []
        self._tables: _Tables = {criterion: {} for criterion in criteria}
        self._kept = Kept(None if folder is None else Path(folder))

    # What was seen ---------------------------------------------------------------------------------------------------

    @property
    def criteria(self) -> dict[str, Literal["max", "min"]]:
        """Each criterion and its direction (a copy)."""
        return dict(self._criteria)

    @property
    def history(self) -> list[Observation]:
        """Everything observed, in order, one row per value; `pandas.DataFrame(tracker.history)` makes a table of it."""
        return list(self._history)

    def observe(
        self,
        epoch: int,
        metrics: Mapping[Any, Mapping[str, SupportsFloat]],
        *,
        complete: bool = True,
        batchnorm: Literal["averaged", "recomputed"] = "averaged",
    ) -> None:
        """Take in `{average: {metric: value}}` of one validation; call it while the bank still has those weights.

        An average is given by name, by the number of its decay, or as "live". Each needs every criterion; further
        metrics are kept in the history. One epoch may come in several calls, each average once. `complete=False`
        (a sanity check, a part of the validation data) is recorded and can set no best. Values that are not finite
        are never best. `batchnorm` says which statistics the averages had, so that the snapshot has the same.
        On any error nothing has changed.

        >>> import torch
        >>> from emabank import EMABank
        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), [0.9]), {"loss": "min"})
        >>> tracker.observe(1, {"live": {"loss": torch.tensor(0.5), "accuracy": 0.75}})
        >>> tracker.observe(1, {0.9: {"loss": float("nan")}})
        >>> [tuple(row) for row in tracker.history][:2]
        [(1, 'live', 'loss', 0.5, True), (1, 'live', 'accuracy', 0.75, True)]
        """
        if batchnorm not in ("averaged", "recomputed"):
            raise ValueError(f"batchnorm={batchnorm!r} is neither 'averaged' nor 'recomputed'.")
        rows = self._rows(_whole("epoch", epoch), metrics, bool(complete))
        tables = self._ranked(rows, self._tables, start=len(self._history))
        wanted = self._wanted(tables)
        fresh: dict[Place, dict[str, Any]] = {}
        for average, at in sorted(wanted - self._kept.places):
            # The live weights have one set of statistics, their own.
            statistics = "averaged" if average == LIVE else batchnorm
            fresh[average, at] = _on_cpu(self._bank.weights(average, batchnorm=statistics))
        self._kept.keep(fresh, wanted)
        self._tables = tables
        self._history += rows

    def _rows(
        self, epoch: int, metrics: Mapping[Any, Mapping[str, SupportsFloat]], complete: bool
    ) -> list[Observation]:
        """The observation as rows of the history; raises unless all of it may be taken in."""
        if not metrics:
            raise ValueError(f"nothing was observed at epoch {epoch}; give at least one average with its metrics.")
        if self._history and epoch < self._history[-1].epoch:
            raise ValueError(
                f"epoch {epoch} was observed after epoch {self._history[-1].epoch}; epochs only go forward."
            )
        this_epoch = takewhile(lambda row: row.epoch == epoch, reversed(self._history))
        taken = {row.average for row in this_epoch if complete and row.complete}
        rows: list[Observation] = []
        for key, values in metrics.items():
            average = self._bank.resolve(key)
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
        missing = [criterion for criterion in self._criteria if criterion not in values]
        if missing:
            raise ValueError(
                f"{average!r} at epoch {epoch} has no {' and no '.join(missing)}, only "
                f"{', '.join(values) or 'nothing'}; every criterion is needed, for partial validations too."
            )
        return [
            Observation(epoch, average, metric, _number(value, average, metric), complete)
            for metric, value in values.items()
        ]

    def _ranked(self, rows: Iterable[Observation], tables: _Tables, start: int) -> _Tables:
        """The tables with these rows taken in; `start` is the first row's place in the history."""
        tables = {criterion: dict(table) for criterion, table in tables.items()}
        for place, row in enumerate(rows, start):
            if row.complete and row.metric in tables and math.isfinite(row.value):
                table = tables[row.metric]
                value = -row.value if self._criteria[row.metric] == "max" else row.value
                ranked = (value, place, Best(row.metric, row.average, row.epoch, row.value))
                table[row.average] = min(ranked, table.get(row.average, ranked))
        return tables

    # What was best ---------------------------------------------------------------------------------------------------

    def best(self, criterion: str, average: Name | Iterable[Name] | None = None) -> Best:
        """The best over everything observed, the live weights included; or of one average; or among several.

        Of equal values the earliest epoch wins, within an epoch the one given first.

        >>> import torch
        >>> from emabank import EMABank
        >>> bank = EMABank(torch.nn.Linear(2, 1), [0.9])
        >>> tracker = BestTracker(bank, {"loss": "min"})
        >>> tracker.observe(1, {"live": {"loss": 0.25}, 0.9: {"loss": 0.5}})
        >>> tracker.best("loss").average, tracker.best("loss", bank.names).average
        ('live', 'ema-0.9')
        """
        table = self._table(criterion)
        if average is None:
            chosen = list(table)
        else:
            given = [average] if isinstance(average, str) or not isinstance(average, Iterable) else average
            chosen = [self._bank.resolve(name) for name in given]
        ranked = [table[name] for name in chosen if name in table]
        if not ranked:
            of = "" if average is None else f" of {', '.join(chosen) or 'no average'}"
            raise LookupError(f"no {criterion}{of} has been observed that is complete and finite.")
        return min(ranked)[2]

    def weights(self, criterion: str, average: Name | Iterable[Name] | None = None) -> dict[str, Any]:
        """A copy of the weights that were best, as a plain state dict on the CPU; arguments as for `best`.

        >>> import torch
        >>> from emabank import EMABank
        >>> model = torch.nn.Linear(2, 1)
        >>> tracker = BestTracker(EMABank(model, [0.9]), {"loss": "min"})
        >>> tracker.observe(1, {0.9: {"loss": 0.5}})
        >>> model.load_state_dict(tracker.weights("loss"))
        <All keys matched successfully>
        """
        if self._mode is None:
            raise RuntimeError("no weights were kept: this tracker has snapshots=None; use snapshots='best' or 'each'.")
        best = self.best(criterion, average)
        place = (best.average, best.epoch)
        if place not in self._kept.places:
            raise RuntimeError(
                f"the weights of {best.average!r} at epoch {best.epoch} were not kept, because they are not the best "
                f"{criterion} of all; use snapshots='each' to keep those of each average."
            )
        return self._kept.copy(place)

    def should_stop(self, patience: int, *, criterion: str | None = None) -> bool:
        """Whether the last `patience` epochs brought nothing better, by the criterion, or by none of them.

        >>> import torch
        >>> from emabank import EMABank
        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), [0.9]), {"loss": "min"})
        >>> for epoch, loss in enumerate([0.5, 0.3, 0.4, 0.4]):
        ...     tracker.observe(epoch, {0.9: {"loss": loss}})
        >>> tracker.should_stop(patience=2), tracker.should_stop(patience=3)
        (True, False)
        """
        if _whole("patience", patience) < 1:
            raise ValueError(f"patience={patience} must be at least 1 epoch.")
        tables = list(self._tables.values()) if criterion is None else [self._table(criterion)]
        last = next((row.epoch for row in reversed(self._history) if row.complete), None)
        if last is None:
            return False
        # What has never been finite has not improved since the first epoch.
        first = next(row.epoch for row in self._history if row.complete)
        improved = max(min(table.values())[2].epoch if table else first for table in tables)
        return last - improved >= patience

    def _table(self, criterion: str) -> dict[str, _Ranked]:
        if criterion not in self._tables:
            raise KeyError(f"There is no criterion {criterion!r}; there are {', '.join(self._criteria)}.")
        return self._tables[criterion]

    def _wanted(self, tables: _Tables) -> set[Place]:
        """Which weights have to be kept; criteria that agree on average and epoch share one snapshot."""
        if self._mode is None:
            return set()
        kept = [
            ranked
            for table in tables.values()
            for ranked in (table.values() if self._mode == "each" else sorted(table.values())[:1])
        ]
        return {(best.average, best.epoch) for _, _, best in kept}

    def __repr__(self) -> str:
        bests = [min(table.values())[2] if table else None for table in self._tables.values()]
        found = [
            f"best {criterion} none yet"
            if best is None
            else f"best {criterion} {best.value:g} ({best.average}, epoch {best.epoch})"
            for criterion, best in zip(self._criteria, bests, strict=True)
        ]
        epochs = len({row.epoch for row in self._history})
        return f"BestTracker({', '.join(found)}; epochs observed: {epochs}, snapshots={self._mode!r})"

    # Saving and loading ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything the tracker knows, snapshots included (those on disk too), as a copy of plain values and tensors.

        >>> import torch
        >>> from emabank import EMABank
        >>> bank = EMABank(torch.nn.Linear(2, 1), [0.9])
        >>> tracker, resumed = BestTracker(bank), BestTracker(bank)
        >>> tracker.observe(1, {0.9: {"loss": 0.5, "accuracy": 0.75}})
        >>> resumed.load_state_dict(tracker.state_dict())
        >>> resumed.best("accuracy") == tracker.best("accuracy")
        True
        """
        return {
            "version": VERSION,
            "criteria": dict(self._criteria),
            "snapshots": self._mode,
            "history": [list(row) for row in self._history],
            "weights": [
                {"average": average, "epoch": epoch, "weights": self._kept.copy((average, epoch))}
                for average, epoch in sorted(self._kept.places)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the criteria, the snapshots kept and the averages must be the same.

        A `folder` may differ: the state holds the weights, not where they were. Raises `ValueError` on a state that
        does not fit, and has then changed nothing.

        >>> import torch
        >>> from emabank import EMABank
        >>> bank = EMABank(torch.nn.Linear(2, 1), [0.9])
        >>> BestTracker(bank, {"loss": "min"}).load_state_dict(BestTracker(bank, {"loss": "max"}).state_dict())
        Traceback (most recent call last):
        ValueError: the state has criteria {'loss': 'max'}, the tracker {'loss': 'min'}; use the same.
        """
        self._check_same(state)
        try:
            rows = [_row(*item) for item in state["history"]]
            weights = {(item["average"], item["epoch"]): deepcopy(dict(item["weights"])) for item in state["weights"]}
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"the state of the tracker is damaged: {error}.") from error
        unknown = {row.average for row in rows} - {LIVE, *self._bank.names}
        if unknown:
            raise ValueError(
                f"the state has observed {', '.join(sorted(unknown))}, and the bank's averages are "
                f"{', '.join(self._bank.names)}; build the bank with the same averages."
            )
        tables = self._ranked(rows, {criterion: {} for criterion in self._criteria}, start=0)
        wanted = self._wanted(tables)
        if weights.keys() != wanted or any(a.epoch > b.epoch for a, b in pairwise(rows)):
            raise ValueError(
                "the state of the tracker is damaged: its history and its snapshots contradict each other."
            )
        self._kept.keep(weights, wanted)
        self._tables = tables
        self._history = rows

    def _check_same(self, state: Mapping[str, Any]) -> None:
        absent = [key for key in ("version", "criteria", "snapshots", "history", "weights") if key not in state]
        if absent:
            raise ValueError(f"this is not the state of a BestTracker: it has no {' and no '.join(absent)}.")
        if state["version"] != VERSION:
            raise ValueError(
                f"the tracker's state has version {state['version']}, this emabank reads {VERSION}; upgrade emabank."
            )
        if state["criteria"] != self._criteria:
            raise ValueError(f"the state has criteria {state['criteria']}, the tracker {self._criteria}; use the same.")
        if state["snapshots"] != self._mode:
            raise ValueError(
                f"the state has snapshots={state['snapshots']!r}, the tracker {self._mode!r}; use the same."
            )


def _on_cpu(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in weights.items()}


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name}={value!r} is not a whole number.") from error


def _number(value: SupportsFloat, average: str, metric: str) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text is not a number")
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{metric} of {average!r} is {value!r}; give one number, or a tensor with one.") from error


def _row(epoch: int, average: str, metric: str, value: float, complete: bool) -> Observation:
    """A row of a saved history, each of its types checked."""
    row = Observation(epoch, average, metric, value, complete)
    for field, kind in zip(row, (int, str, str, float, bool), strict=True):
        if type(field) is not kind:
            raise TypeError(f"{field!r} in its history is not of type {kind.__name__}")
    return row
