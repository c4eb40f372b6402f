"""A model with other values in it: swapped in place for a while, as a plain state dict, or as a module of its own.

`values` maps plain names of parameters and buffers (see modules.py) to the tensors that take their place; what it
does not name keeps the live value. Knows nothing of averages.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from emabank.modules import Part, parts_of, plain_keys, unwrap, walk
from emabank.sharded import gathers, local, recover, reshard

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
