"""CallbackSession: a bank and a tracker beside a framework's training loop. It knows no framework."""

import inspect
import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from emabank import BestTracker, EMABank, recalibrate_batchnorm
from emabank.preserved import preserved_rng
from emabank.rules import LIVE, Rule

Averages = Sequence[float | Rule] | Mapping[str, float | Rule]
Criteria = Mapping[str, Literal["max", "min"]]
Metrics = dict[str, dict[str, float]]  # average (or "live") to metric to value
Value = TypeVar("Value")


class CallbackSession:
    """What the classes for the frameworks have in common; the bank is built when training starts."""

    _loss = "loss"  # what the framework calls the validation loss
    _unit = "step"  # what the tracker counts

    def __init__(
        self,
        averages: Averages | None = None,
        *,
        criteria: Criteria | None = None,
        recalibrate: bool | int = 16,
        recalibrate_on: Iterable[Any] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        snapshots: Literal["best", "each"] | None = "best",
        finish_with: str | float | None = None,
        **options: Any,
    ) -> None:
        """Settings of the averages.

        Args:
            averages: The averages, as for `EMABank`. None keeps five, for as many steps as the run has.
            criteria: The metrics to choose the best weights by. None is the validation loss; {} tracks nothing.
            recalibrate: The number of training batches to recompute batch-norm statistics on before each validation;
                True uses all of them, False keeps the averaged statistics.
            recalibrate_on: Another loader of batches for it.
            forward: `forward(model, batch)` runs a batch for it. By default a tensor becomes `model(batch)`, a tuple or
                list `model(batch[0])`, a mapping `model(**batch)`.
            snapshots: The weights to keep, as for `BestTracker`.
            finish_with: The average, or "best" by the first criterion, to copy into the model at the end of training
                (not after an interrupt). By default the model keeps its live weights.
            options: Further arguments of `EMABank`, such as `every`.
        """
        inspect.signature(EMABank).bind(None, averages, **options)  # a misspelt option fails now
        if not isinstance(recalibrate, int) or (recalibrate is not False and recalibrate < 1):
            raise ValueError(
                "recalibrate must be True (all training batches), False (none) or a positive number of batches; "
                f"got {recalibrate!r}."
            )
        self._criteria: Criteria = {self._loss: "min"} if criteria is None else dict(criteria)
        if finish_with == "best" and (not self._criteria or snapshots is None):
            raise ValueError(
                'finish_with="best" requires criteria and snapshots; otherwise there is no best model to restore.'
            )
        self._averages, self._options, self._finish_with = averages, options, finish_with
        self._recalibrate, self._recalibrate_on, self._forward = recalibrate, recalibrate_on, forward
        self._snapshots: Literal["best", "each"] | None = snapshots
        self._bank: EMABank | None = None
        self._tracker: BestTracker | None = None
        self._run: object = None
        self._steps: int | None = None
        self._pending_state: Mapping[str, Any] | None = None
        self._held_state: dict[str, Any] | None = None

    @property
    def bank(self) -> EMABank:
        """The averages, once training has started."""
        if self._bank is None:
            raise RuntimeError("There is no bank yet: it is built when training starts.")
        return self._bank

    @property
    def tracker(self) -> BestTracker:
        """The metrics so far, and the best weights."""
        if not self._criteria:
            raise RuntimeError('Nothing is tracked without criteria: pass criteria={"val_loss": "min"} or the like.')
        if self._tracker is None:
            raise RuntimeError("There is no tracker yet: it is built when training starts.")
        return self._tracker

    def best_weights(self, criterion: str | None = None) -> dict[str, Any]:
        """The best weights by a criterion (by default the first), as a state dict of the model."""
        return self.tracker.weights(criterion or next(iter(self._criteria)))

    # Training --------------------------------------------------------------------------------------------------------

    def start(self, model: nn.Module, *, steps: float | None = None, run: object = None) -> None:
        """Build the bank for a model, wrapped or not, and a run of so many steps, if the framework knows.

        The session resumes from a pending state, or from its own state if `run` equals that of last time. A resumed
        run keeps the length that was planned when it began, because half-lives may be shares of it.
        """
        state = self._pending_state
        if state is None and run is not None and run == self._run:
            state = self._state()
        elif state:
            self._steps = state["steps"]
        else:
            self._steps = int(steps) if steps is not None and 0 < steps < math.inf else None
        options: dict[str, Any] = {"steps": self._steps, **self._options}
        self._bank = EMABank(model, self._averages, **options)
        if self._finish_with not in (None, "best"):
            self._bank.resolve(self._finish_with)  # an unknown name fails now
        self._tracker = None
        if self._criteria:
            self._tracker = BestTracker(self._bank, self._criteria, snapshots=self._snapshots, unit=self._unit)
        self._run, self._pending_state = run, None
        if state:
            self.resume(state)

    def finish(self, model: nn.Module) -> None:
        """Copy into the model what `finish_with` names; for "best", warn if there was no complete validation."""
        if self._finish_with is None or self._bank is None:
            return
        if self._finish_with != "best":
            self._bank.copy_to(model, self._finish_with)
        elif any(row.complete for row in self.tracker.history):
            _load_weights(model, self.best_weights())
        else:
            warnings.warn('finish_with="best" leaves the live weights: there was no complete validation.', stacklevel=2)

    # Validation ------------------------------------------------------------------------------------------------------

    @property
    def needs_batches(self) -> bool:
        """Whether there are batch-norm statistics to recompute."""
        return bool(self._recalibrate) and any(isinstance(module, _BatchNorm) for module in self.bank.model.modules())

    @property
    def needs_training_loader(self) -> bool:
        """Whether they are recomputed on the training loader."""
        return self.needs_batches and self._recalibrate_on is None

    def recalibrate(self, loader: object, prepare: Callable[[Any], Any] | None = None) -> None:
        """Recompute the batch-norm statistics of all averages, on the training loader unless the user gave another.

        `prepare` does to a batch what the framework does before the model sees it.
        """
        if not self._recalibrate:
            return
        batches: Iterable[Any] = ()
        if self.needs_batches:
            batches = second_pass(loader) if self._recalibrate_on is None else self._recalibrate_on
        max_batches = None if self._recalibrate is True else self._recalibrate
        with preserved_rng(self._recalibrate_on):  # `map` draws at once, and hides the loader's generators
            if prepare is not None:
                batches = map(prepare, batches)
            recalibrate_batchnorm(self.bank, batches, max_batches=max_batches, forward=self._forward)

    def observe(self, at: int, metrics: Metrics, *, complete: bool = True) -> None:
        """Pass metrics to the tracker, unless it has this step already: a resumed run may validate again."""
        if self._tracker is not None and all(row.epoch != at for row in self._tracker.history):
            self._tracker.observe(at, metrics, complete=complete)

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The averages and the tracker, for the framework's checkpoint; before training starts, the pending state.

        Of a sharded model all ranks must ask; tensors are gathered one by one, and rank 0, which writes, has them.
        """
        if self._held_state is not None:
            return self._held_state
        return dict(self._pending_state or {}) if self._bank is None else tree_map(_gather, self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "bank": self.bank.state_dict(),
            "tracker": None if self._tracker is None else self._tracker.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the framework's checkpoint when training starts."""
        self._pending_state = state_dict

    def resume(self, state_dict: Mapping[str, Any], *, only_live: bool = False) -> None:
        """Resume from a state now; `only_live` puts back the live weights that an average took the place of."""
        if LIVE in state_dict:
            _load_weights(self.bank.model, state_dict[LIVE])
            self.bank.reset()
        if only_live:
            return
        self.bank.load_state_dict(state_dict["bank"])
        if self._tracker is not None and state_dict["tracker"] is not None:
            self._tracker.load_state_dict(state_dict["tracker"])

    def average_of(self, metric: str | None) -> str | None:
        """The average in the name of a metric, `<metric>/<average>`."""
        return next((name for name in self.bank.names if metric is not None and metric.endswith(f"/{name}")), None)

    @contextmanager
    def holding(self, average: str) -> Generator[None]:
        """Have an average in the model while the framework writes a checkpoint, which is then one of that average.

        Meanwhile `state_dict` has the live weights too, and `resume` puts them back.
        """
        averaged, live = self.bank.weights(average), self.bank.weights(LIVE)
        changed = {key: value for key, value in live.items() if _differ(value, averaged[key])}
        self._held_state = {**self.state_dict(), LIVE: tree_map(_gather, changed)}
        try:
            with self.bank.applied(average):
                yield
        finally:
            self._held_state = None


