"""Live weights and M averages, evaluated or recalibrated in one shared pass over the data, and one after the other.

What is shared is the data, so batches come from memory, or from a DataLoader that makes them one image at a time.
"""

import gc
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from emabank import recalibrate_batchnorm
from emabank.bench.cases import Case
from emabank.bench.interleave import (
    FEWEST_ROUNDS,
    WARMUP_ROUNDS,
    Contestant,
    Run,
    Spread,
    paired_ratio,
    run_interleaved,
    spread,
)
from emabank.bench.kept import Ratio
from emabank.bench.machine import AllButWorkers
from emabank.bench.subjects import Batches, Subject, make_batches, make_subject, random_images
from emabank.bench.tables import surroundings, table, with_spread
from emabank.bench.update import case_of
from emabank.study.data.images import Images
from emabank.study.measures import evaluation_batch
from emabank.study.predict import predict_each

SHARED = "one shared pass"
COPIES = "each alone, module copies"
SECOND = "each alone, copied into a second model"
APPLIED = "each alone, bank.applied()"
UPDATE_BN = "each alone, torch's update_bn"

BATCH = 128  # what `evaluation_batch` gives for images of CIFAR's shape
LEAST_BATCHES, MOST_BATCHES = 4, 16  # a pass over fewer would be about its beginning
TOLERANCE = 1e-3

Task = Literal["evaluation", "recalibration"]
TASKS: tuple[Task, ...] = ("evaluation", "recalibration")


@dataclass(frozen=True)
class Way:
    """One way to do it: its time, and its time over that of the shared pass, round by round."""

    name: str
    milliseconds: Spread
    over_shared: Spread


@dataclass(frozen=True)
class Passes:
    """What one network, one source of batches and one number of threads gave.

    Args:
        case: the network, the rounds, and what else the machine did; without rows.
        source: where the batches come from, in words.
        images, batch: what a pass goes over.
        ways: the shared pass first, then the others, the fastest of them first.
    """

    task: Task
    case: Case
    source: str
    images: int
    batch: int
    threads: int
    channels_last: bool
    ways: Sequence[Way]

    @property
    def fastest_other(self) -> Way:
        """The way that is nearest to the shared pass, or before it."""
        return next(way for way in self.ways if way.name != SHARED)


# The ways -------------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A way to be timed, and how to see what came of it: a tensor for each set of weights, the live ones first."""

    name: str
    action: Callable[[], Any]
    found: Callable[[], list[Tensor]]


def _logits(model: nn.Module, data: Batches) -> Tensor:
    """The loop that people write."""
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(inputs) for inputs, _ in data])
    model.train()
    return logits


def evaluations(subject: Subject, data: Batches) -> list[Entry]:
    """Logits of the live weights and every average: in one pass as the study does it, and as people write it."""
    model, bank, copies = subject
    second = bank.module(bank.names[0])

    def shared() -> list[Tensor]:
        sets = {"live": None, **{name: bank.functional(name) for name in bank.names}}
        return [torch.from_numpy(logits) for logits in predict_each(model, sets, data).values()]

    def alone() -> list[Tensor]:
        return [_logits(each, data) for each in (model, *copies)]

    def copied() -> list[Tensor]:
        found = [_logits(model, data)]
        for name in bank.names:
            bank.copy_to(second, name)
            found.append(_logits(second, data))
        return found

    def applied() -> list[Tensor]:
        found = [_logits(model, data)]
        for name in bank.names:
            with bank.applied(name):
                found.append(_logits(model, data))
        return found

    ways = {SHARED: shared, COPIES: alone, SECOND: copied, APPLIED: applied}
    return [Entry(name, action, action) for name, action in ways.items()]


def recalibrations(subject: Subject, data: Batches, *, variances: bool) -> list[Entry]:
    """Batch-norm statistics of every average: in one pass, and with a pass of torch's `update_bn` for each.

    Variances are looked at where `variances` says so: `update_bn` leaves out how batches differ from one another, so
    that only of a single batch both find the same.
    """
    _, bank, copies = subject

    def shared() -> None:
        recalibrate_batchnorm(bank, data)

    def alone() -> None:
        for each in copies:
            update_bn(data, each)

    def after(action: Callable[[], None], read: Callable[[], list[dict[str, Any]]]) -> Callable[[], list[Tensor]]:
        def found() -> list[Tensor]:
            action()
            return [_statistics(state)[: 1 + variances] for state in read()]

        return found

    return [
        Entry(SHARED, shared, after(shared, lambda: [bank.weights(n, batchnorm="recomputed") for n in bank.names])),
        Entry(UPDATE_BN, alone, after(alone, lambda: [each.state_dict() for each in copies])),
    ]


def _statistics(state: dict[str, Any]) -> Tensor:
    """The means and the variances of all channels, `[2, channels]`."""
    return torch.stack(
        [torch.cat([state[key] for key in state if key.endswith(ending)]) for ending in ("running_mean", "running_var")]
    )


def check_same(entries: Sequence[Entry]) -> None:
    """Refuse to time ways that do not come to the same, or sets of weights that cannot be told apart."""
    reference = entries[0].found()
    if not all(_differ(a, b) for a, b in pairwise(reference)):
        raise RuntimeError("two sets of weights come to the same, so that a mistake would not be seen")
    for entry in entries[1:]:
        found = entry.found()
        if len(found) != len(reference) or any(map(_differ, found, reference)):
            raise RuntimeError(f"{entry.name} does not come to the same as {entries[0].name}; its time means nothing")


