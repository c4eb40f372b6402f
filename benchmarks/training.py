"""Images a second of the study's training loop beside the plain recipe, and what five averages cost of an epoch.

Run `python benchmarks/training.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from goals import TIE
from recipes import (
    ALL,
    ALONE,
    BARE,
    DATALOADER,
    DENSE,
    DRAWN,
    LOADER,
    PERIOD,
    RECALIBRATION,
    RECIPE,
    SPARSE,
    UPDATES,
    Size,
    Stopwatch,
    cifar_like,
    contestants,
    size_of,
    study_training,
    take_steps,
)

from emabank.bench.cases import Case, Verdict, title
from emabank.bench.interleave import FEWEST_ROUNDS, WARMUP_ROUNDS, Run, Spread, paired_ratio, run_interleaved, spread
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import AllButWorkers, conditions
from emabank.bench.peers import DECAYS
from emabank.bench.tables import facts, percent, surroundings, table, with_spread
from emabank.bench.update import progress
from emabank.bench.zoo import averaged_tensors
from emabank.study.data.splits import Parts, make_parts
from emabank.study.models.known import KNOWN_NETWORKS


@dataclass(frozen=True)
class Speed:
    """Images a second of one contestant, and its speed over that of others, round by round."""

    name: str
    images_a_second: Spread
    over: Mapping[str, Spread]


@dataclass(frozen=True)
class Cost:
    """One part of an epoch: its seconds, and its share of the epoch, round by round."""

    name: str
    seconds: Spread
    share: Spread


@dataclass(frozen=True)
class Result:
    """What one network gave with one number of threads.

    Args:
        case: the network, the rounds, and what else the machine did meanwhile.
        size: what a turn did, and how large an epoch is.
        costs: of an epoch with an update at every step; together they are the epoch.
        epoch: its time over that of one without averages, where the live weights alone are evaluated.
        evaluation: time of evaluating the live weights and five averages over that of the live weights alone.
    """

    case: Case
    threads: int
    size: Size
    loops: Sequence[Speed]
    pipelines: Sequence[Speed]
    costs: Sequence[Cost]
    epoch: Spread
    evaluation: Spread


# Measuring ------------------------------------------------------------------------------------------------------------


def fitting_steps(step: float, *, seconds: float, others: float, loops: int) -> int:
    """Steps a turn with which the fewest rounds take about so many seconds.

    Args:
        step: seconds of one step.
        others: what the rest of a round takes, in steps.
        loops: how many contestants take these steps in a round.
    """
    rounds = WARMUP_ROUNDS + 2 + FEWEST_ROUNDS  # everybody runs once before the warm-up and once after it
    return max(1, int((seconds / rounds / step - others) / loops))


def _fitting_size(network: str, parts: Parts, asked: argparse.Namespace) -> Size:
    size = size_of(parts, steps=asked.steps or 1, batch=asked.batch)
    if asked.steps:
        return size
    training = study_training(network, parts, every=1, batch=asked.batch)
    take_steps(training, 1)
    begin = time.perf_counter()
    take_steps(training, 2)
    step = (time.perf_counter() - begin) / 2
    passes = (len(DECAYS) + 2) * size.evaluated + (len(DECAYS) * size.recalibrated if asked.recalibrate else 0)
    others = passes / asked.batch / 3  # a step is a forward pass, and a backward pass that takes twice as long
    steps = fitting_steps(step, seconds=asked.seconds, others=others, loops=3 + len(asked.workers))
    return size_of(parts, steps=steps, batch=asked.batch)


def run_case(network: str, parts: Parts, threads: int, asked: argparse.Namespace) -> Result:
    """Measure one network with one number of threads."""
    torch.set_num_threads(threads)
    size, clock = _fitting_size(network, parts, asked), Stopwatch()
    field = contestants(network, parts, size, workers=asked.workers, clock=clock, recalibrate=asked.recalibrate)
    show = progress(_title(network, threads))
    run = run_interleaved(field, seconds=asked.seconds, clock=clock, watch=AllButWorkers, progress=show)
    del field
    gc.collect()  # ends the workers
    tensors = averaged_tensors(study_training(network, parts, every=1, batch=asked.batch).model)
    case = Case(
        model=network,
        averages=len(DECAYS),
        elements=sum(tensor.numel() for tensor in tensors),
        tensors=len(tensors),
        rounds=len(run.times[BARE]),
        neighbour=None,
        dropped=run.dropped,
        bystanders=run.bystanders,
        rows=(),
    )
    return result_of(case, run, threads=threads, size=size, workers=asked.workers)


# From seconds to speeds and shares ------------------------------------------------------------------------------------


def result_of(case: Case, run: Run, *, threads: int, size: Size, workers: Sequence[int]) -> Result:
    """Speeds and shares out of the seconds of each turn."""
    recipes, dataloaders = ([name.format(count) for count in workers] for name in (RECIPE, DATALOADER))
    trained = size.steps * size.batch
    turns_an_epoch = {
        **dict.fromkeys((DENSE, UPDATES, BARE), size.train / trained),
        **dict.fromkeys((ALL, ALONE), size.validation / size.evaluated),
        RECALIBRATION: size.train / size.recalibrated,
    }
    epoch = {
        name: [second * turns for second in run.times[name]]
        for name, turns in turns_an_epoch.items()
        if name in run.times
    }
    with_averages = [epoch[name] for name in (DENSE, ALL, RECALIBRATION) if name in epoch]
    return Result(
        case=case,
        threads=threads,
        size=size,
        loops=_speeds(run.times, [SPARSE, DENSE, BARE, *recipes], images=trained, over=[BARE, *recipes]),
        pipelines=_speeds(run.times, [LOADER, *dataloaders], images=DRAWN * size.batch, over=dataloaders),
        costs=costs_of(epoch),
        epoch=paired_ratio(_sums(*with_averages), _sums(epoch[BARE], epoch[ALONE])),
        evaluation=paired_ratio(run.times[ALL], run.times[ALONE]),
    )


def _speeds(times: Mapping[str, list[float]], names: Sequence[str], *, images: int, over: Sequence[str]) -> list[Speed]:
    return [
        Speed(
            name,
            spread([images / second for second in times[name]]),
            {other: paired_ratio(times[other], times[name]) for other in over if other != name},
        )
        for name in names
    ]


def costs_of(epoch: Mapping[str, list[float]]) -> list[Cost]:
    """The parts that an epoch with five averages consists of, out of what an epoch of each contestant takes."""
    parts = {
        "training steps": _differences(epoch[DENSE], epoch[UPDATES]),
        "updates of five averages": epoch[UPDATES],
        "evaluation of the live weights": epoch[ALONE],
        "evaluation of five averages": _differences(epoch[ALL], epoch[ALONE]),
    }
    if RECALIBRATION in epoch:
        parts["recalibration of five averages"] = epoch[RECALIBRATION]
    whole = _sums(*parts.values())
    return [Cost(name, spread(seconds), paired_ratio(seconds, whole)) for name, seconds in parts.items()]


def _sums(*parts: Sequence[float]) -> list[float]:
    return [sum(seconds) for seconds in zip(*parts, strict=True)]


def _differences(whole: Sequence[float], part: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(whole, part, strict=True)]


def judge(result: Result) -> list[Verdict]:
    """The one goal: the study's loop, averages and all, is not slower than the faster plain recipe; a tie counts."""
    found: list[Verdict] = []
    for loop in result.loops:
        rivals = {name: ratio for name, ratio in loop.over.items() if name != BARE}
        if loop.name not in (SPARSE, DENSE) or not rivals:
            continue
        rival, ratio = min(rivals.items(), key=lambda item: item[1].median)
        goal = f"{_title(result.case.model, result.threads)}: {loop.name} is not slower than the plain recipe"
        passed = None if result.case.disturbed else ratio.median >= TIE
        found.append(Verdict(goal, passed, f"{ratio.median:.3f} × the speed of the {rival}"))
    return found


