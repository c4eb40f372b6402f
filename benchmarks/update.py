"""How long an update of all averages takes: emabank, its peers and the memory limit in one interleaved run.

Run `python benchmarks/update.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import models
import not_due
import peers
import torch
import wheels
from interleave import Contestant, Run, run_interleaved
from machine import available_bytes, conditions
from neighbour import KINDS, busy_neighbour
from tables import case_table, facts, write_json
from verdicts import Case, Verdict, judge_case, judge_cliff, judge_not_due, rows_of, title

MEMORY_SHARE = 0.6  # of what is free; the rest is for temporaries, of which some peers make as much as an average


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time one update of M averages: emabank, the installed peers and the memory limit side by side.",
        epilog="Default: both ResNets with 1 and with 5 averages, about two minutes. Rounds that other processes "
        "disturb are not counted, so on a busy machine it takes up to four times as long.",
    )
    add, known = parser.add_argument, models.names()
    add("--models", nargs="+", default=["resnet20", "resnet18"], choices=known, metavar="MODEL",
        help=f"of {', '.join(known)} (default: resnet20 resnet18)")  # fmt: skip
    add("--averages", nargs="+", type=int, default=[1, 5], metavar="M", help="how many averages (1 5)")
    add("--seconds", type=float, default=25, help="for each model and number of averages (25)")
    add("--only", nargs="+", metavar="TEXT", help="only peers whose name contains one of these")
    add("--wheels", type=Path, default=wheels.default_folder(), metavar="DIR",
        help="holds the wheels of timm and diffusers; downloaded into it when missing (%(default)s)")  # fmt: skip
    add("--busy", nargs="?", const="spin", choices=list(KINDS),
        help="measure a second time beside one busy process: spin, or memory, which takes bandwidth too")  # fmt: skip
    add("--threads", type=int, help="torch threads (default: torch's own choice)")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/update.json")
    add("--check", action="store_true", help="exit with 1 when a goal is missed")
    return parser.parse_args(argv)


def progress(what: str) -> Callable[[str], None]:
    """Says how far a case is: on one line where somebody watches, once where it goes to a file."""
    shown = False

    def show(line: str) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print(f"\r\033[K{what}: {line}", end="", file=sys.stderr, flush=True)
        elif not shown:
            print(f"{what} ...", file=sys.stderr, flush=True)
        shown = True

    return show


def fits(model: torch.nn.Module, averages: int) -> int:
    """How many peers with this many averages fit into memory beside the limit and our own banks."""
    one = averages * sum(tensor.numel() * 4 for tensor in models.averaged_tensors(model))
    free = available_bytes()
    return 1000 if free is None else max(1, int(free * MEMORY_SHARE / one) - 1 - len(peers.OURS))


def run_case(
    name: str, averages: int, chosen: Sequence[peers.Peer], *, seconds: float, busy: str | None = None
) -> Case:
    """Measure one model with one number of averages, beside a busy neighbour of that kind if one is asked for."""
    model = models.build(name)
    size = fits(model, averages)
    runs = max(1, -(-len(chosen) // size))
    show = progress(title(name, averages) + (f", busy neighbour ({busy})" if busy else ""))
    missing: dict[str, str] = {}
    groups: list[Run] = []
    for run in range(runs):
        field = [peers.memory_limit(model, averages)]
        for bank in peers.OURS:
            _enter(field, missing, bank, lambda bank=bank: peers.emabank_bank(model, averages, bank))
        for peer in chosen[run * size : (run + 1) * size]:
            _enter(field, missing, peer.name, lambda peer=peer: peer.build(model, averages))
        with busy_neighbour(busy) if busy else nullcontext() as pid:
            groups.append(run_interleaved(field, seconds=seconds / runs, neighbour=pid, progress=show))
        del field
        gc.collect()
    tensors = models.averaged_tensors(model)
    return Case(
        model=name,
        averages=averages,
        elements=sum(tensor.numel() for tensor in tensors),
        tensors=len(tensors),
        rounds=sum(len(group.times[peers.LIMIT]) for group in groups),
        dropped=sum(group.dropped for group in groups),
        neighbour=busy,
        bystanders=max((group.bystanders for group in groups if group.bystanders is not None), default=None),
        rows=rows_of([group.times for group in groups]),
        missing=missing,
    )


def _enter(field: list[Contestant], missing: dict[str, str], name: str, build: Callable[[], Contestant]) -> None:
    try:
        field.append(build())
    except wheels.NotAvailable as error:
        missing[name] = str(error)


def measure_not_due() -> not_due.NotDue | None:
    try:
        from emabank import EMABank
    except ImportError:
        return None
    bank = EMABank(models.build("small1000"), list(peers.DECAYS), every=10**9)
    return not_due.measure(bank.update)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    chosen = [
        peer
        for peer in peers.all_peers(asked.wheels)
        if not asked.only or any(text.lower() in peer.name.lower() for text in asked.only)
    ]
    known = conditions() | {"versions": ", ".join(f"{k} {v}" for k, v in peers.versions(asked.wheels).items())}
    print(facts(known), end="\n\n")

    cases: list[Case] = []
    judged: list[Verdict] = []
    plan = [(name, averages) for name in asked.models for averages in asked.averages]
    for name, averages in plan:
        quiet = run_case(name, averages, chosen, seconds=asked.seconds)
        cases.append(quiet)
        judged += judge_case(quiet)
        print(case_table(quiet), end="\n\n", flush=True)
        if asked.busy:
            busy = run_case(name, averages, chosen, seconds=asked.seconds, busy=asked.busy)
            cases.append(busy)
            judged += judge_cliff(quiet, busy)
            print(case_table(busy, quiet), end="\n\n", flush=True)
    idle = measure_not_due()
    if idle is not None:
        judged += judge_not_due(idle)
    print("\n".join(map(str, judged)) or "no verdict: emabank took no part, or no goal is set for these cases")

    if asked.json:
        write_json(asked.json, _result(known, cases, idle, judged))
        print(f"kept in {asked.json}")
    # A check that measured nothing, or could not decide, has failed.
    return int(asked.check and (not judged or not all(verdict.passed for verdict in judged)))


def _result(
    known: Mapping[str, object], cases: Sequence[Case], idle: not_due.NotDue | None, judged: Sequence[Verdict]
) -> dict[str, object]:
    return {
        "format": 1,
        "command": "python benchmarks/update.py " + " ".join(sys.argv[1:]),
        "conditions": dict(known),
        "cases": [asdict(case) for case in cases],
        "not_due": asdict(idle) if idle else None,
        "verdicts": [asdict(verdict) for verdict in judged],
    }


if __name__ == "__main__":
    sys.exit(main())
