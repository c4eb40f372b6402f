"""A large model with five averages: the memory and time of each stage, in a fresh process. 500 million on 24 GiB.

Run `python benchmarks/large.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from memory import allowed, forget_peak, peak_resident_bytes, resident_bytes
from torch import nn

from emabank import EMABank
from emabank.bench import zoo
from emabank.bench.cases import Verdict
from emabank.bench.interleave import ColdCaches, Contestant, Spread, paired_ratio, run_interleaved
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import QUIET_SHARE, available_bytes, conditions
from emabank.bench.peers import BANK, LIMIT, LIMIT_ELEMENTS, decays, memory_limit
from emabank.bench.tables import facts, number, table, with_spread
from emabank.bench.update import progress
from emabank.checkpoint import load, save

AVERAGES = 5
UPDATES = 5
MACHINE = 24 * 2**30
OF_LIMIT = 1.1  # issue 5, point 1: from ResNet-18 up
SPARE = 2**30  # bytes that are left to everything else on the machine
KINDS = {"float32": "", "bfloat16": zoo.BF16}


@dataclass(frozen=True)
class Size:
    """What a model is: its parameters, those of its largest tensor, and the bytes of its live weights."""

    parameters: int
    largest: int
    live: int

    @property
    def average(self) -> int:
        """Bytes of one average."""
        return 4 * self.parameters

    @property
    def compared(self) -> int:
        """Bytes in which live weights are compared with an average: both in its precision, and two temporaries."""
        converted = 0 if self.live == self.average else self.average
        return self.average + converted + 2 * 4 * self.largest

    @property
    def needed(self) -> int:
        """What all stages but saving and loading need at the most: an average is read twice over, or timed."""
        beside = max(2 * self.average, self.average + self.live, 4 * LIMIT_ELEMENTS + self.live, self.compared)
        return self.live + allowed(self.parameters, AVERAGES) + beside


@dataclass(frozen=True)
class Stage:
    """One stage: the bytes that are resident after it and at its worst moment, beyond what the bare process has.

    Args:
        beside: bytes that it may need at its worst moment beside the model and the averages; None: it is not judged.
    """

    name: str
    seconds: float
    resident: int
    peak: int
    beside: int | None = None


@dataclass(frozen=True)
class Weighed:
    """What a model with its averages took.

    Args:
        live: the precision of its live weights.
        bare: bytes of the process before there was a model.
        left_out: why stages were left out.
        of_limit: time of an update over the memory limit's, round by round.
    """

    live: str
    size: Size
    bare: int
    stages: Sequence[Stage]
    milliseconds: Spread
    of_limit: Spread
    rounds: int
    bystanders: float | None
    left_out: Sequence[str] = ()


def size_of(name: str) -> Size:
    """The size of a model that is not built."""
    with torch.device("meta"):
        model = zoo.build(name)
    tensors = list(model.parameters())
    counts = [each.numel() for each in tensors]
    return Size(sum(counts), max(counts), sum(each.nbytes for each in tensors))


# In the fresh process -------------------------------------------------------------------------------------------------


@dataclass
class Scale:
    """Weighs one stage after the other, against what the process had when it was made."""

    bare: int = field(default_factory=lambda: resident_bytes() or 0)
    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, beside: int | None = None) -> Generator[None]:
        """What happens inside is one stage."""
        print(f"{name} ... ", end="", file=sys.stderr, flush=True)
        give_back()
        forget_peak()
        begin = time.perf_counter()
        yield
        seconds, peak = time.perf_counter() - begin, peak_resident_bytes() or 0
        give_back()
        after = resident_bytes() or 0
        self.stages.append(Stage(name, seconds, after - self.bare, peak - self.bare, beside))
        print(f"{seconds:.1f} s, peak {gib(peak - self.bare)}", file=sys.stderr, flush=True)


def give_back() -> None:
    """Return what is free to the system: the allocator keeps tensors below 32 MiB for later, and that is no need."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def weigh(name: str, work: Path | None, seconds: float) -> Weighed:
    """Everything of one model, in this process, which should have done nothing else."""
    spare = EMABank(nn.Linear(8, 8), decays(AVERAGES), every=1)  # threads and lazy imports are paid once a process
    spare.update()
    del spare
    size, caches = size_of(name), ColdCaches()
    scale = Scale()
    with scale.stage("model built"):
        model = zoo.build(name)
    written = partial(caches.prepare, Contestant(BANK, list, list(model.parameters())))
    with scale.stage("bank built", 0):
        bank = EMABank(model, decays(AVERAGES), every=1)
    written()
    written()  # as AdamW does in one step; then the first update compares, to see that no other weights were loaded
    with scale.stage("first update", 0):
        bank.update()
    with scale.stage(f"{UPDATES} updates", 0):
        for _ in range(UPDATES):
            written()
            bank.update()
    milliseconds, of_limit, rounds, bystanders = time_update(model, bank, seconds)
    with scale.stage("one average as a state dict"):
        read = bank.weights(bank.names[0])
        refuse_standing_still(model, read)
        del read
    with scale.stage("one average applied", size.average + size.live), bank.applied(bank.names[-1]):
        pass
    left_out = save_and_load(bank, scale, size, work)
    kind = "bfloat16" if name.endswith(zoo.BF16) else "float32"
    return Weighed(kind, size, scale.bare, scale.stages, milliseconds, of_limit, rounds, bystanders, left_out)


