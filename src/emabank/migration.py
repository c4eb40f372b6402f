"""ModelEmaV3 and AveragedModel: what people call in timm and in torch, with a bank underneath.

For code that is there already; new code uses EMABank. Each takes the checkpoints of the class it stands for, and writes
such. Imports the bank, the rules and what knows a model's tensors.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from emabank._model import tensor_refs, unwrap
from emabank.bank import EMABank
from emabank.rules import EMA, PowerEMA, Uniform, power_warmup_decay

__all__ = ["AveragedModel", "ModelEmaV3"]

_NAME = "average"

Rule = EMA | Uniform | PowerEMA


class _Adapter(nn.Module):
    """A bank with one average, and a module that shows it, brought up to date when somebody looks.

    The module is a child called "module", so that a state dict has the keys those classes have.
    """

    def __init__(
        self, model: nn.Module, rule: Rule, *, average_statistics: bool, device: torch.device | str | int | None
    ) -> None:
        super().__init__()
        place = None if device is None else torch.device(device)
        self.bank = EMABank(
            model, {_NAME: rule}, every=1, buffers="average" if average_statistics else "copy", device=place
        )
        """What keeps the average."""
        shown = self.bank.module(_NAME)
        # Past add_module, which refuses a name that is a property here.
        self._modules["module"] = shown if place is None else shown.to(place)
        self._is_stale = False
        self.register_state_dict_pre_hook(_refresh)
        self.register_load_state_dict_post_hook(_take_over)

    @property
    def module(self) -> nn.Module:
        """The model with the average in it: in eval mode, without gradients; the same object at each call."""
        shown = self._modules["module"]
        assert shown is not None
        if self._is_stale:
            self.bank.copy_to(shown, _NAME)
            self._is_stale = False
        return shown

    def named_modules(self, *args: Any, **keywords: Any) -> Any:
        """As of any module; what is seen is up to date, as `torch.optim.swa_utils.update_bn` needs it."""
        _ = self.module
        return super().named_modules(*args, **keywords)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The output of the model with the average in it."""
        return self.module(*inputs, **keywords)

    def _take_in(self, model: nn.Module) -> None:
        """Take a sample of the live weights."""
        self._refuse_another(model)
        self.bank.update()
        self._is_stale = True
        if self.bank.num_steps <= self.bank.rule(_NAME).start:
            _ = self.module  # a copy of the live weights as they are now, and it shall stay one

    def _start_from(self, model: nn.Module) -> None:
        """Let the average be the live weights as they are now."""
        self._refuse_another(model)
        self.bank.reset()
        self._is_stale = True
        _ = self.module

    def _refuse_another(self, model: nn.Module) -> None:
        if unwrap(model) is not unwrap(self.bank.model):
            raise ValueError(
                f"This {type(self).__name__} averages the model it was built with, and was given another "
                f"{type(unwrap(model)).__name__}: build one for that model."
            )

    def _place(self, count: int) -> None:
        """Let the average be what is shown, after so many updates."""
        shown = {part.name: part.tensor for part in tensor_refs(self.module)}
        state = self.bank.state_dict()
        average = state["averages"][_NAME]
        begin = self.bank.rule(_NAME).start
        average["tensors"] = {name: shown[name] for name in average["tensors"]}
        average.update(begin=begin, origin=0, last=count, samples=max(0, count - begin), decay=None)
        self.bank.load_state_dict({**state, "num_steps": count, "num_updates": count, "recomputed": {}})

    def _loaded(self) -> None:
        """Bring the bank to where a loaded state dict was."""
        raise NotImplementedError


def _refresh(adapter: nn.Module, prefix: str, keep_vars: bool) -> None:
    assert isinstance(adapter, _Adapter)
    _ = adapter.module


def _take_over(adapter: nn.Module, incompatible: Any) -> None:
    assert isinstance(adapter, _Adapter)
    adapter._is_stale = False  # pyright: ignore[reportPrivateUsage]
    adapter._loaded()  # pyright: ignore[reportPrivateUsage]


