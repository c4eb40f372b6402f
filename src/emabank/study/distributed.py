"""The processes that torchrun starts to train one run together: rank, share of the work, collectives, and batch norm
over the images of all processes.

All ranks must call a collective together; a single process communicates nothing. Imports torch and numpy.
"""

import gc
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

_CPU = torch.device("cpu")
WORLD, LOCAL = "WORLD_SIZE", "LOCAL_RANK"  # set by torchrun


@dataclass(frozen=True)
class ProcessGroup:
    """This process among the `world` processes that train the same run."""

    rank: int = 0
    world: int = 1
    device: torch.device = _CPU

    @property
    def is_alone(self) -> bool:
        return self.world == 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of `count` items; the parts of all processes cover them in order."""
        least, more = divmod(count, self.world)
        low = self.rank * least + min(self.rank, more)
        return slice(low, low + least + (self.rank < more))

    def totals(self, *numbers: float) -> list[float]:
        if self.is_alone:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def from_all(self, mine: np.ndarray | None) -> np.ndarray:
        """The arrays of all processes, concatenated; a process without one passes None."""
        arrays: list[np.ndarray | None] = [mine] * self.world
        if not self.is_alone:
            dist.all_gather_object(arrays, mine)
        return np.concatenate([array for array in arrays if array is not None])

    def from_first(self, thing: Any = None) -> Any:
        """The first process's object, on every process; the others need not pass anything."""
        if self.is_alone:
            return thing
        box = [thing if self.is_first else None]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


ALONE = ProcessGroup()


def under_torchrun() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get(WORLD, "1")) > 1


@contextmanager
def join_group(device: str) -> Generator[ProcessGroup]:
    """Yield the group of processes that torchrun started; `ALONE` without torchrun.

    On accelerators, each process uses the one with its local rank.
    """
    if not under_torchrun():
        yield ALONE
        return
    place = _CPU
    if device != "cpu":
        place = torch.device(device, int(os.environ.get(LOCAL, "0")))
        torch.accelerator.set_device_index(place)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # torchrun sends it to the other ranks when one has died
    dist.init_process_group("cpu:gloo" if place.type == "cpu" else None)
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), place)
        gc.collect()  # a DistributedDataParallel that outlives its group may abort the interpreter as it exits
    finally:
        dist.destroy_process_group()


@contextmanager
def peer_loss_as_error(group: ProcessGroup) -> Generator[None]:
    """After a rank has died, replace the error of the next collective with a `ConnectionError` that says so."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "Connection"))
        if group.is_alone or not lost:
            raise
        reason = str(error).splitlines()[0][:200]
        raise ConnectionError(
            f"rank {group.rank} of {group.world} lost contact with the other ranks ({reason}); the same command "
            "resumes from the last checkpoint"
        ) from error


# Batch norm -----------------------------------------------------------------------------------------------------------


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.SyncBatchNorm` for a CPU; torch has it for accelerators only.

    Mean and variance are those of the values of all processes, as if one process held them; a process may have none.
    Inside `local_statistics`, each process normalises by its own values.
    """

    together = True

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.together:
            return super().forward(input)
        value = input.float() if input.dtype.itemsize < 4 else input
        others = [dim for dim in range(value.dim()) if dim != 1]
        shape = (1, -1, *[1] * (value.dim() - 2))
        here = value.new_tensor([value.numel() // value.shape[1]])
        sums = _total(torch.cat([value.sum(others), here]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = value - mean.view(shape)
        squares = _total(centred.square().sum(others))
        normal = centred * (squares / count + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        self._remember(mean, squares, count)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, squares: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((squares / (count - 1)).to(self.running_var.dtype), share)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch norm was given {input.dim()} dimensions; it needs [n, channels, ...]")


class _Total(torch.autograd.Function):
    """The sum over all processes; gradients are summed too, because the losses of all processes depend on it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _summed(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _summed(gradients[0])


def _total(value: Tensor) -> Tensor:
    return cast("Tensor", _Total.apply(value))


def _summed(value: Tensor) -> Tensor:
    total = value.detach().contiguous().clone()
    dist.all_reduce(total)
    return total


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """The model with its batch norms replaced by `SyncBatchNorm` over the same tensors (torch's on an accelerator)."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if isinstance(model, _BatchNorm):
        layer = SyncBatchNorm(model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats)
        layer.training = model.training
        for kind in ("_parameters", "_buffers"):
            vars(layer)[kind].update(vars(model)[kind])
        return layer
    for name, child in model.named_children():
        setattr(model, name, convert_sync_batchnorm(child))
    return model


@contextmanager
def local_statistics(model: nn.Module) -> Generator[None]:
    """Inside the context, each process normalises by its own batches, of which some may have more than others."""
    layers = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    try:
        for layer in layers:
            layer.together = False
        yield
    finally:
        for layer in layers:
            layer.together = True
