"""What a model holds under which name, which of it is averaged, and how other values get into it.

Wrappers (DistributedDataParallel, DataParallel, torch.compile) are removed by type at any depth, so that a submodule
that happens to be called `module` keeps its name. Knows nothing of rules and counts.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from itertools import chain
from operator import is_
from threading import get_ident
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from emabank._distributed import Processes, Statistics, gathers, is_sharded, like, local, part_of, recover, reshard
from emabank._storage import Storage


@dataclass(frozen=True)
class Part:
    """One parameter or buffer: its plain name, its path in the unwrapped model, and the dict of the module it is in."""

    name: str
    path: str
    holder: dict[str, Tensor | None]
    key: str
    is_parameter: bool

    @property
    def tensor(self) -> Tensor:
        """The tensor that stands there now: modules may put another in its place."""
        return cast(Tensor, self.holder[self.key])


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside its wrappers.

    >>> unwrap(nn.DataParallel(nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    while (key := _wrapped_key(model)) is not None:
        model = cast(nn.Module, getattr(model, key))
    return model


def walk(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Plain prefix, path and module, each module once, starting at the unwrapped model."""
    yield from _walk(unwrap(model), "", "", set())


def parts_of(model: nn.Module) -> list[Part]:
    """The parameters and then the buffers of a model; a tensor that has several names (tied) under its first.

    >>> [part.name for part in parts_of(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))]
    ['0.weight', '0.bias', '1.weight', '1.bias', '1.running_mean', '1.running_var', '1.num_batches_tracked']
    """
    found: list[Part] = []
    seen: set[int] = set()
    modules = list(walk(model))
    for is_parameter in (True, False):
        for prefix, path, module in modules:
            holder: dict[str, Tensor | None] = vars(module)["_parameters" if is_parameter else "_buffers"]
            for key, tensor in holder.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found.append(Part(prefix + key, path + key, holder, key, is_parameter))
    return found


def plain_keys(model: nn.Module, keys: list[str]) -> dict[str, str]:
    """From each key of the unwrapped model's state dict to the key without the prefixes of wrappers inside it."""
    prefixes = {path: prefix for prefix, path, _ in walk(model) if path != prefix}
    plain: dict[str, str] = {}
    for key in keys:
        path = max((path for path in prefixes if key.startswith(path)), key=len, default="")
        plain[key] = prefixes.get(path, "") + key[len(path) :]
    return plain


