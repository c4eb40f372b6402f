"""`EMA` of ema_pytorch, for modules."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from emabank.compat._shared import OnNonfinite, Pair, copy_, is_skipped, lerp_, pair_modules


class EMA(nn.Module):
    """ema_pytorch's `EMA`: `ema_model` is a copy of the model whose floating parameters and buffers are averages.

    Integers are copied. The average is on its own device and in its own dtype; live weights are converted.

    Args:
        model: the live model.
        ema_model: the average: a module, or a function that makes it. None means a copy of the model.
        beta: the largest decay per averaging update. 1 freezes the average.
        update_after_step: until this call of `update`, an update copies.
        update_every: every how many calls it averages.
        inv_gamma: the scale of the warm-up 1 - (1 + step / inv_gamma)^-power.
        power: its exponent.
        min_value: the least decay.
        param_or_buffer_names_no_ema: names that are copied and not averaged.
        ignore_names: names that are left alone after the first update.
        ignore_startswith_names: the beginnings of such names.
        include_online_model: whether the live model is a submodule, and so in the state dict.
        allow_different_devices: makes no difference: the average may be on another device.
        use_foreach: makes no difference: updates are always fused.
        update_model_with_ema_every: every how many calls the live model is moved to the average (Switch EMA).
        update_model_with_ema_beta: how much of the live model that leaves.
        forward_method_names: methods of the model that this object offers too, called on the average.
        move_ema_to_online_device: whether the average moves to the live model's device before it is updated.
        coerce_dtype: makes no difference: the live model may have another dtype.
        lazy_init_ema: whether the copy is made by the first update.
        on_nonfinite: what to do when live weights hold NaN or inf. "ignore" averages them, as ema_pytorch does; "raise"
            raises a FloatingPointError before anything moves; "skip" skips this update.

    Attributes:
        online_model: the live model, in a list if it is not a submodule.
        initted: whether there was an update, as a buffer.
        step: how many calls of `update` there were, as a buffer.

    >>> model = nn.Linear(2, 1)
    >>> ema = EMA(model, beta=0.9999, update_after_step=100, update_every=10)
    >>> ema.update()
    >>> ema(torch.zeros(1, 2)).shape
    torch.Size([1, 1])
    """

    initted: Tensor
    step: Tensor

    def __init__(
        self,
        model: nn.Module,
        ema_model: nn.Module | Callable[[], nn.Module] | None = None,
        beta: float = 0.9999,
        update_after_step: int = 100,
        update_every: int = 10,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        min_value: float = 0.0,
        param_or_buffer_names_no_ema: Iterable[str] = (),
        ignore_names: Iterable[str] = (),
        ignore_startswith_names: Iterable[str] = (),
        include_online_model: bool = True,
        allow_different_devices: bool = False,
        use_foreach: bool = False,
        update_model_with_ema_every: int | None = None,
        update_model_with_ema_beta: float = 0.0,
        forward_method_names: tuple[str, ...] = (),
        move_ema_to_online_device: bool = False,
        coerce_dtype: bool = False,
        lazy_init_ema: bool = False,
        *,
        on_nonfinite: OnNonfinite = "ignore",
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a module; got a {type(model).__name__}. Put its tensors into a module.")
        if lazy_init_ema and ema_model is not None:
            raise ValueError("ema_model must be None with lazy_init_ema, which copies the model; got both.")
        self.beta, self.update_after_step, self.update_every = beta, update_after_step, update_every
        self.is_frozen = beta == 1.0
        """Whether the average never moves: decided at construction, whatever `beta` is later."""
        self.inv_gamma, self.power, self.min_value = inv_gamma, power, min_value
        self.param_or_buffer_names_no_ema = set(param_or_buffer_names_no_ema)
        self.ignore_names = set(ignore_names)
        self.ignore_startswith_names = set(ignore_startswith_names)
        self.allow_different_devices, self.coerce_dtype = allow_different_devices, coerce_dtype
        self.use_foreach = use_foreach
        self.update_model_with_ema_every = update_model_with_ema_every
        self.update_model_with_ema_beta = update_model_with_ema_beta
        self.forward_method_names = forward_method_names
        self.move_ema_to_online_device = move_ema_to_online_device
        self.on_nonfinite: OnNonfinite = on_nonfinite
        self.register_buffer("initted", torch.tensor(False))
        self.register_buffer("step", torch.tensor(0))
        self.include_online_model = include_online_model
        self.online_model = model if include_online_model else [model]  # a list keeps it out of the submodules
        self.ema_model: nn.Module = cast(Any, None)
        if not lazy_init_ema:
            self.init_ema(ema_model if isinstance(ema_model, nn.Module) or ema_model is None else ema_model())

    @property
    def model(self) -> nn.Module:
        """The live model."""
        return self.online_model if isinstance(self.online_model, nn.Module) else self.online_model[0]

    def init_ema(self, ema_model: nn.Module | None = None) -> None:
        """Make the average a module, or a copy of the live model."""
        self.ema_model = deepcopy(self.model) if ema_model is None else ema_model
        self.ema_model.requires_grad_(False)
        for name in self.forward_method_names:
            setattr(self, name, getattr(self.ema_model, name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the average."""
        return self.ema_model(*args, **kwargs)

    @torch.no_grad()
    def forward_eval(self, *args: Any, **kwargs: Any) -> Any:
        """Call the average in eval mode; afterwards it has its mode again."""
        is_training = self.ema_model.training
        try:
            return self.ema_model.eval()(*args, **kwargs)
        finally:
            self.ema_model.train(is_training)

    def eval(self) -> Any:
        """Put the average into eval mode and return it."""
        return self.ema_model.eval()

    def add_to_optimizer_post_step_hook(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Update after each step of an optimizer, until the handle is removed."""

        def update(*_: Any) -> None:
            self.update()

        return optimizer.register_step_post_hook(update)

    def get_current_decay(self) -> float:
        """The decay of the next averaging update."""
        elapsed = int(self.step) - self.update_after_step - 1
        if elapsed <= 0:
            return 0.0
        # In float32, as ema_pytorch has it: in float64 the decay would differ in the eighth digit.
        uncapped = 1.0 - (1.0 + torch.tensor(elapsed) / self.inv_gamma) ** -self.power
        return uncapped.clamp(self.min_value, self.beta).item()

    def update(self) -> None:
        """Count this call; average, copy or do nothing, as the schedule has it."""
        if is_skipped(self.model.named_parameters(), self.on_nonfinite):
            return
        step = int(self.step)
        self.step += 1
        is_due = step % self.update_every == 0
        if not self.initted:
            if cast(Any, self.ema_model) is None:
                self.init_ema()
            self.copy_params_from_model_to_ema()
            self.initted.fill_(True)
        elif is_due and step <= self.update_after_step:
            self.copy_params_from_model_to_ema()
        else:
            if is_due:
                self.update_moving_average(self.ema_model, self.model)
            if self.update_model_with_ema_every is not None and step % self.update_model_with_ema_every == 0:
                self.update_model_with_ema()

    def update_moving_average(
        self, ma_model: nn.Module, current_model: nn.Module, current_decay: float | None = None
    ) -> None:
        """Move one module towards another, by the decay of now or another one."""
        if self.is_frozen:
            return
        if self.move_ema_to_online_device:
            ma_model.to(next(current_model.parameters()).device)
        decay = self.get_current_decay() if current_decay is None else current_decay
        self._move(pair_modules(ma_model, current_model), decay)

    def _move(self, pairs: list[Pair], decay: float) -> None:
        """Move or copy each tensor, or leave it alone, as the options say of its name."""
        ignored = tuple(self.ignore_startswith_names)
        pairs = [pair for pair in pairs if pair.name not in self.ignore_names and not pair.name.startswith(ignored)]
        copied = self.param_or_buffer_names_no_ema
        copy_([pair for pair in pairs if pair.name in copied])
        lerp_([pair for pair in pairs if pair.name not in copied], 1.0 - decay)

    def copy_params_from_model_to_ema(self) -> None:
        """Copy the live model into the average."""
        copy_(pair_modules(self.ema_model, self.model))

    def copy_params_from_ema_to_model(self) -> None:
        """Copy the average into the live model, which keeps its own integers: those of the average may be old."""
        copy_(self._live_pairs())

    def update_model_with_ema(self, decay: float | None = None) -> None:
        """Move the live model to the average; `decay` is how much of the live model that leaves."""
        decay = self.update_model_with_ema_beta if decay is None else decay
        if decay == 0.0:  # a copy of everything, as ema_pytorch has it
            self.copy_params_from_ema_to_model()
        elif not self.is_frozen:
            self._move(self._live_pairs(), decay)

    def _live_pairs(self) -> list[Pair]:
        return [pair for pair in pair_modules(self.model, self.ema_model) if pair.is_averaged]

    def restore_ema_model_device(self) -> None:
        """Move the average to the device of this object's buffers."""
        self.ema_model.to(self.initted.device)
