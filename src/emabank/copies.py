"""A model with other values in it: swapped in place for a while, as a plain state dict, or as a module of its own.

`values` maps plain names of parameters and buffers (see modules.py) to the tensors that take their place; what it
does not name keeps the live value. Knows nothing of averages.
"""

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from emabank.modules import Part, parts_of, plain_keys, unwrap
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


@contextmanager
def swapped(model: nn.Module, values: dict[str, Tensor]) -> Generator[None]:
    """The values in the model's own tensors; afterwards, whatever happens, what stood there before, all buffers too.

    `values` is empty then: each is let go once it is in its place, so that no more than one copy is held at any time.
    """
    kept: list[tuple[Part, Tensor, Tensor]] = []
    gathering = gathers(model)
    reshard(gathering)
    try:
        # Through .data: autograd's version counters stay as they are, for a graph that is alive across the swap will
        # find the same values again. Nothing is rebound; optimizers and captured graphs keep their pointers.
        for part in parts_of(model):
            if part.name in values or not part.is_parameter:
                here = local(part.tensor)
                kept.append((part, part.tensor, here.clone()))
                if part.name in values:
                    here.copy_(local(values.pop(part.name)))
        yield
    except BaseException:
        recover(gathering)
        raise
    finally:
        reshard(gathering)  # or a forward pass would go on with the values that it has gathered
        try:
            _put_back(kept)
        except BaseException:  # an interrupt in the middle: the restoring is finished first
            _put_back(kept)
            raise


def _put_back(kept: list[tuple[Part, Tensor, Tensor]]) -> None:
    for part, tensor, before in kept:
        part.holder[part.key] = tensor  # a forward pass may have put another buffer in its place
        local(tensor).copy_(before)


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