class Watch:
    """Tells cheaply whether modules or parameters were added to a model, removed, renamed or replaced.

    Whether a parameter has got other memory, or a buffer was replaced, is for those to see who follow them.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds = ("_parameters", "_modules")
        dicts: list[dict[str, Any]] = [vars(module)[kind] for _, _, module in walk(model) for kind in kinds]
        self._empty = [holder for holder in dicts if not holder]
        self._filled = [holder for holder in dicts if holder]
        self._before = [dict(holder) for holder in self._filled]
        self._values_now = [holder.values() for holder in self._filled]
        self._values = list(chain.from_iterable(self._values_now))

    def unchanged(self) -> bool:
        """Whether all is as it was: every loop is in C, which walking the tree is not."""
        return (
            not any(self._empty)
            # By identity, for modules may have an equality of their own; after that, `==` finds other keys only.
            and all(map(is_, chain.from_iterable(self._values_now), self._values))
            and self._filled == self._before
        )


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """The model in eval mode, and afterwards each module in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    # The second `finally` is for an interrupt during the first.
    try:
        try:
            model.eval()
            yield
        finally:
            _set_modes(modes)
    finally:
        _set_modes(modes)


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, mode in modes:
        module.training = mode


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def ordinary_tensors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function make ordinary tensors inside `torch.inference_mode`; those made there cannot be written later.

    >>> with torch.inference_mode():
    ...     torch.zeros(1).is_inference(), ordinary_tensors(torch.zeros)(1).is_inference()
    (True, False)
    """

    @wraps(function)
    def outside(*args: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **keywords)
        with torch.inference_mode(False), torch.no_grad():  # the first one alone would turn gradients on
            return function(*args, **keywords)

    return outside


def refuse_without_data(model: nn.Module) -> None:
    """Raise where a parameter or buffer has no values yet (lazy modules, the meta device)."""
    for part in parts_of(model):
        if nn.parameter.is_lazy(part.tensor):
            raise ValueError(
                f"{part.name!r} is not initialised yet (a lazy module): run one batch through the model before "
                "you build the bank."
            )
        if part.tensor.is_meta:
            raise ValueError(
                f"{part.name!r} is on the meta device and has no values: move the model with "
                "to_empty(device=...) and load or initialise its weights before you build the bank."
            )
        if part.is_parameter and part.tensor.layout is not torch.strided:
            raise ValueError(
                f"{part.name!r} has the layout {part.tensor.layout}; averages are kept of dense (strided) parameters "
                "only: make it dense, or a buffer, which is read from the live model."
            )


def _wrapped_key(module: nn.Module) -> str | None:
    if isinstance(module, DistributedDataParallel | DataParallel):
        return "module"
    # torch.compile is a slow import; as long as nobody has imported it there can be no compiled module.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and isinstance(module, compiler.OptimizedModule):
        return "_orig_mod"
    return None


def _walk(module: nn.Module, prefix: str, path: str, seen: set[int]) -> Iterator[tuple[str, str, nn.Module]]:
    key = _wrapped_key(module)
    if key is not None:
        yield from _walk(cast(nn.Module, getattr(module, key)), prefix, f"{path}{key}.", seen)
    elif id(module) not in seen:
        seen.add(id(module))
        yield prefix, path, module
        for name, child in module.named_children():
            yield from _walk(child, f"{prefix}{name}.", f"{path}{name}.", seen)


Choice = Literal["all", "trainable"] | Callable[[str, nn.Parameter], bool]


class Tracked:
    """The tensors of `model` that are averaged, and `count` averages of each."""

    @ordinary_tensors
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
        parts = parts_of(model)
        chosen = [part for part in parts if part.is_parameter and _is_averaged(part, parameters)]
        if not chosen:
            raise ValueError(
                f"No parameter is averaged: parameters={parameters!r} chooses none of the "
                f"{sum(part.is_parameter for part in parts)} the model has."
            )
        if statistics:
            chosen += [part for part in parts if _is_statistic(part)]
        self.names = tuple(part.name for part in chosen)
        self._parameters = _shapes(part for part in parts if part.is_parameter)
        self._averaged, self._kinds = _shapes(chosen), [_kind(part.tensor) for part in chosen]
        self._follow(chosen)
        bad = self.nonfinite()
        if bad:
            raise ValueError(
                f"{_listed(bad)} hold NaN or inf when the bank is built: initialise them, freeze them if they are "
                "constants such as a mask (requires_grad=False), or leave them out with parameters=."
            )
        self._storage = Storage(self.data(), count, dtype=dtype, device=device)

    def __getstate__(self) -> dict[str, Any]:
        tied = dict.fromkeys(("_parts", "_lives", "_buffers", "_in_place", "_gathers"), ())
        return {**self.__dict__, "_watch": None, "_statistics": None, "_places": ([], []), **tied}

    # Following the model ----------------------------------------------------------------------------------------------

    @ordinary_tensors
    def verify(self) -> bool:
        """Make sure the averages are tied to the live tensors as they stand; False if they had to be tied anew."""
        reshard(self._gathers)
        if self._watch is not None and self._watch.unchanged() and self._are_in_place():
            return True
        reshard(gathers(self._model))
        refuse_without_data(self._model)
        parts = parts_of(self._model)
        now = _shapes(part for part in parts if part.is_parameter)
        refuse_misfit("The model's parameters have changed since the bank was built", self._parameters, now)
        by_name = {part.name: part for part in parts}
        gone = [name for name in self.names if name not in by_name]
        if gone:
            raise ValueError(f"{_listed(gone)} are no longer in the model: build a new bank for the changed model.")
        followed = [by_name[name] for name in self.names]
        refuse_misfit("The model's buffers have changed since the bank was built", self._averaged, _shapes(followed))
        for part, kind in zip(followed, self._kinds, strict=True):
            if _kind(part.tensor) != kind:
                raise ValueError(
                    f"{part.name!r} must be {kind}, as it was when the bank was built; got {part.tensor.dtype}: build "
                    "a new bank for the changed model."
                )
        self._follow(followed)
        self._storage = self._storage.bound_to(self.data())
        return False

    def _follow(self, parts: list[Part]) -> None:
        self._parts = parts
        self._lives = [part.tensor for part in parts]
        buffers = [part for part in parts if not part.is_parameter]
        self._places = [part.holder for part in buffers], [part.key for part in buffers]
        self._buffers = [part.tensor for part in buffers]
        self._watch: Watch | None = Watch(self._model)
        self._gathers = gathers(self._model)
        self._is_sharded = any(map(is_sharded, self._lives))
        self._statistics: Statistics | None = Statistics(self._model, self._lives)
        self._in_place = list(map(local, self._lives))

    def _are_in_place(self) -> bool:
        """Whether no averaged buffer was replaced, and the tensors have the memory, shape and stride that they had."""
        if not all(map(is_, map(dict.get, *self._places), self._buffers)):
            return False
        lives = map(local, self._lives) if self._is_sharded else self._lives
        try:
            return all(map(Tensor.is_set_to, lives, self._in_place))
        except RuntimeError:  # on another device
            return False

    def agree(self) -> None:
        """Let all processes have the same batch-norm statistics to average, before they take them in.

        All must come here. Parameters are the same on all of them, or lie in parts; where no statistics of a
        DistributedDataParallel model are averaged, nothing is said.
        """
        assert self._statistics is not None, "verify comes first"
        self._statistics.agree()

    def anywhere(self, here: bool) -> bool:
        """Whether it is so for the part of a sharded model that lies here, or for another part; all must ask."""
        processes = Processes.of_sharded(self._model) if self._is_sharded else None
        return here if processes is None else processes.any(here)

    def data(self) -> list[Tensor]:
        """What is taken into the averages: the live tensors, without autograd, and of each the part that lies here."""
        assert self._statistics is not None, "verify comes first"
        return [local(tensor) for tensor in self._statistics.tensors]

    def leaves_out_trainable(self) -> bool:
        """Whether training moves a parameter that is read from the live model, not averaged."""
        averaged = set(self.names)
        return any(p.is_parameter and p.tensor.requires_grad and p.name not in averaged for p in parts_of(self._model))

    @ordinary_tensors
    def to(self, device: torch.device | None) -> None:
        """Move the averages."""
        self._storage = self._storage.rebuilt(self.data(), device=device)

    # The averages -----------------------------------------------------------------------------------------------------

    def move(self, weights: list[float]) -> None:
        """Move average k towards the live tensors by weights[k], for all k in one pass."""
        self._storage.move(weights)

    def read(self, average: int) -> dict[str, Tensor]:
        """Copies of one average's tensors by plain name; spread over processes as the live ones are."""
        return self._spread(self._storage.read(average))

    def live(self) -> dict[str, Tensor]:
        """Copies of the live tensors by plain name, in the averages' precision."""
        return self._spread(self._storage.as_kept([local(live) for live in self._lives]))

    def write(self, average: int, values: Mapping[str, Tensor] | None = None) -> None:
        """Set one average's tensors, to the live ones where none are given."""
        if values is None:
            self._storage.write(average, self.data())
        else:
            named = zip(self.names, self._lives, strict=True)
            self._storage.write(average, [part_of(values[name], live) for name, live in named])

    def refuse_average(self, what: str, values: object) -> None:
        """Raise a ValueError unless these values can be written to an average: all of them, and finite there."""
        tensors = refuse_values(what, {part.name: part.tensor for part in self._parts}, values)
        kept = zip(self.names, self._storage.dtypes(), strict=True)
        _refuse_nonfinite(what, {name: local(tensors[name]).to(dtype) for name, dtype in kept})

    def refuse_statistics(self, what: str, values: object) -> None:
        """Raise a ValueError unless these values can stand in floating buffers of the model, and are finite."""
        named = cast("Mapping[str, object]", values) if isinstance(values, Mapping) else {}
        parts = [part for part in parts_of(self._model) if _is_floating_buffer(part) and part.name in named]
        _refuse_nonfinite(what, refuse_values(what, {part.name: part.tensor for part in parts}, values))

    def _spread(self, parts: list[Tensor]) -> dict[str, Tensor]:
        named = zip(self.names, self._lives, parts, strict=True)
        return {name: like(live, part) for name, live, part in named}

    # Numbers gone bad -------------------------------------------------------------------------------------------------

    def nonfinite(self, *, quick: bool = False, whole: bool = True) -> list[str]:
        """The names of live tensors that hold NaN or inf. `quick` looks at sums first, and (unless `whole`) of very
        large tensors at a part.
        """
        if quick and self._storage.looks_finite(whole=whole):
            return []
        return nonfinite(dict(zip(self.names, self.data(), strict=True)))

    def share_left(self) -> float:
        """How much of average 0 the live tensors still hold; 1 where chance alone could make it less than half.

        ⟨live, average⟩ / ⟨average, average⟩, each part of the average minus its mean. A step, even a long one, hardly
        changes it, because it goes in directions of its own; weights from elsewhere know nothing of the average and
        have about 0, within a standard deviation that falls with the number of weights.
        """
        shared, own, variance = self._storage.overlap(0)
        return shared / own if own > 0.0 and variance**0.5 < 0.1 * own else 1.0


def nonfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold NaN or inf: by their sums first, which costs a tenth of `isfinite`.

    >>> nonfinite({"fine": torch.ones(2), "bad": torch.tensor([1.0, float("nan")])})
    ['bad']
    """
    parts = {name: local(tensor) for name, tensor in tensors.items()}
    wide = {name: t.float() if t.is_floating_point() and t.dtype.itemsize == 1 else t for name, t in parts.items()}
    suspects = [name for name, tensor in wide.items() if not bool(torch.isfinite(tensor.sum()))]
    return [name for name in suspects if not bool(torch.isfinite(wide[name]).all())]  # a sum may overflow


def refuse_misfit(what: str, expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a ValueError that names what is missing, what is new and what has another shape.

    >>> refuse_misfit("The state does not fit", {"a": (2,)}, {"a": (3,)})
    Traceback (most recent call last):
    ...
    ValueError: The state does not fit: another shape: 'a' is (3,), not (2,).
    """
    missing = [name for name in expected if name not in given]
    added = [name for name in given if name not in expected]
    reshaped = [
        f"{name!r} is {given[name]}, not {expected[name]}"
        for name in expected
        if name in given and given[name] != expected[name]
    ]
    faults = [f"missing: {_listed(missing)}"] * bool(missing) + [f"new: {_listed(added)}"] * bool(added)
    faults += [f"another shape: {', '.join(reshaped[:5])}"] * bool(reshaped)
    if faults:
        raise ValueError(f"{what}: {'; '.join(faults)}.")


