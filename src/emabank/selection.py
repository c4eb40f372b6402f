"""BestTracker: which average was best by which criterion at which epoch, its weights, and when to stop.

It sees the numbers it is given and asks the bank for weights, never for data.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsFloat
from urllib.parse import quote
from zlib import crc32

import torch
from torch import Tensor, nn

from emabank._model import check_values
from emabank._paired import (
    PerSample,
    check_per_sample,
    paired_test,
    read_per_sample,
    saved_per_sample,
    split_per_sample,
)
from emabank._schedule import LIVE
from emabank.advice import LEVEL, Advice, Best, Curve, advise, finite_places, leaders
from emabank.checkpoint import read_state, write_state

if TYPE_CHECKING:
    from emabank.bank import EMABank


Criteria = Mapping[str, Literal["max", "min"]]


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


class MetricHistory:
    """All observations, one row per value, and the best of them. Immutable: `with_rows` returns a longer one.

    >>> observed = MetricHistory({"loss": "min"})
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
        self._append(history)

    @property
    def history(self) -> Sequence[Observation]:
        return self._history

    # Adding rows ------------------------------------------------------------------------------------------------------

    def rows(
        self,
        epoch: int,
        metrics: Mapping[Any, Mapping[str, SupportsFloat]],
        *,
        complete: bool,
        resolve: Callable[[Any], str],
    ) -> list[Observation]:
        """Check the metrics of one validation and return them as rows.

        `resolve` turns what the user calls an average into its name.

        >>> MetricHistory({"loss": "min"}).rows(1, {0.9: {"loss": 1}}, complete=True, resolve=lambda key: f"ema-{key}")
        [Observation(epoch=1, average='ema-0.9', metric='loss', value=1.0, complete=True)]
        """
        if not metrics:
            raise ValueError(f"metrics must have at least one average with its values; got none at epoch {epoch}.")
        if self._history and epoch < self._history[-1].epoch:
            raise ValueError(
                f"epoch must not be before {self._history[-1].epoch}, which was observed last; got {epoch}."
            )
        this_epoch = takewhile(lambda row: row.epoch == epoch, reversed(self._history))
        taken = {row.average for row in this_epoch if complete and row.complete}
        rows: list[Observation] = []
        for key, values in metrics.items():
            average = resolve(key)
            if average in taken:
                raise ValueError(f"{average!r} was already observed at epoch {epoch}; observe it once per epoch.")
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

    def with_rows(self, rows: Iterable[Observation]) -> "MetricHistory":
        """This history with more rows.

        >>> len(MetricHistory({"loss": "min"}).with_rows([Observation(1, "live", "loss", 0.5, True)]).history)
        1
        """
        following = MetricHistory(self.criteria)
        following._history = list(self._history)
        following._tables = {criterion: dict(table) for criterion, table in self._tables.items()}
        following._append(rows)
        return following

    def _append(self, rows: Iterable[Observation]) -> None:
        for row in rows:
            if row.complete and row.metric in self._tables and math.isfinite(row.value):
                table = self._tables[row.metric]
                value = -row.value if self.criteria[row.metric] == "max" else row.value
                ranked = (value, len(self._history), Best(row.metric, row.average, row.epoch, row.value))
                table[row.average] = min(ranked, table.get(row.average, ranked))
            self._history.append(row)

    # What was best ---------------------------------------------------------------------------------------------------

    def best(self, criterion: str, averages: Iterable[str] | None = None) -> Best | None:
        """The best of all, or of some averages; None if nothing complete and finite was observed.

        >>> rows = [Observation(1, "live", "loss", 0.5, True), Observation(2, "slow", "loss", 0.25, False)]
        >>> observed = MetricHistory({"loss": "min"}, rows)
        >>> observed.best("loss").average, observed.best("loss", ["slow"])
        ('live', None)
        """
        table = self._table(criterion)
        ranked = [table[name] for name in (table if averages is None else averages) if name in table]
        return min(ranked)[2] if ranked else None

    def best_of_each(self, criterion: str) -> list[Best]:
        """The best of each average that has one.

        >>> observed = MetricHistory({"loss": "min"}, [Observation(n, "live", "loss", 1 / n, True) for n in (1, 2)])
        >>> observed.best_of_each("loss")
        [Best(criterion='loss', average='live', epoch=2, value=0.5)]
        """
        return [best for _, _, best in self._table(criterion).values()]

    def epochs_since_best(self, criterion: str) -> int:
        """Epochs from the best to the last complete one; from the first if no value was ever finite.

        >>> history = [Observation(n, "live", "loss", loss, True) for n, loss in enumerate([0.5, 0.3, 0.4, 0.4])]
        >>> MetricHistory({"loss": "min"}, history).epochs_since_best("loss")
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


def check_int(name: str, value: int) -> int:
    """The argument as an int; raises a ValueError if it is not an integer.

    >>> check_int("epoch", 7.5)
    Traceback (most recent call last):
    ValueError: epoch must be an integer; got 7.5.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} must be an integer; got {value!r}.") from error


