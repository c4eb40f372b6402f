"""The interleaved run: every contestant once a round, in a new random order each round, in one process.

Times are kept by round, so that a ratio is taken within a round, where both sides met the same machine.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emabank.bench.machine import QUIET_SHARE, Bystanders, Watch, last_level_cache_bytes

WARMUP_ROUNDS = 3  # several peers only copy at their first call or two
FEWEST_ROUNDS = 15
MOST_ROUNDS = 400
BATCH_SECONDS = 0.5  # the system counts processor time in ticks of 10 ms: shorter spans cannot be judged
PATIENCE = 4

# Not public in torch, but what its optimizers are built on: one call for many tensors.
_multiply_all = torch._foreach_mul_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


@dataclass(frozen=True)
class Contestant:
    """One way to keep averages.

    Args:
        name: as printed; unique in a run.
        update: what is timed: one step of all its averages.
        live: the tensors that an optimizer step would just have written when `update` is called.
        read: one tensor of each of its averages and, last, its live counterpart; empty for what is no average.
        before: what happens before its turn and is not timed; by default the caches are swept and `live` is written.
    """

    name: str
    update: Callable[[], object]
    live: Sequence[Tensor]
    read: Callable[[], list[Tensor]] = list
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Spread:
    """The middle of a sample, its 10 % and 90 % points, and its mean (the mean is what a whole training run pays)."""

    median: float
    low: float
    high: float
    mean: float


def spread(values: Sequence[float]) -> Spread:
    """The summary that every table here prints."""
    if not values:
        raise ValueError("spread() was given no values; at least one round is needed")
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), tenths[0], tenths[-1], statistics.fmean(values))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Summary of above/below taken round by round: a slow moment of the machine falls on both sides and drops out."""
    if len(above) != len(below):
        raise ValueError(f"paired_ratio() needs the same rounds on both sides; given {len(above)} and {len(below)}")
    return spread([a / b for a, b in zip(above, below, strict=True)])


