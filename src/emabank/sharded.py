"""Tensors of which each process holds a part (DTensor), and modules that gather them for a forward pass (FSDP2).

Averages are kept of the part that lies here; nothing in an update needs the others. Both kinds are known by their type,
and as long as nobody has imported theirs (a slow import) there can be none. Imports torch alone.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds a part of the tensor only.

    >>> is_sharded(torch.zeros(2))
    False
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, without autograd: of one that is not sharded, all of it.

    >>> local(torch.ones(2, requires_grad=True))
    tensor([1., 1.])
    """
    if not is_sharded(tensor):
        return tensor.data
    with torch.no_grad():
        return tensor.to_local().data  # type: ignore[attr-defined]


def like(live: Tensor, part: Tensor) -> Tensor:
    """A tensor that is spread over processes as `live` is, with `part` as what this one holds.

    >>> like(torch.zeros(2), torch.ones(2))
    tensor([1., 1.])
    """
    if not is_sharded(live):
        return part
    # Not by DTensor.from_local, which would move a part that is kept on the CPU to the mesh's device.
    spread = torch.empty_like(live.detach(), dtype=part.dtype, device=part.device)
    local(spread).copy_(part)
    return spread


def part_of(value: Tensor, live: Tensor) -> Tensor:
    """What this process should hold of `value` if it were spread as `live` is.

    A whole tensor is cut without a word to the others. Only what is spread in another way than `live` has to be
    gathered, on every process at once.

    >>> part_of(torch.ones(2), torch.zeros(2))
    tensor([1., 1.])
    """
    if is_sharded(live):
        mesh, placements = live.device_mesh, live.placements  # type: ignore[attr-defined]
        if is_sharded(value) and (value.device_mesh, value.placements) == (mesh, placements):  # type: ignore[attr-defined]
            return local(value)
        tensors: Any = sys.modules["torch.distributed.tensor"]
        # A data rank of None: every process has the whole tensor, and takes its own part of it. torch 2.6 cannot be
        # told so, and has the first process send the others what they hold already.
        known = "src_data_rank" in signature(tensors.distribute_tensor).parameters
        options: dict[str, Any] = {"src_data_rank": None} if known else {}
        return local(tensors.distribute_tensor(whole(value).detach(), mesh, placements, **options))
    return whole(value)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts, on every process; all of them must ask for it.

    >>> whole(torch.ones(2))
    tensor([1., 1.])
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathers(model: nn.Module) -> list[Any]:
    """The modules that gather their parameters for a forward pass, and may leave them gathered after it (FSDP2).

    >>> gathers(nn.Linear(2, 1))
    []
    """
    module = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(module, "FSDPModule", None)
    return [] if kind is None else [each for each in model.modules() if isinstance(each, kind)]


def reshard(modules: Iterable[Any]) -> None:
    """Let go of gathered parameters: the parts are in their place again, and the next forward pass gathers anew.

    >>> reshard(gathers(nn.Linear(2, 1)))
    """
    for module in modules:
        module.reshard()


def recover(modules: Iterable[Any]) -> None:
    """After an exception, which may have left a forward pass half way: they forget it, and what it had gathered.

    >>> recover(gathers(nn.Linear(2, 1)))
    """
    for module in modules:
        # Only the outermost one can, and older versions of torch have no such thing.
        with suppress(AttributeError, RuntimeError):
            module.reset_iter_state()
