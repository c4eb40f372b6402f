"""AcceleratedBank for Accelerate: a bank in your own loop, saved and loaded with the accelerator's state.

Needs the extra `accelerate`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsFloat

import torch
from torch import nn

from emabank.integrations._session import Averages, CallbackSession, Metrics, check_reiterable, metric_names
from emabank.preserved import eval_mode
from emabank.rules import LIVE

try:
    from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
except ImportError:
    raise ImportError("emabank.integrations.accelerate needs Accelerate: pip install accelerate.") from None


class AcceleratedBank(CallbackSession):
    """Averages of a model that an accelerator has prepared.

    Call `update()` after each `optimizer.step()`, and `evaluate(function, at=epoch)` instead of your own evaluation.
    `accelerator.save_state` and `load_state` include the averages and the tracker.

    Args:
        accelerator: The accelerator that prepared the model.
        model: The prepared model.
        averages: The averages, as for `EMABank`. None keeps five, for the `steps` of the run.
        recalibrate_on: The loader of batches to recompute batch-norm statistics on, usually the training loader.
        options: The arguments that all integrations share (criteria, recalibrate, forward, snapshots), and those of
            `EMABank`, such as `steps` and `every`.

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

    _unit = "epoch"

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        averages: Averages | None = None,
        *,
        recalibrate_on: Iterable[Any] | None = None,
        **options: Any,
    ) -> None:
        if "finish_with" in options:
            raise TypeError("finish_with is for a Trainer, which knows when training ends: use bank.copy_to then.")
        super().__init__(averages, **options)
        self.start(model)
        self._accelerator, self._loader = accelerator, recalibrate_on
        if self.needs_batches:
            check_reiterable(recalibrate_on)
        accelerator.register_for_checkpointing(self)

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
            at: The epoch or step, for the tracker and the log; another one for each complete evaluation.
            complete: False if this is only part of the data; the tracker then records it but never takes it as best.
            log: Whether to log through the accelerator, averages as `<metric>/<average>`.
        """
        self.recalibrate(self._loader)
        model = self.bank.model
        with eval_mode(model):  # but not the random streams: this is the evaluation that you would have without
            metrics: Metrics = {LIVE: _numbers(evaluate(model))}
        metrics |= self.bank.evaluate(lambda model: _numbers(evaluate(model)), averages=self.bank.names)
        if log:
            self._accelerator.log(metric_names(metrics), step=at)
        if self._tracker is not None:
            self._tracker.observe(at, metrics, complete=complete)
        return metrics

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state that `accelerator.load_state` has read."""
        self.resume(state_dict)


def _numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items()}
