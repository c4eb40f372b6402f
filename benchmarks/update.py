"""How long an update of all averages takes: emabank, its peers and the memory limit in one interleaved run.

Run `python benchmarks/update.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import wheels
from goals import judge_case, judge_cliff, judge_not_due
from neighbour import KINDS, busy_neighbour

from emabank.bench import peers, zoo
from emabank.bench.cases import Case, Verdict
from emabank.bench.command import ratios_of
from emabank.bench.kept import Among, keep_result
from emabank.bench.machine import conditions
from emabank.bench.tables import case_table, facts
from emabank.bench.update import measure_not_due, run_case


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time one update of M averages: emabank, the installed peers and the memory limit side by side.",
        epilog="Default: both ResNets with 1 and with 5 averages, about two minutes. Rounds that other processes "
        "disturb are not counted, so on a busy machine it takes up to four times as long.",
    )
    add, known = parser.add_argument, zoo.names()
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
    add("--add", action="store_true", help="what FILE holds of other models and numbers of averages stays in it")
    add("--check", action="store_true", help="exit with 1 when a goal is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    chosen = wheels.chosen_peers(asked.wheels, asked.only)
    known = conditions() | {"versions": peers.versions(wheels.versions_in(asked.wheels))}
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
            beside = partial(busy_neighbour, asked.busy)
            busy = run_case(name, averages, chosen, seconds=asked.seconds, neighbour=asked.busy, beside=beside)
            cases.append(busy)
            judged += judge_cliff(quiet, busy)
            print(case_table(busy, quiet), end="\n\n", flush=True)
    idle = measure_not_due()
    judged += judge_not_due(idle)
    print("\n".join(map(str, judged)))

    if asked.json:
        quiet_cases = [case for case in cases if case.neighbour is None]
        keep_result(
            asked.json,
            "python benchmarks/update.py",
            known,
            ratios=ratios_of(quiet_cases, []),
            verdicts=judged,
            among=Among("cases", ("model", "averages", "neighbour")) if asked.add else None,
            cases=[asdict(case) for case in cases],
            not_due=asdict(idle),
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))  # what is open has not passed


if __name__ == "__main__":
    sys.exit(main())
