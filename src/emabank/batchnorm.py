"""recalibrate_batchnorm: the batch-norm statistics of averaged weights, measured again on training data.

Exact: batches are pooled by their sizes, the variance between them included. Every average sees each batch, so one
pass over the data serves all. The live model, its modes and the random streams are as before, whatever happens.
"""

import random
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils.hooks import RemovableHandle

from emabank.bank import EMABank
from emabank.copies import functional_tensors
from emabank.modules import evaluating, parts_of, unwrap, walk

Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Recalibration:
    """What was done: the layers measured, the ones left alone, and on how much data."""

    layers: tuple[str, ...]
    frozen: tuple[str, ...]  # in eval mode inside a model in training mode
    unreached: tuple[str, ...]  # no batch came by
    batches: int


def recalibrate_batchnorm(
    target: EMABank | nn.Module,
    loader: Iterable[Any],
    *,
    averages: Sequence[str | float] | None = None,
    max_batches: int | None = None,
    forward: Forward | None = None,
) -> Recalibration:
    """Measure batch-norm statistics again, for every average of a bank in one pass, or for a module in place.

    A bank keeps them beside the averaged ones until its next update: `applied(name, batchnorm="recomputed")`.
    `averages` limits it to some ("live" may be among them), `max_batches` to the first batches. By default a batch
    that is a tensor becomes `model(batch)`, a tuple or list `model(batch[0])`, a mapping `model(**batch)`, each moved
    to the model's device; `forward(model, batch)` does it your way. Only the batch-norm layers are in training mode;
    those that are frozen (in eval mode inside a model in training mode) stay as they are, and are named in what is
    returned.

    >>> from emabank import EMABank, recalibrate_batchnorm
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> bank = EMABank(model, [0.9], every=1)
    >>> _ = bank.update()
    >>> recalibrate_batchnorm(bank, [torch.randn(8, 2), torch.randn(5, 2)]).layers
    ('1',)
    >>> with bank.applied(0.9, batchnorm="recomputed"):
    ...     _ = model(torch.randn(4, 2))
    """
    if max_batches is not None and max_batches < 1:
        raise ValueError(f"max_batches={max_batches!r}: at least one batch is needed; None takes the whole loader.")
    model = target.model if isinstance(target, EMABank) else target
    if isinstance(target, EMABank):
        names = [target.resolve(name) for name in (target.names if averages is None else averages)]
    elif averages is not None:
        raise ValueError("averages= chooses among those of a bank; the target given is a module.")
    else:
        names = [""]
    layers, frozen = _layers(model)
    if not layers:
        pools: dict[str, dict[str, _Pool]] = {name: {} for name in names}
        batches = 0
    else:
        sets = {
            name: target.functional(name) if isinstance(target, EMABank) else functional_tensors(model, {})
            for name in names
        }
        with evaluating(unwrap(model)), _same_randomness(loader):
            pools, batches = _measure(unwrap(model), sets, layers, loader, max_batches, forward or _default_forward)
    for name in names:
        statistics = _statistics(layers, pools[name])
        if isinstance(target, EMABank):
            target.keep_recomputed(name, statistics)
        else:
            _put(model, statistics)
    measured = tuple(name for name in layers if all(name in pool for pool in pools.values()))
    unreached = tuple(name for name in layers if name not in measured)
    return Recalibration(measured, frozen, unreached, batches)


class _Pool:
    """Mean and variance of everything seen so far, batch by batch (Chan, Golub and LeVeque 1983), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Take in a batch: its mean, and its sum of squared deviations from it."""
        mean, squares = mean.double(), squares.double()
        if self.count == 0:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total = self.count + count
        delta = mean - self.mean
        self.squares = self.squares + squares + delta.square() * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def variance(self, correction: int) -> Tensor:
        return self.squares / (self.count - correction)


def _layers(model: nn.Module) -> tuple[dict[str, _BatchNorm], tuple[str, ...]]:
    """The layers to measure by plain name, and the names of the frozen ones."""
    modules = list(walk(model))
    training = any(module.training for _, _, module in modules)
    found = {
        prefix.removesuffix("."): module
        for prefix, _, module in modules
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    }
    frozen = tuple(name for name, layer in found.items() if training and not layer.training)
    return {name: layer for name, layer in found.items() if name not in frozen}, frozen