def time_update(model: nn.Module, bank: EMABank, seconds: float) -> tuple[Spread, Spread, int, float | None]:
    """An update beside the memory limit: its milliseconds, its time over the limit's, rounds, and what others took."""
    field = [memory_limit(model, AVERAGES), Contestant(BANK, bank.update, list(model.parameters()))]
    run = run_interleaved(field, seconds=seconds, progress=progress("update and memory limit"))
    own, limit = run.times[BANK], run.times[LIMIT]
    milliseconds = paired_ratio(own, [1e-3] * len(own))
    return milliseconds, paired_ratio(own, limit), len(own), run.bystanders


def refuse_standing_still(model: nn.Module, read: dict[str, torch.Tensor]) -> None:
    """What does not average need not be weighed: the live weights were doubled and halved, so an average is neither."""
    name, live = next(iter(model.named_parameters()))
    if torch.equal(read[name], live.to(read[name].dtype)):
        raise RuntimeError(f"the average of {name} equals the live weights after many updates; its time means nothing")


def save_and_load(bank: EMABank, scale: Scale, size: Size, work: Path | None) -> list[str]:
    """Save and load the whole bank, if memory and disk allow; else why not, in a sentence."""
    needed = AVERAGES * size.average
    free = available_bytes()
    if work is None:
        return ["saving and loading were not asked for"]
    if free is not None and free < needed + SPARE:
        return [f"saving and loading hold all averages a second time, {gib(needed)}, and {gib(free)} are free"]
    if (room := shutil.disk_usage(work).free) < needed + SPARE:
        return [f"the file needs {gib(needed)}, and the disk of {work} has {gib(room)}; give another --work"]
    steps, path = bank.num_steps, work / "bank.pt"
    with scale.stage("bank saved"):
        save(bank, path)
    bank.update()
    with scale.stage("bank loaded"):
        load(bank, path)
    path.unlink()
    if bank.num_steps != steps:
        raise RuntimeError(f"the bank is at step {bank.num_steps} after loading a state of step {steps}")
    return []


# Judging and showing --------------------------------------------------------------------------------------------------


def judge(weighed: Weighed) -> list[Verdict]:
    """By the peak of every stage that has a goal, by that of all stages, and by the time of an update."""
    size, what = weighed.size, title_of(weighed)
    room = size.live + allowed(size.parameters, AVERAGES)
    found = [
        Verdict(
            f"{what}, {stage.name}: peak at most the model and {AVERAGES} × 4 bytes a parameter, plus 2 %"
            + (f", plus {gib(stage.beside)} that it needs meanwhile" if stage.beside else ""),
            stage.peak <= room + stage.beside,
            f"{gib(stage.peak)} of {gib(room + stage.beside)}",
        )
        for stage in weighed.stages
        if stage.beside is not None
    ]
    most = max(weighed.stages, key=lambda stage: stage.peak)
    whole = weighed.bare + most.peak
    found.append(Verdict(f"{what}: within 24 GiB", whole <= MACHINE, f"{gib(whole)} ({most.name}), process and all"))
    if weighed.live == "float32":
        disturbed = (weighed.bystanders or 0.0) > QUIET_SHARE
        value = weighed.of_limit.median
        passed = None if disturbed else value <= OF_LIMIT
        found.append(Verdict(f"{what}: an update at most {OF_LIMIT} × the limit", passed, f"{value:.3f} ×"))
    return found


def ratios_of(weighed: Weighed) -> list[Ratio]:
    """What a later measurement is held against."""
    name = f"large/{weighed.size.parameters // 10**6}m-{weighed.live}/of-limit"
    return [Ratio(name, weighed.of_limit, weighed.rounds)]


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / 2**30:.2f} GiB"