def refuse_values(what: str, lives: Mapping[str, object], values: object) -> Mapping[str, Tensor]:
    """The values; raise a ValueError unless they have the names of the live ones, and tensors their shapes and kinds.

    >>> refuse_values("The state does not fit", {"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.long)})
    Traceback (most recent call last):
    ...
    ValueError: The state does not fit: 'a' must be a floating tensor; got torch.int64 (torch.strided, cpu).
    """
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
    refuse_misfit(what, _shapes_of(lives), _shapes_of(named))
    return cast("Mapping[str, Tensor]", named)


def _refuse_nonfinite(what: str, tensors: Mapping[str, Tensor]) -> None:
    bad = nonfinite(tensors)
    if bad:
        raise ValueError(f"{what}: {_listed(bad)} must be finite; got NaN or inf.")


def _kind(tensor: Tensor) -> str:
    return "complex" if tensor.is_complex() else "floating" if tensor.is_floating_point() else "integer"


def _is_averaged(part: Part, parameters: Choice) -> bool:
    tensor = part.tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if not tensor.requires_grad and nonfinite({part.name: tensor.data}):
        return False  # a constant, such as an attention mask of -inf: averaged with itself it would be NaN
    if callable(parameters):
        return bool(parameters(part.name, tensor))  # type: ignore[arg-type]
    if parameters not in ("all", "trainable"):
        raise ValueError(
            f'parameters={parameters!r}: allowed are "all", "trainable" and a function of name and parameter.'
        )
    return parameters == "all" or tensor.requires_grad


def _is_statistic(part: Part) -> bool:
    # Only these are means over batches. Others hold what must be exact: counters, masks, spectral norm's vectors.
    return _is_floating_buffer(part) and part.key in ("running_mean", "running_var")


def _is_floating_buffer(part: Part) -> bool:
    return not part.is_parameter and part.tensor.is_floating_point() and part.tensor.layout is torch.strided


