"""Where the time of the study's training loop goes: by what a step does, and by torch operator.

Run `python benchmarks/hotspots.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from recipes import UpdateTime, cifar_like, study_training, take_steps
from torch.profiler import ProfilerActivity, profile

from emabank.bench.interleave import Spread, spread
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import Bystanders, conditions
from emabank.bench.steps import PERIOD
from emabank.bench.tables import facts, percent, table
from emabank.study.allocation import keep_memory
from emabank.study.data.splits import Parts, make_parts
from emabank.study.train import Interrupted, Training

PHASES = ("forward", "loss and backward", "optimizer", "next batch", "averages", "rest")
WARM = 3  # steps before the first that counts


@dataclass(frozen=True)
class Hotspots:
    """What one network gave.

    Args:
        milliseconds: of a step.
        phases: the share of a step that each part of it takes, step by step.
        operators: the share of the time that torch's profiler saw in each operator itself, the largest first.
        bystanders: share of the machine that other processes took; None where the system does not say.
    """

    network: str
    steps: int
    batch: int
    milliseconds: Spread
    phases: dict[str, Spread]
    operators: dict[str, float]
    bystanders: float | None


class _Phases:
    """Hooks that mark where one part of a step ends and the next begins."""

    def __init__(self, training: Training, updates: UpdateTime) -> None:
        self.shares: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.seconds: list[float] = []
        self._updates, self._marks, self._averaged = updates, [time.perf_counter()], 0.0
        training.model.register_forward_pre_hook(self._mark)
        training.model.register_forward_hook(self._mark)
        training.optimizer.register_step_pre_hook(self._mark)
        training.optimizer.register_step_post_hook(self._mark)  # after the bank's own

    def _mark(self, *_: object) -> None:
        self._marks.append(time.perf_counter())

    def end_step(self) -> None:
        """The step is over, and the next begins."""
        self._mark()
        batch, forward, backward, optimizer, rest = (b - a for a, b in zip(self._marks, self._marks[1:], strict=False))
        averages = self._updates.seconds - self._averaged
        whole = self._marks[-1] - self._marks[0]
        parts = (forward, backward, optimizer - averages, batch, averages, rest)
        for phase, seconds in zip(PHASES, parts, strict=True):
            self.shares[phase].append(seconds / whole)
        self.seconds.append(whole)
        self._averaged, self._marks = self._updates.seconds, [time.perf_counter()]


def measure(network: str, parts: Parts, *, steps: int, batch: int) -> Hotspots:
    """Train in the study's way, once watched by hooks and once by torch's profiler, which slows it down."""
    watch, updates = Bystanders(), UpdateTime()
    with updates.watching():
        training = study_training(network, parts, every=PERIOD, batch=batch)
    take_steps(training, WARM)
    phases = _Phases(training, updates)

    def enough() -> bool:
        phases.end_step()
        return len(phases.seconds) > steps  # the first has waited for this function to be made

    with suppress(Interrupted):
        training.run(should_stop=enough)
    seen = study_training(network, parts, every=PERIOD, batch=batch)
    take_steps(seen, WARM)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        take_steps(seen, max(PERIOD, steps // 4))
    return Hotspots(
        network,
        steps,
        batch,
        spread([1e3 * seconds for seconds in phases.seconds[1:]]),
        {phase: spread(shares[1:]) for phase, shares in phases.shares.items()},
        _operators(profiled.key_averages()),
        watch.share(),
    )


def _operators(events: Any, *, most: int = 12) -> dict[str, float]:
    """The operators that themselves took most, and what all others took together."""
    own = {event.key: event.self_cpu_time_total for event in events}
    total = sum(own.values())
    first = sorted(own, key=lambda key: -own[key])[:most]
    return {key: own[key] / total for key in first} | {"all others": 1 - sum(own[key] for key in first) / total}


def text(found: Hotspots) -> str:
    """Two tables."""
    others = "an unknown share" if found.bystanders is None else f"{found.bystanders:.1%}"
    heading = (
        f"{found.network}, {found.batch} images a step, an update every {PERIOD} steps: {found.steps} steps of "
        f"{found.milliseconds.median:.1f} ms; other processes took {others} of the machine"
    )
    phases = [[phase, percent(share), f"{share.mean:.2%}"] for phase, share in found.phases.items()]
    operators = [[name, f"{share:.1%}"] for name, share in found.operators.items()]
    return "\n".join(
        [
            heading,
            table(["part of a step", "median (10–90 %)", "mean"], phases),
            "",
            table(["operator (torch.profiler)", "its own time"], operators),
        ]
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Say where the time of the study's training loop goes: by parts of a step, and by torch operator.",
        epilog="Default: ResNet-8 and ResNet-20 on one thread with random images, about two minutes.",
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=["resnet8", "resnet20"], metavar="NETWORK", help="(resnet8 resnet20)")
    add("--threads", type=int, default=1, help="of torch (1, as in the study)")
    add("--steps", type=int, default=96, help="that are timed (96)")
    add("--batch", type=int, default=128, help="images a step (128)")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/hotspots.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    torch.set_num_threads(asked.threads)
    keep_memory()  # as the study's workers do
    known = conditions()
    print(facts(known), end="\n\n", flush=True)
    parts = make_parts(cifar_like(10_000), subset=10_000)
    results = [measure(network, parts, steps=asked.steps, batch=asked.batch) for network in asked.networks]
    print("\n\n".join(map(text, results)))
    if asked.json:
        ratios = [
            Ratio(f"hotspots/{each.network}/{'-'.join(phase.split())}/of-step", share, each.steps)
            for each in results
            for phase, share in each.phases.items()
            if phase in ("next batch", "rest")
        ]
        kept = [asdict(each) for each in results]
        keep_result(asked.json, "python benchmarks/hotspots.py", known, ratios=ratios, results=kept)
        print(f"kept in {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
