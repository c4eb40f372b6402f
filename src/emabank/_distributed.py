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
from torch.nn.parallel import DistributedDataParallel

# Sharded tensors ------------------------------------------------------------------------------------------------------


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this rank holds a shard."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def to_local(tensor: Tensor) -> Tensor:
    """The local shard of a tensor, without autograd; a plain tensor's own data."""
    if not is_sharded(tensor):
        return tensor.data
    with torch.no_grad():
        return tensor.to_local().data  # type: ignore[attr-defined]


def as_dtensor_like(live: Tensor, shard: Tensor) -> Tensor:
    """`shard` as the local part of a DTensor sharded like `live`; `shard` itself if `live` is not sharded."""
    if not is_sharded(live):
        return shard
    # DTensor.from_local would move a shard that is kept on the CPU to the mesh's device.
    dtensor = torch.empty_like(live.detach(), dtype=shard.dtype, device=shard.device)
    to_local(dtensor).copy_(shard)
    return dtensor


def local_shard(value: Tensor, live: Tensor) -> Tensor:
    """The local shard of `value`, sharded like `live`.

    Cutting a full tensor needs no communication. A value that is sharded in another way is gathered first, which all
    ranks must do together.
    """
    if not is_sharded(live):
        return full_tensor(value)
    mesh, placements = live.device_mesh, live.placements  # type: ignore[attr-defined]
    if is_sharded(value) and (value.device_mesh, value.placements) == (mesh, placements):  # type: ignore[attr-defined]
        return to_local(value)
    module: Any = sys.modules["torch.distributed.tensor"]
    # Every rank has the full tensor and takes its own shard. torch 2.6 lacks the option; there rank 0 sends shards.
    has_option = "src_data_rank" in signature(module.distribute_tensor).parameters
    options: dict[str, Any] = {"src_data_rank": None} if has_option else {}
    return to_local(module.distribute_tensor(full_tensor(value).detach(), mesh, placements, **options))


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, gathered if it is sharded; a collective."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


# FSDP2 modules --------------------------------------------------------------------------------------------------------


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The modules that gather their parameters for a forward pass, and may leave them gathered after it."""
    module = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(module, "FSDPModule", None)
    return [] if kind is None else [submodule for submodule in model.modules() if isinstance(submodule, kind)]


def reshard(modules: Iterable[Any]) -> None:
    """Free gathered parameters, so that the modules hold their shards and the next forward pass gathers again."""
    for module in modules:
        module.reshard()


def reset_fsdp(modules: Iterable[Any]) -> None:
    """Clear the state of a forward pass that an exception interrupted."""
    for module in modules:
        with suppress(AttributeError, RuntimeError):  # only the root can, and older versions of torch lack it
            module.reset_iter_state()


# Process groups -------------------------------------------------------------------------------------------------------


class ProcessGroups:
    """The process groups whose ranks hold the same model, or shards of it."""

    def __init__(self, groups: Sequence[Any], device: torch.device) -> None:
        self._groups, self._device = groups, device

    @classmethod
    def of(cls, model: nn.Module) -> "ProcessGroups | None":
        """Those of a sharded or DistributedDataParallel model; None if this process trains alone."""
        sharded = cls.of_sharded(model)
        wrapper = next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)
        if sharded is not None or wrapper is None:
            return sharded
        device = next((parameter.device for parameter in wrapper.parameters()), torch.device("cpu"))
        return cls.among([wrapper.process_group], device)

    @classmethod
    def of_sharded(cls, model: nn.Module) -> "ProcessGroups | None":
        """Those whose ranks hold shards of the model's parameters."""
        sharded: Any = next(filter(is_sharded, (*model.parameters(), *model.buffers())), None)
        if sharded is None:
            return None
        mesh = sharded.device_mesh
        groups = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
        return cls.among(groups, torch.device(mesh.device_type))

    @classmethod
    def among(cls, groups: Sequence[Any], device: torch.device) -> "ProcessGroups | None":
        """The groups of more than one rank; None if there are none."""
        groups = [group for group in groups if dist.get_world_size(group) > 1]
        return cls(groups, device) if groups else None

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what all ranks hold."""
        return all(dist.get_rank(group) == 0 for group in self._groups)

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        highest = torch.tensor(float(flag), device=self._device)
        for group in self._groups:
            dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
        return bool(highest.item())

    def mean_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor's values by the mean over all ranks.

        Differences from rank 0 are summed, so that values that are equal everywhere stay bit-equal. A float64 sum would
        do the same, but not every accelerator has float64.
        """
        mean = tensor.to(self._device, torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for group in self._groups:
            first = mean.clone()
            dist.broadcast(first, dist.get_global_rank(group, 0), group=group)
            mean -= first
            dist.all_reduce(mean, group=group)
            mean.div_(dist.get_world_size(group)).add_(first)
        return tensor.copy_(mean)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which must have one shape, in the same order everywhere."""
        # As bytes: a CPU tensor may be float64, which not every accelerator has.
        gathered = tensor.contiguous().view(torch.uint8).to(self._device).unsqueeze(0)
        for group in self._groups:
            parts = [torch.empty_like(gathered) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, gathered.contiguous(), group=group)
            gathered = torch.cat(parts)
        return list(gathered.to(tensor.device).view(tensor.dtype))


class SyncedStatistics:
    """Statistics of the norm layers of a DistributedDataParallel model, averaged over its ranks.

    Each rank measures its own batches, and the wrapper broadcasts those of rank 0 only, at the next forward pass. A
    `SyncBatchNorm` has measured all batches already.

    Attributes:
        tensors: the tensors of the model, with buffers of our own in place of such statistics; `sync` fills them.
    """

    def __init__(self, model: nn.Module, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self._buckets: list[tuple[ProcessGroups, Tensor, list[Tensor]]] = []
        for wrapper in model.modules():
            if isinstance(wrapper, DistributedDataParallel):
                self._add_buckets(wrapper)

    @classmethod
    def of(cls, model: nn.Module, tensors: Sequence[Tensor]) -> "SyncedStatistics | None":
        """Those of a model; None if it has none."""
        synced = cls(model, tensors)
        return synced if synced._buckets else None

    def _add_buckets(self, wrapper: DistributedDataParallel) -> None:
        own = [module for module in wrapper.modules() if not isinstance(module, nn.SyncBatchNorm)]
        statistics = {id(buffer) for module in own for buffer in module.buffers(recurse=False)}
        by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for index, live in enumerate(self.tensors):
            if id(live) in statistics:
                dtype = live.dtype if live.dtype == torch.float64 else torch.float32
                by_kind.setdefault((live.device, dtype), []).append(index)
        for (device, dtype), indices in by_kind.items():
            groups = ProcessGroups.among([wrapper.process_group], device)
            if groups is not None:
                lives = [self.tensors[index] for index in indices]
                bucket = torch.cat([live.detach().to(dtype).reshape(-1) for live in lives])
                self._buckets.append((groups, bucket, lives))
                views = bucket.split([live.numel() for live in lives])
                for index, live, view in zip(indices, lives, views, strict=True):
                    self.tensors[index] = view.view(live.shape)

    @torch.no_grad()
    def sync(self) -> None:
        """Average the statistics over the ranks; a collective where there are any."""
        for groups, bucket, lives in self._buckets:
            torch.cat([live.to(bucket.dtype).reshape(-1) for live in lives], out=bucket)
            groups.mean_(bucket)
