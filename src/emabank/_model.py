"""What a model holds under which name, which of it is averaged, and how that is followed while the model changes.

Wrappers (DistributedDataParallel, DataParallel, torch.compile) are removed by type at any depth, so that a submodule
that happens to be called `module` keeps its name. Knows nothing of rules and counts.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain
from operator import is_
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from emabank import _storage
from emabank._distributed import (
    ProcessGroups,
    SyncedStatistics,
    as_dtensor_like,
    fsdp_modules,
    is_sharded,
    local_shard,
    reshard,
    to_local,
)
from emabank._storage import AverageStorage

# Names ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorRef:
    """One parameter or buffer: its name, its path in the unwrapped model, and the module's dict that holds it."""

    name: str
    path: str
    holder: dict[str, Tensor | None]
    key: str
    is_parameter: bool

    @property
    def tensor(self) -> Tensor:
        """The tensor now; a module may have replaced it."""
        return cast(Tensor, self.holder[self.key])


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside its wrappers."""
    while (key := _wrapped_key(model)) is not None:
        model = cast(nn.Module, getattr(model, key))
    return model


def _wrapped_key(module: nn.Module) -> str | None:
    if isinstance(module, DistributedDataParallel | DataParallel):
        return "module"
    # torch.compile is a slow import; until someone imports it there can be no compiled module.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and isinstance(module, compiler.OptimizedModule):
        return "_orig_mod"
    return None


def walk(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Prefix without wrappers, path in the unwrapped model, and module; each module once."""
    yield from _walk(unwrap(model), "", "", set())


def _walk(module: nn.Module, prefix: str, path: str, seen: set[int]) -> Iterator[tuple[str, str, nn.Module]]:
    key = _wrapped_key(module)
    if key is not None:
        yield from _walk(cast(nn.Module, getattr(module, key)), prefix, f"{path}{key}.", seen)
    elif id(module) not in seen:
        seen.add(id(module))
        yield prefix, path, module
        for name, child in module.named_children():
            yield from _walk(child, f"{prefix}{name}.", f"{path}{name}.", seen)


def tensor_refs(model: nn.Module, *, all_places: bool = False) -> list[TensorRef]:
    """The parameters and then the buffers of a model; a tied tensor under its first name.

    With `all_places`, a tied tensor again in every other place, with its first name and path.
    """
    refs: list[TensorRef] = []
    first: dict[int, TensorRef] = {}
    modules = list(walk(model))
    for is_parameter in (True, False):
        for prefix, path, module in modules:
            holder: dict[str, Tensor | None] = vars(module)["_parameters" if is_parameter else "_buffers"]
            for key, tensor in holder.items():
                if tensor is None:
                    continue
                if id(tensor) not in first:
                    first[id(tensor)] = TensorRef(prefix + key, path + key, holder, key, is_parameter)
                    refs.append(first[id(tensor)])
                elif all_places:
                    refs.append(replace(first[id(tensor)], holder=holder, key=key))
    return refs