class AveragedModel(_Adapter):
    """`torch.optim.swa_utils.AveragedModel` with a bank underneath: the same calls, the same averages.

    `avg_fn` or `multi_avg_fn` is None (the mean of all samples), what torch's `get_ema_multi_avg_fn(decay)` and its
    like return, or a rule of emabank; any other function is refused, for a bank cannot run it. `use_buffers=True`
    averages batch-norm statistics; all other buffers are the live ones. `.bank` is the bank.

    >>> model = nn.Linear(2, 1)
    >>> averaged = AveragedModel(model, avg_fn=EMA(0.999, warmup=None))
    >>> averaged.update_parameters(model)
    >>> averaged(torch.ones(3, 2)).shape, int(averaged.n_averaged)
    (torch.Size([3, 1]), 1)
    """

    n_averaged: Tensor
    """How many samples the average has, as torch keeps it."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str | int | None = None,
        avg_fn: Callable[..., Any] | Rule | None = None,
        multi_avg_fn: Callable[..., Any] | Rule | None = None,
        use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel takes one of avg_fn and multi_avg_fn; both were given.")
        rule = _rule_of(multi_avg_fn if avg_fn is None else avg_fn)
        super().__init__(model, rule, average_statistics=use_buffers, device=device)
        self.use_buffers = use_buffers
        """Whether batch-norm statistics are averaged."""
        self.register_buffer("n_averaged", torch.tensor(0, dtype=torch.long))

    def update_parameters(self, model: nn.Module) -> None:
        """Take the live weights into the average; `model` is the one it was built with, wrapped or not."""
        self._take_in(model)
        self.n_averaged += 1

    def _loaded(self) -> None:
        self._place(int(self.n_averaged))


def _rule_of(function: Callable[..., Any] | Rule | None) -> Rule:
    if function is None:
        return Uniform()
    if isinstance(function, EMA | Uniform | PowerEMA):
        return function
    # torch makes these functions when it is asked for one; which one it is and its decay stand in the function.
    plain = inspect.unwrap(function)
    made_by = getattr(plain, "__qualname__", "").partition(".")[0]
    if getattr(plain, "__module__", "") == "torch.optim.swa_utils":
        if made_by in ("get_swa_avg_fn", "get_swa_multi_avg_fn"):
            return Uniform()
        decay = inspect.getclosurevars(plain).nonlocals.get("decay")
        if made_by in ("get_ema_avg_fn", "get_ema_multi_avg_fn") and isinstance(decay, int | float):
            return EMA(decay, warmup=None, start=1)  # the first sample is a copy there, too
    raise ValueError(
        f"A bank cannot run {getattr(function, '__qualname__', repr(function))}: give None, what "
        "torch.optim.swa_utils.get_ema_multi_avg_fn(decay) or get_swa_multi_avg_fn() returns, or a rule such as "
        "emabank.EMA(decay, warmup=None)."
    )


class ModelEmaV3(_Adapter):
    """timm's `ModelEmaV3` with a bank underneath: the same calls, the same averages.

    As there, `update(model, step)` copies the live weights until step `update_after_step + 1`, and `update(model)`
    without a step never does. With `use_warmup=True` every step has to be given, and the warm-up is timm's default one;
    other values of `min_decay`, `warmup_gamma` and `warmup_power` are refused, for no rule of emabank has them.
    `exclude_buffers=True` reads batch-norm statistics from the live model; False averages them. All other buffers are
    the live ones. `foreach` makes no difference. `.bank` is the bank.

    >>> model = nn.Linear(2, 1)
    >>> ema = ModelEmaV3(model, decay=0.9998)
    >>> ema.update(model, step=1)
    >>> torch.equal(ema.module.weight, model.weight)
    True
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
        device: torch.device | str | None = None,
        foreach: bool = True,
        exclude_buffers: bool = False,
    ) -> None:
        others = {
            "min_decay": (min_decay, 0.0),
            "warmup_gamma": (warmup_gamma, 1.0),
            "warmup_power": (warmup_power, 2 / 3),
        }
        changed = [f"{name}={value!r}" for name, (value, usual) in others.items() if value != usual]
        if use_warmup and changed:
            raise ValueError(
                f"ModelEmaV3(use_warmup=True, {', '.join(changed)}): a bank has timm's warm-up with its defaults only, "
                '1 - (1 + t)^(-2/3), as EMA(decay, warmup="power"); leave them out.'
            )
        rule = EMA(decay, warmup="power", start=update_after_step + 1) if use_warmup else EMA(decay, warmup=None)
        super().__init__(model, rule, average_statistics=not exclude_buffers, device=device)
        self.decay, self.min_decay, self.update_after_step = decay, min_decay, update_after_step
        self.use_warmup, self.warmup_gamma, self.warmup_power = use_warmup, warmup_gamma, warmup_power
        self.device, self.foreach, self.exclude_buffers = device, foreach, exclude_buffers

        self._is_counting = False

    def get_decay(self, step: int | None = None) -> float:
        """The weight of the past in the update of a step."""
        if step is None:
            return self.decay
        since = step - self.update_after_step - 1
        if since <= 0:
            return 0.0
        return min(self.decay, power_warmup_decay(since)) if self.use_warmup else self.decay

    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Take the live weights into the average; `model` is the one it was built with, wrapped or not."""
        if self.use_warmup:
            self._count(step)
            self._take_in(model)
        elif self.get_decay(step) == 0.0:
            self._start_from(model)
        else:
            self._take_in(model)

    def set(self, model: nn.Module) -> None:
        """Let the average be the live weights as they are now."""
        self._start_from(model)
        self._place(self.bank.num_steps)

    def _count(self, step: int | None) -> None:
        """Make sure that the bank is one step behind; where a run goes on, it is told where it is."""
        if step is None:
            raise ValueError(
                "use_warmup=True, and update(model) without a step: timm would leave the warm-up out. Give "
                "update(model, step=...), counted from 1, or build it without use_warmup."
            )
        if step != self.bank.num_steps + 1:
            if self._is_counting:
                raise ValueError(
                    f"update(model, step={step}) after step {self.bank.num_steps}: with use_warmup=True update at each "
                    "step, so that the count goes up by one."
                )
            self._place(step - 1)
        self._is_counting = True

    def _loaded(self) -> None:
        self._is_counting = False  # timm saves no count; the next update tells
        self._place(max(1, self.bank.num_steps))
