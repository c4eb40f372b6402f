"""Several processes that train one model: sharded tensors (DTensor, FSDP2), process groups, synchronised statistics.

Averages are kept of the local shard; an update communicates nothing but batch-norm statistics under
DistributedDataParallel. Collectives must be called on every rank. DTensor and FSDP2 are recognised by type; until
someone imports them (a slow import) there can be none.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.parallel import DistributedDataParallel


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


class Processes:
    """Those that hold, or hold parts of, the same model."""

    def __init__(self, groups: Sequence[Any], device: torch.device) -> None:
        self._groups, self._device = groups, device

    @classmethod
    def of(cls, model: nn.Module) -> "Processes | None":
        """Found by the model's wrapper or by its sharded parameters; None where a process is alone with it.

        >>> Processes.of(nn.Linear(2, 1)) is None
        True
        """
        sharded = cls.of_sharded(model)
        wrapper = next((each for each in model.modules() if isinstance(each, DistributedDataParallel)), None)
        if sharded is not None or wrapper is None:
            return sharded
        device = next((each.device for each in wrapper.parameters()), torch.device("cpu"))
        return cls.among([wrapper.process_group], device)

    @classmethod
    def of_sharded(cls, model: nn.Module) -> "Processes | None":
        """Those that hold parts of the model's parameters.

        >>> Processes.of_sharded(nn.Linear(2, 1)) is None
        True
        """
        sharded: Any = next(filter(is_sharded, (*model.parameters(), *model.buffers())), None)
        if sharded is None:
            return None
        mesh = sharded.device_mesh
        groups = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
        return cls.among(groups, torch.device(mesh.device_type))

    @classmethod
    def among(cls, groups: Sequence[Any], device: torch.device) -> "Processes | None":
        """Those of the groups that have more than one process; None if there is none."""
        groups = [group for group in groups if dist.get_world_size(group) > 1]
        return cls(groups, device) if groups else None

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes what all of them have."""
        return all(dist.get_rank(group) == 0 for group in self._groups)

    def any(self, here: bool) -> bool:
        """Whether it is so in one of them."""
        seen = torch.tensor(float(here), device=self._device)
        for group in self._groups:
            dist.all_reduce(seen, dist.ReduceOp.MAX, group=group)
        return bool(seen.item())

    def mean_(self, tensor: Tensor) -> Tensor:
        """Put the mean over all of them in a tensor's place.

        What is summed are differences from the first one's values, so that equal ones stay as they are: a sum in
        float64 would do as well, but not every accelerator has it.
        """
        mean = tensor.to(self._device, torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for group in self._groups:
            first = mean.clone()
            dist.broadcast(first, dist.get_global_rank(group, 0), group=group)
            mean -= first
            dist.all_reduce(mean, group=group)
            mean.div_(dist.get_world_size(group)).add_(first)
        return tensor.copy_(mean)

    def from_all(self, tensor: Tensor) -> list[Tensor]:
        """The tensors that each of them gives, all of one shape, in an order that is the same for all."""
        # As bytes: what is on the CPU may be in float64, which not every accelerator has.
        found = tensor.contiguous().view(torch.uint8).to(self._device).unsqueeze(0)
        for group in self._groups:
            each = [torch.empty_like(found) for _ in range(dist.get_world_size(group))]
            dist.all_gather(each, found.contiguous(), group=group)
            found = torch.cat(each)
        return list(found.to(tensor.device).view(tensor.dtype))


class Statistics:
    """Batch-norm statistics as all processes of a DistributedDataParallel model have them: the means over them.

    Each process measures its own batches, and the wrapper hands round those of the first only, at the next forward
    pass. A `SyncBatchNorm` has measured all batches already.

    Args:
        model: what is trained.
        lives: tensors of the model.

    Attributes:
        tensors: `lives`, with tensors of our own in the place of such statistics, as they are here at first.
    """

    def __init__(self, model: nn.Module, lives: Iterable[Tensor]) -> None:
        self.tensors = list(lives)
        self._shared: list[tuple[Processes, Tensor, list[Tensor]]] = []
        for wrapper in model.modules():
            if isinstance(wrapper, DistributedDataParallel):
                self._share(wrapper)

    def _share(self, wrapper: DistributedDataParallel) -> None:
        differing = {
            id(tensor)
            for module in wrapper.modules()
            if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
            for tensor in (module.running_mean, module.running_var)
        }
        places = [place for place, tensor in enumerate(self.tensors) if id(tensor) in differing]
        by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place in places:
            live = self.tensors[place]
            precision = live.dtype if live.dtype == torch.float64 else torch.float32
            by_kind.setdefault((live.device, precision), []).append(place)
        for (device, precision), found in by_kind.items():
            processes = Processes.among([wrapper.process_group], device)
            if processes is not None:
                lives = [self.tensors[place] for place in found]
                page = torch.cat([live.detach().to(precision).reshape(-1) for live in lives])
                self._shared.append((processes, page, lives))
                parts = page.split([live.numel() for live in lives])
                for place, live, part in zip(found, lives, parts, strict=True):
                    self.tensors[place] = part.view(live.shape)

    @torch.no_grad()
    def agree(self) -> None:
        """Bring `tensors` up to date."""
        for processes, page, lives in self._shared:
            torch.cat([live.to(page.dtype).reshape(-1) for live in lives], out=page)
            processes.mean_(page)
