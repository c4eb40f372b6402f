"""A small network with batch norm, its bank, and its statistics by definition: the oracle of recalibration."""

import copy

import torch
from torch import Tensor, nn

from emabank import EMA, EMABank


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))


def images(n: int = 23, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def trained_bank(model: nn.Module, averages=(0.5, 0.9), steps: int = 4) -> EMABank:
    bank = EMABank(model, [EMA(d, warmup=None) for d in averages], every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        model(images(8, seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()
    return bank


def pooled(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """The statistics by definition, in float64: each batch goes through with its own, all inputs are kept, and mean and
    unbiased variance are taken over all of them.
    """
    model = copy.deepcopy(model).double().eval()
    heap: dict[str, list[Tensor]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
            layer.register_forward_hook(lambda m, args, out, n=name: heap.setdefault(n, []).append(args[0]))
    with torch.no_grad():
        for batch in batches:
            model(batch.double())
    statistics = {}
    for name, inputs in heap.items():
        values = torch.cat([x.transpose(0, 1).flatten(1) for x in inputs], dim=1)
        statistics[f"{name}.running_mean"], statistics[f"{name}.running_var"] = values.mean(1), values.var(1)
    return statistics


def assert_statistics(state: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for key, value in want.items():
        torch.testing.assert_close(state[key].double(), value, rtol=2e-5, atol=1e-6)