# Modes ----------------------------------------------------------------------------------------------------------------

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_inference_mode(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function leave `torch.inference_mode`: tensors that are created inside it cannot be written later."""

    @wraps(function)
    def outside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():  # the first alone would turn gradients on
            return function(*args, **kwargs)

    return outside


# Following the model --------------------------------------------------------------------------------------------------

Choice = Literal["all", "trainable"] | Callable[[str, nn.Parameter], bool]


class ModuleWatch:
    """Detects cheaply whether modules or parameters were added, removed, renamed or replaced; and whether tensors of
    `refs` were replaced or have other memory, shape or strides.
    """

    def __init__(self, model: nn.Module, refs: Sequence[TensorRef] = ()) -> None:
        kinds = ("_parameters", "_modules")
        dicts: list[dict[str, Any]] = [vars(module)[kind] for _, _, module in walk(model) for kind in kinds]
        self._empty = [holder for holder in dicts if not holder]
        self._filled = [holder for holder in dicts if holder]
        self._before = [dict(holder) for holder in self._filled]
        self._values_now = [holder.values() for holder in self._filled]
        self._values = list(chain.from_iterable(self._values_now))
        buffers = [ref for ref in refs if not ref.is_parameter]
        self._holders, self._keys = [ref.holder for ref in buffers], [ref.key for ref in buffers]
        self._buffers = [ref.tensor for ref in buffers]
        self._tensors = [ref.tensor for ref in refs]
        self._is_sharded = any(map(is_sharded, self._tensors))
        self._views = list(map(to_local, self._tensors))

    def unchanged(self) -> bool:
        """Whether everything is as it was. All loops run in C, unlike a walk over the modules."""
        if (
            any(self._empty)
            # By identity first, because a module may define `==`; after that `==` only compares keys.
            or not all(map(is_, chain.from_iterable(self._values_now), self._values))
            or self._filled != self._before
            or not all(map(is_, map(dict.get, self._holders, self._keys), self._buffers))
        ):
            return False
        tensors = map(to_local, self._tensors) if self._is_sharded else self._tensors
        try:
            return all(map(Tensor.is_set_to, tensors, self._views))
        except RuntimeError:  # on another device
            return False


class AveragedTensors:
    """The averaged tensors of a model, by name, and `count` averages of each in `storage`.

    The model may be moved, cast, given another memory format or have its tensors replaced; `refresh` follows it, and
    raises if it no longer fits.
    """

    _watch: ModuleWatch | None = None

    @outside_inference_mode
    def __init__(
        self,
        model: nn.Module,
        count: int,
        *,
        parameters: Choice,
        statistics: bool,
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        self._model = model
        refs = tensor_refs(model)
        averaged = [ref for ref in refs if ref.is_parameter and _is_averaged(ref, parameters)]
        if not averaged:
            raise ValueError(
                f"parameters must choose at least one parameter; parameters={parameters!r} chooses none of the "
                f"{sum(ref.is_parameter for ref in refs)} that the model has."
            )
        if statistics:
            averaged += [ref for ref in refs if _is_statistic(ref)]
        self.names = tuple(ref.name for ref in averaged)
        self._shapes = self._watched_shapes(refs)
        self._kinds = [_kind(ref.tensor) for ref in averaged]
        self._follow(averaged)
        bad = nonfinite(dict(zip(self.names, self._sources(), strict=True)))
        if bad:
            raise ValueError(
                f"{_listed(map(repr, bad))} hold NaN or inf when the bank is built: initialise them, freeze them if "
                "they are constants such as a mask (requires_grad=False), or leave them out with parameters=."
            )
        self.storage = AverageStorage(self._sources(), count, dtype=dtype, device=device)

    def __getstate__(self) -> dict[str, Any]:
        # What `_follow` sets belongs to this model in this process; a copy follows its own model.
        tied = ("_refs", "_watch", "_fsdp", "_groups", "_synced")
        return {key: value for key, value in self.__dict__.items() if key not in tied}

    def refresh(self, *, sync_statistics: bool = False) -> bool:
        """Follow the live tensors if the model has changed; True if it had not.

        With `sync_statistics`, average the batch-norm statistics of a DistributedDataParallel model over its ranks.
        """
        if self._watch is not None and self._fsdp:
            reshard(self._fsdp)
        is_same = self._watch is not None and self._watch.unchanged()
        if not is_same:
            self._find_tensors()
        if sync_statistics and self._synced is not None:
            self._synced.sync()
        return is_same

    @outside_inference_mode
    def _find_tensors(self) -> None:
        reshard(fsdp_modules(self._model))
        check_materialized(self._model)
        refs = tensor_refs(self._model)
        what = "The model has changed since the bank was built (build a new one for it)"
        check_shapes(what, self._shapes, self._watched_shapes(refs))
        by_name = {ref.name: ref for ref in refs}
        averaged = [by_name[name] for name in self.names]
        for ref, kind in zip(averaged, self._kinds, strict=True):
            if _kind(ref.tensor) != kind:
                raise ValueError(f"{what}: {ref.name!r} must be {kind}; got {ref.tensor.dtype}.")
        self._follow(averaged)
        self.storage = self.storage.bound_to(self._sources())

    def _watched_shapes(self, refs: Iterable[TensorRef]) -> dict[str, tuple[int, ...]]:
        return tensor_shapes({ref.name: ref.tensor for ref in refs if ref.is_parameter or ref.name in self.names})

    def _follow(self, refs: list[TensorRef]) -> None:
        self._refs = refs
        self._watch = ModuleWatch(self._model, refs)
        self._fsdp = fsdp_modules(self._model)
        self._groups = ProcessGroups.of_sharded(self._model)
        self._synced = SyncedStatistics.of(self._model, self._lives())

    def _lives(self) -> list[Tensor]:
        return [ref.tensor for ref in self._refs]

    def _sources(self) -> list[Tensor]:
        """What an update reads: the local shards of the live tensors, with synchronised statistics."""
        return list(map(to_local, self._lives() if self._synced is None else self._synced.tensors))

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank of a sharded model; a collective there."""
        return flag if self._groups is None else self._groups.any_rank(flag)

    def has_unaveraged_trainable(self) -> bool:
        """Whether training moves a parameter that is read from the live model."""
        averaged = set(self.names)
        refs = tensor_refs(self._model)
        return any(ref.is_parameter and ref.tensor.requires_grad and ref.name not in averaged for ref in refs)

    # The averages

    @outside_inference_mode
    def to(self, device: torch.device | None) -> None:
        """Move the averages."""
        self.storage = self.storage.rebuilt(self._sources(), device=device)

    def read(self, average: int) -> dict[str, Tensor]:
        """Copies of one average's tensors by name, sharded like the live ones."""
        return self._named(self.storage.read(average))

    def live(self) -> dict[str, Tensor]:
        """Copies of the live tensors by name, in the dtype and on the device of the averages."""
        shards = zip(map(to_local, self._lives()), self.storage.dtypes(), strict=True)
        device = self.storage.device
        return self._named([shard.to(device or shard.device, dtype, copy=True) for shard, dtype in shards])

    def write(self, average: int, values: Mapping[str, Tensor] | None = None) -> None:
        """Set one average's tensors, by default to the live ones."""
        if values is None:
            self.storage.write(average, self._sources())
        else:
            named = zip(self.names, self._lives(), strict=True)
            self.storage.write(average, [local_shard(values[name], live) for name, live in named])

    def _named(self, shards: list[Tensor]) -> dict[str, Tensor]:
        named = zip(self.names, self._lives(), shards, strict=True)
        return {name: as_dtensor_like(live, shard) for name, live, shard in named}

    # Checks

    def check_average(self, what: str, values: object) -> None:
        """Raise a ValueError unless these values fit an average, all of them, and are finite in its dtype."""
        tensors = check_values(what, {ref.name: ref.tensor for ref in self._refs}, values)
        stored = zip(self.names, self.storage.dtypes(), strict=True)
        _check_finite(what, {name: to_local(tensors[name]).to(dtype) for name, dtype in stored})

    def check_statistics(self, what: str, values: object) -> None:
        """Raise a ValueError unless these values fit floating buffers of the model and are finite."""
        names: Iterable[Any] = values.keys() if isinstance(values, Mapping) else ()
        refs = [ref for ref in tensor_refs(self._model) if _is_floating_buffer(ref) and ref.name in names]
        _check_finite(what, check_values(what, {ref.name: ref.tensor for ref in refs}, values))

    def initial_share_left(self) -> float:
        """How much of average 0 the live tensors still hold; 1 where chance alone could make it less than half.

        ⟨live, average⟩ / ⟨average, average⟩ over samples of all tensors, each minus its mean, so that constants (the
        initial ones of a norm) add nothing. One step, even a long one, hardly changes it; unrelated weights give about
        0, within a standard deviation that falls with their number.
        """
        products: list[Tensor] = []
        sizes: list[int] = []
        for average, live in self.storage.samples(0):
            centred = average - average[0]  # so that a constant is exactly 0
            centred -= centred.mean()
            products.append(torch.stack([centred.dot(live), centred.dot(centred), live.dot(live)]))
            sizes.append(live.numel())
        if not products:
            return 1.0
        together = torch.stack([product.to(products[0], non_blocking=True) for product in products])  # one wait
        shared = own = variance = 0.0
        for (with_live, with_itself, of_live), size in zip(together.tolist(), sizes, strict=True):
            shared, own = shared + with_live, own + with_itself
            variance += with_itself * of_live / size
        return shared / own if own > 0.0 and variance**0.5 < 0.1 * own else 1.0


def _is_averaged(ref: TensorRef, parameters: Choice) -> bool:
    tensor = ref.tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if not tensor.requires_grad and nonfinite({ref.name: tensor.data}):
        return False  # a constant, such as an attention mask of -inf: averaged with itself it would be NaN
    if callable(parameters):
        return bool(parameters(ref.name, tensor))  # type: ignore[arg-type]
    if parameters not in ("all", "trainable"):
        raise ValueError(
            f'parameters must be "all", "trainable" or a function of name and parameter; got {parameters!r}.'
        )
    return parameters == "all" or tensor.requires_grad


def _is_statistic(ref: TensorRef) -> bool:
    # Only these are means over batches. Other buffers must stay exact: counters, masks, vectors of spectral norm.
    return _is_floating_buffer(ref) and ref.key in ("running_mean", "running_var")


def _is_floating_buffer(ref: TensorRef) -> bool:
    return not ref.is_parameter and ref.tensor.is_floating_point() and ref.tensor.layout is torch.strided


def rank_means(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values, with replicated buffers (batch-norm statistics) averaged over the ranks of a sharded model."""
    groups = ProcessGroups.of_sharded(model)
    if groups is None:
        return dict(values)
    buffers = {ref.name for ref in tensor_refs(model) if not ref.is_parameter}
    return {name: groups.mean_(value.clone()) if name in buffers else value for name, value in values.items()}


# Checks ---------------------------------------------------------------------------------------------------------------


def check_materialized(model: nn.Module) -> None:
    """Raise a ValueError if a parameter or buffer has no values yet (lazy modules, the meta device)."""
    for ref in tensor_refs(model):
        if nn.parameter.is_lazy(ref.tensor):
            raise ValueError(
                f"{ref.name!r} is not initialised yet (a lazy module): run one batch through the model before you "
                "build the bank."
            )
        if ref.tensor.is_meta:
            raise ValueError(
                f"{ref.name!r} is on the meta device and has no values: move the model with to_empty(device=...) and "
                "load or initialise its weights before you build the bank."
            )
        if ref.is_parameter and ref.tensor.layout is not torch.strided:
            raise ValueError(
                f"{ref.name!r} must be a dense (strided) parameter to be averaged; got {ref.tensor.layout}: make it "
                "dense, or a buffer, which is read from the live model."
            )


Key = TypeVar("Key")


def nonfinite(tensors: Mapping[Key, Tensor]) -> list[Key]:
    """The names of the tensors that hold NaN or inf; waits once for every accelerator."""
    names = list(tensors)
    return [names[index] for index in _storage.nonfinite(list(map(to_local, tensors.values())))]


def _check_finite(what: str, tensors: Mapping[str, Tensor]) -> None:
    bad = nonfinite(tensors)
    if bad:
        raise ValueError(f"{what}: {_listed(map(repr, bad))} must be finite; got NaN or inf.")


def check_shapes(what: str, expected: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a ValueError that names what is missing, what is new and what has another shape."""
    common = [name for name in expected if name in shapes]
    faults = {
        "missing": [repr(name) for name in expected if name not in shapes],
        "new": [repr(name) for name in shapes if name not in expected],
        "another shape": [f"{n!r} is {shapes[n]}, not {expected[n]}" for n in common if shapes[n] != expected[n]],
    }
    named = [f"{fault}: {_listed(names)}" for fault, names in faults.items() if names]
    if named:
        raise ValueError(f"{what}: {'; '.join(named)}.")


def check_values(what: str, lives: Mapping[str, object], values: object) -> Mapping[str, Tensor]:
    """Return the values; raise a ValueError unless they have the live names, and tensors the live shapes and kinds."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}: its tensors must be a mapping; got a {type(values).__name__}.")
    named = cast("Mapping[str, object]", values)
    for name, value in named.items():
        live = lives.get(name)
        if not isinstance(live, Tensor):
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{what}: {name!r} must be a tensor; got a {type(value).__name__}.")
        if _kind(value) != _kind(live) or value.layout != live.layout or value.is_meta:
            got = f"{value.dtype} ({value.layout}, {value.device})"
            raise ValueError(f"{what}: {name!r} must be a {_kind(live)} tensor; got {got}.")
    check_shapes(what, tensor_shapes(lives), tensor_shapes(named))
    return cast("Mapping[str, Tensor]", named)


def _kind(tensor: Tensor) -> str:
    return "complex" if tensor.is_complex() else "floating" if tensor.is_floating_point() else "integer"


def tensor_shapes(values: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The shapes of named values; () for what is not a tensor."""
    return {name: tuple(value.shape) if isinstance(value, Tensor) else () for name, value in values.items()}


def _listed(items: Iterable[str]) -> str:
    texts = list(items)
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")
