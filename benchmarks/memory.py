"""How much memory M averages take, each case in a fresh process: M × 4 bytes a parameter, plus at most 2 % or 1 MiB.

Run `python benchmarks/memory.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from emabank.bench.cases import Verdict, title
from emabank.bench.kept import keep_result
from emabank.bench.machine import conditions
from emabank.bench.peers import decays
from emabank.bench.tables import facts, table
from emabank.bench.zoo import averaged_tensors, build, names

UPDATES = 5
SHARE, FLOOR = 0.02, 2**20  # what a bank may take beside its averages: the larger of the two
DEFAULT = ["resnet20", "resnet18", "small1000", "resnet18-bf16"]


@dataclass(frozen=True)
class Cost:
    """What one bank took.

    Args:
        parameters, elements: of the model; the second also counts the batch-norm statistics that are averaged.
        tensors: bytes of all tensors that are alive because of the bank.
        resident: growth of the process's resident memory; None where the system does not say.
        peak: its growth at the worst moment of construction and updates; None where the system does not say.
    """

    model: str
    averages: int
    parameters: int
    elements: int
    tensors: int
    resident: int | None
    peak: int | None


def allowed(parameters: int, averages: int) -> int:
    """The most that M averages may take."""
    averages_alone = averages * 4 * parameters
    return averages_alone + max(int(SHARE * averages_alone), FLOOR)


def judge(cost: Cost) -> Verdict:
    """By the tensors that are alive; the resident memory stands beside it as a check on what torch cannot see."""
    most = allowed(cost.parameters, cost.averages)
    over = cost.tensors - cost.averages * 4 * cost.parameters
    return Verdict(
        f"{title(cost.model, cost.averages)}: {cost.averages} × 4 bytes a parameter, plus at most 2 % or 1 MiB",
        cost.tensors <= most,
        f"{over / 2**20:+.3f} MiB ({over / (cost.averages * 4 * cost.parameters):+.2%}) over the averages alone",
    )


def storages() -> dict[int, int]:
    """Bytes of every storage that a tensor known to Python is a view of, by address: views are counted once."""
    gc.collect()
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        # type() and not isinstance(): the latter wakes lazy modules and proxies among all these objects.
        if issubclass(type(thing), Tensor) and thing.layout is torch.strided and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            with contextlib.suppress(RuntimeError):  # a tensor without data, such as torch.compile leaves behind
                found[storage.data_ptr()] = storage.nbytes()
    return found


def resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def peak_resident_bytes() -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def forget_peak() -> None:
    """Start the peak afresh from what is resident now (Linux: proc(5), clear_refs)."""
    with contextlib.suppress(OSError):  # then the peak is that of the process so far, which is only ever too high
        Path("/proc/self/clear_refs").write_text("5")


def weigh(name: str, averages: int) -> Cost:
    """Weigh one bank in this process, which should have done nothing else."""
    from emabank import EMABank

    # Threads, lazily imported modules and torch's own start-up are paid once per process, not per bank.
    spare = EMABank(nn.Linear(8, 8), decays(averages), every=1)
    spare.update()
    del spare
    model = build(name)
    before, resident = storages(), resident_bytes()
    forget_peak()

    bank = EMABank(model, decays(averages), every=1)
    for _ in range(UPDATES):
        bank.update()

    after, peak, resident_after = storages(), peak_resident_bytes(), resident_bytes()
    return Cost(
        model=name,
        averages=averages,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        elements=sum(tensor.numel() for tensor in averaged_tensors(model)),
        tensors=sum(size for address, size in after.items() if address not in before),
        resident=None if resident is None or resident_after is None else resident_after - resident,
        peak=None if resident is None or peak is None else peak - resident,
    )


def weigh_apart(cases: Iterable[tuple[str, int]]) -> list[Cost]:
    """Weigh each case in a process of its own."""
    costs: list[Cost] = []
    for name, averages in cases:
        print(f"{title(name, averages)} ...", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--one", name, str(averages)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        costs.append(Cost(**json.loads(done.stdout.splitlines()[-1])))
    return costs


def cost_table(costs: Sequence[Cost]) -> str:
    def mib(size: float | None) -> str:
        return "unknown" if size is None else f"{size / 2**20:.2f}"

    rows = [
        [title(c.model, c.averages), mib(c.averages * 4 * c.parameters), mib(allowed(c.parameters, c.averages)),
         mib(c.tensors), mib(c.resident), mib(c.peak)]
        for c in costs
    ]  # fmt: skip
    return table(["MiB", "M × 4 × parameters", "allowed", "tensors", "resident", "peak resident"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Weigh a bank of M averages: by the tensors it keeps alive and by resident memory.",
        epilog="Default: four models with 1 and with 5 averages, half a minute.",
    )
    parser.add_argument("--models", nargs="+", default=DEFAULT, choices=names(), metavar="MODEL",
                        help=f"of {', '.join(names())} (default: {' '.join(DEFAULT)})")  # fmt: skip
    parser.add_argument("--averages", nargs="+", type=int, default=[1, 5], metavar="M", help="how many averages (1 5)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/memory.json"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "M"), help=argparse.SUPPRESS)  # the fresh process
    asked = parser.parse_args(argv)
    if asked.one:
        print(json.dumps(asdict(weigh(asked.one[0], int(asked.one[1])))))
        return 0

    known = conditions()
    print(facts(known), end="\n\n")
    costs = weigh_apart((name, averages) for name in asked.models for averages in asked.averages)
    judged = [judge(cost) for cost in costs]
    print(cost_table(costs), "\n".join(map(str, judged)), sep="\n\n")
    if asked.json:
        kept = list(map(asdict, costs))
        keep_result(asked.json, "python benchmarks/memory.py", known, verdicts=judged, costs=kept)
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