class _Forward(nn.Module):
    """Lets functional_call hand the model, with other tensors in it, to a function of model and batch."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model, self._forward = model, forward

    def forward(self, batch: Any) -> Any:
        return self._forward(self.model, batch)


@torch.no_grad()
def _measure(
    root: nn.Module,
    sets: Mapping[str, dict[str, Tensor]],
    layers: Mapping[str, _BatchNorm],
    loader: Iterable[Any],
    max_batches: int | None,
    forward: Forward,
) -> tuple[dict[str, dict[str, _Pool]], int]:
    """Let each set of weights see each batch, and pool what the layers see."""
    pools: dict[str, dict[str, _Pool]] = {name: {} for name in sets}
    tensors = {name: {f"model.{path}": tensor for path, tensor in each.items()} for name, each in sets.items()}
    runner = _Forward(root, forward)
    device = next((p.device for p in root.parameters()), torch.device("cpu"))
    batches = 0
    with _listening(layers) as listen:
        for batch in islice(loader, max_batches):
            batches += 1
            batch = _moved(batch, device)
            for name in sets:
                listen(pools[name])
                functional_call(runner, tensors[name], (batch,))
    if batches == 0:
        raise ValueError("The loader gave no batch, so there is nothing to measure statistics on: give one with data.")
    return pools, batches


@contextmanager
def _listening(layers: Mapping[str, _BatchNorm]) -> Generator[Callable[[dict[str, _Pool]], None]]:
    """Batch-norm layers in training mode, each telling the current pools what it saw.

    With momentum 1 a layer leaves the batch's own mean and (unbiased) variance in its buffers, so nothing is computed
    twice. A lone value per channel cannot be normalised by itself; it is by what was pooled before.
    """
    momenta = {name: layer.momentum for name, layer in layers.items()}
    current: list[dict[str, _Pool]] = [{}]

    def before(name: str, layer: _BatchNorm, value: Tensor) -> None:
        # 0 times what stood there is added to the batch's statistics; a diverged run leaves NaN there.
        cast(Tensor, layer.running_mean).nan_to_num_()
        cast(Tensor, layer.running_var).nan_to_num_()
        if _values_per_channel(value) == 1:
            layer.training = False
            pool = current[0].get(name)
            if pool is not None:
                cast(Tensor, layer.running_mean).copy_(pool.mean)
                cast(Tensor, layer.running_var).copy_(pool.variance(0))

    def after(name: str, layer: _BatchNorm, value: Tensor) -> None:
        count = _values_per_channel(value)
        pool = current[0].setdefault(name, _Pool())
        if count == 1:
            layer.training = True
            mean = value.detach().reshape(layer.num_features)
            pool.add(1, mean, torch.zeros_like(mean))
        else:
            mean, variance = cast(Tensor, layer.running_mean), cast(Tensor, layer.running_var)
            pool.add(count, mean.clone(), variance * (count - 1))

    handles: list[RemovableHandle] = []
    for name, layer in layers.items():
        enter, leave = partial(before, name, layer), partial(after, name, layer)
        handles.append(layer.register_forward_pre_hook(lambda _, a, k, f=enter: f(_input(a, k)), with_kwargs=True))
        handles.append(layer.register_forward_hook(lambda _, a, k, out, f=leave: f(_input(a, k)), with_kwargs=True))
    try:
        for layer in layers.values():
            layer.training, layer.momentum = True, 1.0
        yield lambda pools: current.__setitem__(0, pools)
    finally:
        for handle in handles:
            handle.remove()
        for name, layer in layers.items():
            layer.momentum = momenta[name]


def _input(args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return args[0] if args else keywords["input"]


def _values_per_channel(value: Tensor) -> int:
    return value.numel() // value.shape[1]


def _statistics(layers: Mapping[str, _BatchNorm], pools: Mapping[str, _Pool]) -> dict[str, Tensor]:
    """The buffers of the layers that were reached, in their own precision, by plain name."""
    found: dict[str, Tensor] = {}
    for name, pool in pools.items():
        if pool.count < 2:
            raise ValueError(
                f"The batch-norm layer {name!r} saw a single value per channel, which has no variance: "
                "give recalibrate_batchnorm at least two samples."
            )
        prefix = f"{name}." if name else ""
        live = cast(Tensor, layers[name].running_mean)
        found[f"{prefix}running_mean"] = pool.mean.to(live.device, live.dtype)
        found[f"{prefix}running_var"] = pool.variance(1).to(live.device, live.dtype)
    return found


@torch.no_grad()
def _put(model: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    for part in parts_of(model):
        if part.name in statistics:
            part.tensor.copy_(statistics[part.name])


def _default_forward(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(batch[0])
    if isinstance(batch, Tensor):
        return model(batch)
    raise ValueError(
        f"A batch is a {type(batch).__name__}; a tensor, a tuple or list, or a mapping is understood: "
        "pass forward=lambda model, batch: ... for anything else."
    )


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_moved(value, device) for value in batch]
    return batch


@contextmanager
def _same_randomness(loader: Iterable[Any]) -> Generator[None]:
    """Every random stream a loader may draw from goes on afterwards as if it had not been touched."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    holders = [loader, sampler, inner, getattr(loader, "dataset", None)]
    generators = {id(g): g for g in (getattr(h, "generator", None) for h in holders) if isinstance(g, torch.Generator)}
    states = [(generator, generator.get_state()) for generator in generators.values()]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(
        devices=range(torch.accelerator.device_count()),
        device_type="cuda" if accelerator is None else accelerator.type,
    ):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
            for generator, state in states:
                generator.set_state(state)
