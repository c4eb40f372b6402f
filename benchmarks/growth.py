"""How the cost grows with runs, seeds, averages and parameters: the points of a series in the same rounds, and a fit.

Run `python benchmarks/growth.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from fits import Fit, fit, fit_exponent
from recipes import CROP, EPOCHS, cifar_like
from study_time import Took, run_command, trained

from emabank.bench import zoo
from emabank.bench.cases import Verdict
from emabank.bench.interleave import Contestant, Run, Spread, paired_ratio, run_interleaved, spread
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import QUIET_SHARE, available_bytes, conditions
from emabank.bench.peers import decays, emabank_bank
from emabank.bench.tables import facts, number, table, with_spread
from emabank.bench.update import MEMORY_SHARE, progress
from emabank.study.config import RunConfig
from emabank.study.data.splits import Parts, make_parts
from emabank.study.models.catalogue import build_network
from emabank.study.recipe import AveragesConfig, DataConfig, HardwareConfig, Recipe, TrainingConfig
from emabank.study.train import Training

AT_MOST = 1.1  # exponent of the marginal cost
RATES = SEEDS = (1, 2, 4, 8)
AVERAGES = (1, 2, 5, 10, 20, 40)
MILLIONS = (1, 4, 16, 64, 128, 256)
IN_CACHES = 64  # million parameters: far beyond that no cache holds five averages, and warm is as good as cold
BYTES = 4 + 5 * 4  # a parameter: its live value and five averages
PATIENCE = 2  # times as many rounds of protocols, where others disturb them
WARM = ", caches warm"


# Series ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """The time at one size, over the rounds."""

    x: float
    seconds: Spread


@dataclass(frozen=True)
class Series:
    """How one cost grows.

    Args:
        title: what is timed.
        unit: what it grows with.
        exponents: the exponent of the marginal cost, fitted round by round.
        growth: time at the largest size over that at the smallest, round by round.
        is_judged: whether the goal is for it.
    """

    name: str
    title: str
    unit: str
    points: Sequence[Point]
    fit: Fit
    exponents: Spread
    growth: Spread
    rounds: int
    dropped: int
    bystanders: float | None
    is_judged: bool = True


def series_of(name: str, title: str, unit: str, run: Run, sizes: Mapping[str, float], *, judged: bool = True) -> Series:
    """A series out of the seconds of its points; `sizes` says which contestant of the run stands where."""
    ordered = sorted(sizes, key=lambda each: sizes[each])
    xs, times = [sizes[each] for each in ordered], [run.times[each] for each in ordered]
    rounds = list(zip(*times, strict=True))
    return Series(
        name=name,
        title=title,
        unit=unit,
        points=[Point(x, spread(own)) for x, own in zip(xs, times, strict=True)],
        fit=fit(xs, [statistics.median(own) for own in times]),
        exponents=spread([fit_exponent(xs, ys)[0] for ys in rounds]),
        growth=paired_ratio(times[-1], times[0]),
        rounds=len(rounds),
        dropped=run.dropped,
        bystanders=run.bystanders,
        is_judged=judged,
    )


def judge(series: Series) -> list[Verdict]:
    """Whether a cost grows no faster than linearly, its fixed part aside."""
    if not series.is_judged:
        return []
    disturbed = (series.bystanders or 0.0) > QUIET_SHARE
    found = series.fit.exponent
    return [
        Verdict(
            f"{series.title}: seconds = fixed + c · {series.unit}^p, p at most {AT_MOST}",
            None if disturbed else found <= AT_MOST,
            f"p = {found:.2f} through the medians, {with_spread(series.exponents)} by round",
        )
    ]


def series_text(series: Series) -> str:
    """Points with the line beside them, and what the fits say."""
    line = series.fit
    rows = [
        [number(point.x), with_spread(point.seconds), number(on), f"{1 - on / point.seconds.median:+.1%}"]
        for point in series.points
        for on in [line.intercept + line.slope * point.x]
    ]
    others = "an unknown share" if series.bystanders is None else f"{series.bystanders:.1%}"
    dropped = f" ({series.dropped} rounds dropped)" if series.dropped else ""
    return "\n".join(
        [
            f"{series.title}; {series.rounds} rounds; other processes took {others} of the machine{dropped}",
            table([series.unit, "seconds: median (10–90 %)", "line", "off the line"], rows),
            f"line: {line.intercept:.3g} s + {line.slope:.3g} s × {series.unit}, R² {line.r_squared:.4f}, largest "
            f"deviation {line.deviation:.1%} at {number(line.deviation_at)}",
            f"marginal cost: exponent {line.exponent:.2f} ({with_spread(series.exponents)} by round) beside a fixed "
            f"{line.fixed:.3g} s; fixed cost and all: exponent {line.power:.2f}",
        ]
    )


# Runs and seeds -------------------------------------------------------------------------------------------------------


def plan_name(rates: int, seeds: int) -> str:
    """How a protocol is called among the times of a run."""
    return f"{rates} rates, {seeds} seeds"


def run_protocols(
    plans: Sequence[tuple[int, int]],
    one: Callable[[int, int], tuple[Took, int]],
    *,
    rounds: int,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Run, dict[str, int]]:
    """Each protocol (rates, seeds) once a round, in a new random order; and how many runs each trains.

    `one` carries out a protocol and says what it took and how many runs it trained. A round that others disturb does
    not count, and up to as many again make up for it; where that leaves too few, all count.
    """
    order, shuffle = list(plans), random.Random(0).shuffle
    one(*plans[0])  # so that no round pays for files that are read for the first time
    trained_by: dict[str, int] = {}
    calm: list[tuple[dict[str, float], float]] = []
    disturbed: list[tuple[dict[str, float], float]] = []
    while len(calm) < rounds and len(calm) + len(disturbed) < PATIENCE * rounds:
        shuffle(order)
        times, shares = dict[str, float](), list[float]()
        for rates, seeds in order:
            tell(f"{len(calm)} rounds, {len(disturbed)} disturbed; {plan_name(rates, seeds)}")
            took, trained_by[plan_name(rates, seeds)] = one(rates, seeds)
            times[plan_name(rates, seeds)] = took.seconds
            shares.append(took.bystanders or 0.0)
        (disturbed if max(shares) > QUIET_SHARE else calm).append((times, max(shares)))
    counted = calm if len(calm) >= rounds else calm + disturbed
    by_name = {name: [times[name] for times, _ in counted] for name in trained_by}
    run = Run(by_name, len(disturbed) if counted is calm else 0, max(share for _, share in counted))
    return run, trained_by


def one_protocol(rates: int, seeds: int, *, epochs: int) -> tuple[Took, int]:
    """A small protocol on the embedded digits, in a fresh process and folder: some learning rates, a refit a seed."""
    tried = [f"{0.05 + 0.01 * each:.2f}" for each in range(rates)]  # none of which diverges
    with tempfile.TemporaryDirectory(prefix="emabank-growth-") as folder:
        runs = Path(folder, "runs")
        command = [sys.executable, "-m", "emabank", "protocol", "--rates", *tried, "--seeds", str(seeds), "--no-swa"]
        command += ["--epochs", str(epochs), "--subset", "400", "--test-subset", "100", "--device", "cpu"]
        took = run_command([*command, "--jobs", "1", "--runs", str(runs)], Path(folder, "log.txt"))
        return took, len(trained(runs))


def measure_protocols(asked: argparse.Namespace) -> list[Series]:
    """Runs and seeds, in the same rounds: one learning rate and one seed is a point of both."""
    by_rates, by_seeds = [(rates, 1) for rates in RATES], [(1, seeds) for seeds in SEEDS]
    plans = list(dict.fromkeys([*by_rates, *by_seeds]))
    one = partial(one_protocol, epochs=asked.epochs)
    run, runs = run_protocols(plans, one, rounds=asked.rounds, tell=progress("protocols"))
    return [
        series_of(
            "runs",
            "a protocol with 1 to 8 learning rates",
            "runs",
            run,
            {plan_name(*plan): runs[plan_name(*plan)] for plan in by_rates},
        ),
        series_of(
            "seeds",
            "a protocol with 1 to 8 seeds",
            "seeds",
            run,
            {plan_name(*plan): plan[1] for plan in by_seeds},
        ),
    ]


# Averages -------------------------------------------------------------------------------------------------------------


def measure_averages(asked: argparse.Namespace) -> list[Series]:
    """One update of M averages of a ResNet-18."""
    model = zoo.build("resnet18")
    sizes = {f"{count} averages": count for count in AVERAGES}
    field = [emabank_bank(model, count, name) for name, count in sizes.items()]
    run = run_interleaved(field, seconds=asked.seconds, progress=progress("averages of resnet18"))
    return [series_of("averages", "an update of M averages of resnet18", "averages", run, sizes)]


class _EpochIsOver(Exception):
    """Stops a training right after an epoch was measured."""


def one_epoch(training: Training) -> None:
    """The next epoch of a training, its evaluation included."""

    def stop(training: Training) -> None:
        raise _EpochIsOver

    before = training.epoch
    with suppress(_EpochIsOver):
        training.run(observe=stop)
    if training.epoch != before + 1 or training.diverged:
        raise RuntimeError("the training ended; the time of its epoch would mean nothing")


def training_with(averages: int, parts: Parts) -> Training:
    """The study's own training of a ResNet-8 with M averages, updated at every step and evaluated after every epoch."""
    recipe = Recipe(
        data=DataConfig(dataset="cifar10", crop=CROP, flip=True),
        training=TrainingConfig(network="resnet8", epochs=EPOCHS, warmup_epochs=5),
        averages=AveragesConfig(decays=tuple(decays(averages)), every=1),
        hardware=HardwareConfig(device="cpu", threads=torch.get_num_threads()),
    )
    config = RunConfig(recipe=recipe, rate=0.01, seed=0, trained_on="80%")
    make = partial(build_network, "resnet8", classes=parts.classes)
    return Training(config, parts, make, device=torch.device("cpu"))