def rows_from_state(history: Iterable[Iterable[Any]]) -> list[Observation]:
    """The rows of a saved history; `TypeError` if one is damaged.

    >>> rows_from_state([[1, "live", "loss", 0.5, True]])
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


SnapshotKey = tuple[str, int]  # the average and the epoch


class SnapshotStore:
    """Weights by average and epoch: in memory, or one file each in a folder.

    >>> stored = SnapshotStore(folder=None)
    >>> stored.replace({("live", 1): {"scale": 2.0}}, keep={("live", 1)})
    >>> stored.copy(("live", 1))
    {'scale': 2.0}
    >>> stored.replace({}, keep=set())
    >>> stored.keys
    set()
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._snapshots: dict[SnapshotKey, dict[str, Any] | _SnapshotFile] = {}

    @property
    def keys(self) -> set[SnapshotKey]:
        return set(self._snapshots)

    def replace(self, new: Mapping[SnapshotKey, dict[str, Any]], keep: set[SnapshotKey]) -> None:
        """Store the new snapshots, then delete all but those to keep; a failed write changes nothing."""
        stored: dict[SnapshotKey, dict[str, Any] | _SnapshotFile] = {}
        try:
            for key, weights in new.items():
                stored[key] = weights if self._folder is None else _write(self._folder, key, weights)
        except BaseException:
            _remove(stored[key] for key in stored if key not in self._snapshots)
            raise
        every = {**self._snapshots, **stored}
        self._snapshots = {key: every[key] for key in every if key in keep}
        _remove(every[key] for key in every if key not in keep)

    def copy(self, key: SnapshotKey) -> dict[str, Any]:
        stored = self._snapshots[key]
        if not isinstance(stored, _SnapshotFile):
            return copy_weights(stored)
        try:
            # Another tracker in the same folder has files of the same names.
            return read_state(stored.path, kind="snapshot", checksum=stored.checksum)
        except FileNotFoundError as error:
            reason = f"The snapshot of {key[0]!r} at epoch {key[1]} is gone from the tracker's folder"
            raise FileNotFoundError(error.errno, reason, str(stored.path)) from error


