"""`EMAModel` of diffusers.training_utils."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from emabank.compat._shared import OnNonfinite, copy_, is_skipped, lerp_, pair_parameters, warmed_up, write_parameters
from emabank.rules import warmup_decay

Parameters = Iterable[nn.Parameter]
# Saved in this order, as diffusers does; in a folder they are part of config.json.
_SETTINGS = ("decay", "min_decay", "optimization_step", "update_after_step", "use_ema_warmup", "inv_gamma", "power")


class EMAModel:
    """diffusers' `EMAModel`: `shadow_params` is a list of averages, in the order of the parameters.

    The decay of step t is at most (1 + t) / (10 + t), or with `use_ema_warmup` 1 - (1 + t / inv_gamma)^-power. Frozen
    parameters are copied.

    Args:
        parameters: the parameters to average.
        decay: the largest decay per call of `step`.
        min_decay: the least decay.
        update_after_step: until this step a call copies.
        use_ema_warmup: whether the warm-up is by a power.
        inv_gamma: the scale of that warm-up, in steps.
        power: its exponent.
        foreach: makes no difference: updates are always fused.
        model_cls: the diffusers class of the model, for `save_pretrained`.
        model_config: its configuration, for `save_pretrained`.
        on_nonfinite: what to do when parameters hold NaN or inf. "ignore" averages them, as diffusers does; "raise"
            raises a FloatingPointError before anything moves; "skip" skips this step.

    Attributes:
        shadow_params: the averages.
        optimization_step: how many steps there were.
        cur_decay_value: the decay of the last one.
        temp_stored_params: what `store` kept.

    >>> model = nn.Linear(2, 1)
    >>> ema = EMAModel(model.parameters(), decay=0.9999, use_ema_warmup=True, power=0.75)
    >>> ema.step(model.parameters())
    >>> ema.store(model.parameters())
    >>> ema.copy_to(model.parameters())
    >>> ema.restore(model.parameters())
    """

    def __init__(
        self,
        parameters: Parameters,
        decay: float = 0.9999,
        min_decay: float = 0.0,
        update_after_step: int = 0,
        use_ema_warmup: bool = False,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        foreach: bool = False,
        model_cls: Any = None,
        model_config: Mapping[str, Any] | None = None,
        *,
        on_nonfinite: OnNonfinite = "ignore",
    ) -> None:
        _check_parameters(parameters)
        self.shadow_params = [parameter.detach().clone() for parameter in parameters]
        self.temp_stored_params: list[Tensor] | None = None
        self.decay, self.min_decay, self.update_after_step = decay, min_decay, update_after_step
        self.use_ema_warmup, self.inv_gamma, self.power = use_ema_warmup, inv_gamma, power
        self.optimization_step = 0
        self.cur_decay_value: float | None = None
        self.foreach, self.model_cls, self.model_config = foreach, model_cls, model_config
        self.on_nonfinite: OnNonfinite = on_nonfinite

    def get_decay(self, optimization_step: int) -> float:
        """The decay of a step, counted from 1."""
        elapsed = optimization_step - self.update_after_step - 1
        if elapsed <= 0:
            return 0.0
        if not self.use_ema_warmup:
            return max(min(warmup_decay(elapsed), self.decay), self.min_decay)
        bounds = {"decay": self.decay, "min_decay": self.min_decay}
        return warmed_up(elapsed, inv_gamma=self.inv_gamma, power=self.power, **bounds)

    def step(self, parameters: Parameters) -> None:
        """Move the averages towards the parameters."""
        _check_parameters(parameters)
        parameters = list(parameters)
        pairs = pair_parameters(self.shadow_params, parameters)
        if is_skipped(((pair.name, pair.live) for pair in pairs), self.on_nonfinite):
            return
        self.optimization_step += 1
        self.cur_decay_value = self.get_decay(self.optimization_step)
        moves = list(zip(pairs, [parameter.requires_grad for parameter in parameters], strict=True))
        lerp_([pair for pair, is_trained in moves if is_trained], 1.0 - self.cur_decay_value)
        copy_([pair for pair, is_trained in moves if not is_trained])

    def copy_to(self, parameters: Parameters) -> None:
        """Copy the averages into parameters."""
        write_parameters(self.shadow_params, parameters)

    def store(self, parameters: Parameters) -> None:
        """Keep the parameters in the memory of the CPU, for `restore`."""
        self.temp_stored_params = [parameter.detach().to("cpu", copy=True) for parameter in parameters]

    def restore(self, parameters: Parameters) -> None:
        """Copy back what `store` kept, and forget it."""
        if self.temp_stored_params is None:
            raise RuntimeError("There is nothing to restore: call store() first.")
        write_parameters(self.temp_stored_params, parameters)
        self.temp_stored_params = None

    def to(
        self,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> None:
        """Move the averages to a device, or to a floating dtype."""
        self.shadow_params = [
            tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking=non_blocking)
            for tensor in self.shadow_params
        ]

    def pin_memory(self) -> None:
        """Move the averages to pinned memory, for asynchronous transfers."""
        self.shadow_params = [tensor.pin_memory() for tensor in self.shadow_params]

    def state_dict(self) -> dict[str, Any]:
        """Settings, count and averages. The averages are not copies."""
        return {**{name: getattr(self, name) for name in _SETTINGS}, "shadow_params": self.shadow_params}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, here or in diffusers; what it lacks stays as it is."""
        if not 0.0 <= state_dict.get("decay", self.decay) <= 1.0:
            raise ValueError(f"decay must be between 0 and 1; got {state_dict['decay']!r}.")
        pairs = pair_parameters(self.shadow_params, state_dict.get("shadow_params", self.shadow_params))
        self.shadow_params = [pair.live.to(pair.average.device, copy=True) for pair in pairs]
        for name in _SETTINGS:
            setattr(self, name, state_dict.get(name, getattr(self, name)))

    # Folders, by the methods that every diffusers model has

    def save_pretrained(self, path: str | Path) -> None:
        """Write a model with the averages as its weights, and the settings in its configuration."""
        if self.model_cls is None or self.model_config is None:
            raise ValueError("save_pretrained needs model_cls and model_config: pass both to EMAModel(...).")
        model = self.model_cls.from_config(self.model_config)
        model.register_to_config(**{name: getattr(self, name) for name in _SETTINGS})
        self.copy_to(model.parameters())
        model.save_pretrained(path)

    @classmethod
    def from_pretrained(cls, path: str | Path, model_cls: Any, foreach: bool = False) -> "EMAModel":
        """Read what `save_pretrained` wrote, here or in diffusers."""
        model = model_cls.from_pretrained(path)
        ema = cls(model.parameters(), foreach=foreach, model_cls=model_cls, model_config=model.config)
        config = model_cls.load_config(path)
        ema.load_state_dict({name: config[name] for name in _SETTINGS if name in config})
        return ema


def _check_parameters(parameters: object) -> None:
    if isinstance(parameters, nn.Module):
        raise TypeError("parameters must be an iterable of parameters; got a module. Pass model.parameters().")
