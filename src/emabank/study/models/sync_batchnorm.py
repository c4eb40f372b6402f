"""Batch norm over the images of all ranks, on a CPU as well. Imports torch alone."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.SyncBatchNorm` for a CPU; torch has it for accelerators only.

    Mean and variance are those of all processes' values, as if one process had them; a process may have none. Inside
    `local_statistics` a process normalises by its own values.
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
    """The sum over all processes; so is its gradient, because the losses of all depend on it."""

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
    """The model with such layers in the place of its batch norms, which share their tensors; on an accelerator they are
    torch's own.
    """
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
    """Every process normalises by its own batches, of which some may have more than others, inside the context."""
    layers = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    try:
        for layer in layers:
            layer.together = False
        yield
    finally:
        for layer in layers:
            layer.together = True
