"""BestTracker: which average was best, by which criterion and at which epoch; its weights; when to stop.

It sees only the numbers that it is given, and asks the bank for weights, never for data.
"""

import math
import os
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, SupportsFloat
from urllib.parse import quote
from zlib import crc32

import torch
from torch import Tensor, nn

from emabank._distributed import is_sharded
from emabank._model import check_values
from emabank._paired import PerSample, check_per_sample, compact, paired_test
from emabank.advice import LEVEL, Advice, Best, Direction, advise
from emabank.bank import EMABank, Statistics
from emabank.checkpoint import read_state, write_state
from emabank.rules import LIVE, check_choice, check_int

__all__ = ["Advice", "Best", "BestTracker", "Observation"]

VERSION = 1  # of a state
Name = str | float
SnapshotKey = tuple[str, int]  # the average and the epoch


class Observation(NamedTuple):
    """One row of the history: one measured value."""

    epoch: int
    average: str
    metric: str
    value: float
    complete: bool


class BestTracker:
    """Keeps, per criterion, the best average and epoch, and a copy of its weights.

    Args:
        bank: the bank whose averages are observed.
        criteria: the metrics to choose by, and whether "max" or "min" is better.
        snapshots: "best" keeps one copy of weights per criterion, "each" one per criterion and average, None none.
        folder: where to write the copies, one file each; a folder for this tracker (and, under
            DistributedDataParallel, this process) alone. None keeps them in memory, on the CPU.
        unit: what messages call an epoch, such as "step".

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
        bank: EMABank,
        criteria: Mapping[str, Direction] = MappingProxyType({"accuracy": "max", "loss": "min"}),
        *,
        snapshots: Literal["best", "each"] | None = "best",
        folder: str | os.PathLike[str] | None = None,
        unit: str = "epoch",
    ) -> None:
        if not isinstance(bank, EMABank):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"bank must be an EMABank; got a {type(bank).__name__}.")
        is_mapping = isinstance(criteria, Mapping)
        if not is_mapping or not criteria or any(better not in ("max", "min") for better in criteria.values()):
            raise ValueError(
                "criteria must map at least one metric to 'max' or 'min', such as {'accuracy': 'max'}; "
                f"got {criteria!r}."
            )
        check_choice("snapshots", snapshots, ("best", "each", None))
        if folder is not None and snapshots is None:
            raise ValueError(f"folder must be None with snapshots=None, which writes nothing; got {folder!r}.")
        self._bank = bank
        self._criteria = dict(criteria)
        self._mode: Literal["best", "each"] | None = snapshots
        self._unit = unit
        self._history: list[Observation] = []
        self._per_sample: PerSample = {}
        self._recomputed: set[SnapshotKey] = set()  # which averages were observed with recomputed statistics, and when
        self._snapshots = _SnapshotStore(None if folder is None else Path(folder))
        self._has_warned = False

    # Observing --------------------------------------------------------------------------------------------------------

    @property
    def criteria(self) -> dict[str, Direction]:
        """The criteria and their directions (a copy)."""
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
        per_sample: Mapping[Any, Any] | None = None,
        complete: bool = True,
        batchnorm: Statistics | None = None,
    ) -> None:
        """Record the metrics of one validation. Call it while the bank still has those weights.

        An epoch may take several calls, each average once. Values that are not finite are recorded but never best.
        After an error nothing has changed. With a sharded model (FSDP2) all ranks must call it, with the same metrics;
        snapshots are gathered, so that every rank has the whole best weights.

        Args:
            epoch: the epoch; not before the last one observed.
            metrics: `{average: {metric: value}}`. An average is its name, the number of its decay, or "live". Every
                criterion is needed; further metrics go into the history.
            per_sample: per average, the values whose mean the first criterion is, one per validation sample (for an
                accuracy: was it right), or `{criterion: values}`. With them `advice` can say whether a gain is more
                than chance. They must be of the same samples in the same order every time: do not shuffle validation
                data. They are kept on the CPU, 1 byte for a value of 0 or 1, otherwise 4.
            complete: False for a sanity check or a part of the validation data, which is recorded but never best.
            batchnorm: which statistics the averages had, so that the snapshot has the same. None means those that
                `bank.applied(name)` uses.

        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), [0.9]), {"loss": "min"})
        >>> metrics = {"live": {"loss": torch.tensor(0.5), "accuracy": 0.75}}
        >>> tracker.observe(1, metrics, per_sample={"live": torch.tensor([0.75, 0.25])})
        >>> tracker.observe(1, {0.9: {"loss": float("nan")}})
        >>> [tuple(row) for row in tracker.history][:2]
        [(1, 'live', 'loss', 0.5, True), (1, 'live', 'accuracy', 0.75, True)]
        """
        check_choice("batchnorm", batchnorm, (None, "averaged", "recomputed"))
        epoch = check_int("epoch", epoch)
        rows = self._check_metrics(epoch, metrics, bool(complete))
        new = self._read_per_sample(epoch, per_sample) if per_sample and complete else {}
        per_sample_values = check_per_sample(new, self._per_sample, rows)
        history = [*self._history, *rows]
        keys = self._snapshot_keys(history)
        snapshots: dict[SnapshotKey, dict[str, Any]] = {}
        full = any(map(is_sharded, self._bank.model.parameters()))
        for key in sorted(keys - self._snapshots.keys):
            average, _ = key
            # The live weights have only their own statistics.
            weights = self._bank.weights(average, batchnorm="averaged" if average == LIVE else batchnorm, full=full)
            snapshots[key] = {
                name: value.cpu() if isinstance(value, Tensor) else value for name, value in weights.items()
            }
        self._snapshots.replace(snapshots, keep=keys)
        self._history, self._per_sample = history, per_sample_values
        if batchnorm != "averaged":
            has_recomputed = self._bank._current_statistics  # pyright: ignore[reportPrivateUsage]
            self._recomputed |= {(r.average, epoch) for r in rows if r.average != LIVE and has_recomputed(r.average)}
        if not self._has_warned and (note := self._note_on_warmup({row.average for row in rows})):
            self._has_warned = True
            warnings.warn(note, stacklevel=2)

    def _read_per_sample(self, epoch: int, per_sample: Mapping[Any, Any]) -> PerSample:
        """The per-sample values of the criteria in one validation."""
        values: PerSample = {}
        for key, entry in per_sample.items():
            average = self._bank.resolve(key)
            by_metric: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {next(iter(self._criteria)): entry}
            for metric in by_metric.keys() & self._criteria.keys():
                values[metric, average, epoch] = compact(by_metric[metric], f"{metric!r} of {average!r}")
        return values

    def _note_on_warmup(self, averages: Container[str]) -> str:
        equal = [name for name in self._bank._equal_by_warmup() if name in averages]  # pyright: ignore[reportPrivateUsage]
        if len(equal) < 2:
            return ""
        return (
            f"{', '.join(equal)} are equal so far, because their decay warm-up has held them all down: compare them "
            "later, or give them warmup=None."
        )

    def _check_metrics(self, epoch: int, metrics: Mapping[Any, Any], complete: bool) -> list[Observation]:
        """The metrics of one validation as rows."""
        if not metrics:
            raise ValueError(
                f"metrics must have at least one average with its values; got none at {self._unit} {epoch}."
            )
        if self._history and epoch < self._history[-1].epoch:
            raise ValueError(f"epoch must be at least {self._history[-1].epoch}, the last one observed; got {epoch}.")
        observed = {row.average for row in self._history if row.epoch == epoch and row.complete and complete}
        rows: list[Observation] = []
        for key, values in metrics.items():
            average = self._bank.resolve(key)
            if average in observed:
                raise ValueError(f"{average!r} was already observed at {self._unit} {epoch}; observe it once.")
            observed.add(average)
            if not isinstance(values, Mapping):
                raise ValueError(
                    f"metrics must have a mapping such as {{'accuracy': 0.9}} for {average!r}; got {values!r}."
                )
            missing = [criterion for criterion in self._criteria if criterion not in values]
            if missing:
                raise ValueError(
                    f"metrics must have every criterion; got none for {' and '.join(missing)} of {average!r} at "
                    f"{self._unit} {epoch}, but {', '.join(map(repr, sorted(values))) or 'nothing'}."
                )
            for metric, value in values.items():
                rows.append(Observation(epoch, average, metric, _number(value, average, metric), complete))
        return rows

    def evaluate(
        self,
        epoch: int,
        fn: Callable[[nn.Module], Mapping[str, Any]],
        *,
        averages: Iterable[str | float] | None = None,
        batchnorm: Statistics | None = None,
        complete: bool = True,
    ) -> dict[str, dict[str, float]]:
        """Call `fn(model)` with the live weights and every average, or with `averages`, and `observe` its results.

        `fn` returns `{metric: value}`. A value that is a 1-D tensor with several elements is taken as per-sample values
        (see `observe`), and their mean as the metric. The calls are those of `bank.evaluate`: in eval mode, without
        gradients. Returns the metrics by average.

        >>> model, inputs, targets = torch.nn.Linear(2, 2), torch.randn(50, 2), torch.arange(50) % 2
        >>> tracker = BestTracker(EMABank(model, [0.9]), {"accuracy": "max"})
        >>> metrics = tracker.evaluate(1, lambda model: {"accuracy": model(inputs).argmax(1) == targets})
        >>> sorted(metrics)
        ['ema-0.9', 'live']
        """
        results = self._bank.evaluate(fn, averages=averages, batchnorm=batchnorm)
        metrics: dict[str, dict[str, float]] = {}
        per_sample: dict[str, dict[str, Tensor]] = {}
        for average, values in results.items():
            if not isinstance(values, Mapping):
                raise ValueError(f"fn must return a mapping such as {{'accuracy': 0.9}}; got {values!r}.")
            metrics[average], per_sample[average] = {}, {}
            for metric, value in values.items():
                if isinstance(value, Tensor) and value.dim() == 1 and value.numel() > 1:
                    per_sample[average][metric] = value
                    value = value.detach().cpu().double().mean()
                metrics[average][metric] = _number(value, average, metric)
        self.observe(epoch, metrics, per_sample=per_sample, complete=complete, batchnorm=batchnorm)
        return metrics

    # Choosing ---------------------------------------------------------------------------------------------------------

    def best(self, criterion: str, average: Name | Iterable[Name] | None = None) -> Best:
        """The best observation by a criterion: over everything (live weights included), of one average, or of several.

        Of equal values the earliest epoch wins; within an epoch, the average that was given first.

        >>> bank = EMABank(torch.nn.Linear(2, 1), [0.9])
        >>> tracker = BestTracker(bank, {"loss": "min"})
        >>> tracker.observe(1, {"live": {"loss": 0.25}, 0.9: {"loss": 0.5}})
        >>> tracker.best("loss").average, tracker.best("loss", bank.names).average
        ('live', 'ema-0.9')
        """
        direction = self._direction(criterion)
        rows, of = self._history, ""
        if average is not None:
            names = [average] if isinstance(average, str) or not isinstance(average, Iterable) else average
            averages = [self._bank.resolve(name) for name in names]
            rows = [row for row in rows if row.average in averages]
            of = f" of {', '.join(averages) or 'no average'}"
        best = _best(rows, criterion, direction)
        if best is None:
            nothing = "" if self._history else ": nothing was observed at all. Validate during training"
            raise LookupError(f"No {criterion}{of} has been observed that is complete and finite{nothing}.")
        return best

    def weights(self, criterion: str, average: Name | Iterable[Name] | None = None) -> dict[str, Any]:
        """A copy of the best weights, as a plain state dict on the CPU; arguments as for `best`.

        >>> model = torch.nn.Linear(2, 1)
        >>> tracker = BestTracker(EMABank(model, [0.9]), {"loss": "min"})
        >>> tracker.observe(1, {0.9: {"loss": 0.5}})
        >>> model.load_state_dict(tracker.weights("loss"))
        <All keys matched successfully>
        """
        if self._mode is None:
            raise RuntimeError("This tracker keeps no weights, with snapshots=None: use snapshots='best' or 'each'.")
        best = self.best(criterion, average)
        key = (best.average, best.epoch)
        if key not in self._snapshots.keys:
            raise RuntimeError(
                f"The weights of {best.average!r} at {self._unit} {best.epoch} were not kept, because they are not the "
                f"best {criterion} of all: use snapshots='each' to keep those of each average."
            )
        return self._snapshots.copy(key)

    def should_stop(self, patience: int, *, criterion: str | None = None) -> bool:
        """Whether the last `patience` epochs improved neither the criterion nor, without one, any of them.

        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), [0.9]), {"loss": "min"})
        >>> for epoch, loss in enumerate([0.5, 0.3, 0.4, 0.4]):
        ...     tracker.observe(epoch, {0.9: {"loss": loss}})
        >>> tracker.should_stop(patience=2), tracker.should_stop(patience=3)
        (True, False)
        """
        check_int("patience", patience, minimum=1)
        epochs = [row.epoch for row in self._history if row.complete]
        for name in self._criteria if criterion is None else [criterion]:
            best = _best(self._history, name, self._direction(name))
            if not epochs or epochs[-1] - (best.epoch if best else epochs[0]) < patience:
                return False
        return True

    def advice(self, criterion: str | None = None, *, samples: int | None = None) -> Advice:
        """Which average to ship, from which epoch, with what gain over the live weights, and whether training could
        have stopped earlier. `print(tracker.advice())` says it in sentences.

        The gain is over the live weights at their own best epoch, so also observe "live". If every complete
        observation has per-sample values, of 20 samples or more, a paired test gives the standard error of the gain and
        says whether it is clear. The test allows for the choice among averages and epochs: without a real gain, it
        calls one clear in at most 5 % of cases. For a loss, whose values have a long tail, that takes 1,000 samples.

        Args:
            criterion: the criterion to choose by; None means the first.
            samples: the number of validation samples. Without per-sample values it gives an upper bound of the error of
                an accuracy from 0 to 1, which finds large gains only. Without either no gain is called clear.

        >>> tracker = BestTracker(EMABank(torch.nn.Linear(2, 1), {"slow": 0.99}), {"accuracy": "max"})
        >>> tracker.observe(1, {"live": {"accuracy": 0.70}, "slow": {"accuracy": 0.75}})
        >>> tracker.observe(2, {"live": {"accuracy": 0.72}, "slow": {"accuracy": 0.74}})
        >>> advice = tracker.advice(samples=100)
        >>> advice.average, advice.epoch, advice.is_clear, advice.saved
        ('slow', 1, False, 0.5)
        """
        criterion = next(iter(self._criteria)) if criterion is None else criterion
        better = self._direction(criterion)
        if samples is not None:
            check_int("samples", samples, minimum=1)
        curves: dict[str, dict[int, float]] = {}
        for row in self._history:
            if row.complete and row.metric == criterion:
                curves.setdefault(row.average, {})[row.epoch] = row.value

        def test(averages: Sequence[Best], top: Best, best_live: Best) -> tuple[float, float] | None:
            """The paired test, if all candidates have per-sample values."""
            values = [self._per_sample.get((criterion, point.average, point.epoch)) for point in averages]
            live = self._per_sample.get((criterion, LIVE, best_live.epoch))
            known = [tensor for tensor in values if tensor is not None]
            if live is None or len(known) < len(values):
                return None
            if samples not in (None, len(live)):
                raise ValueError(f"samples must be {len(live)}, as many as per-sample values; got {samples}.")
            return paired_test(known, live, chosen=averages.index(top), better=better, level=LEVEL)

        averaged = self._bank._averaged_keys()  # pyright: ignore[reportPrivateUsage]
        advice = advise(
            curves,
            criterion=criterion,
            better=better,
            samples=samples,
            test=test,
            recomputed=self._recomputed,
            has_batchnorm=any(key.endswith("running_mean") for key in averaged),
            unit=self._unit,
        )
        return replace(advice, note=f"{advice.note} {self._note_on_warmup(curves)}".strip())

    def _direction(self, criterion: str) -> Direction:
        if criterion not in self._criteria:
            raise KeyError(f"There is no criterion {criterion!r}; there are {', '.join(self._criteria)}.")
        return self._criteria[criterion]

    def _snapshot_keys(self, history: list[Observation]) -> set[SnapshotKey]:
        """The weights to keep; criteria that agree on average and epoch share one snapshot."""
        groups = [history] if self._mode == "best" else []
        if self._mode == "each":
            groups = [[row for row in history if row.average == name] for name in (LIVE, *self._bank.names)]
        bests = [_best(rows, criterion, better) for rows in groups for criterion, better in self._criteria.items()]
        return {(best.average, best.epoch) for best in bests if best}

    def __repr__(self) -> str:
        bests: list[str] = []
        for criterion, better in self._criteria.items():
            best = _best(self._history, criterion, better)
            value = f"{best.value:g} ({best.average}, {self._unit} {best.epoch})" if best else "none yet"
            bests.append(f"best {criterion} {value}")
        epochs = len({row.epoch for row in self._history})
        return f"BestTracker({', '.join(bests)}; {self._unit}s observed: {epochs}, snapshots={self._mode!r})"

    # Saving and loading -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything the tracker knows, as copies of plain values and tensors; snapshots on disk too.

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
            "history": [list(row) for row in self._history],
            "recomputed": [list(key) for key in sorted(self._recomputed)],
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
        """Resume from a state. Criteria, `snapshots` and averages must be the same; `folder` may differ.

        Raises a ValueError, and changes nothing, if the state is damaged or does not match.

        >>> bank = EMABank(torch.nn.Linear(2, 1), [0.9])
        >>> BestTracker(bank, {"loss": "min"}).load_state_dict(BestTracker(bank, {"loss": "max"}).state_dict())
        Traceback (most recent call last):
        ValueError: criteria must be the same as in the state, {'loss': 'max'}; got {'loss': 'min'}.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"The state of a BestTracker must be a mapping; got a {type(state).__name__}.")
        keys = ("version", "criteria", "snapshots", "history", "recomputed", "per_sample", "weights")
        missing = [key for key in keys if key not in state]
        if missing:
            raise ValueError(f"This is not the state of a BestTracker: it has no {' and no '.join(missing)}.")
        if type(state["version"]) is not int or state["version"] != VERSION:
            raise ValueError(
                f"The version of the tracker's state must be {VERSION}; got {state['version']!r}: upgrade emabank."
            )
        for key, own in (("criteria", self._criteria), ("snapshots", self._mode)):
            if type(state[key]) is not type(own) or state[key] != own:
                raise ValueError(f"{key} must be the same as in the state, {state[key]!r:.200}; got {own!r}.")
        try:
            for key in ("history", "recomputed", "per_sample", "weights"):
                if not isinstance(state[key], list):
                    raise ValueError(f"{key} must be a list; got {state[key]!r:.50}")
            rows = _rows_from_state(state["history"])
            recomputed = {(str(average), check_int("epoch", epoch)) for average, epoch in state["recomputed"]}
            saved = {
                (item["criterion"], item["average"], item["epoch"]): compact(item["values"], "the state")
                for item in state["per_sample"]
            }
            per_sample = check_per_sample(saved, {}, rows)
            snapshots = {
                (item["average"], check_int("epoch", item["epoch"])): _copy_weights(dict(item["weights"]))
                for item in state["weights"]
            }
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise ValueError(f"The state of the tracker is damaged: {error}.") from error
        unknown = {row.average for row in rows} - {LIVE, *self._bank.names}
        if unknown:
            raise ValueError(
                f"The state has {', '.join(sorted(unknown))}, but the bank's averages are "
                f"{', '.join(self._bank.names)}: build the bank with the same averages."
            )
        best = self._snapshot_keys(rows)
        if snapshots.keys() != best:
            raise ValueError("The state of the tracker is damaged: its snapshots are not those of its history.")
        live = self._bank.weights(LIVE) if snapshots else {}
        for (average, epoch), weights in snapshots.items():
            check_values(f"The snapshot of {average!r} at epoch {epoch} does not fit the model", live, weights)
        self._snapshots.replace(snapshots, keep=best)
        self._history, self._recomputed, self._per_sample = rows, recomputed, per_sample


