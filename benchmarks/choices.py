"""How a network is trained fastest on this machine: memory order, fused optimizer, compilation, threads.

The study's own training in each way, interleaved. What `--device auto` chooses (recipe.py, HardwareConfig) comes from
here. Run `python benchmarks/choices.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from goals import TIE
from recipes import cifar_like, study_training, take_steps

from emabank.bench.cases import Case, Verdict
from emabank.bench.interleave import Contestant, Spread, paired_ratio, run_interleaved, spread
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import conditions
from emabank.bench.tables import facts, number, surroundings, table, with_spread
from emabank.bench.update import progress
from emabank.bench.zoo import averaged_tensors
from emabank.study.data.splits import Parts, make_parts
from emabank.study.models.known import KNOWN_NETWORKS
from emabank.study.recipe import HardwareConfig

BATCH, EVERY = 128, 16
IMAGES = 1280


@dataclass(frozen=True)
class Way:
    """One way to train."""

    channels_last: bool = False
    fused: bool = False
    compile: bool = False
    threads: int = 1

    def __str__(self) -> str:
        order = "channels last" if self.channels_last else "contiguous"
        words = [order, *(["fused"] if self.fused else []), *(["compiled"] if self.compile else [])]
        return ", ".join([*words, f"{self.threads} thread{'s' if self.threads > 1 else ''}"])


PLAIN = Way()
CHOSEN = Way(channels_last=True, fused=True)  # what HardwareConfig(device="cpu") comes to


@dataclass(frozen=True)
class Speed:
    """Images a second of one way, its speed over the plain way, and how long it took before its first step was done."""

    way: str
    images_a_second: Spread
    over_plain: Spread
    first_step: float


@dataclass(frozen=True)
class Result:
    """What one network gave.

    Args:
        at_once: images a second of two runs at once with one thread each, over one run with two threads: two runs'
            speed beside each other, summed. None where it was not measured.
    """

    case: Case
    speeds: Sequence[Speed]
    at_once: Spread | None

    def speed(self, way: Way) -> Speed | None:
        return next((speed for speed in self.speeds if speed.way == str(way)), None)


def ways(*, compile: bool, threads: Sequence[int]) -> list[Way]:
    """Everything that is compared."""
    eager = [Way(order, fused, False, count) for count in threads for order in (False, True) for fused in (False, True)]
    return eager + ([Way(order, True, True, 1) for order in (False, True)] if compile else [])


def contestant(network: str, parts: Parts, way: Way) -> tuple[Contestant, float]:
    """The study's training in one way, and the seconds until its first step was done, compilation included."""
    hardware = HardwareConfig(device="cpu", **asdict(way))
    torch.set_num_threads(way.threads)
    training = study_training(network, parts, every=EVERY, batch=BATCH, hardware=hardware)
    begin = time.perf_counter()
    take_steps(training, 1)
    first = time.perf_counter() - begin
    threads: Callable[[], object] = lambda: torch.set_num_threads(way.threads)  # noqa: E731
    return Contestant(str(way), lambda: take_steps(training, 1), [torch.ones(1)], before=threads), first


