"""recalibrate_batchnorm: batch-norm statistics of averaged weights, measured on training data.

Exact: batches are pooled by their sizes, the variance between them included. Every average sees each batch, so one
pass over the data serves all. The live model, its modes and the random streams are as before, whatever happens.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils._pytree import tree_map_only

from emabank._distributed import ProcessGroups, fsdp_modules, reshard
from emabank._model import unwrap, walk
from emabank._swap import Swap, claim, functional_params, holding, places, release, swapped
from emabank.bank import EMABank
from emabank.rng import rng_restorer

# Variances two layers behind a lone value, over those without it, in the worst channel of 15 random networks: 1.7 where
# it is normalised by 16 others (batches of four give 1.5 by themselves), 4.5 by 8, millions by two.
ENOUGH = 16


class RunningMoments:
    """Mean and variance of everything seen so far, batch by batch (Chan, Golub and LeVeque 1983), in float64.

    It is for tensors on the CPU: not every accelerator has float64. `early` counts the values that were alone in their
    batch when there were not ENOUGH others yet to normalise them by.
    """

    def __init__(self) -> None:
        self.count = self.early = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, count: int, mean: Tensor, squares: Tensor, *, early: int | None = None) -> None:
        """Take in a batch: its mean, and its sum of squared deviations from it; or what another process has pooled,
        with its `early`.
        """
        self.early += int(count == 1 and self.count < ENOUGH) if early is None else early
        if self.count == 0:
            self.count = count
            self.mean, self.squares = (each.to(torch.float64, copy=True) for each in (mean, squares))
            return
        total = self.count + count
        delta = mean - self.mean  # in float64, as what is pooled
        self.squares.add_(squares).addcmul_(delta, delta, value=self.count * count / total)
        self.mean.add_(delta, alpha=count / total)
        self.count = total

    def variance(self, correction: int) -> Tensor:
        return self.squares / (self.count - correction)


def all_reduce_moments(
    processes: ProcessGroups,
    pools: Mapping[str, Mapping[str, RunningMoments]],
    channels: Mapping[str, int],
    batches: int,
) -> tuple[dict[str, dict[str, RunningMoments]], int]:
    """What all processes have pooled for each set of weights and each layer, and the number of their batches.

    `channels` are those of every layer that may have been reached, in the same order on all processes.
    """
    sizes = [1]
    flat = [torch.tensor([float(batches)], dtype=torch.float64)]
    for name in pools:
        for layer, width in channels.items():
            pool = pools[name].get(layer, RunningMoments())
            sizes += [1, 1, width, width]
            flat.append(torch.tensor([pool.count, pool.early], dtype=torch.float64))
            flat += [moment.double().expand(width) for moment in (pool.mean, pool.squares)]
    found: dict[str, dict[str, RunningMoments]] = {name: {} for name in pools}
    total = 0
    for given in processes.all_gather(torch.cat(flat)):
        parts = iter(given.split(sizes))
        total += int(next(parts).item())
        for name in pools:
            for layer in channels:
                count, early = int(next(parts).item()), int(next(parts).item())
                mean, squares = next(parts), next(parts)
                if count:
                    found[name].setdefault(layer, RunningMoments()).add(count, mean, squares, early=early)
    return found, total


Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Recalibration:
    """What was done: the layers measured, the ones left alone, and on how much data."""

    layers: tuple[str, ...]
    """Names of the layers whose statistics were measured again."""
    frozen: tuple[str, ...]
    """Those left alone, in eval mode while the model or another such layer is in training mode: they keep what they
    have in the live model."""
    unreached: tuple[str, ...]
    """Those that no batch came by."""
    batches: int
    """How many batches were looked at."""


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
    `averages` limits it to some ("live" may be among them), `max_batches` to the first batches: about 1,024 images are
    enough for a look during training (docs/speed.md has the curve), all of them for what is shipped. By default a batch
    that is a tensor becomes `model(batch)`, a tuple or list `model(batch[0])`, a mapping `model(**batch)`, each moved
    to the model's device; `forward(model, batch)` does it your way. The model is in eval mode, but batch-norm layers
    normalise each batch by its own statistics, as in training. Those that are frozen (in eval mode inside a model in
    training mode) stay as they are, and are named in what is returned.

    An error names the layer, and nothing is changed, where the input of a layer holds NaN, where a batch of one comes
    before there are others to normalise it by, and where a layer cannot be measured (TorchScript, own arithmetic).

    The processes of a DistributedDataParallel or FSDP2 model must all call it, each with its own part of the data (as
    many batches as the others, for FSDP2): what they measure is pooled, and all have the same statistics.

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
    pools: dict[str, dict[str, RunningMoments]] = {name: {} for name in names}
    batches = 0
    if layers:
        pools, batches, used_otherwise = _measure(
            target, names, layers, loader, max_batches, forward or _default_forward
        )
        processes = ProcessGroups.of(model)
        if processes is not None:
            channels = {name: _statistics_of(layer)[0].numel() for name, layer in layers.items()}
            pools, batches = all_reduce_moments(processes, pools, channels, batches)
        _refuse_unmeasured(layers, pools, batches, used_otherwise)
    measured = tuple(name for name in layers if all(name in pool for pool in pools.values()))
    unreached = tuple(name for name in layers if name not in measured)
    result = Recalibration(measured, tuple(frozen), unreached, batches)
    if isinstance(target, EMABank):
        own = {key: tensor.to(_precision(tensor), copy=True) for key, tensor in _buffers(frozen).items()}
        kept = {name: {**own, **_measured(layers, pools[name])} for name in names}
        for name in names:
            target.keep_recomputed(name, kept[name])
        return result
    statistics = _measured(layers, pools[""])
    live = {key: tensor for key, tensor in _buffers(layers).items() if key in statistics}
    before = {key: tensor.clone() for key, tensor in live.items()}
    try:
        try:
            _copy_into(live, statistics)
            return result
        except BaseException:
            _copy_into(live, before)
            raise
    except BaseException:  # an interrupt while they were put back
        _copy_into(live, before)
        raise


_Layers = dict[str, _BatchNorm]
"""Batch-norm layers by plain name."""


def _layers(model: nn.Module) -> tuple[_Layers, _Layers]:
    """The layers to measure, and the frozen ones."""
    layers: _Layers = {}
    for prefix, _, module in walk(model):
        scripted = isinstance(module, torch.jit.ScriptModule) and "BatchNorm" in str(module.original_name)
        if scripted or isinstance(module, _BatchNorm):
            layer = cast(_BatchNorm, module)
            if layer.running_mean is not None and layer.running_var is not None:
                layers[prefix.removesuffix(".")] = layer
    training = unwrap(model).training or any(layer.training for layer in layers.values())
    frozen = {name: layer for name, layer in layers.items() if training and not layer.training}
    measured = {name: layer for name, layer in layers.items() if name not in frozen}
    for name, layer in measured.items():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ValueError(
                f"The batch-norm layer {name!r} is a TorchScript module, whose inputs cannot be measured: "
                "recalibrate the model before torch.jit.script or torch.jit.trace."
            )
    return measured, frozen


# The pass -------------------------------------------------------------------------------------------------------------


def _measure(
    target: EMABank | nn.Module,
    names: Sequence[str],
    layers: _Layers,
    loader: Iterable[Any],
    max_batches: int | None,
    forward: Forward,
) -> tuple[dict[str, dict[str, RunningMoments]], int, set[str]]:
    """Let each set of weights see each batch, and pool what the layers see.

    Returns the pools, the number of batches, and the layers that have used their statistics in another way as well.
    """
    model = target.model if isinstance(target, EMABank) else target
    root = unwrap(model)
    device = next((p.device for p in root.parameters()), torch.device("cpu"))
    pools: dict[str, dict[str, RunningMoments]] = {name: defaultdict(RunningMoments) for name in names}
    measuring = _Measuring(layers)
    restore = _restorer(model, loader)
    # For the whole pass, other readers and threads are refused; with sharded parameters applied() does so itself.
    swap = (
        Swap(target, names[0], "averaged")
        if isinstance(target, EMABank) and names and not fsdp_modules(model)
        else None
    )

    def work() -> int:
        sets = {name: _weights(target, name) for name in names}
        claim(swap, root.modules())
        root.eval()
        torch.set_grad_enabled(False)
        batches = 0
        for batch in islice(loader, max_batches):
            batches += 1
            batch = _moved(batch, device)
            for name, weights in sets.items():
                with weights():
                    measuring.begin(pools[name])
                    forward(root, batch)
            measuring.pool()
        return batches

    def undo() -> None:
        restore()
        release(swap)

    batches = _then_undo(work, undo)
    reached = {name: {layer: pool for layer, pool in pools[name].items() if pool.count} for name in names}
    return reached, batches, measuring.used_otherwise


class _Measuring:
    """Layers that normalise each batch by its own statistics, which are noted.

    They are those of whatever a layer in eval mode hands to `batch_norm` with its running statistics. A lone value per
    channel has no variance; it is normalised by what was pooled from the batches before.
    """

    def __init__(self, layers: _Layers) -> None:
        self._layers = layers
        self._pools: dict[str, RunningMoments] = {}
        self._moments: list[tuple[RunningMoments, int, Tensor]] = []
        self.used_otherwise: set[str] = set()

    def begin(self, pools: dict[str, RunningMoments]) -> None:
        """Note for these pools what the layers see from now on; they get running statistics that report it."""
        self._pools = pools
        for name, layer in self._layers.items():
            for key, tensor in zip(("running_mean", "running_var"), _statistics_of(layer), strict=True):
                if not isinstance(tensor, _Reporting):
                    reporting = tensor.as_subclass(_Reporting)
                    reporting.measuring, reporting.layer, reporting.plain = self, name, tensor
                    setattr(layer, key, reporting)

    def normalized(
        self,
        name: str,
        value: Tensor,
        mean: Tensor,
        variance: Tensor,
        *,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        **_: Any,
    ) -> Tensor:
        """What `batch_norm` returns in training mode for this input of a layer."""
        count = value.numel() // value.shape[1]
        wide = _precision(value)
        moments = torch.zeros(2, mean.numel(), dtype=wide, device=value.device)
        pool = self._pools[name]
        if count > 1:
            mean, variance = moments
        elif count:
            moments[0] = value.flatten()
            if pool.count >= ENOUGH:
                mean, variance = (moment.to(wide).to(value.device) for moment in (pool.mean, pool.variance(0)))
        self._moments.append((pool, count, moments))
        weight, bias = (None if tensor is None else tensor.to(wide) for tensor in (weight, bias))
        # With a momentum of 1 it leaves the batch's own mean and (unbiased) variance in the place of the running ones.
        return functional.batch_norm(
            value, mean.to(wide), variance.to(wide), weight, bias, training=count > 1, momentum=1.0, eps=eps
        )

    def pool(self) -> None:
        """Pool what was taken down since the last time.

        Pools are in float64, which not every accelerator has, so they are on the CPU. All that a batch gave, for all
        layers and averages, is fetched in one copy: there is one wait for the accelerator per batch.
        """
        taken, self._moments = self._moments, []
        for device in {moments.device for _, _, moments in taken}:
            here = [(pool, count, moments) for pool, count, moments in taken if moments.device == device]
            flat = torch.cat([moments.flatten() for _, _, moments in here]).cpu().double()
            for (pool, count, moments), part in zip(here, flat.split([m.numel() for _, _, m in here]), strict=True):
                if count:
                    mean, variance = part.view(moments.shape)
                    pool.add(count, mean, variance * (count - 1))


class _Reporting(Tensor):
    """Running statistics of a layer that report what is normalised by them."""

    measuring: _Measuring
    layer: str
    plain: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.batch_norm and isinstance(args[1], cls):  # it sorts its arguments, however it was called
            return args[1].measuring.normalized(args[1].layer, *_plain(args), **kwargs)
        if getattr(func, "__name__", "") != "__get__":  # to ask for a shape or a dtype is no use of the values
            tree_map_only(cls, lambda tensor: tensor.measuring.used_otherwise.add(tensor.layer), args)
        return func(*_plain(args), **_plain(kwargs or {}))


def _plain(arguments: Any) -> Any:
    return tree_map_only(_Reporting, lambda tensor: tensor.plain, arguments)


# The weights of an average in the model, and the model as it was ------------------------------------------------------


def _weights(target: EMABank | nn.Module, name: str) -> Callable[[], AbstractContextManager[Any]]:
    """What puts a set of weights into the model for one forward pass."""
    is_bank = isinstance(target, EMABank)
    model = target.model if is_bank else target
    if fsdp_modules(model):  # a forward pass gathers the parameters' own tensors, so that values have to stand in them
        return partial(target.applied, name, batchnorm="averaged") if is_bank else lambda: swapped(model, {}, None)
    tensors = target.functional(name, batchnorm="averaged") if is_bank else functional_params(model, {})
    root = unwrap(model)
    return partial(holding, root, places(root), tensors, None)


_Tensors = dict[str, Tensor | None]


def _refill(holder: _Tensors, tensors: _Tensors) -> None:
    """Put these tensors and no others there; where they are already, an interrupt at any point does no harm."""
    for key, tensor in tensors.items():  # one by one: a TorchScript module has another kind of dict, without update
        holder[key] = tensor
    for key in set(holder.keys()) - set(tensors):
        del holder[key]


def _restorer(model: nn.Module, loader: object) -> Callable[[], None]:
    """What makes the model, its modes, grad mode and the random streams what they are now; it may be called twice."""
    reshard(fsdp_modules(model))
    root = unwrap(model)
    holders: list[_Tensors] = [
        vars(module)[kind] for _, _, module in walk(root) for kind in ("_parameters", "_buffers")
    ]
    tensors = [(holder, dict(holder)) for holder in holders]
    modes = [(module, module.training) for module in root.modules()]
    grad = torch.is_grad_enabled()
    restart = rng_restorer(loader)

    def restore() -> None:
        torch.set_grad_enabled(grad)
        for module, mode in modes:
            module.training = mode
        for holder, before in tensors:
            _refill(holder, before)
        restart()

    return restore


_Result = TypeVar("_Result")


def _then_undo(work: Callable[[], _Result], undo: Callable[[], None]) -> _Result:
    """Do the work, and then, whatever happens, undo it: a second time, in case an interrupt comes in the first."""
    try:
        try:
            return work()
        finally:
            undo()
    finally:
        undo()


# What was measured ----------------------------------------------------------------------------------------------------


def _refuse_unmeasured(
    layers: _Layers, pools: Mapping[str, Mapping[str, RunningMoments]], batches: int, used_otherwise: set[str]
) -> None:
    """Raise where statistics are missing or would be wrong, before any is kept."""
    if batches == 0:
        raise ValueError("The loader gave no batch, so there is nothing to measure statistics on: give one with data.")
    for average, measured in pools.items():
        weights = f" with the weights of {average!r}" if average else ""
        for name in layers:
            pool = measured.get(name)
            if pool is None and name in used_otherwise:
                raise ValueError(
                    f"The batch-norm layer {name!r} (a {type(layers[name]).__name__}) does not hand its running "
                    "statistics to torch.nn.functional.batch_norm in eval mode, so they cannot be measured: freeze it "
                    "(put it in eval mode while the model is in training mode), and set its statistics yourself."
                )
            if pool is None:
                continue
            if not (torch.isfinite(pool.mean).all() and torch.isfinite(pool.squares).all()):
                raise FloatingPointError(
                    f"The input of the batch-norm layer {name!r}{weights} holds NaN or inf, or overflows: look for bad "
                    "values in the loader's data; nothing was changed."
                )
            if pool.early:
                raise ValueError(
                    f"The batch-norm layer {name!r} got a single value per channel, which has no variance, before it "
                    f"had seen {ENOUGH} others to normalise it by: give recalibrate_batchnorm batches of at least two "
                    "samples; only the last ones may be smaller."
                )
    if not any(pools.values()):
        raise ValueError(
            f"No batch reached a batch-norm layer ({', '.join(map(repr, layers))}), so nothing was measured: pass "
            "forward=lambda model, batch: ... that calls the part of the model that holds them."
        )


def _statistics_of(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    return cast(Tensor, layer.running_mean), cast(Tensor, layer.running_var)


def _buffers(layers: _Layers) -> dict[str, Tensor]:
    """The running statistics of these layers by plain name."""
    return {
        f"{name}.{key}" if name else key: tensor
        for name, layer in layers.items()
        for key, tensor in zip(("running_mean", "running_var"), _statistics_of(layer), strict=True)
    }


def _measured(layers: _Layers, pools: Mapping[str, RunningMoments]) -> dict[str, Tensor]:
    """The statistics of the layers that were reached, by plain name, in float32 or wider where the layer is."""
    values = {name: (pool.mean, pool.variance(1)) for name, pool in pools.items()}
    live = _buffers({name: layers[name] for name in values})
    flat = (value for pair in values.values() for value in pair)
    return {
        key: value.to(_precision(tensor)).to(tensor.device)  # one after the other: it may have no float64
        for (key, tensor), value in zip(live.items(), flat, strict=True)
    }


def _precision(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


@torch.no_grad()
def _copy_into(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for key, tensor in tensors.items():
        tensor.copy_(values[key])


# The data -------------------------------------------------------------------------------------------------------------


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
    """A batch of the same type on the device; the loader's own stays where it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        return copy(batch).to(device)  # some move themselves in place
    if isinstance(batch, tuple):
        values = [_moved(value, device) for value in batch]
        return make(values) if (make := getattr(batch, "_make", None)) else type(batch)(values)
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return cast(Any, type(batch))({key: _moved(value, device) for key, value in batch.items()})
    if isinstance(batch, list | Mapping):
        moved: Any = copy(batch)
        for key, value in batch.items() if isinstance(batch, Mapping) else enumerate(batch):
            moved[key] = _moved(value, device)
        return moved
    return batch