def _gather(value: Any) -> Any:
    """The full tensor of a sharded one, on rank 0; a collective."""
    if not isinstance(value, DTensor):
        return value
    full = value.full_tensor()
    return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0)


def _differ(live: Any, average: Any) -> bool:
    """Whether an average has another value than the live one; a shard may, whatever this rank sees of it."""
    return isinstance(live, Tensor) and (isinstance(live, DTensor) or not torch.equal(live, average))


def _load_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Load (part of) a state dict of full tensors into a model, wrapped and sharded or not."""
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))


# Loaders and names ---------------------------------------------------------------------------------------------------


def second_pass(loader: Any) -> Iterator[Any]:
    """Another pass over a training loader that is in use.

    Its own iterator (persistent workers have only one), its sampler and its generators stay as they are.
    """
    check_reiterable(loader)
    loader = getattr(loader, "base_dataloader", loader)  # inside Accelerate's wrapper
    if isinstance(loader, DataLoader):
        has_batches = loader.batch_sampler is not None
        sampler: Any = loader.batch_sampler if has_batches else loader.sampler
        sampler = deepcopy(sampler, {id(loader.dataset): loader.dataset})  # samplers often hold the dataset: share it
        order: dict[str, Any] = {"batch_sampler": sampler} if has_batches else {"sampler": sampler, "batch_size": None}
        loader = DataLoader(loader.dataset, collate_fn=loader.collate_fn, **order)
    yield from loader


def check_reiterable(loader: object) -> None:
    """Raise if a training loader has no second pass."""
    reason = ""
    if loader is None:
        reason = "there is none"
    elif isinstance(getattr(loader, "dataset", None), IterableDataset):
        reason = "its dataset is a stream, and training would miss the batches"
    elif isinstance(loader, Iterator):
        reason = "an iterator has one pass only"
    if reason:
        raise ValueError(
            "The training loader must allow a second pass, to recompute batch-norm statistics; got "
            f"{type(loader).__name__}: {reason}. Pass recalibrate_on=another loader, or recalibrate=False."
        )


def metric_names(metrics: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """The values by the names they are logged under: `<metric>/<average>`, for the live weights `<metric>`."""
    return {
        metric if average == LIVE else f"{metric}/{average}": value
        for average, values in metrics.items()
        for metric, value in values.items()
    }
