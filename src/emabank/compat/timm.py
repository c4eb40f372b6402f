"""`ModelEmaV3` and `ModelEmaV2` of timm.utils."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from emabank._model import tensor_refs
from emabank.compat._shared import OnNonfinite, Pair, copy_, is_skipped, lerp_, pair_modules, warmed_up


class _ModelEma(nn.Module):
    """`module`, a copy of the model in eval mode: its state dict is averaged, integers are copied."""

    def __init__(
        self, model: nn.Module, decay: float, device: str | torch.device | None, on_nonfinite: OnNonfinite
    ) -> None:
        super().__init__()
        self.module = deepcopy(model).eval()
        if device is not None:
            self.module.to(device)
        self.decay, self.device = decay, device
        self.on_nonfinite: OnNonfinite = on_nonfinite

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the average."""
        return self.module(*args, **kwargs)

    def set(self, model: nn.Module) -> None:
        """Copy the live model into the average."""
        copy_(self._pairs(model))

    def _pairs(self, model: nn.Module) -> list[Pair]:
        """Without the buffers that are in no state dict: they stay as they were at construction."""
        saved = set(map(id, self.module.state_dict(keep_vars=True).values()))
        unsaved = {ref.name for ref in tensor_refs(self.module) if id(ref.tensor) not in saved}
        return [pair for pair in pair_modules(self.module, model) if pair.is_parameter or pair.name not in unsaved]


class ModelEmaV2(_ModelEma):
    """timm's `ModelEmaV2`: `module` is a copy of the model whose state dict is averaged.

    Args:
        model: the live model.
        decay: the decay per call of `update`; it may be changed at any time.
        device: where the average is kept. None means where the model is.
        on_nonfinite: what to do when live weights hold NaN or inf. "ignore" averages them, as timm does; "raise"
            raises a FloatingPointError before anything moves; "skip" skips this update.

    Attributes:
        module: the average, a module like the live model.

    >>> model = nn.Linear(2, 1)
    >>> ema = ModelEmaV2(model, decay=0.998)
    >>> ema.update(model)
    >>> ema(torch.zeros(1, 2)).shape
    torch.Size([1, 1])
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.9999,
        device: str | torch.device | None = None,
        *,
        on_nonfinite: OnNonfinite = "ignore",
    ) -> None:
        super().__init__(model, decay, device, on_nonfinite)

    def update(self, model: nn.Module) -> None:
        """Move the average towards the live model."""
        pairs = self._pairs(model)
        if not is_skipped(model.named_parameters(), self.on_nonfinite):
            lerp_(pairs, 1.0 - self.decay)


class ModelEmaV3(_ModelEma):
    """timm's `ModelEmaV3`: `module` is a copy of the model whose state dict is averaged, with a decay by step.

    Args:
        model: the live model.
        decay: the decay per call of `update`; it may be changed at any time.
        min_decay: the least decay of the warm-up.
        update_after_step: until this step, counted from 1, an update copies.
        use_warmup: whether the decay rises as 1 - (1 + step / warmup_gamma)^-warmup_power.
        warmup_gamma: the scale of the warm-up, in steps.
        warmup_power: its exponent.
        device: where the average is kept. None means where the model is.
        foreach: makes no difference: updates are always fused.
        exclude_buffers: whether buffers, all of them, are copied and not averaged.
        on_nonfinite: what to do when live weights hold NaN or inf. "ignore" averages them, as timm does; "raise"
            raises a FloatingPointError before anything moves; "skip" skips this update.

    Attributes:
        module: the average, a module like the live model.

    >>> model = nn.Linear(2, 1)
    >>> ema = ModelEmaV3(model, decay=0.9998, use_warmup=True)
    >>> ema.update(model, step=100)
    >>> round(ema.get_decay(100), 4)
    0.9536
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.9999,
        min_decay: float = 0.0,
        update_after_step: int = 0,
        use_warmup: bool = False,
        warmup_gamma: float = 1.0,
        warmup_power: float = 2 / 3,
        device: str | torch.device | None = None,
        foreach: bool = True,
        exclude_buffers: bool = False,
        *,
        on_nonfinite: OnNonfinite = "ignore",
    ) -> None:
        super().__init__(model, decay, device, on_nonfinite)
        self.min_decay, self.update_after_step = min_decay, update_after_step
        self.use_warmup, self.warmup_gamma, self.warmup_power = use_warmup, warmup_gamma, warmup_power
        self.foreach, self.exclude_buffers = foreach, exclude_buffers

    def get_decay(self, step: int | None = None) -> float:
        """The decay of the update at a step; without one, `decay`."""
        if step is None:
            return self.decay
        elapsed = step - self.update_after_step - 1
        if elapsed <= 0:
            return 0.0
        if not self.use_warmup:
            return self.decay
        bounds = {"decay": self.decay, "min_decay": self.min_decay}
        return warmed_up(elapsed, inv_gamma=self.warmup_gamma, power=self.warmup_power, **bounds)

    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Move the average towards the live model, with the decay of this step."""
        pairs = pair_modules(self.module, model) if self.exclude_buffers else self._pairs(model)
        if not is_skipped(model.named_parameters(), self.on_nonfinite):
            lerp_([pair for pair in pairs if pair.is_parameter or not self.exclude_buffers], 1.0 - self.get_decay(step))
            copy_([pair for pair in pairs if self.exclude_buffers and not pair.is_parameter])
