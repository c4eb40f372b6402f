"""Other values in a model: in its own tensors for a while, in their place during a call, in a state dict, in a copy.

`values` maps names to the tensors that replace the live ones; a name that is missing keeps its live value.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from emabank._distributed import fsdp_modules, is_sharded, reset_fsdp, reshard, to_local
from emabank._model import TensorRef, tensor_refs, unwrap, walk
from emabank._storage import TensorLayout, copy_all, have_streams
from emabank.preserved import undone_by

MAX_TOGETHER = 2**24  # elements, 64 MB in float32

# Between devices ------------------------------------------------------------------------------------------------------


def sent(flats: Sequence[Tensor], device: torch.device) -> Tensor:
    """Flat tensors as one, on another device. To an accelerator from pinned memory: the host does not wait for it."""
    together = torch.cat(list(flats))
    is_pinned = together.device.type == "cpu" and have_streams({device})
    if is_pinned:
        together = torch.empty_like(together, pin_memory=True).copy_(together)
    return together.to(device, non_blocking=is_pinned)


class Copies:
    """Copies into tensors. Values from another device go together, because every trip takes its time."""

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._size = 0

    def add(self, target: Tensor, source: Tensor) -> None:
        """Copy now, or from another device at the latest with `finish`."""
        if source.device == target.device or is_sharded(target):
            target.copy_(source)
            return
        self._pending.append((target, source))
        self._size += source.numel()
        if self._size >= MAX_TOGETHER:
            self.finish()

    def finish(self) -> None:
        """Copy what is pending: one trip per pair of devices and dtype."""
        trips: dict[tuple[torch.device, torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
        for target, source in self._pending:
            trips.setdefault((target.device, source.device, source.dtype), []).append((target, source))
        self._pending, self._size = [], 0
        for (device, _, _), pairs in trips.items():
            sources = [source.flatten() for _, source in pairs]
            arrived = sent(sources, device).split([len(source) for source in sources])
            targets = [target for target, _ in pairs]
            copy_all(targets, [value.view(target.shape) for value, target in zip(arrived, targets, strict=True)])


# In its own tensors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swap:
    """Which average of which bank is in a model, put there by which thread."""

    bank: object
    name: str
    batchnorm: str
    thread: int = field(default_factory=get_ident)


# Every module that holds an average right now, and its tensors, by id (and themselves, so that no id is reused). All
# banks and threads share it: a bank that finds a part of its model here must not read values as live ones.
SWAPPED: dict[int, tuple[Swap, nn.Module | Tensor]] = {}


def swap_in(model: nn.Module) -> Swap | None:
    """The swap that any module or tensor of a model is part of right now."""
    if not SWAPPED:
        return None
    entries = (SWAPPED.get(id(part)) for part in (*model.modules(), *model.parameters(), *model.buffers()))
    return next((entry[0] for entry in entries if entry is not None), None)


def claim(swap: Swap | None, parts: Iterable[nn.Module | Tensor]) -> None:
    """Record that these parts hold an average from now on; raise a RuntimeError if they hold another one."""
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
    """Undo `claim`."""
    for key in [key for key, (holder, _) in list(SWAPPED.items()) if holder is swap]:
        del SWAPPED[key]


@contextmanager
def swapped(model: nn.Module, values: dict[str, Tensor], swap: Swap | None) -> Generator[None]:
    """The values in the model's own tensors; afterwards, whatever happens, the live ones again.

    Buffers are restored too, also those that a forward pass has replaced; but not sparse ones, views with gaps or
    overlaps, and those whose shape it has changed. `values` is empty afterwards: each is released once it is in place,
    so that at most one extra copy exists at any time (and 64 MB of values on their way from another device).
    Without a `swap` the model's values still count as live.
    """
    saved: list[tuple[TensorRef, Tensor, Tensor | None]] = []
    copies = Copies()
    fsdp = fsdp_modules(model)
    reshard(fsdp)
    refs = tensor_refs(model)

    def undo() -> None:
        reshard(fsdp)  # or a forward pass would use the values that it has gathered
        _restore(saved)
        release(swap)

    with undone_by(undo):
        claim(swap, [module for _, _, module in walk(model)])
        claim(swap, [ref.tensor for ref in refs])
        # Through .data: autograd's version counters stay as they are, because a graph that is alive across the swap
        # finds the same values again. Nothing is rebound: optimizers and captured graphs keep their pointers.
        for ref in refs:
            is_saved = ref.name in values or (not ref.is_parameter and _is_dense(ref.tensor))
            before = to_local(ref.tensor).clone() if is_saved else None
            saved.append((ref, ref.tensor, before))
            if ref.name in values:
                copies.add(to_local(ref.tensor), to_local(values.pop(ref.name)))
        copies.finish()
        try:
            yield
        except BaseException:
            reset_fsdp(fsdp)
            raise


def _bind(ref: TensorRef, tensor: Tensor) -> None:
    """Put a tensor in its place, where a forward pass may have put another one.

    A buffer of another shape stays: it is a cache that has grown, such as that of a rotary embedding, and its module
    may have noted how large it is.
    """
    is_buffer = not ref.is_parameter and ref.key in ref.holder
    if not is_buffer or getattr(ref.holder[ref.key], "shape", tensor.shape) == tensor.shape:
        ref.holder[ref.key] = tensor


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and TensorLayout.of(to_local(tensor)).is_dense


def _restore(saved: list[tuple[TensorRef, Tensor, Tensor | None]]) -> None:
    """Restore in reverse order, so that tensors that share memory end with the live values.

    A tensor that cannot be restored does not keep the others from it.
    """
    failure: Exception | None = None
    for ref, tensor, before in reversed(saved):
        try:
            _bind(ref, tensor)
            local = to_local(tensor)
            if before is not None and (ref.is_parameter or local.shape == before.shape):
                local.copy_(before)
        except Exception as error:
            failure = failure or error
    saved.clear()
    if failure is not None:
        raise failure


# In their place -------------------------------------------------------------------------------------------------------


@contextmanager
def holding(model: nn.Module, tensors: dict[str, Tensor], swap: Swap | None) -> Generator[None]:
    """The model with other tensors, by path, in place of its own; afterwards its own, and in `tensors` those that a
    forward pass replaced.

    Like `torch.func.functional_call`, which an interrupt can leave with the other tensors in the model.
    """
    live: list[tuple[TensorRef, Tensor]] = []

    def undo() -> None:
        for ref, tensor in live:
            _bind(ref, tensor)
        release(swap)

    with undone_by(undo):
        claim(swap, model.modules())
        refs = tensor_refs(model, all_places=True) if tensors else []
        live = [(ref, ref.tensor) for ref in refs]  # only now: before, another thread's may have been in the model
        for ref in refs:
            _bind(ref, tensors[ref.path])
        yield
        for ref in refs:
            tensors[ref.path] = ref.tensor


def functional_params(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors by their paths in the unwrapped model, in the live dtypes, for `torch.func.functional_call`.

    Buffers are copies, so that a forward pass does not write into the live ones.
    """
    tensors: dict[str, Tensor] = {}
    copies = Copies()
    for ref in tensor_refs(model):
        live = ref.tensor.detach()
        value = values.get(ref.name)
        if value is None:
            tensors[ref.path] = live if ref.is_parameter else live.clone()
        elif value.device == live.device:
            tensors[ref.path] = value.to(live.dtype, copy=not ref.is_parameter)
        else:
            tensors[ref.path] = torch.empty_like(live)
            copies.add(tensors[ref.path], value)
    copies.finish()
    return tensors


