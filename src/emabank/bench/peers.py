"""Who takes part: the memory limit, emabank, and the libraries people use today, each as a `Contestant`.

A peer has one average an instance, so M averages are M instances. Each is set up to average at every call, with the
settings its own documentation gives, and the faster setting beside the default where there is one.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from emabank import EMA, EMABank
from emabank.bench.interleave import Contestant
from emabank.bench.zoo import averaged_tensors

LIMIT = "memory limit"
BANK = "emabank"
CONTROL = "emabank, again"
PLAIN = "emabank, no buffers"
PAST_WARMUP = "emabank, past warm-up"
OURS = (BANK, CONTROL, PLAIN, PAST_WARMUP)
DECAYS = (0.968, 0.984, 0.992, 0.996, 0.998)
LIMIT_ELEMENTS = 2**28  # the limit goes over one gibibyte as often as it takes, so that it leaves room for others

Find = Callable[[str, str], Any]
"""Gives a module of a package; raises NotAvailable where it cannot."""


class NotAvailable(Exception):
    """Says in one line why a peer cannot take part."""


def installed(package: str, module: str) -> Any:
    """A module of a package that is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(module)
    except ImportError as error:
        missing = error.name or package
        raise NotAvailable("not installed" if missing == package else f"cannot be imported ({error})") from error


def decays(averages: int) -> list[float]:
    """The first M of the five decays of the paper; beyond five, decays that go on in the same way."""
    more = [round(1 - 0.002 / 2 ** ((k + 1) / 4), 6) for k in range(max(0, averages - len(DECAYS)))]
    return [*DECAYS, *more][:averages]


def memory_limit(model: nn.Module, averages: int) -> Contestant:
    """The necessary memory traffic and nothing else: M·N float32 read and written in place, N live elements read."""
    shape: dict[torch.dtype, int] = {}
    for tensor in averaged_tensors(model):
        shape[tensor.dtype] = shape.get(tensor.dtype, 0) + tensor.numel()
    elements, device = averages * sum(shape.values()), next(model.parameters()).device
    bank = torch.randn(min(elements, LIMIT_ELEMENTS), device=device)
    passes, rest = divmod(elements, bank.numel())
    live = [torch.randn(count, dtype=dtype, device=device) for dtype, count in shape.items()]

    def update() -> None:
        for _ in range(passes):
            bank.mul_(-1.0)  # ±x for ever: no drift, no denormals
        if rest:
            bank[:rest].mul_(-1.0)
        for part in live:
            part.sum()

    return Contestant(LIMIT, update, live)


def emabank_bank(model: nn.Module, averages: int, name: str = BANK) -> Contestant:
    """The bank as a user builds it, averaging at every step.

    All rounds of a run fall into its warm-up, in which the weights of the averages change at every update;
    `PAST_WARMUP` is the same bank without one, as it is for most of a training run; `PLAIN` averages parameters only,
    as some peers do. Both are shown only.
    """
    rules = [EMA(decay, warmup=None) if name == PAST_WARMUP else EMA(decay) for decay in decays(averages)]
    bank = EMABank(model, rules, every=1, buffers="copy" if name == PLAIN else "average")
    key, live = _largest(model)
    return Contestant(
        name, bank.update, averaged_tensors(model), lambda: [*(bank.weights(n)[key] for n in bank.names), live]
    )


def _largest(model: nn.Module) -> tuple[str, Tensor]:
    return max(model.named_parameters(), key=lambda item: item[1].numel())


def _of_modules(name: str, model: nn.Module, copies: Sequence[nn.Module], update: Callable[[], object]) -> Contestant:
    """A contestant whose averages are whole copies of the model."""
    key, live = _largest(model)
    return Contestant(
        name, update, averaged_tensors(model), lambda: [*(copy.get_parameter(key) for copy in copies), live]
    )


def _of_lists(name: str, model: nn.Module, lists: Sequence[list[Tensor]], update: Callable[[], object]) -> Contestant:
    """A contestant whose averages are lists beside `model.parameters()`."""
    position = max(range(len(lists[0])), key=lambda i: lists[0][i].numel())
    live = list(model.parameters())[position]
    return Contestant(name, update, averaged_tensors(model), lambda: [*(one[position] for one in lists), live])


def torch_averaged_model(name: str, model: nn.Module, averages: int, *, use_buffers: bool) -> Contestant:
    peers = [
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
        for decay in decays(averages)
    ]

    def update() -> None:
        for peer in peers:
            peer.update_parameters(model)

    return _of_modules(name, model, [peer.module for peer in peers], update)