def copy_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a state dict, also of sparse tensors, not all of which torch can copy that way.

    >>> copy_weights({"scale": [2.0]})
    {'scale': [2.0]}
    """
    tensors = [value for value in weights.values() if isinstance(value, Tensor) and value.layout is not torch.strided]
    memo: dict[int, Any] = {id(tensor): tensor.clone() for tensor in tensors}
    return deepcopy(dict(weights), memo)


class _SnapshotFile(NamedTuple):
    path: Path
    checksum: int


def _write(folder: Path, key: SnapshotKey, weights: dict[str, Any]) -> _SnapshotFile:
    average, epoch = key
    name = quote(average, safe=" ")[:100]
    if name != average.lower():  # cut, quoted, or told apart by case alone, which not every file system does
        name += f"-{crc32(average.encode()):08x}"
    path = folder / f"{name}-epoch-{epoch}.pt"
    return _SnapshotFile(path, write_state(path, weights, kind="snapshot"))


def _remove(stored: Iterable[dict[str, Any] | _SnapshotFile]) -> None:
    for one in stored:
        if isinstance(one, _SnapshotFile):
            one.path.unlink(missing_ok=True)


__all__ = ["Advice", "Best", "BestTracker", "Observation"]

VERSION = 1
_LISTS = ("history", "recomputed", "per_sample", "weights")  # of a state

Name = str | float


class BestTracker:
    """Keeps, per criterion, the best average and epoch, and a copy of its weights.

    `snapshots="best"` keeps one copy per criterion, `"each"` one per criterion and average, `None` none. They are kept
    in memory (on the CPU), or with `folder` as files in that folder, which belongs to this tracker alone. `unit` is
    what its epochs are called in messages, such as "step".

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
        unit: str = "epoch",
    ) -> None:
        is_mapping = isinstance(criteria, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_mapping or not criteria or any(better not in ("max", "min") for better in criteria.values()):
            raise ValueError(
                "criteria must map at least one metric to 'max' or 'min', such as {'accuracy': 'max'}; "
                f"got {criteria if not is_mapping else dict(criteria)!r}."
            )
        if snapshots not in ("best", "each", None):
            raise ValueError(f"snapshots={snapshots!r} is none of 'best', 'each' and None.")
        if folder is not None and snapshots is None:
            raise ValueError(f"folder={os.fspath(folder)!r} with snapshots=None: nothing would be kept there.")
        self._bank = bank
        self._mode: Literal["best", "each"] | None = snapshots
        self._history = MetricHistory(criteria)
        self._snapshots = SnapshotStore(None if folder is None else Path(folder))
        self._recomputed: list[int] = []  # the epochs at which averages were observed with recomputed statistics
        self._per_sample: PerSample = {}
        self._unit = unit

    # What was seen ---------------------------------------------------------------------------------------------------

    @property
    def criteria(self) -> dict[str, Literal["max", "min"]]:
        """Each criterion and its direction (a copy)."""
        return dict(self._history.criteria)

    @property
    def history(self) -> list[Observation]:
        """Everything observed, in order, one row per value; `pandas.DataFrame(tracker.history)` makes a table of it."""
        return list(self._history.history)

    def observe(
        self,
        epoch: int,
        metrics: Mapping[Any, Mapping[str, SupportsFloat]],
        *,
        per_sample: Mapping[Any, Any] | None = None,
        complete: bool = True,
        batchnorm: Literal["averaged", "recomputed"] | None = None,
    ) -> None:
        """Take in `{average: {metric: value}}` of one validation; call it while the bank still has those weights.

        An average is given by name, by the number of its decay, or as "live". Each needs every criterion; further
        metrics are kept in the history. One epoch may come in several calls, each average once. `complete=False`
        (a sanity check, a part of the validation data) is recorded and can set no best. Values that are not finite
        are never best. `batchnorm` says which statistics the averages had, so that the snapshot has the same; None
        means those that `bank.applied(name)` gives. On any error nothing has changed.

        `per_sample` has, for each average, the values whose mean the first criterion is, one per validation sample (for
        an accuracy whether it was right), or `{criterion: values}`. From them `advice` knows whether a gain is more
        than chance. The samples must be the same ones in the same order every time: do not shuffle validation data.
        They are kept on the CPU, 1 byte for a value of 0 or 1, else 4.

        >>> import torch
        >>> from emabank import EMABank
        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), [0.9]), {"loss": "min"})
        >>> metrics = {"live": {"loss": torch.tensor(0.5), "accuracy": 0.75}}
        >>> tracker.observe(1, metrics, per_sample={"live": torch.tensor([0.75, 0.25])})
        >>> tracker.observe(1, {0.9: {"loss": float("nan")}})
        >>> [tuple(row) for row in tracker.history][:2]
        [(1, 'live', 'loss', 0.5, True), (1, 'live', 'accuracy', 0.75, True)]
        """
        if batchnorm not in (None, "averaged", "recomputed"):
            raise ValueError(f"batchnorm must be None, 'averaged' or 'recomputed'; got {batchnorm!r}.")
        epoch = check_int("epoch", epoch)
        rows = self._history.rows(epoch, metrics, complete=bool(complete), resolve=self._bank.resolve)
        values = read_per_sample(per_sample or {}, list(self.criteria), epoch, self._bank.resolve) if complete else {}
        per_sample_values = check_per_sample(values, self._per_sample, rows)
        observed = self._history.with_rows(rows)
        keep = self._keys_to_keep(observed)
        new: dict[SnapshotKey, dict[str, Any]] = {}
        for average, at in sorted(keep - self._snapshots.keys):
            # The live weights have one set of statistics, their own.
            statistics = "averaged" if average == LIVE else batchnorm
            new[average, at] = _on_cpu(self._bank.weights(average, batchnorm=statistics))
        self._snapshots.replace(new, keep)
        self._history, self._per_sample = observed, per_sample_values
        used = {batchnorm or self._bank.statistics(row.average) for row in rows if row.average != LIVE}
        if "recomputed" in used and epoch not in self._recomputed:
            self._recomputed.append(epoch)

    def evaluate(
        self,
        epoch: int,
        fn: Callable[[nn.Module], Mapping[str, Any]],
        *,
        batchnorm: Literal["averaged", "recomputed"] | None = None,
        complete: bool = True,
    ) -> dict[str, dict[str, float]]:
        """`bank.evaluate(fn)`, then `observe`: what `fn(model)` measures of the live weights and of every average.

        `fn` returns `{metric: number}`. Where it returns a 1-D tensor of several elements instead, these are the
        per-sample values (see `observe`) and their mean is the metric. The model is in eval mode without gradients, and
        every call draws the same random numbers; afterwards modes and random streams are as before. Returns the metrics
        by average.

        >>> import torch
        >>> from emabank import EMABank
        >>> model, inputs, targets = torch.nn.Linear(2, 2), torch.randn(50, 2), torch.arange(50) % 2
        >>> tracker = BestTracker(EMABank(model, [0.9]), {"accuracy": "max"})
        >>> metrics = tracker.evaluate(1, lambda model: {"accuracy": model(inputs).argmax(1) == targets})
        >>> sorted(metrics)
        ['ema-0.9', 'live']
        """
        results = self._bank.evaluate(lambda model: split_per_sample(fn(model)), batchnorm=batchnorm)
        metrics = {name: values for name, (values, _) in results.items()}
        per_sample = {name: values for name, (_, values) in results.items()}
        self.observe(epoch, metrics, per_sample=per_sample, complete=complete, batchnorm=batchnorm)
        return {name: {metric: float(value) for metric, value in values.items()} for name, values in metrics.items()}

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
        best, of = self._history.best(criterion), ""
        if average is not None:
            given = [average] if isinstance(average, str) or not isinstance(average, Iterable) else average
            chosen = [self._bank.resolve(name) for name in given]
            best, of = self._history.best(criterion, chosen), f" of {', '.join(chosen) or 'no average'}"
        if best is None:
            raise LookupError(f"No {criterion}{of} has been observed that is complete and finite.")
        return best

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
            raise RuntimeError("No weights were kept: this tracker has snapshots=None; use snapshots='best' or 'each'.")
        best = self.best(criterion, average)
        key = (best.average, best.epoch)
        if key not in self._snapshots.keys:
            raise RuntimeError(
                f"The weights of {best.average!r} at {self._unit} {best.epoch} were not kept, because they are not the "
                f"best {criterion} of all; use snapshots='each' to keep those of each average."
            )
        return self._snapshots.copy(key)

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
        if check_int("patience", patience) < 1:
            raise ValueError(f"patience={patience} must be at least 1 epoch.")
        criteria = self.criteria if criterion is None else [criterion]
        return all(self._history.epochs_since_best(name) >= patience for name in criteria)

    def advice(self, criterion: str | None = None, *, samples: int | None = None) -> Advice:
        """Which average to ship, from which epoch, with what gain over the live weights, and whether training could
        have stopped earlier; `print(tracker.advice())` says it in sentences.

        By the first criterion, unless another is named. The gain is over the live weights at their own best epoch, so
        observe "live" as well. Its standard error, and whether it is clear, follow from the per-sample values, if every
        complete observation has them and there are 20 samples or more: the test is paired and allows for the choice
        among averages and epochs, so that a gain is called clear in at most 5 % of cases without one. Without them,
        `samples` (the number of validation samples) gives an upper bound of the error of an accuracy from 0 to 1, which
        finds large gains only; without either the uncertainty is unknown, and no gain is called clear.

        >>> import torch
        >>> from emabank import EMABank
        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), {"slow": 0.99}), {"accuracy": "max"})
        >>> tracker.observe(1, {"live": {"accuracy": 0.70}, "slow": {"accuracy": 0.75}})
        >>> tracker.observe(2, {"live": {"accuracy": 0.72}, "slow": {"accuracy": 0.74}})
        >>> advice = tracker.advice(samples=100)
        >>> advice.average, advice.epoch, advice.is_clear, advice.saved
        ('slow', 1, False, 0.5)
        """
        criterion = next(iter(self.criteria)) if criterion is None else criterion
        if criterion not in self.criteria:
            raise KeyError(f"There is no criterion {criterion!r}; there are {', '.join(self.criteria)}.")
        if samples is not None and check_int("samples", samples) < 1:
            raise ValueError(f"samples={samples}: give the number of validation samples, 1 or more.")
        curves: dict[str, dict[int, float]] = {}
        for row in self._history.history:
            if row.complete and row.metric == criterion:
                curves.setdefault(row.average, {})[row.epoch] = row.value
        error, critical = self._paired(criterion, curves, samples) or (None, None)
        return advise(
            curves,
            criterion=criterion,
            better=self.criteria[criterion],
            samples=samples,
            error=error,
            critical=critical,
            recomputed=self._recomputed,
            has_batchnorm=any(key.endswith("running_mean") for key in self._bank.averaged_keys()),
            unit=self._unit,
        )

    def _paired(self, criterion: str, curves: Mapping[str, Curve], samples: int | None) -> tuple[float, float] | None:
        """The error of the gain and its critical value; None unless all that was chosen among has per-sample values."""
        better = self.criteria[criterion]
        top, live = leaders(curves, criterion, better)
        if top is None or live is None:
            return None
        candidates = [key for key in finite_places(curves) if key[0] != LIVE]
        values = [self._per_sample.get((criterion, *key)) for key in candidates]
        live_values = self._per_sample.get((criterion, LIVE, live.epoch))
        known = [tensor for tensor in values if tensor is not None]
        if live_values is None or len(known) < len(values):
            return None
        if samples not in (None, len(live_values)):
            raise ValueError(f"samples must be {len(live_values)}, as many as per-sample values; got {samples}.")
        chosen = candidates.index((top.average, top.epoch))
        return paired_test(known, live_values, chosen=chosen, better=better, level=LEVEL)

    def _keys_to_keep(self, observed: MetricHistory) -> set[SnapshotKey]:
        """Which weights have to be kept; criteria that agree on average and epoch share one snapshot."""
        if self._mode is None:
            return set()
        stored = [
            best
            for criterion in self.criteria
            for best in (observed.best_of_each(criterion) if self._mode == "each" else [observed.best(criterion)])
        ]
        return {(best.average, best.epoch) for best in stored if best}

    def __repr__(self) -> str:
        bests = {criterion: self._history.best(criterion) for criterion in self.criteria}
        found = [
            f"best {criterion} none yet"
            if best is None
            else f"best {criterion} {best.value:g} ({best.average}, {self._unit} {best.epoch})"
            for criterion, best in bests.items()
        ]
        epochs = len({row.epoch for row in self._history.history})
        return f"BestTracker({', '.join(found)}; {self._unit}s observed: {epochs}, snapshots={self._mode!r})"

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
            "criteria": self.criteria,
            "snapshots": self._mode,
            "history": [list(row) for row in self._history.history],
            "recomputed": list(self._recomputed),
            "per_sample": [
                {"criterion": criterion, "average": average, "epoch": epoch, "values": values.clone()}
                for (criterion, average, epoch), values in self._per_sample.items()
            ],
            "weights": [
                {"average": average, "epoch": epoch, "weights": self._snapshots.copy((average, epoch))}
                for average, epoch in sorted(self._snapshots.keys)
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
        ValueError: The state has criteria {'loss': 'max'}, the tracker {'loss': 'min'}; use the same.
        """
        self._check_same(state)
        try:
            rows = rows_from_state(state["history"])
            saved = [(item["average"], check_int("epoch", item["epoch"]), item["weights"]) for item in state["weights"]]
            weights = {(average, epoch): copy_weights(dict(values)) for average, epoch, values in saved}
            recomputed = [check_int("epoch", epoch) for epoch in state["recomputed"]]
            per_sample = saved_per_sample(state["per_sample"], rows)
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise ValueError(f"The state of the tracker is damaged: {error}.") from error
        unknown = {row.average for row in rows} - {LIVE, *self._bank.names}
        if unknown:
            raise ValueError(
                f"The state has observed {', '.join(sorted(unknown))}, and the bank's averages are "
                f"{', '.join(self._bank.names)}; build the bank with the same averages."
            )
        observed = MetricHistory(self.criteria, rows)
        keep = self._keys_to_keep(observed)
        if weights.keys() != keep or any(a.epoch > b.epoch for a, b in pairwise(rows)):
            raise ValueError(
                "The state of the tracker is damaged: its history and its snapshots contradict each other."
            )
        live = self._bank.weights(LIVE) if weights else {}
        for (average, epoch), values in weights.items():
            check_values(f"The snapshot of {average!r} at epoch {epoch} does not fit the model", live, values)
        self._snapshots.replace(weights, keep)
        self._history, self._recomputed, self._per_sample = observed, recomputed, per_sample

    def _check_same(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"The state of a BestTracker must be a mapping; got a {type(state).__name__}.")
        absent = [key for key in ("version", "criteria", "snapshots", *_LISTS) if key not in state]
        if absent:
            raise ValueError(f"This is not the state of a BestTracker: it has no {' and no '.join(absent)}.")
        for key in _LISTS:
            if not isinstance(state[key], list):
                raise ValueError(f"The state of the tracker is damaged: {key} must be a list; got {state[key]!r:.50}.")
        if type(state["version"]) is not int or state["version"] != VERSION:
            raise ValueError(
                f"The tracker's state has version {state['version']!r}, this emabank reads {VERSION}; upgrade emabank."
            )
        if not isinstance(state["criteria"], Mapping) or state["criteria"] != self.criteria:
            raise ValueError(f"The state has criteria {state['criteria']}, the tracker {self.criteria}; use the same.")
        if not isinstance(state["snapshots"], str | None) or state["snapshots"] != self._mode:
            raise ValueError(
                f"The state has snapshots={state['snapshots']!r}, the tracker {self._mode!r}; use the same."
            )


def _on_cpu(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in weights.items()}
