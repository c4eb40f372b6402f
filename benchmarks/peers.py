"""Who is timed: variants of the bank, and the libraries that people use today, each as a `Contestant`.

A peer keeps one average per instance, so M averages are M instances. Each is set up to average at every call, with the
settings that its documentation gives, and with its faster setting where there is one. timm and diffusers need not be
installed: the one file that matters is read out of their wheels, unmodified.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from emabank import EMA, EMABank
from emabank.study.bench import (
    AGAIN,
    BANK,
    DECAYS,
    TORCH,
    Contestant,
    averaged_tensors,
    bank_contestant,
    largest_parameter,
    torch_contestant,
)

EXACT = "emabank, exact check"

# A variant of the bank is one entry here. Goals are judged by the first, which looks for NaN no more than other
# libraries do; the exact check, a user's default, is a row of its own.
BANKS: dict[str, Callable[[nn.Module, list[float]], EMABank]] = {
    BANK: lambda model, decays: EMABank(model, decays, every=1, on_nonfinite="ignore"),
    AGAIN: lambda model, decays: EMABank(model, decays, every=1, on_nonfinite="ignore"),  # its distance is noise
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
    """One of `BANKS`."""
    return bank_contestant(name, model, BANKS[name](model, decays(averages)))


class NotAvailable(Exception):
    """Why a peer cannot take part."""


# Where a peer's code comes from ---------------------------------------------------------------------------------------

PINNED = {"timm": "timm==1.0.30", "diffusers": "diffusers==0.42.1"}  # downloaded if the folder has no such wheel
# Modules of its own package that the file imports. For diffusers this also saves a search for DeepSpeed at each step.
STAND_INS = {"timm": (), "diffusers": ("models", "pipelines", "schedulers", "utils", "utils.torch_utils")}


class _StandIn(types.ModuleType):
    """A module in which every name exists: `is_..._available` returns False, everything else is an empty class."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda: False) if name.startswith("is_") else type(name, (), {})


@dataclass(frozen=True)
class Packages:
    """Modules and versions of the peers' packages; the pinned ones come out of wheels in `folder`."""

    folder: Path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emabank" / "wheels"

    def module(self, package: str, name: str) -> Any:
        """A module of a package; raises `NotAvailable`."""
        if package in PINNED:
            return _load_file(self._wheel(package), name.replace(".", "/") + ".py", STAND_INS[package])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return import_module(name)
        except ImportError as error:
            raise NotAvailable(f"cannot be imported: {error}") from error

    def version(self, package: str) -> str:
        """The version of a package."""
        try:
            if package in PINNED:
                return f"{self._wheel(package).name.split('-')[1]} (one file of its wheel)"
            return metadata.version(package)
        except (NotAvailable, metadata.PackageNotFoundError):
            return "not installed"

    def _wheel(self, package: str) -> Path:
        """The newest wheel in the folder, downloaded if there is none."""
        pattern = f"{package}-*.whl"
        if not any(self.folder.glob(pattern)):
            print(f"downloading {PINNED[package]} into {self.folder}", file=sys.stderr)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(self.folder)]
            try:
                subprocess.run([*command, PINNED[package]], check=True, timeout=120, capture_output=True)
            except (subprocess.SubprocessError, OSError) as error:
                raise NotAvailable(f"no wheel in {self.folder}, and the download failed") from error
        return max(self.folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def _load_file(wheel: Path, member: str, stand_ins: Sequence[str]) -> types.ModuleType:
    """Execute one file of a wheel as a module, with stand-ins for what it imports of its own package."""
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(member).decode()
    package = "_wheel_" + member.removesuffix(".py").replace("/", "_")
    module = types.ModuleType(f"{package}.file")
    module.__package__ = package
    for stand_in in (types.ModuleType(package), *(_StandIn(f"{package}.{name}") for name in stand_ins)):
        stand_in.__path__ = []  # a package, so that relative imports find what is below it
        sys.modules[stand_in.__name__] = stand_in
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, f"{wheel}/{member}", "exec"), module.__dict__)
    except ImportError as error:
        raise NotAvailable(f"its file needs {error.name}, which is not installed") from error
    return module


# The peers ------------------------------------------------------------------------------------------------------------


def _all(updates: Iterable[Callable[[], object]]) -> Callable[[], None]:
    """One update of all averages of a peer."""
    every = list(updates)

    def update() -> None:
        for call in every:
            call()

    return update


