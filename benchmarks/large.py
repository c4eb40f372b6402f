"""Memory and time of a large model with five averages, per stage. 500 million parameters fit into 24 GiB.

Run `python benchmarks/large.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import ctypes
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/large.py`

import torch

from benchmarks.harness import (
    Case,
    case_text,
    free_memory,
    in_fresh_process,
    make_case,
    make_parser,
    run_interleaved,
    show_cases,
    start,
    text_table,
    write_result,
)
from benchmarks.memory import allowed, peak_bytes, reset_peak, resident_bytes, warm_up
from benchmarks.models import BF16, GPT_SIZES, build
from benchmarks.peers import decays
from emabank import EMABank
from emabank.checkpoint import load, save
from emabank.study.bench import BANK, LIMIT, LIMIT_ELEMENTS, Contestant, memory_limit

AVERAGES, UPDATES = 5, 5
SPARE = 2**30  # bytes left for everything else


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


class Scale:
    """Measures the time and memory of each stage; memory is relative to that of the process before the first."""

    def __init__(self) -> None:
        self.bare = resident_bytes() or 0
        self.stages: list[dict[str, Any]] = []

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Measure the body of the `with` as one stage."""
        trim()
        reset_peak()
        begin = time.perf_counter()
        yield
        seconds, peak = time.perf_counter() - begin, peak_bytes() or 0
        trim()
        resident = (resident_bytes() or 0) - self.bare
        self.stages.append({"name": name, "seconds": seconds, "resident": resident, "peak": peak - self.bare})
        print(f"{name}: {seconds:.1f} s, peak {gib(peak - self.bare)}", file=sys.stderr, flush=True)


def trim() -> None:
    """Return freed memory to the system, so that no stage pays for the leftovers of the one before."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def size_of(name: str) -> tuple[int, int]:
    """The number of parameters and the bytes of a model, without building it."""
    with torch.device("meta"):
        parameters = list(build(name).parameters())
    return sum(p.numel() for p in parameters), sum(p.nbytes for p in parameters)


def check_memory(name: str) -> None:
    """Exit unless the model, its bank and the largest temporaries fit into free memory."""
    parameters, live = size_of(name)
    needed = live + allowed(parameters, AVERAGES) + max(8 * parameters, 4 * LIMIT_ELEMENTS + live) + SPARE
    if (free := free_memory()) is not None and free < needed:
        sys.exit(
            f"{name} with {AVERAGES} averages needs {gib(needed)}; {gib(free)} are free. Choose fewer --parameters."
        )


def weigh(name: str, seconds: float) -> Case:
    """Measure all stages of one model. Call it in a fresh process."""
    warm_up(AVERAGES)
    parameters, live = size_of(name)
    scale = Scale()
    with scale.stage("model built"):
        model = build(name)
    with scale.stage("bank built"):
        bank = EMABank(model, decays(AVERAGES), every=1)
    with scale.stage("first update"):
        bank.update()
    with scale.stage(f"{UPDATES} updates"):
        for _ in range(UPDATES):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.neg_()
            bank.update()
    # Reading an average copies it, and memory is nearly full here. So the run does not check that the bank averages;
    # the check is below.
    contestants = [memory_limit(model, AVERAGES), Contestant(BANK, bank.update, list(model.parameters()))]
    run = run_interleaved(contestants, seconds=seconds, title=f"{name}: update and memory limit")
    del contestants
    with scale.stage("one average as a state dict"):
        weights = bank.weights(bank.names[0])
        key, parameter = next(iter(model.named_parameters()))
        if torch.equal(weights[key], parameter.to(weights[key].dtype)):
            raise RuntimeError(f"the average of {key} must differ from the live weights after many updates")
        del weights
    with scale.stage("one average applied"), bank.applied(bank.names[-1]):
        pass
    left_out = save_and_load(bank, scale, AVERAGES * 4 * parameters)
    kind = "bfloat16" if name.endswith(BF16) else "float32"
    about = {"parameters": parameters, "dtype": kind, "live": live, "bare": scale.bare, "stages": scale.stages}
    title = f"{parameters / 1e6:.0f} million parameters in {kind}, {AVERAGES} averages"
    return make_case(title, [run], over=(LIMIT,), better={BANK: "lower"}, about=about | {"left_out": left_out})


def save_and_load(bank: EMABank, scale: Scale, size: int) -> str:
    """Save and load the bank if memory and disk allow. Returns the reason if they do not."""
    free, disk = free_memory(), shutil.disk_usage(tempfile.gettempdir()).free
    if free is not None and free < size + SPARE:
        return f"saving and loading: needs {gib(size + SPARE)} of memory, {gib(free)} are free"
    if disk < size + SPARE:
        return f"saving and loading: needs {gib(size + SPARE)} of disk, {gib(disk)} are free"
    with tempfile.TemporaryDirectory(prefix="emabank-large-") as folder:
        steps, path = bank.num_steps, Path(folder, "bank.pt")
        with scale.stage("bank saved"):
            save(bank, path)
        bank.update()
        with scale.stage("bank loaded"):
            load(bank, path)
    if bank.num_steps != steps:
        raise RuntimeError(f"the loaded bank must be at step {steps}; got {bank.num_steps}")
    return ""


def large_text(case: Case) -> str:
    """The case, its stages, and whether building and updating stay within the allowed memory."""
    about = case.about
    rows = [
        [stage["name"], f"{stage['seconds']:.3g}", gib(stage["resident"]), gib(stage["peak"])]
        for stage in about["stages"]
    ]
    most = about["live"] + allowed(about["parameters"], AVERAGES)
    peak = max(stage["peak"] for stage in about["stages"] if "update" in stage["name"] or stage["name"] == "bank built")
    verdict = "met" if peak <= most else "NOT MET"
    lines = [case_text(case), text_table(["stage", "seconds", "resident", "peak"], rows), about["left_out"]]
    return "\n".join([*filter(None, lines), f"peak of building and updating: {gib(peak)} of {gib(most)}, {verdict}"])


def main(words: Sequence[str] | None = None) -> int:
    parser = make_parser(
        "Build a large transformer, in float32 and in bfloat16, and a bank of five averages; update, read, save and "
        "load it. Prints the memory of each stage, and the time of an update relative to the memory limit.",
        "Default: 500 million parameters, about 6 minutes; needs 17 GiB of free memory, and 22 GiB and 10 GB in TMPDIR "
        "to save and load, which is skipped if there is less.",
        seconds=40,
        result="large.json",
    )
    parser.add_argument("--parameters", type=int, default=500, choices=list(GPT_SIZES), metavar="MILLIONS",
                        help=f"of {', '.join(map(str, GPT_SIZES))} (500)")  # fmt: skip
    arguments = parser.parse_args(words)
    models = [f"gpt{arguments.parameters}m{suffix}" for suffix in ("", BF16)]
    for name in models:
        check_memory(name)
    known = start(arguments)
    cases = (in_fresh_process(weigh, name, arguments.seconds) for name in models)
    write_result(arguments, known, show_cases(cases, large_text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
