"""A diffusion model of points in the plane; the length of its average is chosen after training.

`python examples/diffusion.py` takes some seconds. Averaged weights give better samples, but the best length of the
average is not known in advance. So training keeps two averages whose windows grow with the run, and snapshots of them;
afterwards any other average can be synthesized (post-hoc EMA of EDM2, Karras et al. 2023). The denoising loss on one
half of the held-out points chooses the length; the other half tests the choice.
"""

import tempfile
from itertools import pairwise

import torch
from torch import Tensor, nn

from emabank import EMABank, PowerEMA
from emabank.posthoc import Snapshots, synthesize

WIDTHS = (0.02, 0.05, 0.1, 0.15, 0.2)  # sigma_rel: the window's width as a share of the run


def points(count: int, generator: torch.Generator) -> Tensor:
    """Two interleaved spirals with a little noise."""
    turn = 3.0 * torch.pi * torch.rand(count, generator=generator).sqrt()
    side = 2.0 * torch.randint(2, (count,), generator=generator) - 1.0
    spiral = torch.stack([turn.cos(), turn.sin()], 1) * (side * turn)[:, None] / (3.0 * torch.pi)
    return spiral + 0.02 * torch.randn(count, 2, generator=generator)


class Denoiser(nn.Module):
    """Predicts clean points from noisy ones and the noise level, with EDM's scaling."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, noisy: Tensor, sigma: Tensor) -> Tensor:
        scale = (sigma**2 + 0.25).sqrt()
        inner = self.layers(torch.cat([noisy / scale, sigma.log() / 4.0], 1))
        return 0.25 / scale**2 * noisy + 0.5 * sigma / scale * inner


def sampled(model: nn.Module, count: int, levels: int = 24) -> Tensor:
    """Points generated from noise by Euler's method, always from the same noise."""
    sigmas = torch.cat([torch.logspace(0.5, -2.3, levels), torch.zeros(1)])
    x = sigmas[0] * torch.randn(count, 2, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        for sigma, following in pairwise(sigmas):
            x = x + (following - sigma) * (x - model(x, sigma.expand(count, 1))) / sigma
    return x


def energy_distance(a: Tensor, b: Tensor) -> float:
    """Zero, up to chance, if both are samples of one distribution (Szekely and Rizzo 2013)."""
    between = torch.cdist(a, b).mean()
    return float(2 * between - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


def denoising_loss(model: nn.Module, clean: Tensor, generator: torch.Generator) -> Tensor:
    sigma = (1.2 * torch.randn(len(clean), 1, generator=generator) - 1.2).exp()
    noisy = clean + sigma * torch.randn(clean.shape, generator=generator)
    weight = (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    return (weight * (model(noisy, sigma) - clean).square()).mean()


def main(seed: int = 0, *, steps: int = 3000, count: int = 2000) -> dict[str, float]:
    """Train, choose, print a table, and return the test loss of each set of weights."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    training, validation, test = (points(size, generator) for size in (4000, count, count))
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    bank = EMABank(model, [PowerEMA(0.05), PowerEMA(0.1)], every=1)
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Snapshots(bank, folder, every_steps=steps // 24)
        for _ in range(steps):
            batch = training[torch.randint(len(training), (128,), generator=generator)]
            optimizer.zero_grad()
            denoising_loss(model, batch, generator).backward()
            optimizer.step()
            bank.update()
            snapshots.update()
        weights = {"live": bank.weights("live")}
        weights |= {f"sigma_rel {width}": synthesize(folder, PowerEMA(width)).weights for width in WIDTHS}

    losses: dict[str, tuple[float, float, float]] = {}
    for name, state in weights.items():
        model.load_state_dict(state)
        with torch.no_grad():  # many draws of noise per point, the same for all weights
            on_validation, on_test = (
                float(denoising_loss(model, held_out.repeat(20, 1), torch.Generator().manual_seed(1)))
                for held_out in (validation, test)
            )
        losses[name] = on_validation, on_test, energy_distance(sampled(model, count), test)
    chosen = min(losses, key=lambda name: losses[name][0])
    chance = 1000 * energy_distance(validation, test)
    print(f"denoising loss, and energy distance x 1000 of {count} samples to test points (by chance: {chance:.1f})")
    print(f"{'weights':>14}  {'validation':>10}  {'test':>6}  distance")
    for name, (on_validation, on_test, distance) in losses.items():
        mark = "  <- chosen" if name == chosen else ""
        print(f"{name:>14}  {on_validation:10.4f}  {on_test:6.4f}  {1000 * distance:8.1f}{mark}")
    return {**{name: on_test for name, (_, on_test, _) in losses.items()}, "chosen": losses[chosen][1]}


if __name__ == "__main__":
    main()
