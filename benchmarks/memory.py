"""Measures the memory of M averages, each case in a fresh process.

Allowed are 4 bytes per parameter and average, plus 2 % or 1 MiB, whichever is more.

Run `python benchmarks/memory.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/memory.py`

import torch
from torch import Tensor, nn

from benchmarks.harness import count_of, in_fresh_process, make_parser, start, system_bytes, text_table, write_result
from benchmarks.models import NAMES, build
from benchmarks.peers import decays
from emabank import EMABank

UPDATES = 5
DEFAULT = ["resnet20", "resnet18", "small1000", "resnet18-bf16"]


def allowed(parameters: int, averages: int) -> int:
    """The most bytes that M averages may take: working memory and averaged buffers must fit into the margin."""
    averages_alone = averages * 4 * parameters
    return averages_alone + max(averages_alone // 50, 2**20)


def storages() -> dict[int, int]:
    """The size in bytes of every storage that a Python tensor refers to, by address, so that views count once."""
    gc.collect()
    sizes: dict[int, int] = {}
    for thing in gc.get_objects():
        # type() and not isinstance(), which would trigger lazy modules and proxies.
        if issubclass(type(thing), Tensor) and thing.layout is torch.strided and thing.device.type == "cpu":
            with contextlib.suppress(RuntimeError):  # a tensor without data
                sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sizes


def resident_bytes() -> int | None:
    """Resident memory of this process; None if unknown."""
    return system_bytes("self/status", "VmRSS")


def peak_bytes() -> int | None:
    """The peak of resident memory since `reset_peak`; None if unknown."""
    return system_bytes("self/status", "VmHWM")


def reset_peak() -> None:
    """Reset the peak to the current resident memory (Linux: proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def warm_up(averages: int) -> None:
    """Start threads and lazy imports, whose memory is a cost per process and not per bank."""
    EMABank(nn.Linear(8, 8), decays(averages), every=1).update()


def weigh(name: str, averages: int) -> dict[str, Any]:
    """The memory of one bank in bytes. Call it in a fresh process."""
    warm_up(averages)
    model = build(name)
    before, resident = storages(), resident_bytes()
    reset_peak()
    bank = EMABank(model, decays(averages), every=1)
    for _ in range(UPDATES):
        bank.update()
    after, peak, resident_after = storages(), peak_bytes(), resident_bytes()
    return {
        "model": name,
        "averages": averages,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tensors": sum(size for address, size in after.items() if address not in before),
        "resident": None if resident is None or resident_after is None else resident_after - resident,
        "peak": None if resident is None or peak is None else peak - resident,
    }


def row_of(cost: Mapping[str, Any]) -> list[str]:
    """A row of the table, in MiB."""
    parameters, averages = cost["parameters"], cost["averages"]
    most = allowed(parameters, averages)
    sizes = (averages * 4 * parameters, most, cost["tensors"], cost["resident"], cost["peak"])
    within = "yes" if cost["tensors"] <= most else "NO"
    words = ["unknown" if size is None else f"{size / 2**20:.2f}" for size in sizes]
    return [f"{cost['model']}, {count_of(averages, 'average')}", *words, within]


def main(words: Sequence[str] | None = None) -> int:
    parser = make_parser(
        "Weigh a bank of M averages: the tensors it keeps alive, and the resident memory of the process.",
        "Default: four models with 1 and with 5 averages, half a minute. Exit code 1 if one takes too much.",
        seconds=None,
        result="memory.json",
    )
    parser.add_argument("--models", nargs="+", default=DEFAULT, choices=NAMES, metavar="MODEL",
                        help=f"of {', '.join(NAMES)} (default: {' '.join(DEFAULT)})")  # fmt: skip
    parser.add_argument("--averages", nargs="+", type=int, default=[1, 5], metavar="M", help="how many averages (1 5)")
    arguments = parser.parse_args(words)
    known = start(arguments)
    costs = [in_fresh_process(weigh, *case) for case in product(arguments.models, arguments.averages)]
    header = ["MiB", "averages alone", "allowed", "tensors", "resident", "peak resident", "within"]
    print(text_table(header, map(row_of, costs)))
    write_result(arguments, known, costs=costs)
    return int(any(cost["tensors"] > allowed(cost["parameters"], cost["averages"]) for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
