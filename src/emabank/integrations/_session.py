"""CallbackSession: the bank and the tracker that go along with a framework's training, whatever the framework is.

What the integrations have in common. Imports the public names of the library, and no framework.
"""

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils.data import DataLoader, IterableDataset

from emabank import EMA, BestTracker, EMABank, PowerEMA, Uniform, recalibrate_batchnorm

Average = float | EMA | Uniform | PowerEMA
Averages = Sequence[Average] | Mapping[str, Average]
Criteria = Mapping[str, Literal["max", "min"]]
Metrics = dict[str, dict[str, float]]
"""Metric values by average ("live" among them)."""

LIVE = "live"


@dataclass
class Settings:
    """What a user says of the averages; each integration hands its own arguments on.

    >>> Settings([0.998], recalibrate=0)
    Traceback (most recent call last):
    ...
    ValueError: recalibrate=0: allowed are True (all training batches), False (none) and a number of batches from 1 on.
    """

    averages: Averages
    every: int = 16
    criteria: Criteria | None = None
    recalibrate: bool | int = 16
    recalibrate_on: Iterable[Any] | None = None
    forward: Any = None
    snapshots: Literal["best", "each"] | None = "best"
    finish_with: str | float | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unit: str = "epoch"

    def __post_init__(self) -> None:
        # The bank is built when training begins; a misspelt option shall be heard of now.
        inspect.signature(EMABank).bind(None, self.averages, every=self.every, **self.options)
        if not isinstance(self.recalibrate, int) or (not isinstance(self.recalibrate, bool) and self.recalibrate < 1):
            raise ValueError(
                f"recalibrate={self.recalibrate!r}: allowed are True (all training batches), False (none) and a number "
                "of batches from 1 on."
            )
        if self.finish_with == "best" and (not self.criteria or self.snapshots is None):
            raise ValueError('finish_with="best" needs criteria and snapshots, for nothing is known as the best else.')


class CallbackSession:
    """A bank beside a training run, and the best of what was seen of it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bank: EMABank | None = None
        self._tracker: BestTracker | None = None
        self._model: nn.Module | None = None
        self._pending_state: Mapping[str, Any] | None = None

    # Its life --------------------------------------------------------------------------------------------------------

    def start(self, model: nn.Module, *, resume_for: nn.Module | None = None) -> None:
        """Build the bank for a model (the wrapped one) as training begins.

        Resumes from a state that was loaded before, else from its own if `resume_for` is its model; else starts anew.
        """
        state = self._pending_state
        if state is None and resume_for is not None and resume_for is self._model:
            state = self.state_dict()
        settings = self._settings
        self._bank = EMABank(model, settings.averages, every=settings.every, **settings.options)
        self._tracker = None
        if settings.criteria:
            self._tracker = BestTracker(self._bank, settings.criteria, snapshots=settings.snapshots, unit=settings.unit)
        self._model, self._pending_state = resume_for, None
        if state:
            self._load(state)

    @property
    def has_started(self) -> bool:
        return self._bank is not None

    @property
    def bank(self) -> EMABank:
        if self._bank is None:
            raise RuntimeError("There is no bank yet: it is built when training begins, for the model on its device.")
        return self._bank

    @property
    def tracker(self) -> BestTracker:
        if not self._settings.criteria:
            raise RuntimeError('Nothing is tracked: give criteria, such as {"val_loss": "min"}.')
        if self._tracker is None:
            raise RuntimeError("Nothing was tracked yet: training has not begun.")
        return self._tracker

    @property
    def criteria(self) -> list[str]:
        return list(self._settings.criteria or ())

    def finish(self, model: nn.Module) -> None:
        """Leave in the model what was asked for, if anything was and there is anything."""
        wanted = self._settings.finish_with
        if wanted is None or self._bank is None:
            return
        if wanted != "best":
            self._bank.copy_to(model, wanted)
        elif self._tracker is not None and any(row.complete for row in self._tracker.history):
            model.load_state_dict(self._tracker.weights(self.criteria[0]))

    # Validation ------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> Literal["averaged", "recomputed"]:
        """The batch-norm statistics that averages are validated with."""
        return "recomputed" if self._settings.recalibrate else "averaged"

    @property
    def needs_batches(self) -> bool:
        """Whether training batches are wanted, to measure batch-norm statistics on."""
        return bool(self._settings.recalibrate) and any(isinstance(each, _BatchNorm) for each in self._parts())

    @property
    def has_forward(self) -> bool:
        """Whether the user said how a training batch goes through the model."""
        return self._settings.forward is not None

    def check(self, loader: object) -> None:
        """Say at the beginning of training that batch-norm statistics could not be measured during it."""
        if self.needs_batches and self._settings.recalibrate_on is None:
            check_reiterable(loader)

    def recalibrate(self, loader: object, prepare: Callable[[Any], Any] | None = None) -> None:
        """Measure the batch-norm statistics of all averages, on batches of this loader unless others were given.

        `prepare` does with a batch what the framework does with it before the model sees it.
        """
        settings = self._settings
        if not settings.recalibrate:
            return
        batches: Iterable[Any] = settings.recalibrate_on if settings.recalibrate_on is not None else batches_of(loader)
        if prepare is not None:
            batches = map(prepare, batches)
        most = None if settings.recalibrate is True else settings.recalibrate
        recalibrate_batchnorm(self.bank, batches, max_batches=most, forward=settings.forward)

    def observe(self, at: int, metrics: Metrics, *, complete: bool = True) -> None:
        """Tell the tracker what a validation has found, unless it knows of this one (a resumed run validates twice)."""
        if self._tracker is None or any(row.epoch == at for row in self._tracker.history):
            return
        for average, values in metrics.items():
            missing = [name for name in self.criteria if name not in values]
            if missing:
                raise ValueError(
                    f"criteria name {', '.join(map(repr, missing))}, and validation of {average!r} gave "
                    f"{', '.join(map(repr, sorted(values))) or 'nothing'}: give criteria={{...}} of these, or None."
                )
        self._tracker.observe(at, metrics, complete=complete, batchnorm=self.statistics)

    def _parts(self) -> Iterator[nn.Module]:
        return self.bank.model.modules()

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The bank's and the tracker's; of a run that has not begun what was loaded for it."""
        if self._bank is None:
            return dict(self._pending_state or {})
        tracker = None if self._tracker is None else self._tracker.state_dict()
        return {"bank": self._bank.state_dict(), "tracker": tracker}

    def load_state_dict(self, state: Mapping[str, Any], *, now: bool) -> None:
        """Go on from a state: now, or when training begins."""
        if now:
            self._load(state)
        else:
            self._pending_state = state

    def forget_loaded(self) -> None:
        """Let go of a state that no training took up."""
        self._pending_state = None

    def _load(self, state: Mapping[str, Any]) -> None:
        self.bank.load_state_dict(state["bank"])
        if self._tracker is not None and state["tracker"] is not None:
            self._tracker.load_state_dict(state["tracker"])


