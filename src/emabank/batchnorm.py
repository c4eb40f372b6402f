"""recalibrate_batchnorm: the batch-norm statistics of averaged weights, measured again on training data.

Exact: batches are pooled by their sizes, the variance between them included. Every average sees each batch, so one
pass over the data serves all. The live model, its modes and the random streams are as before, whatever happens.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils.hooks import RemovableHandle

from emabank.bank import EMABank
from emabank.copies import functional_tensors, swapped
from emabank.modules import evaluating, parts_of, unwrap, walk
from emabank.pools import Pool, pooled_by_all
from emabank.processes import Processes
from emabank.randomness import same_randomness
from emabank.sharded import gathers

Forward = Callable[[nn.Module, Any], Any]

_PIECE = 2**18  # elements
_WORTHWHILE = 2**16


@dataclass(frozen=True)
class Recalibration:
    """What was done: the layers measured, the ones left alone, and on how much data."""

    layers: tuple[str, ...]
    """Names of the layers whose statistics were measured again."""
    frozen: tuple[str, ...]
    """Those left alone: in eval mode inside a model in training mode."""
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
    to the model's device; `forward(model, batch)` does it your way. Only the batch-norm layers are in training mode;
    those that are frozen (in eval mode inside a model in training mode) stay as they are, and are named in what is
    returned.

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
    if not layers:
        pools: dict[str, dict[str, Pool]] = {name: {} for name in names}
        batches = 0
    else:
        sets = {name: _holder(target, name) for name in names}
        with evaluating(unwrap(model)), same_randomness(loader):
            pools, batches = _measure(unwrap(model), sets, layers, loader, max_batches, forward or _default_forward)
        processes = Processes.of(model)
        if processes is not None:
            channels = {name: layer.num_features for name, layer in layers.items()}
            pools, batches = pooled_by_all(processes, pools, channels, batches)
        if batches == 0:
            raise ValueError(
                "The loader gave no batch, so there is nothing to measure statistics on: give one with data."
            )
    for name in names:
        statistics = _statistics(layers, pools[name])
        if isinstance(target, EMABank):
            target.keep_recomputed(name, statistics)
        else:
            _put(model, statistics)
    measured = tuple(name for name in layers if all(name in pool for pool in pools.values()))
    unreached = tuple(name for name in layers if name not in measured)
    return Recalibration(measured, frozen, unreached, batches)


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


_Places = list[tuple[dict[str, Tensor | None], str, str]]
"""Where a model's tensors stand, tied ones everywhere: the dict of the module, the key in it, and the first path."""


def _places(root: nn.Module) -> _Places:
    found: _Places = []
    paths: dict[int, str] = {}
    for kind in ("_parameters", "_buffers"):
        for _, path, module in walk(root):
            holder: dict[str, Tensor | None] = vars(module)[kind]
            for key, tensor in holder.items():
                if tensor is not None:
                    found.append((holder, key, paths.setdefault(id(tensor), path + key)))
    return found


@contextmanager
def _holding(places: _Places, tensors: dict[str, Tensor]) -> Generator[None]:
    """The model with other tensors in it, and what a forward pass puts in their place.

    As `functional_call` does it, which looks for the places and for tied tensors anew at each call.
    """
    live = [holder[key] for holder, key, _ in places]
    try:
        for holder, key, path in places:
            holder[key] = tensors[path]
        yield
    finally:
        for (holder, key, path), tensor in zip(places, live, strict=True):
            tensors[path] = cast(Tensor, holder[key])
            holder[key] = tensor


_Holder = Callable[[], AbstractContextManager[Any]]
"""What puts a set of weights into the model for one forward pass."""


def _holder(target: EMABank | nn.Module, name: str) -> _Holder:
    is_bank = isinstance(target, EMABank)
    model = target.model if is_bank else target
    if gathers(model):  # a forward pass gathers the parameters' own tensors, so that values have to stand in them
        return partial(target.applied, name) if is_bank else lambda: swapped(model, {}, None)
    tensors = target.functional(name) if is_bank else functional_tensors(model, {})
    return partial(_holding, _places(unwrap(model)), tensors)


@torch.no_grad()
def _measure(
    root: nn.Module,
    sets: Mapping[str, _Holder],
    layers: Mapping[str, _BatchNorm],
    loader: Iterable[Any],
    max_batches: int | None,
    forward: Forward,
) -> tuple[dict[str, dict[str, Pool]], int]:
    """Let each set of weights see each batch, and pool what the layers see."""
    pools: dict[str, dict[str, Pool]] = {name: defaultdict(Pool) for name in sets}
    device = next((p.device for p in root.parameters()), torch.device("cpu"))
    batches = 0
    with _listening(layers) as listen:
        for batch in islice(loader, max_batches):
            batches += 1
            batch = _moved(batch, device)
            for name, holding in sets.items():
                listen(pools[name])
                with holding():
                    forward(root, batch)
    return pools, batches


