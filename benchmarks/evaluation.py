"""Live weights and M averages in one shared pass over the data, beside a pass for each: evaluation and recalibration.

Run `python benchmarks/evaluation.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from goals import TIE
from recipes import cifar_like

from emabank.bench.cases import Verdict, title
from emabank.bench.evaluation import TASKS, Passes, measure_passes, passes_table, ratio_of, title_of
from emabank.bench.kept import keep_result
from emabank.bench.machine import conditions
from emabank.bench.tables import facts
from emabank.bench.update import progress
from emabank.study.allocation import keep_memory
from emabank.study.data.images import Images
from emabank.study.models.known import KNOWN_NETWORKS

MEMORY = "memory"


def judge(passes: Passes) -> Verdict:
    """The one goal of either task: the shared pass is not slower than the fastest other way; a tie counts."""
    other = passes.fastest_other
    return Verdict(
        f"{title_of(passes)}: the shared pass is not slower than a pass for each",
        None if passes.case.disturbed else other.over_shared.median >= TIE,
        f"{other.over_shared.median:.3f} × as fast as {other.name}",
    )


def source(text: str) -> int | None:
    """`memory`, or the number of a DataLoader's workers."""
    if text == MEMORY:
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no source of batches; give memory, or a number of workers")
    return int(text)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time the evaluation of live weights and M averages, and the recalibration of their batch norm, in "
        "one shared pass over the data and in a pass for each; both after a check that they come to the same.",
        epilog="Default: ResNet-8 and ResNet-20 on one thread, with batches out of memory and from a DataLoader, half "
        "an hour; of ResNet-8 alone, ten minutes. A pass goes over 512 images or more, whatever --seconds says. Rounds "
        "that other processes disturb are not counted, so on a busy machine it takes up to four times as long.",
    )
    add, known = parser.add_argument, list(KNOWN_NETWORKS)
    add("--networks", nargs="+", default=["resnet8", "resnet20"], choices=known, metavar="NETWORK",
        help=f"of {', '.join(known)} (default: resnet8 resnet20)")  # fmt: skip
    add("--tasks", nargs="+", default=TASKS, choices=TASKS, help="(default: both)")
    add("--sources", nargs="+", type=source, default=[None, 0, 2], metavar="SOURCE",
        help="of batches: memory, or the workers of a DataLoader (memory 0 2)")  # fmt: skip
    add("--averages", type=int, default=5, metavar="M", help="how many averages (5)")
    add("--seconds", type=float, default=30, help="about, for each case; 15 rounds are made at least (30)")
    add("--images", type=int, help="a pass goes over so many (default: 512, or more where the seconds allow)")
    add("--data", type=Path, metavar="DIR", help="holds CIFAR-10; without it, random images of the same shape")
    add("--threads", type=int, default=1, help="of torch (1, as in the study)")
    add("--contiguous", action="store_true", help="torch's default memory order, in place of channels last")
    add("--plain-malloc", action="store_true",
        help="let malloc give memory back to the system, as it does by itself: ratios then vary by chance")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/evaluation.json")
    add("--check", action="store_true", help="exit with 1 when the shared pass is slower")
    return parser.parse_args(argv)


def measure(task: str, network: str, workers: int | None, pixels: Images | None, asked: argparse.Namespace) -> Passes:
    """One case as it was asked for."""
    return measure_passes(
        task,  # type: ignore[arg-type]
        network,
        averages=asked.averages,
        seconds=asked.seconds,
        images=asked.images,
        pixels=pixels,
        workers=workers,
        threads=asked.threads,
        channels_last=not asked.contiguous,
        progress=progress(f"{task}, {title(network, asked.averages)}"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    try:
        dataset = None if asked.data is None else cifar_like(0, folder=asked.data)
    except (OSError, ValueError) as error:
        print(f"evaluation.py: {error}", file=sys.stderr)
        return 1
    steady = not asked.plain_malloc and keep_memory()
    known = conditions() | {
        "threads": asked.threads,
        "data": "random images of CIFAR's shape" if dataset is None else dataset.name,
        "memory": "kept by the process" if steady else "given back by malloc as it sees fit",
    }
    print(facts(known), end="\n\n", flush=True)
    results: list[Passes] = []
    for task, network, workers in [(t, n, w) for n in asked.networks for t in asked.tasks for w in asked.sources]:
        results.append(measure(task, network, workers, None if dataset is None else dataset.test, asked))
        print(passes_table(results[-1]), end="\n\n", flush=True)
    judged = [judge(result) for result in results]
    print("\n".join(map(str, judged)))
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/evaluation.py",
            known,
            ratios=[ratio_of(result) for result in results],
            verdicts=judged,
            results=[asdict(result) for result in results],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