def _best(rows: Iterable[Observation], criterion: str, better: Direction) -> Best | None:
    """The best of the rows by a criterion; of equal values the first."""
    sign = 1.0 if better == "max" else -1.0
    candidates = [row for row in rows if row.metric == criterion and row.complete and math.isfinite(row.value)]
    best = max(candidates, key=lambda row: sign * row.value, default=None)
    return None if best is None else Best(criterion, best.average, best.epoch, best.value)


def _rows_from_state(history: list[list[Any]]) -> list[Observation]:
    rows = [Observation(*item) for item in history]
    for row in rows:
        for value, kind in zip(row, (int, str, str, float, bool), strict=True):
            if type(value) is not kind:
                raise TypeError(f"{value!r} in its history is not of type {kind.__name__}")
    if any(row.epoch > following.epoch for row, following in pairwise(rows)):
        raise ValueError("the epochs of its history are not in order")
    return rows


def _number(value: SupportsFloat, average: str, metric: str) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{metric!r} of {average!r} must be a number, or a tensor with one or with a row of values per "
            f"sample; got {value!r:.100}."
        ) from error


# Snapshots ------------------------------------------------------------------------------------------------------------


class _SnapshotFile(NamedTuple):
    path: Path
    checksum: int


_Snapshot = dict[str, Any] | _SnapshotFile


