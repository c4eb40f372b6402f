"""For the tests of integrations: small data and networks, averages and metrics computed by hand."""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


def data(count: int, seed: int) -> TensorDataset:
    """Points of three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, (inputs @ torch.arange(12.0).reshape(4, 3).sin()).argmax(1))


def network(*, norm: bool = True, dropout: float = 0.0) -> nn.Sequential:
    """The same at each call."""
    torch.manual_seed(5)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Dropout(dropout), nn.Linear(6, 3)]
    return nn.Sequential(*layers)


def ema(first: Tensor, samples: Iterable[Tensor], decay: float) -> Tensor:
    """An exponential moving average in float64, without a warm-up."""
    average = first.double()
    for sample in samples:
        average = decay * average + (1 - decay) * sample.double()
    return average


def accuracy_and_loss(model: nn.Module, tensors: Sequence[Tensor]) -> tuple[float, float]:
    """Over all data at once, in eval mode."""
    inputs, targets = tensors
    with torch.no_grad():
        logits = model.eval()(inputs)
    return (logits.argmax(1) == targets).float().mean().item(), cross_entropy(logits, targets).item()


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