@contextmanager
def same_beside(network: str, way: Way) -> Iterator[int]:
    """Another process that trains the same network in the same way, for the length of the block; gives its pid."""
    command = [sys.executable, __file__, "--beside", network, *(str(int(value)) for value in asdict(way).values())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun to train
        yield process.pid
    finally:
        process.kill()
        process.wait()


def train_for_ever(network: str, way: Way) -> None:
    """What the other process does, until it is ended or its parent is gone."""
    import os

    parent, parts = os.getppid(), _parts()
    entrant, _ = contestant(network, parts, way)
    print("training", flush=True)
    while os.getppid() == parent:
        entrant.update()


def _parts() -> Parts:
    return make_parts(cifar_like(IMAGES), subset=IMAGES)


def measure(network: str, asked: argparse.Namespace) -> Result:
    """One network in every way, and two runs at once against one with two threads."""
    parts, first = _parts(), {}
    field: list[Contestant] = []
    for way in ways(compile=asked.compile, threads=asked.threads):
        entrant, first[str(way)] = contestant(network, parts, way)
        field.append(entrant)
    run = run_interleaved(field, seconds=asked.seconds, progress=progress(network))
    tensors = averaged_tensors(study_training(network, parts, every=EVERY, batch=BATCH).model)
    case = Case(
        model=network,
        averages=5,
        elements=sum(tensor.numel() for tensor in tensors),
        tensors=len(tensors),
        rounds=len(run.times[str(PLAIN)]),
        neighbour=None,
        dropped=run.dropped,
        bystanders=run.bystanders,
        rows=(),
    )
    speeds = [
        Speed(
            name,
            spread([BATCH / second for second in seconds]),
            paired_ratio(run.times[str(PLAIN)], seconds),
            first[name],
        )
        for name, seconds in run.times.items()
    ]
    return Result(case, speeds, _two_at_once(network, parts, asked) if 2 in asked.threads else None)


def _two_at_once(network: str, parts: Parts, asked: argparse.Namespace) -> Spread:
    """One thread each, beside another run of the same kind, against two threads alone; nobody else in between."""
    alone, _ = contestant(network, parts, replace(CHOSEN, threads=2))
    settings = {"seconds": asked.seconds / 4, "progress": progress(f"{network}, two runs at once")}
    two_threads = run_interleaved([alone], **settings).times[alone.name]
    entrant, _ = contestant(network, parts, CHOSEN)
    with same_beside(network, CHOSEN) as pid:
        one_thread = run_interleaved([entrant], neighbour=pid, **settings).times[entrant.name]
    return spread([2 * spread(two_threads).median / second for second in one_thread])


def judge(result: Result) -> list[Verdict]:
    """Whether what `auto` chooses is, on this machine, not slower than any other way without compilation."""
    chosen, open_ = result.speed(CHOSEN), result.case.disturbed
    if chosen is None:
        return []
    eager = [speed for speed in result.speeds if "compiled" not in speed.way and speed.way.endswith("1 thread")]
    best = max(eager, key=lambda speed: speed.over_plain.median)
    share = chosen.over_plain.median / best.over_plain.median
    goal = f"{result.case.model}: with one thread nothing is faster than what auto chooses"
    found = [Verdict(goal, None if open_ else share >= TIE, f"{share:.3f} × the speed of {best.way}")]
    if result.at_once is not None:
        goal = f"{result.case.model}: two runs of one thread are not slower than one run of two"
        value = result.at_once.median
        found.append(Verdict(goal, None if open_ else value >= TIE, f"{value:.3f} × the images a second"))
    return found


def result_text(result: Result) -> str:
    """The speeds, and what they come to."""
    rows = [
        [speed.way, with_spread(speed.images_a_second), with_spread(speed.over_plain), number(speed.first_step)]
        for speed in result.speeds
    ]
    header = ["training, five averages every 16 steps", "images a second", "× contiguous, 1 thread", "first step, s"]
    lines = [f"{result.case.model}: {result.case.rounds} rounds; {surroundings(result.case)}", table(header, rows)]
    if result.at_once is not None:
        lines.append(f"two runs at once, one thread each, over one run with two: {with_spread(result.at_once)}")
    compiled, chosen = result.speed(Way(True, True, True)), result.speed(CHOSEN)
    if compiled and chosen:
        saved = BATCH / chosen.images_a_second.median - BATCH / compiled.images_a_second.median
        steps = f"after {compiled.first_step / saved:,.0f} steps" if saved > 0 else "never"
        lines.append(f"compiling pays {steps}")
    return "\n".join(lines)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train in every way that the study knows, and say which is the fastest on this machine.",
        epilog="Default: ResNet-8 and ResNet-20 with one thread and with two, about four minutes.",
    )
    add, known = parser.add_argument, list(KNOWN_NETWORKS)
    add("--networks", nargs="+", default=["resnet8", "resnet20"], choices=known, metavar="NETWORK",
        help=f"of {', '.join(known)} (default: resnet8 resnet20)")  # fmt: skip
    add("--threads", nargs="+", type=int, default=[1, 2], metavar="N", help="1 must be among them (1 2)")
    add("--compile", action="store_true", help="compile as well; needs a C++ compiler, and a minute a network")
    add("--seconds", type=float, default=60, help="about, for each network (60)")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/choices.json")
    add("--check", action="store_true", help="exit with 1 when something else is faster than what auto chooses")
    add("--beside", nargs="+", help=argparse.SUPPRESS)  # the process that trains beside
    asked = parser.parse_args(argv)
    if 1 not in asked.threads:
        parser.error(f"--threads is {' '.join(map(str, asked.threads))}; all is compared with one thread: add 1")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.beside:
        network, *values = asked.beside
        last, fused, compiled, threads = map(int, values)
        train_for_ever(network, Way(bool(last), bool(fused), bool(compiled), threads))
        return 0
    known = conditions() | {"threads": ", ".join(map(str, asked.threads)), "batch": BATCH}
    print(facts(known), end="\n\n", flush=True)
    results: list[Result] = []
    judged: list[Verdict] = []
    for network in asked.networks:
        results.append(measure(network, asked))
        judged += judge(results[-1])
        print(result_text(results[-1]), end="\n\n", flush=True)
    print("\n".join(map(str, judged)))
    if asked.json:
        ratios = [
            Ratio(f"choices/{result.case.model}/chosen-over-plain", chosen.over_plain, result.case.rounds, "higher")
            for result in results
            if (chosen := result.speed(CHOSEN))
        ]
        kept = [asdict(result) for result in results]
        keep_result(asked.json, "python benchmarks/choices.py", known, ratios=ratios, verdicts=judged, results=kept)
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
