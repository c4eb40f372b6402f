"""AcceleratedBank for Accelerate: a bank in your own loop, saved and loaded with the accelerator's state.

Needs the extra `accelerate`.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, SupportsFloat

import torch
from torch import nn

from emabank import BestTracker, EMABank
from emabank.integrations._session import (
    Averages,
    CallbackSession,
    Criteria,
    Metrics,
    check_reiterable,
    metric_names,
)
from emabank.preserved import preserved_modes
from emabank.rules import LIVE

try:
    from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
except ImportError:
    raise ImportError(
        "emabank.integrations.accelerate needs Accelerate: python -m pip install 'emabank[accelerate]'."
    ) from None


class AcceleratedBank:
    """Averages of a model that an accelerator has prepared.

    Call `update()` after each `optimizer.step()`, and `evaluate(function, at=epoch)` instead of your own evaluation.
    `accelerator.save_state` and `load_state` include the averages and the tracker.

    Args:
        accelerator: The accelerator that prepared the model.
        model: The prepared model.
        averages: The averages, as for `EMABank`. None keeps five, for the `steps` of the run.
        criteria: The metrics to choose the best weights by; None tracks nothing.
        recalibrate: The number of batches to recompute batch-norm statistics on before each evaluation; True uses
            all of them, False keeps the averaged statistics.
        recalibrate_on: The loader of these batches, usually the training loader.
        forward: `forward(model, batch)` runs a batch. By default a tensor becomes `model(batch)`, a tuple or list
            `model(batch[0])`, a mapping `model(**batch)`.
        snapshots: The weights to keep, as for `BestTracker`.
        options: Further arguments of `EMABank`, such as `steps` and `every`.

    >>> model = torch.nn.Linear(2, 1)
    >>> accelerator = Accelerator(cpu=True)
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> averages = AcceleratedBank(accelerator, model, [0.9], every=1)
    >>> for _ in range(3):
    ...     accelerator.backward(model(torch.ones(4, 2)).square().mean())
    ...     optimizer.step(); optimizer.zero_grad()
    ...     _ = averages.update()
    >>> metrics = averages.evaluate(lambda model: {"loss": model(torch.ones(4, 2)).square().mean()}, at=1)
    >>> sorted(metrics)
    ['ema-0.9', 'live']
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        averages: Averages | None = None,
        *,
        criteria: Criteria | None = MappingProxyType({"loss": "min"}),
        recalibrate: bool | int = 16,
        recalibrate_on: Iterable[Any] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        snapshots: Literal["best", "each"] | None = "best",
        **options: Any,
    ) -> None:
        self._session = CallbackSession(
            averages,
            criteria=criteria,
            recalibrate=recalibrate,
            forward=forward,
            snapshots=snapshots,
            options=options,
        )
        self._session.start(model)
        self._accelerator = accelerator
        self._loader = recalibrate_on
        if self._session.needs_batches:
            check_reiterable(recalibrate_on)
        accelerator.register_for_checkpointing(self)

    @property
    def bank(self) -> EMABank:
        """The averages."""
        return self._session.bank

    @property
    def tracker(self) -> BestTracker:
        """The metrics so far, and the best weights."""
        return self._session.tracker

    def best_weights(self, criterion: str | None = None) -> dict[str, Any]:
        """The best weights by a criterion (by default the first), as a state dict of the model."""
        return self._session.best_weights(criterion)

    def update(self) -> bool:
        """Count an optimizer step, unless gradients still accumulate or the scaler skipped it; True if it averaged."""
        accelerator = self._accelerator
        if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:
            return False
        return self.bank.update()

    @torch.no_grad()
    def evaluate(
        self,
        evaluate: Callable[[nn.Module], Mapping[str, SupportsFloat]],
        *,
        at: int,
        complete: bool = True,
        log: bool = True,
    ) -> Metrics:
        """The metrics of the live weights and of each average: what `evaluate(model)` returns in eval mode.

        All processes must call it, and `evaluate` should return the same on each (`accelerator.gather_for_metrics`).

        Args:
            evaluate: Returns the metrics of the model it gets.
            at: The epoch or step, for the tracker and the log.
            complete: False if this is only part of the data; the tracker then records it but never takes it as best.
            log: Whether to log through the accelerator, averages as `<metric>/<average>`.
        """
        model = self.bank.model
        self._session.recalibrate(self._loader)
        with preserved_modes(model):
            model.eval()
            metrics: Metrics = {LIVE: _numbers(evaluate(model))}
        metrics |= self._session.evaluate_averages(lambda model: _numbers(evaluate(model)))
        if log:
            self._accelerator.log(metric_names(metrics), step=at)
        self._session.observe(at, metrics, complete=complete)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The averages and the tracker, for `accelerator.save_state`."""
        return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the state that `accelerator.load_state` has read."""
        self._session.load_state_dict(state)


def _numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items()}
