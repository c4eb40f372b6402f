"""How often `advice()` calls a gain clear: without a true gain (at most 5 % are allowed), and with a gain of a point.

Run `python benchmarks/advice.py --help`; docs/how.md has the table and describes the simulation.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from emabank._paired import paired_test
from emabank.advice import LEVEL, advise, critical_value
from emabank.study.bench import conditions, write_json

ACCURACY = 0.9  # of the live weights, at the end
NOISE = 0.4  # standard deviation of the noise in a sample's margin, relative to that of the samples' difficulty
MEMORY = 0.9  # correlation of that noise from one epoch to the next
DECAYS = (0.97, 0.93, 0.85, 0.7, 0.5)  # per epoch; a case with one average has the slowest
BURN_IN = 150  # epochs, after which the averages are stationary
NAMES = ("live", *(f"average {number}" for number, _ in enumerate(DECAYS)))


@dataclass(frozen=True)
class Case:
    """One simulated validation history.

    Args:
        samples: number of validation samples.
        averages: number of averages. The choice is among all averages and epochs.
        gain: the true accuracy of every average minus that of the live weights of the same epoch ("one live": of the
            last epoch).
        metric: the metric to choose by.
        curves: "flat"; "rising" by 10 points as in a training run, most of it in the first third; or "one live": the
            live weights reach their level only at the last epoch, the averages have it from the start. That is the
            worst case: a choice among many averages, but only one candidate of the live weights.
        candidates: "alike", as real averages of the live weights are; or "independent" of them and of each other.
    """

    samples: int
    averages: int
    gain: float = 0.0
    metric: Literal["accuracy", "loss"] = "accuracy"
    curves: Literal["flat", "rising", "one live"] = "flat"
    candidates: Literal["alike", "independent"] = "alike"
    epochs: int = 30


@dataclass(frozen=True)
class Result:
    """How often a gain was called clear.

    Without a true gain, only wrong calls count: the chosen average is truly no better than the best live weights.
    (With rising curves, its later epoch may make it truly better.) With a true gain, only right calls count.

    Args:
        paired: by per-sample values.
        unpaired: by `samples=`; None for a loss.
        chosen_before: by a paired test of the slowest average against the live weights, both at the last epoch, so
            that nothing is chosen.
    """

    case: Case
    repeats: int
    paired: float
    unpaired: float | None
    chosen_before: float


NO_GAIN = (
    Case(1_000, 1, epochs=1),
    *(Case(samples, averages) for samples in (500, 1_000, 10_000) for averages in (1, 5)),
    Case(1_000, 5, curves="rising"),
    Case(1_000, 5, candidates="independent"),
    Case(1_000, 5, curves="one live"),
    Case(1_000, 5, curves="one live", candidates="independent"),
    *(Case(1_000, averages, metric="loss") for averages in (1, 5)),
    Case(1_000, 5, metric="loss", curves="one live", candidates="independent"),
    Case(100, 5, curves="one live", candidates="independent"),
)
GAIN = (
    *(Case(1_000, averages, 0.01, curves=curves) for curves in ("flat", "rising") for averages in (1, 5)),
    Case(1_000, 5, 0.01, curves="one live"),
    Case(3_000, 5, 0.01, curves="rising"),
    Case(10_000, 5, 0.01, curves="rising"),
    Case(1_000, 5, 0.01, curves="rising", metric="loss"),
)


def noise_map(case: Case) -> Tensor:
    """Maps independent noise to the noise of the live weights and of each average at every epoch, with variance one.

    Shape [averages + 1, epochs, BURN_IN + epochs].
    """
    steps = BURN_IN + case.epochs
    live = torch.zeros(steps, steps)
    for step in range(steps):
        live[step] = MEMORY * live[step - 1] if step else 0.0
        live[step, step] = math.sqrt(1.0 - MEMORY**2) if step else 1.0
    maps = [live]
    for decay in DECAYS[: case.averages]:
        average = live.clone()
        for step in range(1, steps):
            average[step] = decay * average[step - 1] + (1.0 - decay) * live[step]
        maps.append(average)
    last = torch.stack(maps)[:, BURN_IN:]
    return last / last.norm(dim=2, keepdim=True)


def true_accuracies(case: Case) -> Tensor:
    """The accuracies in the population: [averages + 1, epochs], the live weights first."""
    accuracies = torch.full((case.averages + 1, case.epochs), ACCURACY)
    if case.curves == "rising":
        accuracies -= 0.1 * torch.exp(-torch.arange(1, case.epochs + 1) / (case.epochs / 6.0))
    elif case.curves == "one live":
        accuracies[0, :-1] -= 0.1
    accuracies[1:] += case.gain
    return accuracies


def simulate(case: Case, noise: Tensor, generator: torch.Generator) -> Tensor:
    """The metric of each sample: [averages + 1, epochs, samples], the live weights first.

    A sample is classified correctly if its margin is above zero. The margin is the sum of how good the weights are, how
    easy the sample is, and noise. The noise of all weights has the same distribution, so their true accuracies are
    exactly `true_accuracies`.
    """
    if case.candidates == "independent":
        noisy = torch.randn(*noise.shape[:2], case.samples, generator=generator)
    else:
        noisy = noise @ torch.randn(noise.shape[2], case.samples, generator=generator)
    normal = torch.special.ndtri(true_accuracies(case).double()).float() * math.sqrt(1.0 + NOISE**2)
    margins = normal[:, :, None] + torch.randn(case.samples, generator=generator) + NOISE * noisy
    return (margins > 0.0).float() if case.metric == "accuracy" else F.softplus(-2.0 * margins)


def measure(case: Case, repeats: int, seed: int) -> Result:
    """Simulate a case `repeats` times, and count how often a gain is called clear."""
    generator, noise, truth = torch.Generator().manual_seed(seed), noise_map(case), true_accuracies(case)
    better: Literal["max", "min"] = "max" if case.metric == "accuracy" else "min"
    sign = 1.0 if better == "max" else -1.0
    paired = unpaired = chosen_before = 0
    for _ in range(repeats):
        values = simulate(case, noise, generator)
        means = values.double().mean(2)
        curves = {name: dict(enumerate(curve)) for name, curve in zip(NAMES, means.tolist(), strict=False)}
        chosen_before += _t(sign * (values[1, -1] - values[0, -1])) > critical_value()
        live, chosen = int((sign * means[0]).argmax()), int((sign * means[1:]).argmax())
        if bool(truth[1:].flatten()[chosen] > truth[0, live]) != (case.gain > 0.0):
            continue
        if better == "max":
            unpaired += advise(curves, criterion="m", better=better, samples=case.samples).is_clear
        candidates = values[1:].flatten(0, 1)
        if _t(sign * (candidates[chosen] - values[0, live])) <= critical_value():
            continue  # not clear even if nothing had been chosen, so the bootstrap is not needed
        tested = paired_test(list(candidates), values[0, live], chosen=chosen, better=better, level=LEVEL)
        assert tested is not None, "there are enough samples"
        error, critical = tested
        paired += advise(curves, criterion="m", better=better, error=error, critical=critical).is_clear
    return Result(
        case, repeats, paired / repeats, unpaired / repeats if better == "max" else None, chosen_before / repeats
    )


def _t(differences: Tensor) -> float:
    return float(differences.mean() / differences.std()) * math.sqrt(len(differences))


HEADER = (
    "true gain", "metric", "curves", "candidates", "samples", "averages", "epochs", "repeats",
    "per-sample", "`samples=`", "chosen before",
)  # fmt: skip


def table_row(result: Result) -> list[str]:
    case = result.case
    rates = (result.paired, result.unpaired, result.chosen_before)
    return [
        f"{100.0 * case.gain:.0f} point" if case.gain else "none", case.metric, case.curves, case.candidates,
        f"{case.samples:,}", str(case.averages), str(case.epochs), f"{result.repeats:,}",
        *("–" if rate is None else f"{100.0 * rate:.1f} %" for rate in rates),
    ]  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2_000, help="of each case (2000); a fifth above 1,000 samples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep everything in this file")
    arguments = parser.parse_args(words)
    results: list[Result] = []
    for row in (HEADER, ["---"] * len(HEADER)):
        print(f"| {' | '.join(row)} |")
    for case in (*NO_GAIN, *GAIN):
        repeats = arguments.repeats if case.samples <= 1_000 else max(1, arguments.repeats // 5)
        results.append(measure(case, repeats, seed=0))
        print(f"| {' | '.join(table_row(results[-1]))} |", flush=True)
    if arguments.json:
        kept = [asdict(result) for result in results]
        known = {"command": "python benchmarks/advice.py", "conditions": conditions()}
        write_json(arguments.json, {**known, "results": kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
