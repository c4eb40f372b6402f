"""How far averages synthesized after training are from averages kept during it, by the number of snapshots.

Each seed trains once on the embedded digits, with dense snapshots and all averages kept live. The averages are then
synthesized from fewer and fewer snapshots. Run `python benchmarks/posthoc.py --help`; docs/posthoc.md has the table.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from emabank import EMA, EMABank, PowerEMA, Uniform
from emabank.posthoc import Snapshots, synthesize_many
from emabank.study.bench import conditions
from emabank.study.config import AveragesConfig, DataConfig, HardwareConfig, Recipe, RunConfig, TrainingConfig
from emabank.study.data.digits import digits_dataset
from emabank.study.data.splits import make_parts
from emabank.study.evaluate import by_split
from emabank.study.run_job import network_of
from emabank.study.train import Training

SHARES = (0.5, 1, 2, 5, 10)  # half-lives in percent of the run
GAPS = (63, 42, 21, 9, 3)  # steps between snapshots: 8, 12, 24, 56 and 168 snapshots of a run of 504 steps
EPOCHS = 24

Rules = dict[str, EMA | Uniform | PowerEMA]


class Result(NamedTuple):
    """One average at one stopping step, synthesized after training.

    Args:
        snapshots: number of snapshots of the whole run.
        error: the error that the synthesis reports.
        distance: of its weights from the average kept live, relative to the norm of that one.
        points: difference in test accuracy between the two, in points, both with recomputed statistics.
    """

    rule: str
    snapshots: int
    error: float
    distance: float
    points: float


def rules_of(steps: int, stop: int) -> Rules:
    """The averages of a run of `steps` steps that is stopped after `stop`."""
    emas: Rules = {f"EMA, half-life {share:g}%": EMA(half_life=share / 100 * steps, warmup=None) for share in SHARES}
    return {**emas, "mean of the last 10%": Uniform(start=stop - steps // 10), "power, 0.15": PowerEMA(0.15)}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The distance of two sets of weights, relative to the norm of `other`."""
    keys = [key for key, tensor in other.items() if tensor.is_floating_point()]
    off = sum(float((one[key].double() - other[key].double()).square().sum()) for key in keys)
    return math.sqrt(off / sum(float(other[key].double().square().sum()) for key in keys))


def measure(seed: int, epochs: int, gaps: Sequence[int], folder: Path, dtype: torch.dtype | None) -> list[Result]:
    """All averages halfway through the run and at its end, synthesized from fewer and fewer snapshots."""
    dataset = digits_dataset()
    recipe = Recipe(
        data=DataConfig(noise=0.2),
        training=TrainingConfig(network="resnet8", width=8, epochs=epochs, batch=50),
        averages=AveragesConfig(half_lives=(1.0,)),
        hardware=HardwareConfig(device="cpu"),
    )
    config = RunConfig(recipe=recipe, rate=0.4, seed=seed, trained_on="80%")
    parts = make_parts(recipe.data, dataset, "80%")
    training = Training(config, parts, network_of(config, dataset), device=torch.device("cpu"))
    steps = training.schedule.steps
    stops = (steps // 2, steps)
    rules = {f"{stop} {name}": rule for stop in stops for name, rule in rules_of(steps, stop).items()}
    live = EMABank(training.model, rules, every=1)
    powers = EMABank(training.model, [PowerEMA(0.05), PowerEMA(0.1)], every=1)
    snapshots = Snapshots(powers, folder / "all", every_steps=min(gaps), dtype=dtype)
    live.attach(training.optimizer)
    powers.attach(training.optimizer)
    training.optimizer.register_step_post_hook(lambda *_: snapshots.update() and None)
    live_weights: dict[str, dict[str, Tensor]] = {}

    def observe(training: Training) -> None:
        for stop in stops:
            if training.steps == stop:
                live_weights.update({name: live.weights(name) for name in rules if name.startswith(f"{stop} ")})

    training.run(observe=observe)
    labels = by_split(parts)["test"].labels.numpy()

    def accuracy(weights: dict[str, Tensor]) -> float:
        model = training.module(network_of(config, dataset), weights, recompute=True)
        logits = training.logits(model, {"it": None}, "test")["it"]
        return float((logits.argmax(1) == labels).mean())

    live_accuracy = {name: accuracy(weights) for name, weights in live_weights.items()}
    results: list[Result] = []
    for gap in gaps:
        thin = folder / f"every-{gap}"
        thin.mkdir()
        for step in range(0, steps + 1, gap):
            os.link(folder / "all" / f"step-{step:09d}.pt", thin / f"step-{step:09d}.pt")
        for stop in stops:
            for name, made in synthesize_many(thin, rules_of(steps, stop), at_step=stop).items():
                true = f"{stop} {name}"
                off = distance(made.weights, live_weights[true])
                results.append(
                    Result(name, steps // gap, made.error, off, 100 * abs(accuracy(made.weights) - live_accuracy[true]))
                )
    return results


def table(results: Sequence[Result]) -> str:
    """Means over seeds and stopping steps, as Markdown: reported error / distance of weights / points of accuracy."""
    counts = sorted({result.snapshots for result in results})
    lines = [f"| average | {' | '.join(f'{count} snapshots' for count in counts)} |", "|---" * (len(counts) + 1) + "|"]
    for rule in dict.fromkeys(result.rule for result in results):
        cells: list[str] = []
        for count in counts:
            own = [result for result in results if (result.rule, result.snapshots) == (rule, count)]
            error, distance, points = (statistics.fmean(column) for column in list(zip(*own, strict=True))[2:])
            cells.append(f"{error:.2g} / {100 * distance:.2g}% / {points:.2f}")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number of trainings, half a minute each (%(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="an even number (%(default)s)")
    parser.add_argument("--apart", type=int, nargs="+", default=list(GAPS), help="steps between snapshots")
    parser.add_argument("--half", action="store_true", help="store snapshots in float16")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    results: list[Result] = []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            dtype = torch.float16 if arguments.half else None
            results += measure(seed, arguments.epochs, arguments.apart, Path(folder), dtype)
    print(table(results))
    print("reported error / distance of weights / points of test accuracy; means over seeds and both stopping steps")
    print({key: conditions()[key] for key in ("date", "cpu", "cores", "threads", "torch", "python")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