def title_of(weighed: Weighed) -> str:
    return f"{weighed.size.parameters / 1e6:.0f} million parameters in {weighed.live}, {AVERAGES} averages"


def weighed_text(weighed: Weighed) -> str:
    """The stages, and the update."""
    size = weighed.size
    rows = [
        [
            stage.name,
            number(stage.seconds),
            gib(stage.resident),
            gib(stage.peak),
            f"{(stage.peak - size.live) / size.average:.2f}",
        ]
        for stage in weighed.stages
    ]
    others = "an unknown share" if weighed.bystanders is None else f"{weighed.bystanders:.1%}"
    return "\n".join(
        [
            f"{title_of(weighed)}: live weights {gib(size.live)}, averages {gib(AVERAGES * size.average)}; the bare "
            f"process has {gib(weighed.bare)}, which is in none of the numbers",
            table(["stage", "seconds", "resident", "peak", "peak beyond the model, in averages"], rows),
            *weighed.left_out,
            f"an update: {with_spread(weighed.milliseconds)} ms, {with_spread(weighed.of_limit)} × the memory limit; "
            f"{weighed.rounds} rounds; other processes took {others} of the machine",
        ]
    )


# The command ----------------------------------------------------------------------------------------------------------


def weigh_apart(name: str, work: Path | None, seconds: float) -> Weighed:
    """Weigh a model in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--seconds", str(seconds)]
    command += ["--no-save"] if work is None else ["--work", str(work)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that weighs {name} ended with {done.returncode} (-9: for want of memory)")
    kept = json.loads(done.stdout.splitlines()[-1])
    stages = [Stage(**stage) for stage in kept["stages"]]
    spreads = {key: Spread(**kept[key]) for key in ("milliseconds", "of_limit")}
    return Weighed(**{**kept, "size": Size(**kept["size"]), "stages": stages, **spreads})


def refuse_what_does_not_fit(millions: int, size: Size, free: int | None) -> None:
    """A sentence in place of a machine that swaps or kills."""
    if free is not None and free < size.needed + SPARE:
        raise ValueError(
            f"{millions} million parameters with {AVERAGES} averages need {gib(size.needed + SPARE)}, and "
            f"{gib(free)} of memory are free; end other programs or give fewer with --parameters"
        )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Build a large transformer and a bank of five averages, update, read, save and load it; say what "
        "each stage takes of memory, and what an update takes beside the memory limit.",
        epilog="Default: 500 million parameters in float32 and in bfloat16, about six minutes; needs 17 GiB of free "
        "memory, and 22 GiB to save and load, which is left out where there is less.",
    )
    add = parser.add_argument
    add("--parameters", type=int, default=500, choices=list(zoo.GPTS), metavar="MILLIONS",
        help=f"of {', '.join(map(str, zoo.GPTS))} (500)")  # fmt: skip
    add("--live", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="DTYPE",
        help="precision of the live weights (float32 bfloat16)")  # fmt: skip
    add("--seconds", type=float, default=40, help="for the time of an update, about (40)")
    add("--no-save", action="store_true", help="leave saving and loading out")
    add("--work", type=Path, default=Path(tempfile.gettempdir()), metavar="DIR",
        help="where the bank is saved, 10 GB, and removed again (%(default)s)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/large.json")
    add("--check", action="store_true", help="exit with 1 when a goal is missed")
    add("--one", metavar="MODEL", help=argparse.SUPPRESS)  # the fresh process
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    work = None if asked.no_save else asked.work
    if asked.one:
        print(json.dumps(asdict(weigh(asked.one, work, asked.seconds))))
        return 0
    known = conditions()
    print(facts(known), end="\n\n", flush=True)
    found: list[Weighed] = []
    try:
        for live in asked.live:
            name = f"gpt{asked.parameters}m{KINDS[live]}"
            refuse_what_does_not_fit(asked.parameters, size_of(name), available_bytes())
            with tempfile.TemporaryDirectory(prefix="emabank-large-", dir=work) as folder:
                found.append(weigh_apart(name, work and Path(folder), asked.seconds))
            print(weighed_text(found[-1]), end="\n\n", flush=True)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"large.py: {error}", file=sys.stderr)
        return 1
    judged = [verdict for weighed in found for verdict in judge(weighed)]
    print("\n".join(map(str, judged)))
    if asked.json:
        ratios = [ratio for weighed in found for ratio in ratios_of(weighed)]
        models = [asdict(weighed) for weighed in found]
        keep_result(asked.json, "python benchmarks/large.py", known, ratios=ratios, verdicts=judged, models=models)
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