def _differ(given: Tensor, reference: Tensor) -> bool:
    if given.shape != reference.shape:
        return True
    scale = reference.square().mean(-1, keepdim=True).sqrt()
    return not bool(((given - reference).abs() <= TOLERANCE * scale).all())  # NaN is not the same as anything


# Measuring ------------------------------------------------------------------------------------------------------------


def measure_passes(
    task: Task,
    network: str,
    *,
    averages: int = 5,
    seconds: float = 30.0,
    images: int | None = None,
    pixels: Images | None = None,
    workers: int | None = None,
    threads: int | None = None,
    channels_last: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Passes:
    """Time one shared pass beside all other ways, after a check that all come to the same.

    Args:
        network: one of the study's.
        seconds: about how long to go on; at least 15 rounds are made.
        images: how many a pass goes over, in whole batches; None for as many as fit into the seconds.
        pixels: real images to take them from; None for random ones.
        workers: of a DataLoader; None for batches out of memory.
        threads: of torch; None leaves them as they are.
        channels_last: the memory order of images and convolutions, which the study chooses on a CPU.
        progress: called now and then with a line to show.
    """
    with _threads(threads):
        subject = make_subject(network, averages, channels_last=channels_last)
        pixels = random_images(images or MOST_BATCHES * BATCH) if pixels is None else pixels
        batch = min(evaluation_batch(pixels), images or len(pixels), len(pixels))
        make = partial(make_batches, batch=batch, channels_last=channels_last)
        first = list(make(pixels.take(torch.arange(batch)), workers=None))
        count = min(images or fitting_images(task, subject, first, seconds=seconds), len(pixels)) // batch * batch
        data = make(pixels.take(torch.arange(count)), workers=workers)
        if task == "recalibration":
            check_same(recalibrations(subject, first, variances=True))
        entries = evaluations(subject, data) if task == "evaluation" else recalibrations(subject, data, variances=False)
        check_same(entries)
        field = [Contestant(entry.name, entry.action, [torch.ones(1)]) for entry in entries]
        run = run_interleaved(field, seconds=seconds, watch=AllButWorkers, progress=progress)
        case = case_of(network, averages, subject.model, [run], (), {})
        del data, entries, field
        gc.collect()  # ends the workers
        used = torch.get_num_threads()
    return Passes(task, case, source_of(workers), count, batch, used, channels_last, ways_of(run))


measure_evaluation = partial(measure_passes, "evaluation")
measure_recalibration = partial(measure_passes, "recalibration")


@contextmanager
def _threads(count: int | None) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fitting_images(
    task: Task,
    subject: Subject,
    first: Batches,
    *,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Images a pass, in whole batches, with which the fewest rounds take about so many seconds."""
    size = sum(len(labels) for _, labels in first)
    _logits(subject.model, first)
    begin = clock()
    _logits(subject.model, first)
    one = clock() - begin
    averages = len(subject.copies)
    passes = 4 * (averages + 1) if task == "evaluation" else 2 * averages
    rounds = WARMUP_ROUNDS + 2 + FEWEST_ROUNDS  # everybody runs once before the warm-up and once after it
    whole = int(seconds / (rounds * passes * one))
    return min(max(LEAST_BATCHES, whole), MOST_BATCHES) * size


def source_of(workers: int | None) -> str:
    """Where batches come from, in words.

    >>> source_of(None), source_of(2)
    ('batches in memory', 'DataLoader, 2 workers')
    """
    return "batches in memory" if workers is None else f"DataLoader, {workers} worker{'s' if workers != 1 else ''}"


def ways_of(run: Run) -> list[Way]:
    """The shared pass and the others out of the seconds of each turn."""
    shared = run.times[SHARED]
    ways = [
        Way(name, spread([1e3 * second for second in times]), paired_ratio(times, shared))
        for name, times in run.times.items()
    ]
    return sorted(ways, key=lambda way: (way.name != SHARED, way.over_shared.median))


# Showing --------------------------------------------------------------------------------------------------------------


def title_of(passes: Passes) -> str:
    """What was measured, where several are shown.

    >>> case = Case("resnet8", 5, 1, 1, 1, None, 0, None, ())
    >>> title_of(Passes("evaluation", case, "batches in memory", 256, 128, 1, True, ()))
    'resnet8, evaluation of live weights and 5 averages, batches in memory, 1 thread, channels last'
    """
    case = passes.case
    averages = f"{case.averages} average{'s' if case.averages > 1 else ''}"
    who = f"live weights and {averages}" if passes.task == "evaluation" else averages
    threads = f"{passes.threads} thread{'s' if passes.threads > 1 else ''}"
    order = "channels last" if passes.channels_last else "contiguous"
    return f"{case.model}, {passes.task} of {who}, {passes.source}, {threads}, {order}"


def passes_table(passes: Passes) -> str:
    """Every way, in milliseconds and over the shared pass."""
    heading = (
        f"{title_of(passes)}: {passes.images} images in batches of {passes.batch}; {passes.case.rounds} rounds; "
        f"{surroundings(passes.case)}"
    )
    rows = [[way.name, with_spread(way.milliseconds), with_spread(way.over_shared)] for way in passes.ways]
    return heading + "\n" + table(["", "ms: median (10–90 %)", "× shared pass"], rows)


def ratio_of(passes: Passes) -> Ratio:
    """What a later measurement is held against: the fastest other way over the shared pass."""
    source = passes.source.replace(",", "").replace(" ", "-").lower()
    order = "" if passes.channels_last else "/contiguous"
    what = f"{passes.task}/{passes.case.model}/{passes.case.averages}/{passes.threads}/{source}{order}"
    return Ratio(f"{what}/faster-than-alone", passes.fastest_other.over_shared, passes.case.rounds, "higher")
