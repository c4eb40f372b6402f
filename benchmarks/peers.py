"""The contestants of the benchmarks: variants of the bank, and the libraries that people use today.

A peer keeps one average per instance, so M averages take M instances. Each averages at every call, with its documented
settings, and also with its faster setting if it has one.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from benchmarks.harness import Run, free_memory, run_interleaved
from emabank import EMA, EMABank
from emabank.study.bench import (
    AGAIN,
    BANK,
    DECAYS,
    LIMIT_ELEMENTS,
    TORCH,
    Contestant,
    averaged_tensors,
    averaging,
    bank_contestant,
    torch_contestant,
)

MEMORY_SHARE = 0.7  # of free memory; the rest is for temporaries, which in some peers are as large as an average
Updates = Iterable[Callable[[], object]]
EXACT = "emabank, exact check"

# The variants of the bank. The first one decides whether the goals are met: like other libraries, it does not look for
# NaN. The exact check, the default for users, has a row of its own.
BANKS: dict[str, Callable[[nn.Module, list[float]], EMABank]] = {
    BANK: lambda model, decays: EMABank(model, decays, every=1, on_nonfinite="ignore"),
    AGAIN: lambda model, decays: EMABank(model, decays, every=1, on_nonfinite="ignore"),  # differs by noise alone
    EXACT: lambda model, decays: EMABank(model, decays, every=1),
    "emabank, no buffers": lambda model, decays: EMABank(model, decays, every=1, on_nonfinite="ignore", buffers="copy"),
    "emabank, past warm-up": lambda model, decays: EMABank(
        model, [EMA(d, warmup=None) for d in decays], every=1, on_nonfinite="ignore"
    ),
}


def decays(averages: int) -> list[float]:
    """The paper's five decays; beyond five, slower ones."""
    slower = [round(1 - 0.002 / 2 ** ((k + 1) / 4), 6) for k in range(averages - len(DECAYS))]
    return [*DECAYS, *slower][:averages]


def make_bank(name: str, model: nn.Module, averages: int) -> Contestant:
    """A variant from `BANKS`."""
    return bank_contestant(name, model, BANKS[name](model, decays(averages)))


# The peers ------------------------------------------------------------------------------------------------------------


class NotAvailable(Exception):
    """A peer cannot take part; the message says why."""


def _load(name: str) -> Any:
    """Import a module; `NotAvailable` if that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(name)
    except ImportError as error:
        raise NotAvailable(f"cannot be imported: {error}") from error


def _load_timm() -> Any:
    """The file model_ema.py of timm alone: importing the package needs torchvision."""
    package = find_spec("timm")
    if package is None or package.origin is None:
        raise NotAvailable("timm is not installed")
    spec: Any = spec_from_file_location("timm_model_ema", Path(package.origin).parent / "utils" / "model_ema.py")
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def _of_modules(name: str, model: nn.Module, copies: Sequence[nn.Module], updates: Updates) -> Contestant:
    """A peer whose averages are copies of the model."""
    return averaging(name, model, _all(updates), lambda key: [copy.get_parameter(key) for copy in copies])


def _of_lists(name: str, model: nn.Module, lists: Sequence[list[Tensor]], updates: Updates) -> Contestant:
    """A peer whose averages are lists in the order of `model.parameters()`."""
    keys = [key for key, _ in model.named_parameters()]
    return averaging(name, model, _all(updates), lambda key: [average[keys.index(key)] for average in lists])


def _all(updates: Updates) -> Callable[[], None]:
    """One update of all averages of a peer."""
    calls = list(updates)

    def update() -> None:
        for call in calls:
            call()

    return update


def _torch(name: str, model: nn.Module, averages: int, *, use_buffers: bool) -> Contestant:
    return torch_contestant(name, model, decays(averages), use_buffers=use_buffers)


def _ema_pytorch(name: str, model: nn.Module, averages: int, *, use_foreach: bool) -> Contestant:
    settings = {"update_after_step": 0, "update_every": 1, "include_online_model": False, "use_foreach": use_foreach}
    peers = [_load("ema_pytorch").EMA(model, beta=decay, **settings) for decay in decays(averages)]
    return _of_modules(name, model, [peer.ema_model for peer in peers], (peer.update for peer in peers))


def _torch_ema(name: str, model: nn.Module, averages: int) -> Contestant:
    kind = _load("torch_ema").ExponentialMovingAverage
    peers = [kind(model.parameters(), decay) for decay in decays(averages)]
    return _of_lists(name, model, [peer.shadow_params for peer in peers], (peer.update for peer in peers))


def _lightning(name: str, model: nn.Module, averages: int, *, multi: bool) -> Contestant:
    """Calls the callback's own `setup` and `on_train_batch_end`, which use only `global_step` of the trainer."""
    callbacks = _load("lightning.pytorch.callbacks")
    whole = _load("lightning.pytorch").LightningModule()
    whole.model = model
    peers = [
        callbacks.WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(decay))
        if multi
        else callbacks.EMAWeightAveraging(decay=decay)
        for decay in decays(averages)
    ]
    trainer = SimpleNamespace(global_step=0)
    for peer in peers:
        peer.setup(trainer, whole, "fit")

    def count_step() -> None:
        trainer.global_step += 1

    updates = [count_step, *(partial(peer.on_train_batch_end, trainer, whole, None, None, 0) for peer in peers)]
    return _of_modules(name, model, [peer._average_model.module.model for peer in peers], updates)


