"""What averages cost of a training step, timed in place after real steps: emabank and its peers in one interleaved run.

Run `python benchmarks/overhead.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import wheels
from goals import judge_steps

from emabank.bench import peers, zoo
from emabank.bench.cases import Verdict
from emabank.bench.command import ratios_of
from emabank.bench.kept import Among, keep_result
from emabank.bench.machine import conditions
from emabank.bench.steps import Steps, measure_steps, steps_table
from emabank.bench.tables import facts

CASES = [("resnet20", 5), ("resnet18", 5), ("gpt124m", 1), ("gpt124m", 5)]


def case(text: str) -> tuple[str, int]:
    """`resnet20:5` is ResNet-20 with five averages."""
    name, _, averages = text.partition(":")
    if name not in zoo.names() or not averages.isdecimal() or int(averages) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no case; give MODEL:AVERAGES such as resnet20:5, with a model of {', '.join(zoo.names())}"
        )
    return name, int(averages)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    default = " ".join(f"{name}:{averages}" for name, averages in CASES)
    parser = argparse.ArgumentParser(
        description="Time the update of all averages right after a real training step, and the step.",
        epilog="Default: four cases, about twenty minutes on two cores, most of it steps of the 124M-parameter "
        "transformer. Rounds that other processes disturb are not counted.",
    )
    add = parser.add_argument
    add("--cases", nargs="+", type=case, default=CASES, metavar="MODEL:M", help=f"(default: {default})")
    add("--seconds", type=float, default=60, help="for each case; at least 15 rounds are made (60)")
    add("--only", nargs="+", metavar="TEXT", help="only peers whose name contains one of these")
    add("--wheels", type=Path, default=wheels.default_folder(), metavar="DIR",
        help="holds the wheels of timm and diffusers; downloaded into it when missing (%(default)s)")  # fmt: skip
    add("--threads", type=int, help="torch threads (default: torch's own choice)")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/overhead.json")
    add("--add", action="store_true", help="what FILE holds of other cases stays in it")
    add("--check", action="store_true", help="exit with 1 when a goal is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    chosen = wheels.chosen_peers(asked.wheels, asked.only)
    known = conditions() | {"versions": peers.versions(wheels.versions_in(asked.wheels))}
    print(facts(known), end="\n\n", flush=True)
    results: list[Steps] = []
    judged: list[Verdict] = []
    for name, averages in asked.cases:
        results.append(measure_steps(name, averages, chosen, seconds=asked.seconds))
        judged += judge_steps(results[-1])
        print(steps_table(results[-1]), end="\n\n", flush=True)
    print("\n".join(map(str, judged)) or "no goal is set for these cases")
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/overhead.py",
            known,
            ratios=ratios_of([], results),
            verdicts=judged,
            among=Among("results", ("case.model", "case.averages")) if asked.add else None,
            results=[asdict(result) for result in results],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
