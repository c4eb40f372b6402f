"""How far averages that are put together afterwards are from those that were kept live, by the number of snapshots.

One training on the embedded digits a seed, with dense snapshots and all averages kept live; then fewer and fewer of the
snapshots are used. Run `python benchmarks/posthoc.py --help`; docs/posthoc.md has the table.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emabank import EMA, EMABank, PowerEMA, Uniform, recalibrate_batchnorm
from emabank.bench.machine import conditions
from emabank.posthoc import Snapshots, synthesize_many
from emabank.study.carry_out import network_of
from emabank.study.config import RunConfig
from emabank.study.data.digits import digits_dataset
from emabank.study.data.splits import Parts
from emabank.study.datasets import load_parts
from emabank.study.measures import by_split
from emabank.study.recipe import AveragesConfig, DataConfig, HardwareConfig, Recipe, TrainingConfig
from emabank.study.train import Training

SHARES = (0.5, 1, 2, 5, 10)  # half-lives in percent of the run
FEWER = (63, 42, 21, 9, 3)  # steps from one snapshot to the next, of 504: 8, 12, 24, 56 and 168 snapshots
EPOCHS = 24

Rules = dict[str, EMA | Uniform | PowerEMA]


class Found(NamedTuple):
    """One average at one stopping step, from so many snapshots."""

    rule: str
    snapshots: int
    told: float
    """The error that the synthesis tells."""
    off: float
    """The distance of its weights from those that were kept live, over their length."""
    points: float
    """The difference of the two in test accuracy, in points, both with recomputed statistics."""


def rules_of(steps: int, stop: int) -> Rules:
    """The averages that are compared in a run of so many steps that is stopped after some of them."""
    emas: Rules = {f"EMA, half-life {share:g}%": EMA(half_life=share / 100 * steps, warmup=None) for share in SHARES}
    return {**emas, "mean of the last 10%": Uniform(start=stop - steps // 10), "power, 0.15": PowerEMA(0.15)}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    keys = [key for key, tensor in other.items() if tensor.is_floating_point()]
    off = sum(float((one[key].double() - other[key].double()).square().sum()) for key in keys)
    return math.sqrt(off / sum(float(other[key].double().square().sum()) for key in keys))


def measure(seed: int, epochs: int, fewer: Sequence[int], folder: Path, dtype: torch.dtype | None) -> list[Found]:
    """All averages at half of the run and at its end, from fewer and fewer snapshots."""
    dataset = digits_dataset()
    recipe = Recipe(
        data=DataConfig(noise=0.2),
        training=TrainingConfig(network="resnet8", width=8, epochs=epochs, batch=50),
        averages=AveragesConfig(half_lives=(1.0,)),
        hardware=HardwareConfig(device="cpu"),
    )
    config = RunConfig(recipe=recipe, rate=0.4, seed=seed, trained_on="80%")
    parts = load_parts(recipe.data, dataset, "80%")
    training = Training(config, parts, network_of(config, dataset), device=torch.device("cpu"))
    steps = training.schedule.steps
    stops = (steps // 2, steps)
    rules = {f"{stop} {name}": rule for stop in stops for name, rule in rules_of(steps, stop).items()}
    live = EMABank(training.model, rules, every=1)
    powers = EMABank(training.model, [PowerEMA(0.05), PowerEMA(0.1)], every=1)
    snapshots = Snapshots(powers, folder / "all", every_steps=min(fewer), dtype=dtype)
    live.attach(training.optimizer)
    powers.attach(training.optimizer)
    training.optimizer.register_step_post_hook(lambda *_: snapshots.update() and None)
    kept: dict[str, dict[str, Tensor]] = {}

    def observe(training: Training) -> None:
        for stop in stops:
            if training.steps == stop:
                kept.update({name: live.weights(name) for name in rules if name.startswith(f"{stop} ")})

    training.run(observe=observe)
    accuracy = _accuracy_of(training, parts, network_of(config, dataset))
    of_kept = {name: accuracy(weights) for name, weights in kept.items()}
    found: list[Found] = []
    for apart in fewer:
        thin = folder / f"every-{apart}"
        thin.mkdir()
        for step in range(0, steps + 1, apart):
            os.link(folder / "all" / f"step-{step:09d}.pt", thin / f"step-{step:09d}.pt")
        for stop in stops:
            for name, made in synthesize_many(thin, rules_of(steps, stop), at_step=stop).items():
                true = f"{stop} {name}"
                off = distance(made.weights, kept[true])
                found.append(
                    Found(name, steps // apart, made.error, off, 100 * abs(accuracy(made.weights) - of_kept[true]))
                )
    return found


def _accuracy_of(
    training: Training, parts: Parts, make: Callable[[], nn.Module]
) -> Callable[[dict[str, Tensor]], float]:
    labels = by_split(parts)["test"].labels.numpy()

    def accuracy(weights: dict[str, Tensor]) -> float:
        model = training.placed(make())
        model.load_state_dict(weights)
        recalibrate_batchnorm(model.eval(), training.plain_batches("train"))
        logits = training.logits(model, {"it": None}, "test")["it"]
        return float((logits.argmax(1) == labels).mean())

    return accuracy


def table(found: Sequence[Found]) -> str:
    """The means over seeds and stopping steps, as Markdown: told error, weights off, points of accuracy off."""
    counts = sorted({each.snapshots for each in found})
    lines = [f"| average | {' | '.join(f'{count} snapshots' for count in counts)} |", "|---" * (len(counts) + 1) + "|"]
    for rule in dict.fromkeys(each.rule for each in found):
        cells: list[str] = []
        for count in counts:
            mine = [each for each in found if (each.rule, each.snapshots) == (rule, count)]
            told, off, points = (statistics.fmean(column) for column in list(zip(*mine, strict=True))[2:])
            cells.append(f"{told:.2g} / {100 * off:.2g}% / {points:.2f}")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="trainings, each about half a minute")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="an even number")
    parser.add_argument("--apart", type=int, nargs="+", default=list(FEWER), help="steps between snapshots")
    parser.add_argument("--half", action="store_true", help="store snapshots in float16")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: list[Found] = []
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            dtype = torch.float16 if given.half else None
            found += measure(seed, given.epochs, given.apart, Path(folder), dtype)
    print(table(found))
    print("told error / weights off / points of test accuracy off; means over seeds and both stopping steps")
    print({key: conditions()[key] for key in ("date", "cpu", "cores", "threads", "torch", "python")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
