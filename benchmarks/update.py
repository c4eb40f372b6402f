"""How long an update of all averages takes: emabank, its peers and the memory limit in one interleaved run.

Run `python benchmarks/update.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import timeit
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/update.py`

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import (
    Case,
    Run,
    case_text,
    count_of,
    free_memory,
    make_case,
    make_parser,
    run_interleaved,
    show_progress,
    start,
    write_result,
)
from benchmarks.models import NAMES, build
from benchmarks.peers import BANKS, PEERS, NotAvailable, Packages, Peer, decays, make_bank, versions
from emabank import EMA, EMABank
from emabank.study.bench import BANK, LIMIT, LIMIT_ELEMENTS, Contestant, averaged_tensors, memory_limit

DEFAULT = ["resnet18", "resnet20", "small1000", "gpt124m", "resnet18-bf16", "resnet20-bf16", "gpt124m-bf16"]
MEMORY_SHARE = 0.7  # of what is free; the rest is for temporaries, which in some peers are as large as an average

# Model, averages: at most so many times the limit, and at least so many times as fast as the fastest peer.
GOALS: dict[tuple[str, int], tuple[float | None, float | None]] = {
    ("resnet18", 5): (1.1, None),
    ("resnet20", 5): (None, 4.0),
    ("small1000", 5): (None, 4.0),
    ("small1000", 1): (None, 0.98),  # a tie: two identical banks differ by 2 % and more
    ("gpt124m", 1): (None, 0.98),
    ("resnet18-bf16", 1): (1.3, None),
    ("resnet18-bf16", 5): (1.3, None),
    ("gpt124m-bf16", 1): (1.3, None),
    ("gpt124m-bf16", 5): (1.3, None),
}


def measure(name: str, averages: int, peers: Sequence[Peer], packages: Packages, *, seconds: float) -> Case:
    """Time one model with one number of averages, in as many runs as memory requires."""
    model = build(name)
    tensors = averaged_tensors(model)
    elements = sum(tensor.numel() for tensor in tensors)
    title = f"{name}, {count_of(averages, 'average')}"
    ours, groups = plan_groups(4 * averages * elements, peers, free_memory())
    missing = {} if groups else {peer.name: "does not fit into memory beside emabank" for peer in peers}
    runs: list[Run] = []
    for group in groups or [[]]:
        contestants = [memory_limit(model, averages), *(make_bank(bank, model, averages) for bank in ours)]
        contestants += build_peers(group, packages, model, averages, missing)
        share = seconds / max(1, len(groups))
        runs.append(run_interleaved(contestants, seconds=share, progress=show_progress(title)))
        del contestants
        gc.collect()
    about = {"model": name, "averages": averages, "elements": elements, "tensors": len(tensors)}
    gated = {bank: "lower" for bank in ours if bank != "emabank, again"}
    return make_case(title, runs, over=(LIMIT, BANK), better=gated, about=about, missing=missing)


def plan_groups(size: int, peers: Sequence[Peer], free: int | None) -> tuple[list[str], list[Sequence[Peer]]]:
    """Which banks take part, and which peers run together: all at once if they fit, with `size` bytes for each."""
    slots = 1000 if free is None else max(1, int((free * MEMORY_SHARE - 4 * LIMIT_ELEMENTS) / size))
    ours = list(BANKS)[: max(1, min(slots - 1, len(BANKS)))]
    together = slots - len(ours)
    return ours, [peers[at : at + together] for at in range(0, len(peers), together)] if together > 0 else []


def build_peers(
    peers: Sequence[Peer], packages: Packages, model: nn.Module, averages: int, missing: dict[str, str]
) -> list[Contestant]:
    """The peers that are available; the others are added to `missing`, with the reason."""
    contestants: list[Contestant] = []
    for peer in peers:
        try:
            contestants.append(peer.build(packages, model, averages))
        except NotAvailable as error:
            missing[peer.name] = str(error)
    return contestants


def fastest_peer(case: Case) -> tuple[str, float] | None:
    """The fastest peer and its time over emabank's."""
    ratios = {row.name: row.over[BANK].median for row in case.rows if row.name not in (LIMIT, *BANKS)}
    return min(ratios.items(), key=lambda item: item[1], default=None)


