"""`AveragedModel` and `update_bn` in place of torch.optim.swa_utils; the other names are torch's own."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, get_ema_avg_fn, get_ema_multi_avg_fn, get_swa_avg_fn, get_swa_multi_avg_fn

from emabank.batchnorm import recalibrate_batchnorm
from emabank.compat._shared import OnNonfinite, Pair, copy_, is_skipped, lerp_, pair_modules

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

AverageFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
MultiAverageFunction = Callable[[list[Tensor], list[Tensor], Tensor], Any]


class AveragedModel(nn.Module):
    """torch's `AveragedModel`: `module` is a copy of the model whose parameters are averages.

    The first `update_parameters` copies. Without a function, later ones take the mean of all models so far. Buffers are
    copied, or with `use_buffers` averaged like parameters; integers are copied in any case.

    Args:
        model: the live model.
        device: where the average is kept. None means where the model is.
        avg_fn: `avg_fn(average, live, n_averaged)` returns the new average of one tensor.
        multi_avg_fn: `multi_avg_fn(averages, lives, n_averaged)` changes the averages of one device and dtype in place.
        use_buffers: whether buffers are averaged too.
        on_nonfinite: what to do when live weights hold NaN or inf. "ignore" averages them, as torch does; "raise"
            raises a FloatingPointError before anything moves; "skip" skips this update.

    Attributes:
        module: the average, a module like the live model.
        n_averaged: how many models are in the average, as a buffer. 0 makes the next update copy.

    >>> from torch.optim.swa_utils import get_ema_multi_avg_fn
    >>> model = nn.Linear(2, 1)
    >>> averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    >>> averaged.update_parameters(model)
    >>> averaged.n_averaged, torch.equal(averaged.module.weight, model.weight)
    (tensor(1), True)
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: nn.Module,
        device: int | str | torch.device | None = None,
        avg_fn: AverageFunction | None = None,
        multi_avg_fn: MultiAverageFunction | None = None,
        use_buffers: bool = False,
        *,
        on_nonfinite: OnNonfinite = "ignore",
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("avg_fn must be None if multi_avg_fn is set; got both.")
        self.module = deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", torch.tensor(0, dtype=torch.long, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        self.on_nonfinite: OnNonfinite = on_nonfinite

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the average."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: nn.Module) -> None:
        """Take the weights of the live model into the average."""
        if is_skipped(model.named_parameters(), self.on_nonfinite):
            return
        is_first = bool(self.n_averaged == 0)
        averaged: list[Pair] = []
        copied: list[Pair] = []
        for pair in pair_modules(self.module, model):
            is_averaged = pair.is_averaged and (pair.is_parameter or self.use_buffers)
            (averaged if is_averaged and not is_first else copied).append(pair)
        self._average(averaged)
        copy_(copied)
        self.n_averaged += 1

    def _average(self, pairs: list[Pair]) -> None:
        if self.avg_fn is None and self.multi_avg_fn is None:
            lerp_(pairs, 1.0 / (int(self.n_averaged) + 1))
        elif self.avg_fn is not None:
            for _, average, live, _ in pairs:
                device = average.device
                average.copy_(self.avg_fn(average, live.to(device), self.n_averaged.to(device)))
        elif self.multi_avg_fn is not None:
            groups: dict[tuple[torch.device, torch.dtype], list[Pair]] = {}
            for pair in pairs:
                groups.setdefault((pair.average.device, pair.average.dtype), []).append(pair)
            for (device, dtype), group in groups.items():
                lives = [pair.live.to(device, dtype) for pair in group]
                self.multi_avg_fn([pair.average for pair in group], lives, self.n_averaged.to(device))


def update_bn(loader: Iterable[Any], model: nn.Module, device: int | str | torch.device | None = None) -> None:
    """Measure batch-norm statistics, as torch's `update_bn`, but exact over all samples and without side effects.

    Args:
        loader: batches of training data; of a tuple or list, the first is the input.
        model: the module whose batch-norm statistics are replaced.
        device: not needed: batches are moved to the model's device.

    >>> averaged = AveragedModel(nn.BatchNorm1d(2))
    >>> update_bn([torch.tensor([[1.0, 2.0], [3.0, 4.0]])], averaged)
    >>> averaged.module.running_mean
    tensor([2., 3.])
    """
    # The wrapper keeps its own mode: by it, all layers of a module in eval mode would look frozen.
    model = model.module if isinstance(model, AveragedModel) else model
    recalibrate_batchnorm(
        model, loader, forward=lambda model, batch: model(batch[0] if isinstance(batch, list | tuple) else batch)
    )