class _SnapshotStore:
    """Weights by average and epoch: in memory, or one file each in a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._snapshots: dict[SnapshotKey, _Snapshot] = {}

    @property
    def keys(self) -> set[SnapshotKey]:
        return set(self._snapshots)

    def replace(self, new: Mapping[SnapshotKey, dict[str, Any]], keep: set[SnapshotKey]) -> None:
        """Store the new snapshots, then delete all but those to keep; a failed write changes nothing."""
        stored: dict[SnapshotKey, _Snapshot] = {}
        try:
            for key, weights in new.items():
                stored[key] = weights if self._folder is None else _write(self._folder, key, weights)
        except BaseException:
            _delete(snapshot for key, snapshot in stored.items() if key not in self._snapshots)
            raise
        before_and_new = {**self._snapshots, **stored}
        self._snapshots = {key: snapshot for key, snapshot in before_and_new.items() if key in keep}
        _delete(snapshot for key, snapshot in before_and_new.items() if key not in keep)

    def copy(self, key: SnapshotKey) -> dict[str, Any]:
        snapshot = self._snapshots[key]
        if not isinstance(snapshot, _SnapshotFile):
            return _copy_weights(snapshot)
        try:
            # The checksum, because another tracker in the same folder has files of the same names.
            return read_state(snapshot.path, kind="snapshot", checksum=snapshot.checksum)
        except FileNotFoundError as error:
            reason = f"The snapshot of {key[0]!r} at epoch {key[1]} is gone from the tracker's folder"
            raise FileNotFoundError(error.errno, reason, str(snapshot.path)) from error


def _copy_weights(weights: dict[str, Any]) -> dict[str, Any]:
    # Sparse tensors are cloned, because torch cannot deepcopy all of them.
    sparse = [value for value in weights.values() if isinstance(value, Tensor) and value.layout is not torch.strided]
    return deepcopy(weights, {id(tensor): tensor.clone() for tensor in sparse})


def _write(folder: Path, key: SnapshotKey, weights: dict[str, Any]) -> _SnapshotFile:
    average, epoch = key
    name = quote(average, safe=" ")[:100]
    if name != average.lower():  # cut, quoted, or with capitals, which not every file system distinguishes
        name += f"-{crc32(average.encode()):08x}"
    path = folder / f"{name}-epoch-{epoch}.pt"
    return _SnapshotFile(path, write_state(path, weights, kind="snapshot"))


def _delete(snapshots: Iterable[_Snapshot]) -> None:
    for snapshot in snapshots:
        if isinstance(snapshot, _SnapshotFile):
            snapshot.path.unlink(missing_ok=True)