def _shapes(parts: Iterable[Part]) -> dict[str, tuple[int, ...]]:
    return _shapes_of({part.name: part.tensor for part in parts})


def _shapes_of(values: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) if isinstance(value, Tensor) else () for name, value in values.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(repr(name) for name in names[:5]) + more


# These reparametrise a weight by a hook; without it the copy would not compute the same function. (`nn.utils` has
# functions that hide the modules of the same name, hence the import by path.)
_STRUCTURAL_HOOKS: tuple[type, ...] = (
    import_module("torch.nn.utils.weight_norm").WeightNorm,
    import_module("torch.nn.utils.spectral_norm").SpectralNorm,
    import_module("torch.nn.utils.prune").BasePruningMethod,
)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


@dataclass(frozen=True)
class Swap:
    """Who has put which values into a model, in which thread."""

    bank: object
    name: str
    batchnorm: str
    thread: int = field(default_factory=get_ident)


# Every module that holds an average for now and its tensors, by id (and themselves, so that no id is used again). All
# banks and threads share it: a bank that finds a part of its model here must not take the values for the live ones.
SWAPPED: dict[int, tuple[Swap, nn.Module | Tensor]] = {}


def swap_in(model: nn.Module) -> Swap | None:
    """The swap that any module or tensor of a model is part of at this moment."""
    if not SWAPPED:
        return None
    taken = (SWAPPED.get(id(part)) for part in (*model.modules(), *model.parameters(), *model.buffers()))
    return next((entry[0] for entry in taken if entry is not None), None)


def claim(swap: Swap | None, parts: Iterable[nn.Module | Tensor]) -> None:
    """Note that these hold an average from now on; raise where they hold another one."""
    if swap is None:
        return
    for part in parts:
        # One atomic step, so that of two threads one is refused; a lock would stay locked after an interrupt.
        holder, _ = SWAPPED.setdefault(id(part), (swap, part))
        if holder is not swap:
            raise RuntimeError(
                f"The model holds the average {holder.name!r} now, inside applied({holder.name!r}) or call(): use one "
                "at a time."
            )


def release(swap: Swap | None) -> None:
    """Forget what was claimed."""
    for key in [key for key, (holder, _) in list(SWAPPED.items()) if holder is swap]:
        del SWAPPED[key]


@contextmanager
def swapped(model: nn.Module, values: dict[str, Tensor], swap: Swap | None) -> Generator[None]:
    """The values in the model's own tensors; afterwards, whatever happens, what stood there before.

    Batch-norm statistics and counters are restored too, and buffers that a forward pass has replaced. Buffers that
    neither the values nor a batch norm write are not copied. `values` is empty afterwards: each is released once it is
    in place, so that at most one extra copy exists at any time. Without a `swap` what the model holds still counts as
    live.
    """
    kept: list[tuple[Part, Tensor, Tensor | None]] = []
    gathering = gathers(model)
    reshard(gathering)
    parts = parts_of(model)

    def undo() -> None:
        reshard(gathering)  # or a forward pass would go on with the values that it has gathered
        _put_back(kept)
        release(swap)

    # The second `finally` is for an interrupt during the first; undoing twice changes nothing.
    try:
        try:
            claim(swap, [module for _, _, module in walk(model)])
            claim(swap, [part.tensor for part in parts])
            # Through .data: autograd's version counters stay as they are, for a graph that is alive across the swap
            # will find the same values again. Nothing is rebound; optimizers and captured graphs keep their pointers.
            for part in parts:
                is_written = part.name in values or "running_mean" in part.holder
                before = local(part.tensor).clone() if is_written else None
                kept.append((part, part.tensor, before))
                if part.name in values:
                    local(part.tensor).copy_(local(values.pop(part.name)))
            yield
        except BaseException:
            recover(gathering)
            raise
        finally:
            undo()
    finally:
        undo()


def _put_back(kept: list[tuple[Part, Tensor, Tensor | None]]) -> None:
    """Undo in reverse order, so that tensors that share memory end with what the first of them held.

    One that cannot be restored does not keep the others from it.
    """
    failure: Exception | None = None
    for part, tensor, before in reversed(kept):
        try:
            part.holder[part.key] = tensor  # a forward pass may have put another buffer in its place
            if before is not None:
                local(tensor).copy_(before)
        except Exception as error:
            failure = failure or error
    kept.clear()
    if failure is not None:
        raise failure


