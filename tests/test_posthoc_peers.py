"""Synthesis from snapshots against EDM2's method and ema-pytorch: the same trajectory, snapshots and targets.

The peers' coefficients are computed here from the formulas of Karras et al. 2023 (arXiv 2312.02696), appendix C: power
functions in continuous time, whose products are known in closed form, and a linear system. EDM2 then divides the
coefficients by their sum; ema-pytorch does not. Run as a script, this file prints the table of docs/posthoc.md, from
other draws of the same trajectories than the tests have.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emabank import EMABank, PowerEMA
from emabank.posthoc import Snapshots, profile, synthesize, synthesize_many
from emabank.study.data.digits import digits_dataset

STEPS, SIZE = 600, 256
WIDTHS = (0.05, 0.1)  # stored
TARGETS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25)
COUNTS = (8, 15, 30, 100)  # of snapshots
FLOOR = 1e-7  # the resolution of float32: errors below it are equal


@cache
def trajectories(draw: int = 0) -> dict[str, np.ndarray]:
    """Paths of the weights, [steps + 1, size], from a random start."""
    generator = np.random.default_rng(draw)
    time = np.arange(STEPS + 1)[:, None] / STEPS
    noise = generator.normal(size=(STEPS + 1, SIZE))
    start, end = generator.normal(size=(2, 1, SIZE))
    slow_noise = noise.copy()
    for step in range(1, STEPS + 1):
        slow_noise[step] = 0.9 * slow_noise[step - 1] + math.sqrt(1 - 0.9**2) * noise[step]
    return {
        **{f"training with {name}": training_path(name, draw) for name in ("SGD, cosine", "AdamW, constant rate")},
        "random walk": start + np.cumsum(0.03 * noise, 0),
        "noise about a fixed point": start + 0.01 * noise,
        "exponential convergence": end + (start - end) * np.exp(-time / 0.05),
        "convergence, then noise": end + (start - end) * np.exp(-time / 0.02) + 0.003 * noise,
        "convergence, then slow noise": end + (start - end) * np.exp(-time / 0.03) + 0.01 * slow_noise,
        "linear ramp": start + (end - start) * time,
        "cosine rate": end + (start - end) / (1 + 20 * time) + 0.01 * (1 + np.cos(np.pi * time)) * slow_noise,
    }


def training_path(name: str, draw: int) -> np.ndarray:
    """Some weights of a small network on the digits, a fifth of them with a wrong label."""
    seed = 7 + 100 * draw
    data, generator = digits_dataset().train, torch.Generator().manual_seed(seed)
    images, labels = data.images.flatten(1) / 16, data.labels.clone()
    wrong = torch.rand(len(labels), generator=generator) < 0.2
    labels[wrong] = torch.randint(10, (int(wrong.sum()),), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    parameters = list(model.parameters())
    if name == "SGD, cosine":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    path: list[Tensor] = []
    for step in range(STEPS + 1):
        path.append(torch.cat([parameter.detach().flatten()[::19] for parameter in parameters]))
        if name == "SGD, cosine":
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / STEPS))
        batch = torch.randint(len(labels), (50,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return torch.stack(path).double().numpy()


def profile_product(time: np.ndarray, gamma: np.ndarray, other_time: np.ndarray, other_gamma: np.ndarray) -> np.ndarray:
    """The inner product of two power-function profiles (their equation 136)."""
    exponent = np.where(time < other_time, other_gamma, -gamma)
    scale = (gamma + 1) * (other_gamma + 1) / ((gamma + other_gamma + 1) * np.maximum(time, other_time))
    return scale * (time / other_time) ** exponent


def peer_coefficients(keys: list[tuple[int, float]], step: int, width: float) -> np.ndarray:
    time, gamma = np.array([(step, PowerEMA(width).gamma) for step, width in keys]).T
    matrix = profile_product(time[:, None], gamma[:, None], time, gamma)
    goal = profile_product(time, gamma, np.array(float(step)), np.array(PowerEMA(width).gamma))
    return np.linalg.solve(matrix, goal)


class Result(NamedTuple):
    trajectory: str
    dtype: str
    snapshots: int
    step: int
    width: float
    ours: float
    edm2: float
    ema_pytorch: float

    @property
    def ratio(self) -> float:
        return max(self.ours, FLOOR) / max(min(self.edm2, self.ema_pytorch), FLOOR)


def write_snapshots(path: np.ndarray, folder: Path, every: int, dtype: torch.dtype) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.from_numpy(path[0]).float())
    bank = EMABank(model, {str(width): PowerEMA(width) for width in WIDTHS}, every=1)
    snapshots = Snapshots(bank, folder, every_steps=every, dtype=dtype)
    for weights in path[1:]:
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(weights))
        bank.update()
        snapshots.update()


def compare(name: str, path: np.ndarray, dtype: torch.dtype, count: int) -> Iterator[Result]:
    """Distances from the true averages at half of the run and at its end, relative to their norm."""
    gap = STEPS // count
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_snapshots(path, folder, gap, dtype)
        for step in (STEPS // 2 // gap * gap, STEPS):
            keys = [(at, width) for at in range(gap, step + 1, gap) for width in WIDTHS]
            files = {at: torch.load(folder / f"step-{at:09d}.pt") for at, _ in keys}
            stored = [files[at]["state"]["averages"][str(width)]["tensors"]["weight"] for at, width in keys]
            averages = torch.stack(stored).double().numpy()
            syntheses = synthesize_many(folder, {str(width): PowerEMA(width) for width in TARGETS}, at_step=step)
            for width in TARGETS:
                true = profile(PowerEMA(width), step, every=1).numpy() @ path[: step + 1]
                raw = peer_coefficients(keys, step, width)
                ours = syntheses[str(width)].weights["weight"].double().numpy()
                distances = [
                    float(np.linalg.norm(weights - true) / np.linalg.norm(true))
                    for weights in (ours, raw / raw.sum() @ averages, raw @ averages)
                ]
                yield Result(name, str(dtype).removeprefix("torch."), count, step, width, *distances)


@pytest.mark.filterwarnings("ignore:At the first step the weights are")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", trajectories())
def test_synthesis_is_as_close_as_the_better_peer(name: str, dtype: torch.dtype) -> None:
    results = [result for count in COUNTS for result in compare(name, trajectories()[name], dtype, count)]
    for result in results:
        # From 100 snapshots a short window has errors of 1e-5, most of which is rounding in the stored averages.
        assert result.ratio < (1.25 if result.snapshots == 100 else 1.1), result
    # If a run is independent noise about a fixed point from its first step on, the peers' fit is the best there is.
    mean = 1.01 if name == "noise about a fixed point" else 0.7
    assert statistics.geometric_mean(result.ratio for result in results) < mean


@pytest.mark.filterwarnings("ignore:At the first step the weights are")
def test_synthesis_of_a_stored_width_is_the_stored_average(tmp_path: Path) -> None:
    write_snapshots(trajectories()["training with AdamW, constant rate"], tmp_path, 50, torch.float16)
    stored = torch.load(tmp_path / "step-000000600.pt")["state"]["averages"]
    for width in WIDTHS:
        weights = synthesize(tmp_path, PowerEMA(width)).weights["weight"]
        assert torch.equal(weights, stored[str(width)]["tensors"]["weight"].float())


def test_peer_coefficients_equal_those_of_ema_pytorch() -> None:
    solve_weights = pytest.importorskip("ema_pytorch.post_hoc_ema").solve_weights
    keys = [(at, width) for at in range(100, 601, 100) for width in WIDTHS]
    times, gammas = torch.tensor([(float(at), PowerEMA(width).gamma) for at, width in keys], dtype=torch.float64).T
    theirs = solve_weights(times, gammas, torch.tensor([600.0]), torch.tensor([PowerEMA(0.03).gamma]))
    np.testing.assert_allclose(peer_coefficients(keys, 600, 0.03), theirs[:, 0].numpy(), rtol=1e-6, atol=1e-12)


def main(draws: int = 10) -> None:
    """For every trajectory, snapshots and target, the root mean square of the errors over all draws."""
    errors: dict[tuple[str, str, int, int, float], list[tuple[float, ...]]] = defaultdict(list)
    for draw in range(1, draws + 1):
        for name, path in trajectories(draw).items():
            for dtype, count in product((torch.float32, torch.float16), COUNTS):
                for result in compare(name, path, dtype, count):
                    errors[result[:5]].append(result[5:])
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (name, dtype, *_), cases in errors.items():
        ours, edm2, ema_pytorch = np.maximum(np.sqrt(np.square(cases).mean(0)), FLOOR)
        ratios[name, dtype].append(ours / min(edm2, ema_pytorch))
    columns = [f"{dtype} snapshots, geometric mean | worst case" for dtype in ("float32", "float16")]
    print(f"| trajectory | {' | '.join(columns)} |")
    print("|---|---|---|---|---|")
    for name in trajectories():
        cells = [ratios[name, dtype] for dtype in ("float32", "float16")]
        texts = [f"{statistics.geometric_mean(cell):.2f} × | {max(cell):.2f} ×" for cell in cells]
        print(f"| {name} | {' | '.join(texts)} |")


if __name__ == "__main__":
    main()
