"""An emulator of a dynamical system: trained on single steps, tested on long rollouts.

`python examples/rollout.py` takes some seconds. The system is that of Lorenz (1963), the standard small model of the
atmosphere. A rollout feeds an emulator its own output, so small errors add up, and the noise that the last optimizer
steps left in the weights matters; averages remove it. A forecast is useful until its error exceeds half the system's
own spread. That time is measured on unseen trajectories, with five networks that are trained together as one module.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from emabank import EMA, EMABank

HALF_LIVES = (20, 100, 500)
STEP = 0.05  # in the system's units of time; errors double about every 0.8 units


def derivative(state: Tensor) -> Tensor:
    x, y, z = state.unbind(-1)
    return torch.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z], -1)


def advanced(state: Tensor, substeps: int = 10) -> Tensor:
    """The state after STEP, by the classical Runge-Kutta method."""
    h = STEP / substeps
    for _ in range(substeps):
        k1 = derivative(state)
        k2 = derivative(state + h / 2 * k1)
        k3 = derivative(state + h / 2 * k2)
        k4 = derivative(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def trajectories(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Trajectories on the attractor, [length, count, 3], scaled to about 1."""
    state = torch.randn(count, 3, generator=generator, dtype=torch.float64) * 5.0 + torch.tensor([0.0, 0.0, 25.0])
    for _ in range(100):
        state = advanced(state)
    states = [state]
    for _ in range(length - 1):
        states.append(advanced(states[-1]))
    return ((torch.stack(states) - torch.tensor([0.0, 0.0, 23.5])) / 8.5).float()


class Emulators(nn.Module):
    """One network per seed, which adds the predicted change of a step to the state."""

    def __init__(self, seeds: Sequence[int], width: int = 64) -> None:
        super().__init__()
        sizes = (3, width, width, 3)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            normal = torch.stack([torch.randn(inputs, outputs, generator=generator) for generator in generators])
            self.weights.append(nn.Parameter(normal / math.sqrt(inputs)))
            self.biases.append(nn.Parameter(torch.zeros(len(seeds), 1, outputs)))

    def forward(self, state: Tensor) -> Tensor:
        hidden = state
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = torch.nn.functional.silu(torch.baddbmm(bias, hidden, weight))
        return state + torch.baddbmm(self.biases[-1], hidden, self.weights[-1])


def main(seeds: Sequence[int] = range(5), *, steps: int = 2000, length: int = 200) -> dict[str, Tensor]:
    """Train, print a table, and return how long forecasts are useful per seed, by average (and "live")."""
    generator = torch.Generator().manual_seed(seeds[0])
    known, unseen = trajectories(64, 200, generator), trajectories(64, length, generator)
    inputs, targets = known[:-1].reshape(-1, 3), known[1:].reshape(-1, 3)
    emulators = Emulators(seeds)
    optimizer = torch.optim.Adam(emulators.parameters(), lr=2e-3)
    bank = EMABank(emulators, {f"half-life {life}": EMA(half_life=life) for life in HALF_LIVES})
    for _ in range(steps):
        batch = torch.randint(len(inputs), (len(seeds), 128), generator=generator)
        optimizer.zero_grad()
        (emulators(inputs[batch]) - targets[batch]).square().mean((1, 2)).sum().backward()
        optimizer.step()
        bank.update()

    def useful(model: nn.Module) -> Tensor:
        state, alive = unseen[0].expand(len(seeds), -1, -1), torch.ones(len(seeds), unseen.shape[1])
        lengths = torch.zeros(len(seeds), unseen.shape[1])
        for truth in unseen[1:]:
            state = model(state)
            alive *= (state - truth).square().mean(-1).sqrt() < 0.5 * unseen.std()
            lengths += alive
        return STEP * lengths.mean(1)

    times = bank.evaluate(useful)
    print(f"time until the forecast is lost, {unseen.shape[1]} unseen trajectories, {len(seeds)} seeds")
    print(f"{'weights':>14}  {'mean':>6}  {'least':>6}  longer than live")
    for name, values in times.items():
        wins = f"{int((values > times['live']).sum())} of {len(seeds)}" if name != "live" else ""
        print(f"{name:>14}  {values.mean():6.2f}  {values.min():6.2f}  {wins}".rstrip())
    return times


if __name__ == "__main__":
    main()