def _of_modules(name: str, model: nn.Module, copies: Sequence[nn.Module], update: Callable[[], object]) -> Contestant:
    """A peer whose averages are copies of the model."""
    key, live = largest_parameter(model)
    return Contestant(
        name, update, averaged_tensors(model), lambda: [*(copy.get_parameter(key) for copy in copies), live]
    )


def _of_lists(name: str, model: nn.Module, lists: Sequence[list[Tensor]], update: Callable[[], object]) -> Contestant:
    """A peer whose averages are lists in the order of `model.parameters()`."""
    live = list(model.parameters())
    at = max(range(len(live)), key=lambda index: live[index].numel())
    return Contestant(name, update, averaged_tensors(model), lambda: [*(average[at] for average in lists), live[at]])


def _torch(_: Packages, name: str, model: nn.Module, averages: int, *, use_buffers: bool) -> Contestant:
    return torch_contestant(name, model, decays(averages), use_buffers=use_buffers)


def _ema_pytorch(packages: Packages, name: str, model: nn.Module, averages: int, *, use_foreach: bool) -> Contestant:
    settings = {"update_after_step": 0, "update_every": 1, "include_online_model": False, "use_foreach": use_foreach}
    kind = packages.module("ema-pytorch", "ema_pytorch").EMA
    peers = [kind(model, beta=decay, **settings) for decay in decays(averages)]
    return _of_modules(name, model, [peer.ema_model for peer in peers], _all(peer.update for peer in peers))


def _torch_ema(packages: Packages, name: str, model: nn.Module, averages: int) -> Contestant:
    kind = packages.module("torch-ema", "torch_ema").ExponentialMovingAverage
    peers = [kind(model.parameters(), decay) for decay in decays(averages)]
    return _of_lists(name, model, [peer.shadow_params for peer in peers], _all(peer.update for peer in peers))


def _lightning(packages: Packages, name: str, model: nn.Module, averages: int, *, multi: bool) -> Contestant:
    """The callback's own `setup` and `on_train_batch_end`; of the trainer they use `global_step` alone."""
    callbacks = packages.module("lightning", "lightning.pytorch.callbacks")
    whole = packages.module("lightning", "lightning.pytorch").LightningModule()
    whole.model = model
    peers = [
        callbacks.WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(decay))
        if multi
        else callbacks.EMAWeightAveraging(decay=decay)
        for decay in decays(averages)
    ]
    trainer = types.SimpleNamespace(global_step=0)
    for peer in peers:
        peer.setup(trainer, whole, "fit")

    def update() -> None:
        trainer.global_step += 1
        for peer in peers:
            peer.on_train_batch_end(trainer, whole, None, None, 0)

    return _of_modules(name, model, [peer._average_model.module.model for peer in peers], update)


def _timm(packages: Packages, name: str, model: nn.Module, averages: int, *, exclude_buffers: bool) -> Contestant:
    kind = packages.module("timm", "timm.utils.model_ema").ModelEmaV3
    peers = [kind(model, decay, exclude_buffers=exclude_buffers) for decay in decays(averages)]
    updates = _all(partial(peer.update, model) for peer in peers)
    return _of_modules(name, model, [peer.module for peer in peers], updates)


def _diffusers(packages: Packages, name: str, model: nn.Module, averages: int) -> Contestant:
    kind = packages.module("diffusers", "diffusers.training_utils").EMAModel
    peers = [kind(model.parameters(), decay=decay, foreach=True) for decay in decays(averages)]
    updates = _all(lambda peer=peer: peer.step(model.parameters()) for peer in peers)
    return _of_lists(name, model, [peer.shadow_params for peer in peers], updates)


@dataclass(frozen=True)
class Peer:
    """A library with one setting: its name, its package, and how its contestant is made."""

    name: str
    package: str
    make: Callable[[Packages, str, nn.Module, int], Contestant]

    def build(self, packages: Packages, model: nn.Module, averages: int) -> Contestant:
        """Its contestant; raises `NotAvailable`."""
        try:
            return self.make(packages, self.name, model, averages)
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


def versions(packages: Packages, peers: Sequence[Peer]) -> str:
    """The versions of the peers' packages."""
    return ", ".join(f"{package} {packages.version(package)}" for package in sorted({peer.package for peer in peers}))