def ema_pytorch(find: Find, name: str, model: nn.Module, averages: int, *, use_foreach: bool) -> Contestant:
    settings = {"update_after_step": 0, "update_every": 1, "include_online_model": False, "use_foreach": use_foreach}
    kind = find("ema-pytorch", "ema_pytorch").EMA
    try:
        peers = [kind(model, beta=decay, **settings) for decay in decays(averages)]
    except TypeError as error:
        raise NotAvailable(f"this version does not know the setting: {error}") from error

    def update() -> None:
        for peer in peers:
            peer.update()

    return _of_modules(name, model, [peer.ema_model for peer in peers], update)


def torch_ema(find: Find, name: str, model: nn.Module, averages: int) -> Contestant:
    kind = find("torch-ema", "torch_ema").ExponentialMovingAverage
    peers = [kind(model.parameters(), decay) for decay in decays(averages)]

    def update() -> None:
        for peer in peers:
            peer.update()

    return _of_lists(name, model, [peer.shadow_params for peer in peers], update)


def lightning(find: Find, name: str, model: nn.Module, averages: int, *, multi: bool) -> Contestant:
    """The callback's own `setup` and `on_train_batch_end`; of the trainer they use `global_step` alone."""
    pytorch, kinds = find("lightning", "lightning.pytorch"), find("lightning", "lightning.pytorch.callbacks")
    if not hasattr(kinds, "EMAWeightAveraging"):
        raise NotAvailable("too old to have EMAWeightAveraging")
    whole = pytorch.LightningModule()
    whole.model = model
    callbacks = [
        kinds.WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(decay))
        if multi
        else kinds.EMAWeightAveraging(decay=decay)
        for decay in decays(averages)
    ]
    trainer = SimpleNamespace(global_step=0)
    for callback in callbacks:
        callback.setup(trainer, whole, "fit")

    def update() -> None:
        trainer.global_step += 1
        for callback in callbacks:
            callback.on_train_batch_end(trainer, whole, None, None, 0)

    return _of_modules(name, model, [callback._average_model.module.model for callback in callbacks], update)


def timm(find: Find, name: str, model: nn.Module, averages: int, *, exclude_buffers: bool) -> Contestant:
    kind = find("timm", "timm.utils.model_ema").ModelEmaV3
    try:
        peers = [kind(model, decay, exclude_buffers=exclude_buffers) for decay in decays(averages)]
    except TypeError as error:
        raise NotAvailable(f"this version does not know the setting: {error}") from error

    def update() -> None:
        for peer in peers:
            peer.update(model)

    return _of_modules(name, model, [peer.module for peer in peers], update)


def diffusers(find: Find, name: str, model: nn.Module, averages: int) -> Contestant:
    kind = find("diffusers", "diffusers.training_utils").EMAModel
    peers = [kind(model.parameters(), decay=decay, foreach=True) for decay in decays(averages)]

    def update() -> None:
        for peer in peers:
            peer.step(model.parameters())

    return _of_lists(name, model, [peer.shadow_params for peer in peers], update)


@dataclass(frozen=True)
class Peer:
    """A library to compare with: how it is printed, whose version it has, and how it is built."""

    name: str
    package: str
    make: Callable[[str, nn.Module, int], Contestant]

    def build(self, model: nn.Module, averages: int) -> Contestant:
        return self.make(self.name, model, averages)


def all_peers(find: Find = installed) -> list[Peer]:
    """Every peer that is known here, installed or not; `find` gives the modules of their packages."""
    return [
        Peer("torch AveragedModel", "torch", partial(torch_averaged_model, use_buffers=False)),
        Peer("torch AveragedModel, buffers", "torch", partial(torch_averaged_model, use_buffers=True)),
        Peer("ema-pytorch", "ema-pytorch", partial(ema_pytorch, find, use_foreach=False)),
        Peer("ema-pytorch, foreach", "ema-pytorch", partial(ema_pytorch, find, use_foreach=True)),
        Peer("torch_ema", "torch-ema", partial(torch_ema, find)),
        Peer("Lightning EMAWeightAveraging", "lightning", partial(lightning, find, multi=False)),
        Peer("Lightning WeightAveraging, multi", "lightning", partial(lightning, find, multi=True)),
        Peer("timm ModelEmaV3", "timm", partial(timm, find, exclude_buffers=False)),
        Peer("timm ModelEmaV3, no buffers", "timm", partial(timm, find, exclude_buffers=True)),
        Peer("diffusers EMAModel, foreach", "diffusers", partial(diffusers, find)),
    ]


def installed_version(package: str) -> str:
    """The version of a package, or that it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def versions(version: Callable[[str], str] = installed_version) -> str:
    """The version of every peer's package, in one line."""
    return ", ".join(f"{package} {version(package)}" for package in sorted({peer.package for peer in all_peers()}))
