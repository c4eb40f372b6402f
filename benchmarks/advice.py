"""How often `advice()` calls a gain clear: without a true gain (at most 5 % of cases), and with one of a point.

Run `python benchmarks/advice.py --help`; docs/how.md shows its table, and says what is simulated.
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
NOISE = 0.4  # of what training changes in a sample's margin from epoch to epoch, over what samples differ in difficulty
MEMORY = 0.9  # correlation of that noise from one epoch to the next
DECAYS = (0.97, 0.93, 0.85, 0.7, 0.5)  # per epoch; one average is the slowest
BURN_IN = 150  # epochs, after which the averages are stationary
NAMES = ("live", *(f"average {number}" for number, _ in enumerate(DECAYS)))


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Args:
        samples: of the validation set.
        averages: to choose among, with the epochs.
        gain: the true accuracy of every average over that of the live weights of the same epoch.
        metric: what is chosen by.
        curves: flat; rising as in a training run, by 10 points, most of it in the first third; or one live, where the
            live weights reach their level at the last epoch only and the averages have it all the time: the worst case,
            for it leaves all of the choice to the averages.
        candidates: averages of the live weights, alike as these are; or independent of them and of one another.
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
    """How often a gain was called clear: by per-sample values, by `samples=` (None for a loss), and by a paired test of
    the slowest average against the live weights, both at the last epoch, which chooses nothing.

    Without a true gain wrong calls count: the chosen average is truly no better than the live weights at their epoch.
    (With rising curves it may be the better one by its epoch.) With a true gain right ones do.
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
    """The weights of independent noise in that of the live weights and of each average, epoch by epoch, all of variance
    one: [averages + 1, epochs, epochs with those before].
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
    """[averages + 1, epochs], in the population."""
    accuracies = torch.full((case.averages + 1, case.epochs), ACCURACY)
    if case.curves == "rising":
        accuracies -= 0.1 * torch.exp(-torch.arange(1, case.epochs + 1) / (case.epochs / 6.0))
    elif case.curves == "one live":
        accuracies[0, :-1] -= 0.1
    accuracies[1:] += case.gain
    return accuracies


def simulate(case: Case, noise: Tensor, generator: torch.Generator) -> Tensor:
    """The metric of each sample: [averages + 1, epochs, samples], the live weights first.

    A sample is right where its margin is above zero: how easy it is, how good the weights are, and noise. The noise has
    the same distribution in all weights, so that their true accuracies are those of `true_accuracies` and no others.
    """
    if case.candidates == "independent":
        noisy = torch.randn(*noise.shape[:2], case.samples, generator=generator)
    else:
        noisy = noise @ torch.randn(noise.shape[2], case.samples, generator=generator)
    normal = torch.special.ndtri(true_accuracies(case).double()).float() * math.sqrt(1.0 + NOISE**2)
    margins = normal[:, :, None] + torch.randn(case.samples, generator=generator) + NOISE * noisy
    return (margins > 0.0).float() if case.metric == "accuracy" else F.softplus(-2.0 * margins)


def measure(case: Case, repeats: int, seed: int) -> Result:
    """Simulate a case this many times, and count."""
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
            continue  # not clear if nothing else had been looked at, so not clear: the bootstrap can be left out
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
