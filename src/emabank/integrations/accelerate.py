"""AcceleratedBank for Accelerate: a bank in a loop of one's own, saved and loaded with the accelerator's states.

Needs the extra `accelerate`. Imports what the integrations share.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, SupportsFloat

import torch
from torch import nn

from emabank.integrations._session import (
    LIVE,
    Accompanied,
    Averages,
    CallbackSession,
    Criteria,
    Metrics,
    Settings,
    metric_names,
    same_modes,
)
from emabank.randomness import same_randomness

try:
    from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
except ImportError:
    raise ImportError(
        "emabank.integrations.accelerate needs Accelerate: python -m pip install 'emabank[accelerate]'."
    ) from None


class AcceleratedBank(Accompanied):
    """Averages of a model that an accelerator has prepared.

    `averages`, `every` and `options` are those of `EMABank`. Call `update()` after each `optimizer.step()`, and
    `evaluate(function, at=epoch)` in the place of an evaluation. `criteria` says which metrics make an average the
    best; None tracks nothing. `recalibrate` says on how many batches of `recalibrate_on` (the training loader) the
    batch-norm statistics of averages are measured before they are evaluated: True is all, False leaves them the
    averaged ones. A batch goes through the model as a tensor, as the first of a tuple, or as `model(**batch)`, unless
    `forward(model, batch)` does it. `accelerator.save_state` and `load_state` take the bank along.

    >>> model = torch.nn.Linear(2, 1)
    >>> accelerator = Accelerator(cpu=True)
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> averages = AcceleratedBank(accelerator, model, [0.9], every=1)
    >>> for _ in range(3):
    ...     accelerator.backward(model(torch.ones(4, 2)).square().mean())
    ...     optimizer.step(); optimizer.zero_grad()
    ...     _ = averages.update()
    >>> found = averages.evaluate(lambda model: {"loss": model(torch.ones(4, 2)).square().mean()}, at=1)
    >>> sorted(found)
    ['ema-0.9', 'live']
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        averages: Averages,
        *,
        every: int = 16,
        criteria: Criteria | None = MappingProxyType({"loss": "min"}),
        recalibrate: bool | int = 16,
        recalibrate_on: Iterable[Any] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        snapshots: Literal["best", "each"] | None = "best",
        **options: Any,
    ) -> None:
        criteria = None if criteria is None else dict(criteria)
        self._session = CallbackSession(
            Settings(averages, every, criteria, recalibrate, None, forward, snapshots, None, options)
        )
        self._session.start(model)
        self._accelerator = accelerator
        self._loader = recalibrate_on
        if self._session.needs_batches:
            self._session.check(recalibrate_on)
        accelerator.register_for_checkpointing(self)

    def update(self) -> bool:
        """Count an optimizer step, if one was made: not while gradients accumulate, nor where a scaler left it out.

        True when it averaged.
        """
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
        """The metrics that `evaluate(model)` gives of the live weights and of each average, the model in eval mode.

        They are logged through the accelerator, the live ones under their names, the others as `<metric>/<average>`.
        `at` is the epoch or step that the tracker is told; `complete=False` (a part of the data) cannot set a best.
        All processes must come here, and `evaluate` should give the same on each (`accelerator.gather_for_metrics`).
        """
        model = self.bank.model
        with same_modes(model):
            with same_randomness():
                self._session.recalibrate(self._loader if self._session.needs_batches else ())
            model.eval()
            found: Metrics = {LIVE: _numbers(evaluate(model))}
            with same_randomness():
                for name in self.bank.names:
                    with self.bank.applied(name, batchnorm=self._session.statistics):
                        found[name] = _numbers(evaluate(model))
        if log:
            self._accelerator.log(metric_names(found), step=at)
        self._session.observe(at, found, complete=complete)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The averages and the tracker, for `accelerator.save_state`."""
        return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `accelerator.load_state` has read."""
        self._session.load_state_dict(state, now=True)


def _numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items()}
