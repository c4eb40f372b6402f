"""recalibrate_batchnorm: batch-norm statistics of averaged weights, measured on training data.

Statistics are pooled over all samples, so they are exact. One pass over the data serves all averages. Afterwards the
live model, its modes and the random streams are as before, whatever happened.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils._pytree import tree_map_only

from emabank._distributed import ProcessGroups, fsdp_modules
from emabank._model import unwrap, walk
from emabank._storage import copy_all
from emabank._swap import Swap, functional_params, holding, sent, swapped
from emabank.bank import EMABank
from emabank.preserved import eval_mode, preserved_rng, undone_by
from emabank.rules import check_int

# A value that is alone in its batch has no variance; it is normalised by the values pooled before it, if there are this
# many. In 15 random networks the worst variance two layers later was then 1.7 times too large (after 8 values 4.5
# times, after two millions of times; batches of four alone give 1.5).
MIN_POOLED = 16
# Measurements wait on the device until there are this many values (64 MB in float32), because fetching them makes the
# host wait: with five averages of a ResNet-50, 63 batches.
MAX_UNPOOLED = 2**24

Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Recalibration:
    """Which layers were measured, which were not, and on how much data."""

    layers: tuple[str, ...]
    """The layers with new statistics."""
    frozen: tuple[str, ...]
    """The layers in eval mode inside a model in training mode; they keep the statistics of the live model."""
    unreached: tuple[str, ...]
    """The layers that no batch passed through."""
    batches: int
    """The number of batches, over all ranks."""


def recalibrate_batchnorm(
    target: EMABank | nn.Module,
    loader: Iterable[Any],
    *,
    averages: Sequence[str | float] | None = None,
    max_batches: int | None = None,
    forward: Forward | None = None,
) -> Recalibration:
    """Measure batch-norm statistics on data, for all averages of a bank in one pass, or for a module in place.

    A bank keeps them next to the averaged ones, and reads averages with them until its next update. About 1,024 images
    are enough during training (docs/speed.md has the curve); use all images for the model that you ship.

    The model is in eval mode, but its batch-norm layers normalise each batch by its own statistics, as in training.
    Frozen layers (in eval mode inside a model in training mode) stay as they are. If the input of a layer holds NaN, if
    batches of one sample come first, or if a layer cannot be measured (TorchScript, its own arithmetic), an error names
    the layer, and nothing changes.

    All ranks of a DistributedDataParallel or FSDP2 model must call it, each with its own share of the data (for FSDP2,
    the same number of batches). Their measurements are pooled, so all ranks have the same statistics.

    Args:
        target: a bank or a module.
        loader: batches of training data.
        averages: which averages of the bank; "live" may be among them. None means all.
        max_batches: how many batches to use. None means all.
        forward: `forward(model, batch)` runs the model. By default a batch that is a tensor becomes `model(batch)`, a
            tuple or list `model(batch[0])`, and a mapping `model(**batch)`. Batches are moved to the model's device.

    >>> from emabank import EMABank, recalibrate_batchnorm
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> bank = EMABank(model, [0.9], every=1)
    >>> _ = bank.update()
    >>> recalibrate_batchnorm(bank, [torch.randn(8, 2), torch.randn(5, 2)]).layers
    ('1',)
    >>> with bank.applied(0.9, batchnorm="recomputed"):
    ...     _ = model(torch.randn(4, 2))
    """
    if not isinstance(target, (EMABank, nn.Module)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"target must be a bank or a module; got a {type(target).__name__}.")
    if max_batches is not None:
        max_batches = check_int("max_batches", max_batches, minimum=1)
    if isinstance(target, EMABank):
        model = target.model
        names = [target.resolve(name) for name in (target.names if averages is None else averages)]
        if not names:
            raise ValueError("averages must name at least one average, or be None for all; got none.")
    elif averages is None:
        model, names = target, [""]
    else:
        raise ValueError("averages must be None for a module; it selects averages of a bank.")
    layers, frozen = _find_layers(model)
    # As the averages are read afterwards: what later layers see depends on it.
    kept = {key: tensor.to(_wide(tensor), copy=True) for key, tensor in _buffers(frozen).items()}
    moments = {name: {key: RunningMoments(_channels(layer)) for key, layer in layers.items()} for name in names}
    batches = 0
    if layers:
        recorder = _Recorder(layers)
        batches = _measure(target, moments, kept, recorder, loader, max_batches, forward or _default_forward)
        groups = ProcessGroups.of(model)
        if groups is not None:
            batches = _pool_over_ranks(groups, moments, batches)
        try:
            _check_moments(layers, moments, batches, recorder.read_elsewhere)
        except FloatingPointError:
            if isinstance(target, EMABank):
                for name in names:
                    target.weights(name)  # raises if it is the average that holds NaN, not the data
            raise
    statistics = _statistics(layers, moments)
    if isinstance(target, EMABank):
        for name in names:
            target._store_recomputed(name, {**kept, **statistics[name]})  # pyright: ignore[reportPrivateUsage]
    elif statistics[""]:  # in one call, which an interrupt cannot split
        buffers = _buffers(layers)
        copy_all([buffers[key] for key in statistics[""]], list(statistics[""].values()))
    measured = [name for name in layers if all(pools[name].count for pools in moments.values())]
    unreached = [name for name in layers if name not in measured]
    return Recalibration(tuple(measured), tuple(frozen), tuple(unreached), batches)


# Layers ---------------------------------------------------------------------------------------------------------------

Layers = dict[str, _BatchNorm]  # by name, without wrappers


def _find_layers(model: nn.Module) -> tuple[Layers, Layers]:
    """The layers to measure, and the frozen ones."""
    layers: Layers = {}
    for prefix, _, module in walk(model):
        is_scripted = isinstance(module, torch.jit.ScriptModule) and "BatchNorm" in str(module.original_name)
        if is_scripted or isinstance(module, _BatchNorm):
            layer = cast(_BatchNorm, module)
            if layer.running_mean is not None and layer.running_var is not None:
                layers[prefix.removesuffix(".")] = layer
    is_training = unwrap(model).training or any(layer.training for layer in layers.values())
    frozen = {name: layer for name, layer in layers.items() if is_training and not layer.training}
    measured = {name: layer for name, layer in layers.items() if name not in frozen}
    for name, layer in measured.items():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ValueError(
                f"The batch-norm layer {name!r} is a TorchScript module, whose inputs cannot be measured: recalibrate "
                "the model before torch.jit.script or torch.jit.trace."
            )
    return measured, frozen


def _channels(layer: _BatchNorm) -> int:
    return cast(Tensor, layer.running_mean).numel()


def _buffers(layers: Layers) -> dict[str, Tensor]:
    """The running statistics of the layers by name."""
    return {
        f"{name}.{key}" if name else key: cast(Tensor, getattr(layer, key))
        for name, layer in layers.items()
        for key in ("running_mean", "running_var")
    }


def _statistics(layers: Layers, moments: Mapping[str, Mapping[str, "RunningMoments"]]) -> dict[str, dict[str, Tensor]]:
    """The measured statistics of every average by name, in float32 or wider, of the layers that were reached.

    One copy per device takes all of them there.
    """
    statistics: dict[str, dict[str, Tensor]] = {name: {} for name in moments}
    by_kind: dict[tuple[torch.device, torch.dtype], list[tuple[str, str, Tensor]]] = {}
    for name, pools in moments.items():
        reached = {key: layer for key, layer in layers.items() if pools[key].count}
        values = [value for key in reached for value in (pools[key].mean, pools[key].variance(correction=1))]
        for (key, buffer), value in zip(_buffers(reached).items(), values, strict=True):
            by_kind.setdefault((buffer.device, _wide(buffer)), []).append((name, key, value))
    for (device, dtype), entries in by_kind.items():
        values = [value for _, _, value in entries]
        flat = sent([torch.cat(values).to(dtype)], device)  # in this order: the device may lack float64
        for (name, key, _), value in zip(entries, flat.split(list(map(len, values))), strict=True):
            statistics[name][key] = value.clone()
    return statistics


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


# Moments --------------------------------------------------------------------------------------------------------------


class RunningMoments:
    """Mean and variance per channel of all values so far, pooled batch by batch (Chan, Golub and LeVeque 1983).

    They are in float64, which not every accelerator has, so they are on the CPU.
    """

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.unnormalizable = 0  # values alone in their batch, with fewer than MIN_POOLED before them
        self.mean, self.squares = torch.zeros(2, channels, dtype=torch.float64, device="cpu")

    def add(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Add a batch: its size, mean, and sum of squared deviations from the mean."""
        if count == 0:
            return
        total = self.count + count
        delta = mean - self.mean
        self.squares += squares + delta.square() * (self.count * count / total)
        self.mean += delta * (count / total)
        self.count = total

    def variance(self, correction: int) -> Tensor:
        return self.squares / (self.count - correction)

    def state(self) -> Tensor:
        """Everything in one vector."""
        counts = torch.tensor([self.count, self.unnormalizable], dtype=torch.float64, device="cpu")
        return torch.cat([counts, self.mean, self.squares])

    @classmethod
    def pooled(cls, states: Sequence[Tensor]) -> "RunningMoments":
        moments = cls(len(states[0]) // 2 - 1)
        for state in states:
            mean, squares = state[2:].view(2, -1)
            moments.add(int(state[0]), mean, squares)
            moments.unnormalizable += int(state[1])
        return moments


def _pool_over_ranks(groups: ProcessGroups, moments: dict[str, dict[str, RunningMoments]], batches: int) -> int:
    """Replace the moments by those of all ranks together; return the number of their batches. A collective."""
    states = [pool.state() for pools in moments.values() for pool in pools.values()]
    flat = torch.cat([torch.tensor([batches], dtype=torch.float64, device="cpu"), *states])
    ranks = [rank.split([1, *map(len, states)]) for rank in groups.all_gather(flat)]
    by_part = zip(*ranks, strict=True)
    total = int(sum(next(by_part)))
    for pools in moments.values():
        for layer in pools:
            pools[layer] = RunningMoments.pooled(next(by_part))
    return total


def _check_moments(
    layers: Layers, moments: Mapping[str, Mapping[str, RunningMoments]], batches: int, read_elsewhere: set[str]
) -> None:
    """Raise if statistics are missing or would be wrong."""
    if batches == 0:
        raise ValueError("The loader must have at least one batch; got none.")
    for average, pools in moments.items():
        weights = f" with the weights of {average!r}" if average else ""
        for name, pool in pools.items():
            if not pool.count and name in read_elsewhere:
                raise ValueError(
                    f"The batch-norm layer {name!r} (a {type(layers[name]).__name__}) does not pass its running "
                    "statistics to torch.nn.functional.batch_norm in eval mode, so it cannot be measured: freeze it "
                    "(eval mode while the model is in training mode) and set its statistics yourself."
                )
            if not (torch.isfinite(pool.mean).all() and torch.isfinite(pool.squares).all()):
                raise FloatingPointError(
                    f"The input of the batch-norm layer {name!r}{weights} holds NaN or inf, or overflows: look for bad "
                    "values in the data."
                )
            if pool.unnormalizable:
                raise ValueError(
                    f"The batch-norm layer {name!r} got a single value per channel, which has no variance, before "
                    f"{MIN_POOLED} other values: use batches of two samples or more; only the last may be smaller."
                )
    if not any(pool.count for pools in moments.values() for pool in pools.values()):
        raise ValueError(
            f"No batch reached a batch-norm layer ({', '.join(map(repr, layers))}): pass "
            "forward=lambda model, batch: ... that runs the part of the model that has them."
        )


# The pass over the data -----------------------------------------------------------------------------------------------


@torch.no_grad()
def _measure(
    target: EMABank | nn.Module,
    moments: dict[str, dict[str, RunningMoments]],
    kept: Mapping[str, Tensor],
    recorder: "_Recorder",
    loader: Iterable[Any],
    max_batches: int | None,
    forward: Forward,
) -> int:
    """Run every batch through the model with the weights of every average; return the number of batches."""
    model = target.model if isinstance(target, EMABank) else target
    root = unwrap(model)
    device = next((parameter.device for parameter in root.parameters()), torch.device("cpu"))
    weights = {name: _weights(target, name, kept) for name in moments}
    # Nobody else may read or update the bank during the pass; for sharded parameters swapped() ensures it.
    is_claimed = isinstance(target, EMABank) and moments and not fsdp_modules(model)
    swap = Swap(target, next(iter(moments)), "averaged") if is_claimed else None
    count = 0
    with holding(root, {}, swap), eval_mode(root), preserved_rng(loader), _without_new_buffers(root):
        for batch in islice(loader, max_batches):
            count += 1
            batch = _to_device(batch, device)
            for name, pools in moments.items():
                with weights[name]():
                    recorder.begin(pools)
                    forward(root, batch)
            if recorder.unpooled >= MAX_UNPOOLED:
                recorder.pool_recorded()
    recorder.pool_recorded()
    return count


@contextmanager
def _without_new_buffers(root: nn.Module) -> Generator[None]:
    """Delete the buffers that forward passes have added, and empty those that they have filled."""
    buffers: list[dict[str, Tensor | None]] = [vars(module)["_buffers"] for module in root.modules()]
    before = [dict(by_key.items()) for by_key in buffers]

    def restore() -> None:
        for by_key, saved in zip(buffers, before, strict=True):
            for key in list(by_key.keys()):
                if key not in saved:
                    del by_key[key]
                elif saved[key] is None:
                    by_key[key] = None

    with undone_by(restore):
        yield


def _weights(
    target: EMABank | nn.Module, name: str, kept: Mapping[str, Tensor]
) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager, to be entered for every batch, that puts the weights of an average into the model."""
    swap = None
    read: Callable[[], dict[str, Tensor]] = dict
    if isinstance(target, EMABank):
        swap = Swap(target, name, "averaged")
        # Unchecked, because a check waits: NaN in weights shows up in what is measured.
        read = partial(target._values, name, "averaged", check=False)  # pyright: ignore[reportPrivateUsage]
    model = target.model if isinstance(target, EMABank) else target
    if fsdp_modules(model):  # a forward pass gathers the parameters' own tensors, so the values must be in these
        return lambda: swapped(model, {**read(), **kept}, swap)
    return partial(holding, unwrap(model), functional_params(model, {**read(), **kept}), None)


class _Recorder:
    """Makes batch-norm layers in eval mode normalise each batch by its own statistics, and records these.

    It sees what a layer passes to `torch.nn.functional.batch_norm`, whatever its forward pass does before that.
    """

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._pools: Mapping[str, RunningMoments] = {}
        self._batches: list[tuple[RunningMoments, int, Tensor]] = []
        self.unpooled = 0  # values in them
        self.read_elsewhere: set[str] = set()  # layers whose statistics went into anything but batch_norm

    def begin(self, pools: Mapping[str, RunningMoments]) -> None:
        """Record the next forward pass into these; the layers get statistics that report to us."""
        self._pools = pools
        for name, layer in self._layers.items():
            for key in ("running_mean", "running_var"):
                tensor = getattr(layer, key)
                if not isinstance(tensor, _RecordedStatistic):
                    recorded = tensor.as_subclass(_RecordedStatistic)
                    recorded.recorder, recorded.layer, recorded.plain = self, name, tensor
                    setattr(layer, key, recorded)

    def normalize(
        self,
        layer: str,
        value: Tensor,
        mean: Tensor,
        variance: Tensor,
        *,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        **_: Any,
    ) -> Tensor:
        """What `batch_norm` returns in training mode."""
        pool = self._pools[layer]
        count = value.numel() // value.shape[1]
        wide = _wide(value)
        moments = torch.zeros(2, mean.numel(), dtype=wide, device=value.device)
        if count > 1:
            mean, variance = moments
        elif count == 1:
            self.pool_recorded()
            moments[0] = value.flatten()
            if pool.count >= MIN_POOLED:
                mean, variance = (moment.to(wide).to(value.device) for moment in (pool.mean, pool.variance(0)))
        self._batches.append((pool, count, moments))
        self.unpooled += moments.numel()
        weight, bias = (None if tensor is None else tensor.to(wide) for tensor in (weight, bias))
        # With a momentum of 1 the running statistics become the batch's own mean and unbiased variance.
        return functional.batch_norm(
            value, mean.to(wide), variance.to(wide), weight, bias, training=count > 1, momentum=1.0, eps=eps
        )

    def pool_recorded(self) -> None:
        """Pool what was recorded. One copy per device fetches all of it: a copy makes us wait."""
        batches, self._batches, self.unpooled = self._batches, [], 0
        for device in {moments.device for _, _, moments in batches}:
            local = [batch for batch in batches if batch[2].device == device]
            flat = torch.cat([moments.flatten() for _, _, moments in local]).cpu().double()
            sizes = [moments.numel() for _, _, moments in local]
            for (pool, count, _), values in zip(local, flat.split(sizes), strict=True):
                mean, variance = values.view(2, -1)
                pool.unnormalizable += count == 1 and pool.count < MIN_POOLED
                pool.add(count, mean, variance * (count - 1))


class _RecordedStatistic(Tensor):
    """A running statistic of a layer that reports what is normalised by it."""

    recorder: _Recorder
    layer: str
    plain: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(arguments: Any) -> Any:
            return tree_map_only(cls, lambda tensor: tensor.plain, arguments)

        if func is functional.batch_norm and isinstance(args[1], cls):  # torch has sorted its arguments
            return args[1].recorder.normalize(args[1].layer, *plain(args), **kwargs)
        if getattr(func, "__name__", "") != "__get__":  # which asks for a shape or dtype, not for values
            tree_map_only(cls, lambda tensor: tensor.recorder.read_elsewhere.add(tensor.layer), args)
        return func(*plain(args), **plain(kwargs or {}))


# The data -------------------------------------------------------------------------------------------------------------


def _default_forward(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(batch[0])
    if isinstance(batch, Tensor):
        return model(batch)
    raise ValueError(
        f"A batch must be a tensor, a tuple or list, or a mapping; got a {type(batch).__name__}: pass "
        "forward=lambda model, batch: ... for anything else."
    )


def _to_device(batch: Any, device: torch.device) -> Any:
    """A batch of the same type on the device; the loader's own batch stays as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        return copy(batch).to(device)  # some move themselves in place
    if isinstance(batch, tuple):
        values = [_to_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if isinstance(batch, list | MutableMapping):
        moved: Any = copy(batch)
        for key, value in batch.items() if isinstance(batch, MutableMapping) else enumerate(batch):
            moved[key] = _to_device(value, device)
        return moved
    if isinstance(batch, Mapping):
        return cast(Any, type(batch))({key: _to_device(value, device) for key, value in batch.items()})
    return batch