def measure_epochs(asked: argparse.Namespace) -> list[Series]:
    """One epoch of training with M averages, on one thread, as the study trains."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = make_parts(cifar_like(asked.images), subset=asked.images)
        sizes = {f"{count} averages": count for count in AVERAGES}
        field = [
            Contestant(name, partial(one_epoch, training_with(count, parts)), [torch.ones(1)])
            for name, count in sizes.items()
        ]
        run = run_interleaved(field, seconds=asked.seconds, progress=progress("epochs"))
    finally:
        torch.set_num_threads(threads)
    title = f"an epoch of resnet8 ({len(parts.train)} images) that evaluates live weights and M averages"
    return [series_of("epochs", title, "averages", run, sizes)]


# Parameters -----------------------------------------------------------------------------------------------------------


def fitting(millions: Sequence[int], free: int | None) -> list[int]:
    """The sizes that are in memory together; the largest are left out where it is short."""
    chosen = sorted(millions)
    while free is not None and len(chosen) > 3 and sum(chosen) * 1e6 * BYTES > MEMORY_SHARE * free:
        chosen.pop()
    return chosen


def measure_parameters(asked: argparse.Namespace) -> list[Series]:
    """One update of five averages of transformers: caches swept as training leaves them, and (the small ones) warm."""
    millions = fitting(asked.millions, available_bytes())
    if left_out := sorted(set(asked.millions) - set(millions)):
        print(f"not enough memory for {', '.join(map(str, left_out))} million parameters", file=sys.stderr)
    cold: dict[str, float] = {}
    warm: dict[str, float] = {}
    field: list[Contestant] = []
    for size in millions:
        model, name = zoo.gpt(size), f"{size} million"
        cold[name] = sum(tensor.numel() for tensor in zoo.averaged_tensors(model)) / 1e6
        field.append(bank := emabank_bank(model, 5, name))
        if size <= IN_CACHES:
            warm[name + WARM] = cold[name]
            field.append(replace(bank, name=name + WARM, read=list, before=bank.update))
    run = run_interleaved(field, seconds=asked.seconds, progress=progress("parameters"))
    del field
    gc.collect()
    title, unit = "an update of five averages of transformers", "million parameters"
    found = [series_of("parameters", f"{title}, out of the caches", unit, run, cold)]
    if len(warm) > 2:
        # Not judged: where the caches end the cost of a parameter rises, whoever moves it.
        found.append(series_of("parameters-warm", title + WARM, unit, run, warm, judged=False))
    return found


MEASURES: Mapping[str, Callable[[argparse.Namespace], list[Series]]] = {
    "protocols": measure_protocols,
    "averages": measure_averages,
    "epochs": measure_epochs,
    "parameters": measure_parameters,
}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time work of growing size: protocols with more learning rates and seeds, updates and epochs with "
        "more averages, updates of larger models. All sizes of a series stand in the same rounds.",
        epilog="Default: everything, about 12 minutes, of which the protocols take 8. Rounds that other processes "
        "disturb are not counted, so on a busy machine it takes longer.",
    )
    add = parser.add_argument
    add("--series", nargs="+", default=list(MEASURES), choices=list(MEASURES), metavar="NAME",
        help=f"of {', '.join(MEASURES)}; protocols are runs and seeds (all)")  # fmt: skip
    add("--seconds", type=float, default=40, help="for averages, epochs and parameters, each about (40)")
    add("--rounds", type=int, default=5, metavar="N", help="of the protocols (5)")
    add("--epochs", type=int, default=10, metavar="N", help="of a run of the protocols (10)")
    add("--images", type=int, default=320, metavar="N", help="of an epoch; a fifth is evaluated on (320)")
    add("--millions", nargs="+", type=int, default=list(MILLIONS), choices=list(zoo.GPTS), metavar="N",
        help=f"parameters, of {', '.join(map(str, zoo.GPTS))} (default: up to 256, as memory allows)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/growth.json")
    add("--check", action="store_true", help="exit with 1 when a cost grows faster than linearly")
    asked = parser.parse_args(argv)
    if asked.rounds < 1 or len(set(asked.millions)) < 3:
        parser.error("give one round or more, and three sizes or more: through two there is always a line")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    asked, known = arguments(argv), conditions()
    print(facts(known), end="\n\n", flush=True)
    found: list[Series] = []
    try:
        for name in asked.series:
            for series in MEASURES[name](asked):
                found.append(series)
                print(series_text(series), end="\n\n", flush=True)
    except (OSError, RuntimeError) as error:
        print(f"growth.py: {error}", file=sys.stderr)
        return 1
    judged = [verdict for series in found for verdict in judge(series)]
    print("\n".join(map(str, judged)))
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/growth.py",
            known,
            ratios=[Ratio(f"growth/{each.name}/largest-over-smallest", each.growth, each.rounds) for each in found],
            verdicts=judged,
            series=[asdict(series) for series in found],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
