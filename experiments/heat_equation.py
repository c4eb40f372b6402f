"""Weight averages in a field without data sets: the heat equation in ten dimensions.

The equation is ∂u/∂t = Δu with u(0, x) = |x|². Because Δ|x|² = 2d, its solution is u(t, x) = |x|² + 2dt. The deep
Kolmogorov method (Beck, Becker, Grohs, Jaafari and Jentzen 2021, "Solving the Kolmogorov PDE by means of deep
learning", J. Sci. Comput. 88) learns x ↦ u(T, x) on the unit cube by regression: u(T, x) is the mean of |x + √(2T) Z|²
over normal Z, so every step draws new points and new noise. At a constant learning rate, noise of that size keeps the
live weights moving. An average does not move with them.

`python experiments/heat_equation.py` trains one network per seed (seconds each) and resumes where it was killed.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python experiments/heat_equation.py`

from emabank import EMABank
from experiments.record import Record, interval_text, log, parse_options, run_command

DIMENSIONS = 10
TIME = 1.0
WIDTH = 64
BATCH = 256
POINTS = 10_000  # to measure errors on; the same points for all seeds
PRIMARY = "ema-7.1%"  # chosen on seeds 900 to 909


def initial(points: Tensor) -> Tensor:
    return points.square().sum(1)


def solution(points: Tensor) -> Tensor:
    """u(T, x)."""
    return initial(points) + 2 * DIMENSIONS * TIME


def relative_error(values: Tensor, points: Tensor) -> float:
    """The L2 distance from the solution over the L2 norm of the solution, on these points."""
    truth = solution(points)
    return float(torch.linalg.vector_norm(values - truth) / torch.linalg.vector_norm(truth))


def evaluation_points() -> Tensor:
    return torch.rand(POINTS, DIMENSIONS, generator=torch.Generator().manual_seed(0))


def train(seed: int, *, steps: int, rate: float) -> dict[str, float]:
    """The relative errors of the live weights and of every average after training."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(DIMENSIONS, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    bank = EMABank(model, steps=steps)
    for _ in range(steps):
        points = torch.rand(BATCH, DIMENSIONS)
        noise = math.sqrt(2 * TIME) * torch.randn(BATCH, DIMENSIONS)
        (model(points) - initial(points + noise)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()
    points = evaluation_points()
    return bank.evaluate(lambda model: relative_error(model(points), points))


def summary(rows: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    """Markdown: the primary statistic, then every average."""
    live = [row["errors"]["live"] for row in rows]
    points = evaluation_points()
    constant = relative_error(solution(points).mean().expand(POINTS), points)
    lines = [
        "# The heat equation in ten dimensions",
        "",
        f"Relative L2 error in percent, {len(rows)} seeds, {settings['steps']:,} steps of Adam at rate "
        f"{settings['rate']:g}. The best constant has {100 * constant:.2f}.",
        "",
        "| weights | error: mean [95 % t-interval] | error of the live weights − this one | smaller in |",
        "|---|---|---|---|",
    ]
    for name in rows[0]["errors"]:
        errors = [row["errors"][name] for row in rows]
        gains = [100 * (one - other) for one, other in zip(live, errors, strict=True)]
        cells = [interval_text([100 * error for error in errors], digits=2)]
        if name != "live":
            cells += [interval_text(gains, digits=2), f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds"]
        else:
            cells += ["", ""]
        lines.append(f"| {name}{' (primary)' if name == PRIMARY else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]["errors"])
    axes = figure.add_subplot()
    for row in rows:
        axes.plot(names, [100 * row["errors"][name] for name in names], color="#7b2f9a", alpha=0.3, linewidth=0.8)
    means = [100 * sum(row["errors"][name] for row in rows) / len(rows) for name in names]
    axes.plot(names, means, color="#2b1b6b", linewidth=2.5, marker="o")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("relative L2 error, %")
    axes.set_title(f"Heat equation: {len(rows)} seeds (thin) and their mean; half-life as a share of the run")


def main() -> None:
    options = parse_options(__doc__, seeds="10-29", steps=3000, rate=1e-3, out="results/heat_equation")
    settings = {"steps": options.steps, "rate": options.rate, "batch": BATCH, "width": WIDTH, "dimensions": DIMENSIONS}
    record = Record(options.out, settings)
    for seed in options.seeds:
        if any(row["seed"] == seed for row in record.rows()):
            continue
        start = time.process_time()
        errors = train(seed, steps=options.steps, rate=options.rate)
        record.append({"seed": seed, "errors": errors, "core_seconds": round(time.process_time() - start, 1)})
        log(f"seed {seed}: live {100 * errors['live']:.2f} %, {PRIMARY} {100 * errors[PRIMARY]:.2f} %")
    rows = sorted(record.rows(), key=lambda row: row["seed"])
    record.write("summary.md", summary(rows, settings))
    record.draw("errors.svg", lambda figure: draw(figure, rows), size=(8, 4))
    print(summary(rows, settings))


if __name__ == "__main__":
    run_command(main)