@contextmanager
def _listening(layers: Mapping[str, _BatchNorm]) -> Generator[Callable[[dict[str, Pool]], None]]:
    """Batch-norm layers in training mode, each with its statistics pooled for whoever listens at the time."""
    momenta = {name: layer.momentum for name, layer in layers.items()}
    current: list[dict[str, Pool]] = [{}]
    handles: list[RemovableHandle] = []
    for name, layer in layers.items():
        meter = _Meter(layer, lambda name=name: current[0][name])
        handles.append(layer.register_forward_pre_hook(meter.before, with_kwargs=True))
        handles.append(layer.register_forward_hook(meter.after, with_kwargs=True))
    try:
        for layer in layers.values():
            layer.training, layer.momentum = True, 1.0
        yield lambda pools: current.__setitem__(0, pools)
    finally:
        for handle in handles:
            handle.remove()
        for name, layer in layers.items():
            layer.momentum = momenta[name]


class _Meter:
    """What stands before and after one layer: it measures the input itself, or leaves that to the layer.

    A layer that measures leaves, with momentum 1, the batch's own mean and (unbiased) variance in its buffers. A layer
    that is given its statistics is in eval mode for as long; so is one that meets a lone value in each channel, which
    has no variance: it is normalised by what was pooled before.
    """

    def __init__(self, layer: _BatchNorm, pool: Callable[[], Pool]) -> None:
        self._layer, self._pool = layer, pool
        self._is_plain = type(layer).forward is _BatchNorm.forward

    def before(self, _: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        value, pool = _input(args, keywords), self._pool()
        running_mean, running_var = _statistics_of(self._layer)
        count = _values_per_channel(value)
        if count > 1 and self._is_plain and _is_faster_here(value, running_mean):
            mean, squares = _mean_and_squares(value)
            running_mean.copy_(mean)
            running_var.copy_(squares / count)
        else:
            if not pool.count:
                # 0 times what stands there is added to the batch's statistics; a diverged run leaves NaN there.
                running_mean.nan_to_num_()
                running_var.nan_to_num_()
            if count > 1:
                return
            if pool.count:
                running_mean.copy_(pool.mean)
                running_var.copy_(pool.variance(0))
            mean = value.detach().reshape(self._layer.num_features)
            squares = torch.zeros_like(mean)
        self._layer.training = False
        pool.add(count, mean, squares)

    def after(self, _: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        if self._layer.training:
            count = _values_per_channel(_input(args, keywords))
            mean, variance = _statistics_of(self._layer)
            self._pool().add(count, mean, variance * (count - 1))
        self._layer.training = True


def _is_faster_here(value: Tensor, statistics: Tensor) -> bool:
    """Whether `_mean_and_squares` is faster than the layer: torch adds one value at a time where channels are apart.

    It then takes a third of the time, and a whole pass through a ResNet is a tenth shorter. Not where statistics are
    stored in half precision, to which they would be rounded before they are used.
    """
    return (
        value.device.type == "cpu"
        and value.dim() > 2
        and value.numel() >= _WORTHWHILE
        and value.is_contiguous()
        and statistics.dtype in (torch.float32, torch.float64)
    )


def _mean_and_squares(value: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations from it, of each channel; in pieces that stay in a cache."""
    others = [dim for dim in range(value.dim()) if dim != 1]
    mean = value.mean(others, dtype=torch.promote_types(value.dtype, torch.float32))
    centre = mean.view(1, -1, *[1] * (value.dim() - 2))
    pieces = value.split(max(1, _PIECE * len(value) // value.numel()))
    squares = torch.stack([(piece - centre).square_().sum(others) for piece in pieces])
    return mean, squares.sum(0, dtype=torch.float64)


def _statistics_of(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    return cast(Tensor, layer.running_mean), cast(Tensor, layer.running_var)


def _input(args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return args[0] if args else keywords["input"]


def _values_per_channel(value: Tensor) -> int:
    return value.numel() // value.shape[1]


def _statistics(layers: Mapping[str, _BatchNorm], pools: Mapping[str, Pool]) -> dict[str, Tensor]:
    """The buffers of the layers that were reached, in their own precision, by plain name."""
    found: dict[str, Tensor] = {}
    for name, pool in pools.items():
        if pool.count < 2:
            raise ValueError(
                f"The batch-norm layer {name!r} saw a single value per channel, which has no variance: "
                "give recalibrate_batchnorm at least two samples."
            )
        prefix = f"{name}." if name else ""
        live, _ = _statistics_of(layers[name])
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