def ratios_of(result: Result) -> list[Ratio]:
    """What a later measurement is held against: the study's loop over the bare one, its loader over DataLoaders."""
    name, rounds = f"training/{result.case.model}/{result.threads}", result.case.rounds
    loop = next(loop for loop in result.loops if loop.name == SPARSE)
    loader = next(pipeline for pipeline in result.pipelines if pipeline.name == LOADER)
    found = [Ratio(f"{name}/loop-over-bare-loop", loop.over[BARE], rounds, "higher")]
    if loader.over:
        slowest = min(loader.over.values(), key=lambda ratio: ratio.median)
        found.append(Ratio(f"{name}/loader-over-dataloader", slowest, rounds, "higher"))
    return found


# Showing --------------------------------------------------------------------------------------------------------------


def _title(network: str, threads: int) -> str:
    return f"{title(network, len(DECAYS))}, {threads} thread{'s' if threads > 1 else ''}"


def speed_table(speeds: Sequence[Speed]) -> str:
    others = list(dict.fromkeys(other for speed in speeds for other in speed.over))
    rows = [
        [speed.name, with_spread(speed.images_a_second), *(with_spread(speed.over.get(other)) for other in others)]
        for speed in speeds
    ]
    return table(["images a second: median (10–90 %)", "", *(f"× {other}" for other in others)], rows)


