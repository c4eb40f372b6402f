"""The real libraries, a table of their drop-ins, and the trainings that both follow."""

import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ema_pytorch
import torch
import torch_ema
from torch import Tensor, nn
from torch.optim import swa_utils

from emabank.compat import diffusers as our_diffusers
from emabank.compat import ema_pytorch as our_ema_pytorch
from emabank.compat import timm as our_timm
from emabank.compat import torch as our_torch
from emabank.compat import torch_ema as our_torch_ema
from tests.support.models import build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import diffusers.training_utils


def load_timm() -> ModuleType:
    """Timm's one file: its package imports torchvision, which is not installed."""
    package = importlib.util.find_spec("timm")
    assert package is not None and package.origin is not None
    spec = importlib.util.spec_from_file_location("timm_model_ema", Path(package.origin).parent / "utils/model_ema.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


timm = load_timm()

CLASSES: dict[str, tuple[type, type]] = {
    "torch": (our_torch.AveragedModel, swa_utils.AveragedModel),
    "timm v2": (our_timm.ModelEmaV2, timm.ModelEmaV2),
    "timm v3": (our_timm.ModelEmaV3, timm.ModelEmaV3),
    "ema_pytorch": (our_ema_pytorch.EMA, ema_pytorch.EMA),
    "torch_ema": (our_torch_ema.ExponentialMovingAverage, torch_ema.ExponentialMovingAverage),
    "diffusers": (our_diffusers.EMAModel, diffusers.training_utils.EMAModel),
}
UPDATES: dict[str, Callable[[Any, nn.Module, int], None]] = {
    "torch": lambda average, model, step: average.update_parameters(model),
    "timm v2": lambda average, model, step: average.update(model),
    "timm v3": lambda average, model, step: average.update(model, step),
    "ema_pytorch": lambda average, model, step: average.update(),
    "torch_ema": lambda average, model, step: average.update(model.parameters()),
    "diffusers": lambda average, model, step: average.step(model.parameters()),
}
LISTS = ("torch_ema", "diffusers")  # take parameters; the other classes take a module


@dataclass(frozen=True)
class Case:
    """A class and its options. `ulps`: the allowed rounding error, relative to a tensor's largest value."""

    name: str
    options: dict[str, Any]
    ulps: float = 0.0

    def make(self, model: nn.Module, *, peer: bool = False, **more: Any) -> Any:
        return CLASSES[self.name][peer](model.parameters() if self.name in LISTS else model, **{**self.options, **more})

    def update(self, average: Any, model: nn.Module, step: int) -> None:
        UPDATES[self.name](average, model, step)


def blend(average: Tensor, live: Tensor, n_averaged: Tensor) -> Tensor:
    """An averaging function of the user's own."""
    return average * 0.7 + live * 0.3 / n_averaged.sqrt()


def blend_all(averages: list[Tensor], lives: list[Tensor], n_averaged: Tensor) -> None:
    for average, live in zip(averages, lives, strict=True):
        average.copy_(blend(average, live, n_averaged))


EVERY_STEP = {"beta": 0.9, "update_after_step": 0, "update_every": 1}
GRADUAL = {"update_after_step": 3, "inv_gamma": 2.0, "power": 0.75}
CASES = {
    # torch's mean, torch_ema and diffusers subtract and add where we lerp; timm's V2 rounds three times.
    "torch mean": Case("torch", {}, 2),
    "torch mean of buffers": Case("torch", {"use_buffers": True}, 2),
    "torch ema": Case("torch", {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True}),
    "torch ema, one by one": Case("torch", {"avg_fn": swa_utils.get_ema_avg_fn(0.9)}),
    "torch swa functions": Case("torch", {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()}),
    "torch own function": Case("torch", {"avg_fn": blend, "use_buffers": True}),
    "torch own functions": Case("torch", {"multi_avg_fn": blend_all, "device": "cpu"}),
    "timm v2": Case("timm v2", {"decay": 0.9}, 10),
    "timm v3": Case("timm v3", {"decay": 0.9, "device": "cpu"}),
    "timm v3 warm-up": Case("timm v3", {"decay": 0.9, "use_warmup": True}),
    "timm v3 all options": Case("timm v3", {
        "decay": 0.9, "min_decay": 0.4, "update_after_step": 3, "use_warmup": True, "warmup_gamma": 2.0,
        "warmup_power": 0.75, "foreach": False, "exclude_buffers": True,
    }),
    "ema_pytorch": Case("ema_pytorch", {"update_every": 2, "update_after_step": 5}),
    "ema_pytorch every step": Case("ema_pytorch", {**EVERY_STEP, "use_foreach": True, "include_online_model": False}),
    "ema_pytorch warm-up": Case("ema_pytorch", {**EVERY_STEP, **GRADUAL, "min_value": 0.3}),
    "ema_pytorch names": Case("ema_pytorch", {
        **EVERY_STEP, "update_after_step": 3, "ignore_names": {"0.weight"}, "ignore_startswith_names": {"4."},
        "param_or_buffer_names_no_ema": {"0.bias", "1.running_mean", "embed.weight"},
    }),
    "ema_pytorch frozen": Case("ema_pytorch", {**EVERY_STEP, "beta": 1.0}),
    "torch_ema": Case("torch_ema", {"decay": 0.9}, 2),
    "torch_ema, no warm-up": Case("torch_ema", {"decay": 0.9, "use_num_updates": False}, 2),
    "diffusers": Case("diffusers", {"decay": 0.6, "update_after_step": 2}, 2),
    "diffusers warm-up": Case("diffusers", {"decay": 0.6, "use_ema_warmup": True, "foreach": True}, 2),
    "diffusers all options": Case("diffusers", {**GRADUAL, "use_ema_warmup": True, "min_decay": 0.4}, 2),
}  # fmt: skip
# One case per class, for tests that do not depend on options.
_PLAIN = ("torch ema, one by one", "timm v2", "timm v3", "ema_pytorch every step", "torch_ema", "diffusers")
PLAIN = {CASES[name].name: CASES[name] for name in _PLAIN}
MODULES = [name for name in CLASSES if name not in LISTS]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
}


