"""A physics-informed network solves a boundary-value problem: averages compared with live weights, over ten seeds.

`python examples/pinn.py` takes some seconds. The problem, u'' = f on [0, 1] with u(0) = u(1) = 0, has a known solution,
so the error is exact. New collocation points at every step leave noise in the weights. The learning rate is constant,
as in a search for a solution that nobody knows yet. The ten networks are trained together as one module, and one bank
averages them all.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from emabank import EMA, EMABank

HALF_LIVES = (20, 100, 500)


class Networks(nn.Module):
    """One network per seed, with two hidden layers; zero at both ends of the interval."""

    def __init__(self, seeds: Sequence[int], width: int = 24) -> None:
        super().__init__()
        sizes = (1, width, width, 1)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            normal = torch.stack([torch.randn(inputs, outputs, generator=generator) for generator in generators])
            uniform = torch.stack([torch.rand(1, outputs, generator=generator) for generator in generators])
            self.weights.append(nn.Parameter(normal * math.sqrt(2.0 / (inputs + outputs))))
            self.biases.append(nn.Parameter(2.0 * uniform - 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """The value of u at points of shape [seeds, points, 1]."""
        hidden = 2.0 * x - 1.0
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = torch.tanh(torch.baddbmm(bias, hidden, weight))
        return x * (1.0 - x) * torch.baddbmm(self.biases[-1], hidden, self.weights[-1])


def solution(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x) + 0.25 * torch.sin(4.0 * math.pi * x)


def second_derivative_of_solution(x: Tensor) -> Tensor:
    return -(math.pi**2) * (torch.sin(math.pi * x) + 4.0 * torch.sin(4.0 * math.pi * x))


def main(seeds: Sequence[int] = range(10), *, steps: int = 2000) -> dict[str, Tensor]:
    """Train, print a table, and return the relative errors per seed, by average (and "live")."""
    networks = Networks(seeds)
    optimizer = torch.optim.Adam(networks.parameters(), lr=3e-3)
    bank = EMABank(networks, {f"half-life {life}": EMA(half_life=life) for life in HALF_LIVES})
    generator = torch.Generator().manual_seed(seeds[0])
    for _ in range(steps):
        x = torch.rand(len(seeds), 32, 1, generator=generator).requires_grad_()
        first = torch.autograd.grad(networks(x).sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
        residual = second - second_derivative_of_solution(x.detach())
        optimizer.zero_grad()
        residual.square().mean((1, 2)).sum().backward()  # the networks share no weight, so neither do their gradients
        optimizer.step()
        bank.update()

    grid = torch.linspace(0.0, 1.0, 401).view(1, -1, 1).expand(len(seeds), -1, -1)

    def error(model: nn.Module) -> Tensor:
        difference = (model(grid) - solution(grid)).square().mean((1, 2)).sqrt()
        return difference / solution(grid).square().mean((1, 2)).sqrt()

    errors = bank.evaluate(error)
    print(f"relative error of u after {steps} steps, {len(seeds)} seeds")
    print(f"{'weights':>14}  {'mean':>8}  {'worst':>8}  better than live")
    for name, values in errors.items():
        wins = f"{int((values < errors['live']).sum())} of {len(seeds)}" if name != "live" else ""
        print(f"{name:>14}  {values.mean():8.5f}  {values.max():8.5f}  {wins}".rstrip())
    return errors


if __name__ == "__main__":
    main()