def result_text(result: Result) -> str:
    """Everything of one case: three tables, and what they come to."""
    case, size = result.case, result.size
    updates = next(cost.share for cost in result.costs if cost.name.startswith("updates"))
    return "\n\n".join(
        [
            f"{_title(case.model, result.threads)}: {case.elements:,} elements in {case.tensors} tensors; "
            f"{case.rounds} rounds of {size.steps} × {size.batch} images; {surroundings(case)}\n"
            + speed_table(result.loops),
            speed_table(result.pipelines),
            table(
                [f"an epoch: {size.train:,} images, {size.validation:,} for validation", "seconds", "share"],
                [[cost.name, with_spread(cost.seconds), percent(cost.share)] for cost in result.costs],
            ),
            f"updates every {PERIOD} steps: a {PERIOD}th of that, {percent(updates, PERIOD)}\n"
            f"an epoch with five averages over one without: {with_spread(result.epoch)}\n"
            f"evaluating live weights and five averages over live weights alone: {with_spread(result.evaluation)}",
        ]
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time the study's training loop beside a DataLoader with per-sample transforms, and what five "
        "averages take of an epoch: updates, evaluation, and recalibration if asked for.",
        epilog="Default: ResNet-8 and ResNet-20 on one thread with random images, about three minutes. Rounds that "
        "other processes disturb are not counted, so on a busy machine it takes up to four times as long.",
    )
    add, known = parser.add_argument, list(KNOWN_NETWORKS)
    add("--networks", nargs="+", default=["resnet8", "resnet20"], choices=known, metavar="NETWORK",
        help=f"of {', '.join(known)} (default: resnet8 resnet20)")  # fmt: skip
    add("--threads", nargs="+", type=int, default=[1], metavar="N",
        help="torch threads; several numbers are measured one after the other (1, as in the study)")  # fmt: skip
    add("--seconds", type=float, default=60, help="about, for each network and number of threads (60)")
    add("--data", type=Path, metavar="DIR", help="holds CIFAR-10; without it, random images of the same shape")
    add("--images", type=int, default=10_000, help="a fifth of them is for validation (10000)")
    add("--batch", type=int, default=128, help="images a step (128)")
    add("--steps", type=int, help="training steps a turn (default: as many as fit into the seconds)")
    add("--workers", nargs="+", type=int, default=[0, 2], metavar="N", help="of the DataLoader (0 2)")
    add("--recalibrate", action="store_true", help="time recomputing batch-norm statistics each epoch as well")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/training.json")
    add("--check", action="store_true", help="exit with 1 when the loop is slower than the plain recipe")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    try:
        dataset = cifar_like(asked.images, folder=asked.data)
        parts = make_parts(dataset, subset=asked.images)
    except (OSError, ValueError) as error:
        print(f"training.py: {error}", file=sys.stderr)
        return 1
    known = conditions() | {"threads": ", ".join(map(str, asked.threads)), "data": dataset.name}
    print(facts(known), end="\n\n", flush=True)
    results: list[Result] = []
    for network, threads in [(network, threads) for network in asked.networks for threads in asked.threads]:
        results.append(run_case(network, parts, threads, asked))
        print(result_text(results[-1]), end="\n\n", flush=True)
    judged = [verdict for result in results for verdict in judge(result)]
    print("\n".join(map(str, judged)))
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/training.py",
            known,
            ratios=[ratio for result in results for ratio in ratios_of(result)],
            verdicts=judged,
            results=[asdict(result) for result in results],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