# Copies ---------------------------------------------------------------------------------------------------------------

# These reparametrise a weight by a hook; without it a copy would not compute the same function. (`nn.utils` has
# functions that shadow the modules of the same name, hence the import by path.)
_STRUCTURAL_HOOKS: tuple[type, ...] = (
    import_module("torch.nn.utils.weight_norm").WeightNorm,
    import_module("torch.nn.utils.spectral_norm").SpectralNorm,
    import_module("torch.nn.utils.prune").BasePruningMethod,
)
# Tensor parallelism distributes the inputs of a module, and collects its outputs, in hooks of this module.
_TENSOR_PARALLEL = "torch.distributed.tensor"
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


def _is_structural(hook: object) -> bool:
    return isinstance(hook, _STRUCTURAL_HOOKS) or str(getattr(hook, "__module__", "")).startswith(_TENSOR_PARALLEL)


def plain_keys(model: nn.Module, keys: list[str]) -> dict[str, str]:
    """Each key of the unwrapped model's state dict, mapped to the key without the prefixes of inner wrappers."""
    prefixes = {path: prefix for prefix, path, _ in walk(model) if path != prefix}
    plain: dict[str, str] = {}
    for key in keys:
        path = max((path for path in prefixes if key.startswith(path)), key=len, default="")
        plain[key] = prefixes.get(path, "") + key[len(path) :]
    return plain


def state_dict_with(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state dict with the unwrapped model's own keys: these values, and copies of everything else.

    A tied tensor is one tensor under two keys.
    """
    live = unwrap(model).state_dict(keep_vars=True)
    names = {id(ref.tensor): ref.name for ref in tensor_refs(model)}
    plain = plain_keys(model, list(live))
    copies: dict[int, Any] = {}
    for key, value in live.items():
        if id(value) not in copies:
            # A state dict hook may rename keys, so tensors are matched by identity.
            name = names.get(id(value), plain[key])
            if name in values:
                copies[id(value)] = values[name]
            else:
                copies[id(value)] = value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)
    return {plain[key]: copies[id(value)] for key, value in live.items()}


def copy_module(model: nn.Module, values: Mapping[str, Tensor], *, exclude: object = None) -> nn.Module:
    """A deep copy of the unwrapped model with the values in it: eval mode, no grad, none of the user's hooks.

    `exclude`, an object that the model may reference, becomes None in the copy.
    """
    root = unwrap(model)
    memo: dict[int, Any] = {id(exclude): None}
    copies = Copies()
    for ref in tensor_refs(root):
        tensor = ref.tensor
        copy = torch.empty_like(tensor)
        copies.add(copy, values.get(ref.name, tensor.detach()))
        memo[id(tensor)] = nn.Parameter(copy, requires_grad=False) if ref.is_parameter else copy
    copies.finish()
    for module in root.modules():
        by_kind: list[dict[int, Any]] = [getattr(module, kind) for kind in _HOOKS]
        structural = {key for hooks in by_kind for key, hook in hooks.items() if _is_structural(hook)}
        for hooks in by_kind:
            memo[id(hooks)] = OrderedDict((key, hook) for key, hook in hooks.items() if key in structural)
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()  # deepcopy refuses tensors that are part of a graph
    copied = deepcopy(root, memo)
    copied.train()  # some modules drop here what they have derived from the live weights in eval mode
    return copied.eval().requires_grad_(False)