Places = list[tuple[dict[str, Tensor | None], str, str]]
"""Where the tensors of a model are, tied ones everywhere: the dict of the module, the key in it, the first path."""


def places(model: nn.Module) -> Places:
    """All places of a model, by their paths in the unwrapped one, for `holding`."""
    found: Places = []
    paths: dict[int, str] = {}
    for kind in ("_parameters", "_buffers"):
        for _, path, module in walk(model):
            holder: dict[str, Tensor | None] = vars(module)[kind]
            for key, tensor in holder.items():
                if tensor is not None:
                    found.append((holder, key, paths.setdefault(id(tensor), path + key)))
    return found


@contextmanager
def holding(model: nn.Module, where: Places, tensors: dict[str, Tensor], swap: Swap | None) -> Generator[None]:
    """The model with other tensors in it; afterwards its own, and in `tensors` those that a forward pass replaced.

    Like `torch.func.functional_call`, which an interrupt can leave with the other tensors in the model.
    """
    live: list[Tensor] = []

    def undo() -> None:
        for (holder, key, _), tensor in zip(where, live, strict=False):
            holder[key] = tensor
        release(swap)

    try:
        try:
            claim(swap, model.modules())
            live = [cast(Tensor, holder[key]) for holder, key, _ in where]
            for holder, key, path in where:
                holder[key] = tensors[path]
            yield
            for holder, key, path in where:
                tensors[path] = cast(Tensor, holder[key])
        finally:
            undo()
    finally:
        undo()


def functional_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their paths in the unwrapped model, in the live dtypes, for `torch.func.functional_call`.

    All buffers are there, as copies, so that no forward pass writes into the live ones.
    """
    tensors: dict[str, Tensor] = {}
    for part in parts_of(model):
        live = part.tensor.detach()
        if part.name in values:
            tensors[part.path] = values[part.name].to(live.device, live.dtype)
        else:
            tensors[part.path] = live if part.is_parameter else live.clone()
    return tensors


def plain_state_dict(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state dict with the unwrapped model's own keys: these values themselves, and copies of what is left.

    Tied tensors are one tensor under two keys.
    """
    live = unwrap(model).state_dict(keep_vars=True)
    names = {id(part.tensor): part.name for part in parts_of(model)}
    plain = plain_keys(model, list(live))
    copied: dict[int, Any] = {}
    for key, value in live.items():
        if id(value) not in copied:
            # Keys are the model's business (a state dict hook may rename them), tensors are known by identity.
            name = names.get(id(value), plain[key])
            if name in values:
                copied[id(value)] = values[name]
            else:
                copied[id(value)] = value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)
    return {plain[key]: copied[id(value)] for key, value in live.items()}


def standalone(model: nn.Module, values: Mapping[str, Tensor], *, without: object = None) -> nn.Module:
    """A deep copy of the unwrapped model with the values in it: eval mode, no grad, none of the user's hooks.

    `without`, an object the model may hold on to, is not copied along.
    """
    root = unwrap(model)
    memo: dict[int, Any] = {id(without): None}
    for part in parts_of(root):
        tensor = part.tensor
        copy = torch.empty_like(tensor).copy_(values.get(part.name, tensor.detach()))
        memo[id(tensor)] = nn.Parameter(copy, requires_grad=False) if part.is_parameter else copy
    for module in root.modules():
        for hooks in (getattr(module, key) for key in _HOOKS):
            kept = [(k, hook) for k, hook in hooks.items() if isinstance(hook, _STRUCTURAL_HOOKS)]
            memo[id(hooks)] = OrderedDict(kept)
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()  # deepcopy refuses tensors that hang on a graph
    copied = deepcopy(root, memo)
    return copied.eval().requires_grad_(False)


def means(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean over the processes of a sharded model of those values that each has whole, and its own: its statistics.

    >>> means(nn.Linear(2, 1), {"weight": torch.ones(1)})
    {'weight': tensor([1.])}
    """
    processes = Processes.of_sharded(model)
    if processes is None:
        return dict(values)
    statistics = {part.name for part in parts_of(model) if not part.is_parameter}
    return {name: processes.mean_(value.clone()) if name in statistics else value for name, value in values.items()}