def _timm(name: str, model: nn.Module, averages: int, *, exclude_buffers: bool) -> Contestant:
    kind = _load_timm().ModelEmaV3
    peers = [kind(model, decay, exclude_buffers=exclude_buffers) for decay in decays(averages)]
    return _of_modules(name, model, [peer.module for peer in peers], (partial(peer.update, model) for peer in peers))


def _diffusers(name: str, model: nn.Module, averages: int) -> Contestant:
    kind = _load("diffusers.training_utils").EMAModel
    peers = [kind(model.parameters(), decay=decay, foreach=True) for decay in decays(averages)]
    updates = (lambda peer=peer: peer.step(model.parameters()) for peer in peers)
    return _of_lists(name, model, [peer.shadow_params for peer in peers], updates)


class Peer(NamedTuple):
    """A library with one setting: its name, its package, and a function that makes its contestant."""

    name: str
    package: str
    make: Callable[[str, nn.Module, int], Contestant]

    def build(self, model: nn.Module, averages: int) -> Contestant:
        """Its contestant; raises `NotAvailable`."""
        try:
            return self.make(self.name, model, averages)
        except (AttributeError, TypeError) as error:
            raise NotAvailable(f"this version does not have it: {error}") from error


PEERS = [
    Peer(TORCH, "torch", partial(_torch, use_buffers=False)),
    Peer(f"{TORCH}, buffers", "torch", partial(_torch, use_buffers=True)),
    Peer("ema-pytorch", "ema-pytorch", partial(_ema_pytorch, use_foreach=False)),
    Peer("ema-pytorch, foreach", "ema-pytorch", partial(_ema_pytorch, use_foreach=True)),
    Peer("torch_ema", "torch-ema", _torch_ema),
    Peer("Lightning EMAWeightAveraging", "lightning", partial(_lightning, multi=False)),
    Peer("Lightning WeightAveraging, multi", "lightning", partial(_lightning, multi=True)),
    Peer("timm ModelEmaV3", "timm", partial(_timm, exclude_buffers=False)),
    Peer("timm ModelEmaV3, no buffers", "timm", partial(_timm, exclude_buffers=True)),
    Peer("diffusers EMAModel, foreach", "diffusers", _diffusers),
]


def peers_named(texts: Sequence[str]) -> list[Peer]:
    """The peers whose name contains one of these."""
    return [peer for peer in PEERS if any(text.lower() in peer.name.lower() for text in texts)]


def versions(peers: Sequence[Peer]) -> str:
    """The versions of the peers' packages."""

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    return ", ".join(f"{package} {version(package)}" for package in sorted({peer.package for peer in peers}))


# Timing banks and peers together --------------------------------------------------------------------------------------


def run_with_peers(
    title: str,
    model: nn.Module,
    averages: int,
    ours: Callable[[Sequence[str]], list[Contestant]],
    peers: Sequence[Peer],
    *,
    seconds: float,
    before: Callable[[], object] | None = None,
) -> tuple[list[Run], dict[str, str]]:
    """Time our contestants together with the peers, in as many runs as memory requires.

    Also returns the peers that could not take part, with the reasons. `ours` makes our contestants from the names of
    the `BANKS` that fit into memory. `before` is called before each turn of a peer.
    """
    size = 4 * averages * sum(tensor.numel() for tensor in averaged_tensors(model))
    banks, groups = plan_groups(size, peers, free_memory())
    missing = {} if groups else {peer.name: "does not fit into memory beside emabank" for peer in peers}
    runs: list[Run] = []
    for group in groups or [[]]:
        contestants = ours(banks)
        for peer in group:
            try:
                contestants.append(replace(peer.build(model, averages), before=before))
            except NotAvailable as error:
                missing[peer.name] = str(error)
        runs.append(run_interleaved(contestants, seconds=seconds / max(1, len(groups)), title=title))
        del contestants
        gc.collect()
    return runs, missing


def plan_groups(size: int, peers: Sequence[Peer], free: int | None) -> tuple[list[str], list[Sequence[Peer]]]:
    """The banks that take part, and groups of peers that fit into memory together, at `size` bytes per contestant."""
    slots = 1000 if free is None else max(1, int((free * MEMORY_SHARE - 4 * LIMIT_ELEMENTS) / size))
    ours = list(BANKS)[: max(1, min(slots - 1, len(BANKS)))]
    together = slots - len(ours)
    return ours, [peers[at : at + together] for at in range(0, len(peers), together)] if together > 0 else []