class ColdCaches:
    """Puts a contestant where training leaves it: averages out of the caches, live weights just written."""

    def __init__(self) -> None:
        self._sweep = torch.zeros(2 * last_level_cache_bytes() // 4)
        self._doubled: dict[int, bool] = {}

    def prepare(self, contestant: Contestant) -> None:
        """Sweep the caches as a forward and backward pass does, then write the live weights as an optimizer does.

        A contestant that has something of its own to happen before its turn gets that instead.
        """
        if contestant.before is not None:
            contestant.before()
            return
        self._sweep.add_(1.0)
        live = list(contestant.live)
        doubled = self._doubled.get(live[0].data_ptr(), False)
        with torch.no_grad():
            # Twice, half, twice, ...: a change that every dtype can hold and that never drifts.
            _multiply_all(live, 0.5 if doubled else 2.0)
        self._doubled[live[0].data_ptr()] = not doubled


def check_moves(contestant: Contestant, caches: ColdCaches) -> None:
    """Refuse to time what does not average: updates move each average, and not onto the weights."""
    caches.prepare(contestant)
    contestant.update()  # an average that only ever met these weights equals them; the next update brings others
    moved: set[int] = set()
    # Two updates, because the weights go to and fro: at one of them a slow average is too near for float32 to move it.
    for _ in range(2):
        caches.prepare(contestant)
        before = [tensor.detach().clone() for tensor in contestant.read()]
        contestant.update()
        *averages, live = contestant.read() or [torch.empty(0)]
        for number, (old, new) in enumerate(zip(before, averages, strict=False)):
            if torch.equal(new, live.to(new.dtype)) and torch.finfo(new.dtype).bits >= 32:
                raise RuntimeError(
                    f"{contestant.name} did not average when updated; it copies, and its time means nothing"
                )
            # A peer's bfloat16 average may not move at all: its fault, but no reason not to time it.
            if not torch.equal(old, new) or torch.finfo(new.dtype).bits < 32:
                moved.add(number)
        if len(averages) == len(moved):
            return
    raise RuntimeError(f"{contestant.name} did not average when updated; its time would mean nothing")


@dataclass(frozen=True)
class Run:
    """What one interleaved run gave.

    Args:
        times: seconds of each update by contestant, one entry a round, rounds aligned.
        dropped: rounds that were not counted because other processes were at work.
        bystanders: share of the machine that other processes took during the rounds that were counted; None where the
            system does not say.
    """

    times: Mapping[str, list[float]]
    dropped: int
    bystanders: float | None


def run_interleaved(
    contestants: Sequence[Contestant],
    *,
    seconds: float,
    neighbour: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.perf_counter,
    watch: Callable[[int | None], Watch] = Bystanders,
    settle: Callable[[], object] = lambda: None,
) -> Run:
    """Time all contestants side by side.

    Rounds during which processes that are no part of this took more than 5 % of the machine are dropped, and the run
    goes on for up to four times as long to make up for them; where that leaves too few rounds, all are counted.

    Args:
        seconds: about how long to go on; at least 15 and at most 400 rounds are counted.
        neighbour: pid of a process that is meant to be busy meanwhile.
        progress: called now and then with a line to show, and with an empty one in the end.
        settle: waits until all that was asked for is done; an accelerator works on after a call has returned.
    """
    names = [contestant.name for contestant in contestants]
    if len(set(names)) != len(names):
        raise ValueError(f"contestants need different names; given {names}")
    caches, order, shuffle = ColdCaches(), list(contestants), random.Random(seed).shuffle
    _warm_up(order, caches)

    calm: list[_Batch] = []
    disturbed: list[_Batch] = []
    gc.collect()
    gc.disable()  # as timeit does: a collection would hit whoever happens to run
    try:
        begin = clock()
        while True:
            batch = _Batch()
            bystanders, batch_begin = watch(neighbour), clock()
            while not batch.rounds or clock() - batch_begin < BATCH_SECONDS:
                shuffle(order)
                batch.rounds.append(_one_round(order, caches, clock, settle))
            batch.seconds, batch.share = clock() - batch_begin, bystanders.share()
            (disturbed if (batch.share or 0.0) > QUIET_SHARE else calm).append(batch)
            spent, good, bad = clock() - begin, _count(calm), _count(disturbed)
            progress(f"{good} rounds, {spent:.0f} s" + (f", {bad} disturbed" if bad else ""))
            well_spent = sum(batch.seconds for batch in calm)
            enough = good >= MOST_ROUNDS or (well_spent >= seconds and good >= FEWEST_ROUNDS)
            out_of_patience = spent >= PATIENCE * seconds and good + bad >= FEWEST_ROUNDS
            if enough or out_of_patience:
                break
    finally:
        gc.enable()
        progress("")
    counted = calm if good >= FEWEST_ROUNDS else calm + disturbed
    shares = [(batch.share, batch.seconds) for batch in counted if batch.share is not None]
    return Run(
        times={name: [times[name] for batch in counted for times in batch.rounds] for name in names},
        dropped=bad if counted is calm else 0,
        bystanders=sum(share * length for share, length in shares) / sum(length for _, length in shares)
        if shares
        else None,
    )


@dataclass
class _Batch:
    """Rounds that were judged together: how long they took, and what bystanders took of the machine meanwhile."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    share: float | None = None


def _count(batches: Sequence[_Batch]) -> int:
    return sum(len(batch.rounds) for batch in batches)


def _warm_up(contestants: Sequence[Contestant], caches: ColdCaches) -> None:
    for contestant in contestants:
        contestant.update()  # before anything has changed: a bank may warn of weights that were replaced under it
    for _ in range(WARMUP_ROUNDS):
        for contestant in contestants:
            caches.prepare(contestant)
            contestant.update()
    for contestant in contestants:
        check_moves(contestant, caches)


def _one_round(
    order: Sequence[Contestant], caches: ColdCaches, clock: Callable[[], float], settle: Callable[[], object]
) -> dict[str, float]:
    times: dict[str, float] = {}
    for contestant in order:
        caches.prepare(contestant)
        settle()
        start = clock()
        contestant.update()
        settle()
        times[contestant.name] = clock() - start
    return times