def build_model(name: str) -> nn.Module:
    """A model of the zoo; "bf16" is a batch-norm network in that precision."""
    return build("mlp").bfloat16() if name == "bf16" else build(name)


def steps(model: nn.Module, count: int = 12, *, optimizer: str = "sgd", seed: int = 1) -> Iterator[int]:
    """Train on random data; yields the number of each step, from 1, after it."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optim = OPTIMIZERS[optimizer](model.parameters())
    dtype = next(model.parameters()).dtype
    for step in range(1, count + 1):
        inputs = torch.randn(16, 6, generator=generator) * 3
        model(inputs.to(dtype)).float().square().mean().backward()
        optim.step()
        optim.zero_grad()
        yield step


def module_of(average: Any) -> nn.Module:
    """The averaged module."""
    return average.ema_model if hasattr(average, "ema_model") else average.module


def tensors(average: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, in its order."""
    state = average.state_dict()
    if "shadow_params" in state:
        return {f"parameter {index}": tensor for index, tensor in enumerate(state["shadow_params"])}
    return state


def assert_same(ours: Any, peer: Any, ulps: float = 0.0) -> None:
    """The same keys and floating values. Integers: ours are copies of the live ones, the peers' are not always."""
    values, expected = tensors(ours), tensors(peer)
    assert list(values) == list(expected)
    for name, value in values.items():
        assert value.dtype == expected[name].dtype, name
        if name in ("n_averaged", "step", "initted") or (ulps == 0 and value.is_floating_point()):
            assert torch.equal(value, expected[name]), name
        elif value.is_floating_point() and value.numel():
            tolerance = ulps * torch.finfo(value.dtype).eps * expected[name].abs().max()
            assert (value - expected[name]).abs().max() <= tolerance, name


def save_and_load(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
