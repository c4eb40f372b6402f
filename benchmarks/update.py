"""How long an update of all averages takes: emabank, its peers and the memory limit in one interleaved run.

Run `python benchmarks/update.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import statistics
import sys
import timeit
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import product, repeat
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/update.py`

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import Case, count_of, make_case, make_parser, show_cases, start, write_result
from benchmarks.models import NAMES, build
from benchmarks.peers import BANKS, Peer, decays, make_bank, peers_named, run_with_peers, versions
from emabank import EMA, EMABank
from emabank.study.bench import AGAIN, BANK, LIMIT, Contestant, averaged_tensors, memory_limit

DEFAULT = ["resnet18", "resnet20", "small1000", "gpt124m", "resnet18-bf16", "resnet20-bf16", "gpt124m-bf16"]


def measure(name: str, averages: int, peers: Sequence[Peer], *, seconds: float) -> Case:
    """Time one model with one number of averages."""
    model = build(name)
    tensors = averaged_tensors(model)
    elements = sum(tensor.numel() for tensor in tensors)

    def ours(banks: Sequence[str]) -> list[Contestant]:
        return [memory_limit(model, averages), *(make_bank(bank, model, averages) for bank in banks)]

    title = f"{name}, {count_of(averages, 'average')}"
    runs, missing = run_with_peers(title, model, averages, ours, peers, seconds=seconds)
    about = {"model": name, "averages": averages, "elements": elements, "tensors": len(tensors)}
    gated = {bank: "lower" for bank in BANKS if bank != AGAIN}
    return make_case(title, runs, over=(LIMIT, BANK), better=gated, about=about, missing=missing)


# A step that is not due -----------------------------------------------------------------------------------------------


class NotDue(NamedTuple):
    """The cost of `update()` when no average is due.

    Args:
        nanoseconds: per call, median of several repeats.
        kept_bytes: growth of Python's heap over 10,000 calls.
        transient_bytes: the most that a call held in addition; the counter's next value alone takes 32 bytes.
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
    loop = repeat(None, calls)
    tracemalloc.start()
    try:
        call()  # so that tracemalloc tracks the counter object
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in loop:
            call()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - max(before, after)


# The script -----------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
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
    add("--only", nargs="+", default=[""], metavar="TEXT", help="only peers whose name contains one of these")
    arguments = parser.parse_args(words)
    peers = peers_named(arguments.only)
    known = start(arguments, versions=versions(peers))
    cases = show_cases(
        measure(name, averages, peers, seconds=arguments.seconds)
        for name, averages in product(arguments.models, arguments.averages)
    )
    rarely = EMABank(build("small1000"), [EMA(per_update=decay) for decay in decays(5)], every=10**9)
    idle = measure_not_due(rarely.update)
    print(
        f"a step that is not due: {idle.nanoseconds:.0f} ns, {idle.operators} torch operators, {idle.kept_bytes} bytes "
        f"kept after 10,000 calls, {idle.transient_bytes} bytes at most during one (its step counter)"
    )
    write_result(arguments, known, cases, not_due=idle._asdict())
    return 0


if __name__ == "__main__":
    sys.exit(main())
