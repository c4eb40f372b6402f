"""What a model holds, and under which plain name: its parameters, its buffers, its modules.

Wrappers (DistributedDataParallel, DataParallel, torch.compile) are seen through by their type, at any depth, so
that a submodule which happens to be called `module` keeps its name. Imports torch alone.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from operator import is_
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


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
