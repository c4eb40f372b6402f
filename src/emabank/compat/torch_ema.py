"""`ExponentialMovingAverage` of torch_ema."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from emabank.compat._shared import OnNonfinite, copy_, is_skipped, lerp_, pair_parameters, write_parameters
from emabank.rules import warmup_decay

Parameters = Iterable[nn.Parameter] | None


class ExponentialMovingAverage:
    """torch_ema's `ExponentialMovingAverage`: `shadow_params` is a list of averages, in the order of the parameters.

    Every call may leave out `parameters`: then it means those of construction, which are held weakly.

    Args:
        parameters: the parameters to average, trainable or not.
        decay: the decay per call of `update`.
        use_num_updates: whether update n has at most the decay (1 + n) / (10 + n).
        on_nonfinite: what to do when parameters hold NaN or inf. "ignore" averages them, as torch_ema does; "raise"
            raises a FloatingPointError before anything moves; "skip" skips this update.

    Attributes:
        shadow_params: the averages.
        num_updates: how many updates there were; None without `use_num_updates`.
        collected_params: what `store` kept.

    >>> model = nn.Linear(2, 1)
    >>> ema = ExponentialMovingAverage(model.parameters(), decay=0.995)
    >>> ema.update()
    >>> with ema.average_parameters():
    ...     _ = model(torch.zeros(1, 2))
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        decay: float,
        use_num_updates: bool = True,
        *,
        on_nonfinite: OnNonfinite = "ignore",
    ) -> None:
        _check_decay(decay)
        parameters = list(parameters)
        self.decay = decay
        self.num_updates = 0 if use_num_updates else None
        self.shadow_params = [parameter.detach().clone() for parameter in parameters]
        self.collected_params: list[Tensor] | None = None
        self.on_nonfinite: OnNonfinite = on_nonfinite
        self._parameters = [ref(parameter) for parameter in parameters]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_parameters": []}  # a file cannot hold the live model

    def __deepcopy__(self, memo: dict[int, object]) -> "ExponentialMovingAverage":
        copy = object.__new__(type(self))
        copy.__dict__ = {**deepcopy(self.__getstate__(), memo), "_parameters": self._parameters}
        return copy

    def update(self, parameters: Parameters = None) -> None:
        """Move the averages towards the parameters."""
        pairs = pair_parameters(self.shadow_params, self._live(parameters))
        if is_skipped(((pair.name, pair.live) for pair in pairs), self.on_nonfinite):
            return
        decay = self.decay
        if self.num_updates is not None:
            self.num_updates += 1
            decay = min(decay, warmup_decay(self.num_updates))
        lerp_(pairs, 1.0 - decay)

    def copy_to(self, parameters: Parameters = None) -> None:
        """Copy the averages into the parameters."""
        write_parameters(self.shadow_params, self._live(parameters))

    def store(self, parameters: Parameters = None) -> None:
        """Keep the parameters, for `restore`."""
        self.collected_params = [parameter.detach().clone() for parameter in self._live(parameters)]

    def restore(self, parameters: Parameters = None) -> None:
        """Copy back what `store` kept."""
        if self.collected_params is None:
            raise RuntimeError("There is nothing to restore: call store() first.")
        write_parameters(self.collected_params, self._live(parameters))

    @contextmanager
    def average_parameters(self, parameters: Parameters = None) -> Generator[None]:
        """Put the averages into the parameters, and the parameters back at the end, whatever happens."""
        parameters = self._live(parameters)
        self.store(parameters)
        try:
            self.copy_to(parameters)
            yield
        finally:
            self.restore(parameters)

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Move the averages to a device, or to a floating dtype."""
        self.shadow_params = [_moved(tensor, device, dtype) for tensor in self.shadow_params]
        if self.collected_params is not None:
            self.collected_params = [_moved(tensor, device, dtype) for tensor in self.collected_params]

    def state_dict(self) -> dict[str, Any]:
        """Decay, count and tensors. The tensors are not copies."""
        keys = ("decay", "num_updates", "shadow_params", "collected_params")
        return {key: getattr(self, key) for key in keys}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, here or in torch_ema, into the averages as they are."""
        _check_decay(state_dict["decay"])
        pairs = pair_parameters(self.shadow_params, state_dict["shadow_params"])
        collected = state_dict["collected_params"]
        if collected is not None:
            collected = [
                pair.live.to(pair.average, copy=True) for pair in pair_parameters(self.shadow_params, collected)
            ]
        copy_(pairs)
        self.decay, self.num_updates, self.collected_params = state_dict["decay"], state_dict["num_updates"], collected

    def _live(self, parameters: Parameters) -> list[nn.Parameter]:
        if parameters is not None:
            return list(parameters)
        lives = [parameter for reference in self._parameters if (parameter := reference()) is not None]
        if len(lives) != len(self.shadow_params):
            raise ValueError(
                "parameters must be passed: those of construction no longer exist, or this object was unpickled."
            )
        return lives


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay must be between 0 and 1; got {decay!r}.")


def _moved(tensor: Tensor, device: str | torch.device | None, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