# Data and modes ------------------------------------------------------------------------------------------------------


class Accompanied:
    """What every integration shows of its session."""

    _session: CallbackSession

    @property
    def bank(self) -> EMABank:
        """The averages; with a trainer, from the beginning of training on."""
        return self._session.bank

    @property
    def tracker(self) -> BestTracker:
        """What validations have found."""
        return self._session.tracker

    def best_weights(self, criterion: str | None = None) -> dict[str, Any]:
        """The weights that were best by a criterion (the first one), as a state dict of the model."""
        return self.tracker.weights(criterion or self._session.criteria[0])


def batches_of(loader: Any) -> Iterator[Any]:
    """An epoch of a loader's batches, while training may be in the middle of another of the same loader.

    Not through the loader's own iterator, of which one with persistent workers, or one that a framework counts, has
    only one: samples are chosen by a copy of its sampler, and fetched and put together here.

    >>> import torch
    >>> loader = DataLoader(torch.arange(5), batch_size=2)
    >>> running = iter(loader)
    >>> [batch.tolist() for batch in batches_of(loader)], next(running).tolist()
    ([[0, 1], [2, 3], [4]], [0, 1])
    """
    check_reiterable(loader)
    loader = getattr(loader, "base_dataloader", loader)  # where Accelerate keeps the one it has wrapped
    if not isinstance(loader, DataLoader):
        yield from loader
        return
    dataset: Any = loader.dataset
    in_batches = loader.batch_sampler is not None
    sampler: Any = loader.batch_sampler if in_batches else loader.sampler
    chosen = deepcopy(sampler, {id(dataset): dataset})  # shares the data, which a sampler often holds
    for where in chosen:
        if in_batches and hasattr(dataset, "__getitems__"):
            samples = dataset.__getitems__(where)
        else:
            samples = [dataset[index] for index in where] if in_batches else dataset[where]
        yield loader.collate_fn(samples)


def check_reiterable(loader: object) -> None:
    """Raise where a training loader cannot be asked for batches while training goes through it.

    >>> check_reiterable(iter([1, 2]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Batch-norm statistics cannot be measured on the training loader, a list_iterator: it has one pass...
    """
    why = ""
    if loader is None:
        why = "there is none"
    elif isinstance(getattr(loader, "dataset", None), IterableDataset):
        why = "its dataset is a stream, which training would miss the batches of"
    elif isinstance(loader, Iterator):
        why = "it has one pass only"
    if why:
        raise ValueError(
            f"Batch-norm statistics cannot be measured on the training loader, a {type(loader).__name__}: {why}. "
            "Give recalibrate_on= a loader for it, or recalibrate=False."
        )


@contextmanager
def same_modes(model: nn.Module) -> Generator[None]:
    """Every module is afterwards in the mode (training or not) that it had."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def metric_names(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The names under which averages are logged: the metric's own, then the average's; the live ones keep theirs.

    >>> metric_names({"ema-0.998": {"val_loss": 0.25}})
    {'val_loss/ema-0.998': 0.25}
    """
    return {
        metric if average == LIVE else f"{metric}/{average}": value
        for average, values in metrics.items()
        for metric, value in values.items()
    }