def judge(case: Case) -> list[str]:
    """One line per goal of the case."""
    limit, faster = GOALS.get((case.about["model"], case.about["averages"]), (None, None))
    bank, peer = case.row(BANK), fastest_peer(case)
    goals: list[tuple[str, float, bool]] = []
    if limit is not None and bank is not None:
        value = bank.over[LIMIT].median
        goals.append((f"at most {limit} × the memory limit", value, value <= limit))
    if faster is not None and peer is not None:
        goals.append((f"at least {faster} × as fast as the fastest peer ({peer[0]})", peer[1], peer[1] >= faster))
    words = {True: "met", False: "NOT MET"}
    return [
        f"{case.name}: {goal}: {value:.2f}, {'open, the run was disturbed' if case.disturbed else words[met]}"
        for goal, value, met in goals
    ]


# A step that is not due -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotDue:
    """The cost of `update()` when no average is due.

    Args:
        nanoseconds: per call, median of several repeats.
        kept_bytes: growth of Python's heap over 10,000 calls.
        transient_bytes: the most that a call held beyond that; the next value of a counter is 32 bytes.
        operators: torch operators that ran; every tensor is allocated by one.
    """

    nanoseconds: float
    kept_bytes: int
    transient_bytes: int
    operators: int


class _CountOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def measure_not_due(update: Callable[[], object], *, calls: int = 100_000, repeats: int = 15) -> NotDue:
    """Measure `update`, which must not be due for the next few million calls."""
    seconds = [duration / calls for duration in timeit.repeat(update, number=calls, repeat=repeats)]
    with _CountOperators() as operators:
        for _ in range(1000):
            update()
    kept, transient = (used - own for used, own in zip(_heap(update), _heap(lambda: None), strict=True))
    return NotDue(statistics.median(seconds) * 1e9, kept, transient, operators.count)


def _heap(call: Callable[[], object], calls: int = 10_000) -> tuple[int, int]:
    loop = itertools.repeat(None, calls)
    tracemalloc.start()
    try:
        call()  # so that the counter is an object that tracemalloc knows
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in loop:
            call()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - max(before, after)


# The script -----------------------------------------------------------------------------------------------------------


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(
        "Time one update of M averages: the bank and its variants, the other libraries, and the memory limit.",
        "Default: seven models with 1 and with 5 averages, about 10 minutes on an idle machine.",
        seconds=25,
        result="update.json",
    )
    add = parser.add_argument
    add("--models", nargs="+", default=DEFAULT, choices=NAMES, metavar="MODEL",
        help=f"of {', '.join(NAMES)} (default: {' '.join(DEFAULT)})")  # fmt: skip
    add("--averages", nargs="+", type=int, default=[1, 5], metavar="M", help="how many averages (1 5)")
    add_peer_arguments(parser)
    return parser.parse_args(words)


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose the peers."""
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only peers whose name contains one of these")
    parser.add_argument("--wheels", type=Path, default=Packages().folder, metavar="DIR",
                        help="wheels of timm and diffusers, downloaded if missing (%(default)s)")  # fmt: skip


def chosen_peers(arguments: argparse.Namespace) -> list[Peer]:
    """All peers, or those that were named."""
    texts = [text.lower() for text in arguments.only or [""]]
    return [peer for peer in PEERS if any(text in peer.name.lower() for text in texts)]


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    peers, packages = chosen_peers(arguments), Packages(arguments.wheels)
    known = start(arguments, versions=versions(packages, peers))
    cases: list[Case] = []
    for name, averages in itertools.product(arguments.models, arguments.averages):
        cases.append(measure(name, averages, peers, packages, seconds=arguments.seconds))
        print(case_text(cases[-1]), end="\n\n", flush=True)
    rarely = EMABank(build("small1000"), [EMA(per_update=decay) for decay in decays(5)], every=10**9)
    idle = measure_not_due(rarely.update)
    print(
        f"a step that is not due: {idle.nanoseconds:.0f} ns, {idle.operators} torch operators, {idle.kept_bytes} bytes "
        f"kept after 10,000 calls, {idle.transient_bytes} bytes at most during one (its step counter)"
    )
    print("\n".join(line for case in cases for line in judge(case)))
    if arguments.json:
        write_result(arguments.json, known, cases, add=arguments.add, not_due=asdict(idle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
