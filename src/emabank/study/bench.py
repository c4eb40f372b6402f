"""`emabank bench`: how long one update takes on this machine, compared with the memory limit and torch's AveragedModel.

Contestants take turns in one process, once per round, in a new random order, with cold caches and live weights that
were just written. Ratios are taken within a round, so that a slow moment of the machine affects both sides. The suite
in benchmarks/ uses the same rounds.
"""

import gc
import json
import multiprocessing
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from emabank import EMABank
from emabank.study.models import build_network
from emabank.study.runs.environment import cpu_name
from emabank.study.runs.storage import write_text

if TYPE_CHECKING:
    from emabank.study.commands.bench import BenchArguments

LIMIT, BANK, AGAIN, TORCH = "memory limit", "emabank", "emabank, again", "torch AveragedModel"
DECAYS = (0.968, 0.984, 0.992, 0.996, 0.998)  # the paper's
MIN_ROUNDS, WARMUP_ROUNDS = 15, 3  # several libraries only copy the weights at their first call or two
QUIET = 0.05  # share of all cores; if other processes use more, a measurement is inconclusive
LIMIT_ELEMENTS = 2**28  # 1 GiB; a larger bank's traffic is measured in several passes

# Private, but what torch's optimizers are built on: one call for many tensors.
_multiply_all = torch._foreach_mul_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


@dataclass(frozen=True)
class Spread:
    """Median, 10 % and 90 % points, and mean of a sample."""

    median: float
    low: float
    high: float
    mean: float

    def __str__(self) -> str:
        median, low, high = (f"{x:.3g}" if abs(x) < 100 else f"{x:.0f}" for x in (self.median, self.low, self.high))
        return f"{median} ({low}–{high})"


def spread(values: Iterable[float]) -> Spread:
    """Summarise a sample."""
    sample = list(values)
    tenths = statistics.quantiles(sample, n=10, method="inclusive") if len(sample) > 1 else sample
    return Spread(statistics.median(sample), tenths[0], tenths[-1], statistics.fmean(sample))


def paired_ratio(times: Sequence[float], reference: Sequence[float]) -> Spread:
    """Summarise times/reference, taken round by round."""
    return spread(time / other for time, other in zip(times, reference, strict=True))


# The machine ----------------------------------------------------------------------------------------------------------


class BackgroundLoad:
    """Measures, from its creation on, how much of the CPU is used by processes other than this one and its children."""

    def __init__(self) -> None:
        self._children = [child.pid for child in multiprocessing.active_children()]
        self._start = self._ticks()

    def share(self) -> float | None:
        """Their share of all cores, from 0 to 1; None if the system does not say (not Linux)."""
        if self._start is None or (now := self._ticks()) is None:
            return None
        total, busy, own = (after - before for after, before in zip(now, self._start, strict=True))
        return max(0.0, busy - own) / total if total > 0 else None

    def _ticks(self) -> tuple[int, int, float] | None:
        try:
            cores = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            own = (os.times().user + os.times().system) * os.sysconf("SC_CLK_TCK")
            for pid in self._children:
                # The name in brackets may contain anything; user and system time are fields 12 and 13 after it.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                own += int(fields[11]) + int(fields[12])
        except (OSError, ValueError):
            return None
        return sum(cores), sum(cores) - cores[3] - cores[4], own


def conditions() -> dict[str, Any]:
    """Machine, versions and settings: what a reader needs to judge or repeat a measurement."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cache_mib": last_level_cache() // 2**20,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled") or "unknown",
    }


def last_level_cache() -> int:
    """Bytes of the largest cache of the first core; 32 MiB if the system does not say."""
    sizes = [_read(file) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * 1024 for size in sizes if size.endswith("K")), default=32 * 2**20)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


# Rounds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """One implementation of the operation to time.

    Args:
        name: as printed; unique within a run.
        update: the timed call.
        live: the tensors that an optimizer step writes just before the call.
        read: returns one tensor of each average and, last, its live counterpart; empty if there are no averages.
        before: called before each turn, untimed, instead of sweeping the caches and writing `live`.
    """

    name: str
    update: Callable[[], object]
    live: Sequence[Tensor] = ()
    read: Callable[[], list[Tensor]] = list
    before: Callable[[], object] | None = None


class Rounds:
    """Plays rounds: every contestant once, in random order, with caches and live weights as training leaves them."""

    def __init__(self, contestants: Sequence[Contestant], device: torch.device | None = None) -> None:
        self._order, self._shuffle = list(contestants), random.Random(0).shuffle
        names = [contestant.name for contestant in contestants]
        if len(set(names)) < len(names):
            raise ValueError(f"contestants must have different names; got {names}")
        self._sweep, self._doubled = torch.zeros(2 * last_level_cache() // 4), dict[int, bool]()
        on_cpu = device is None or device.type == "cpu"
        self._wait: Callable[[], object] = (lambda: None) if on_cpu else torch.get_device_module(device).synchronize
        for contestant in contestants:
            contestant.update()  # once before the live weights change, so that no bank warns about replaced weights
        for _ in range(WARMUP_ROUNDS):
            self._round()
        gc.collect()

    def prepare(self, contestant: Contestant) -> None:
        """Sweep the caches as a forward and backward pass does, then write the live weights as an optimizer does."""
        if contestant.before is not None:
            contestant.before()
            return
        self._sweep.add_(1.0)
        live = list(contestant.live)
        doubled = self._doubled.get(live[0].data_ptr(), False)
        with torch.no_grad():
            _multiply_all(live, 0.5 if doubled else 2.0)  # exact in every dtype, and never drifts
        self._doubled[live[0].data_ptr()] = not doubled

    def play(self, seconds: float, *, least: int = 1) -> list[dict[str, float]]:
        """Play for `seconds`, and at least `least` rounds; the seconds of every contestant, per round."""
        rounds: list[dict[str, float]] = []
        gc.disable()  # as timeit does: a collection would slow down whichever contestant is running
        try:
            end = time.perf_counter() + seconds
            while len(rounds) < least or time.perf_counter() < end:
                rounds.append(self._round())
        finally:
            gc.enable()
        return rounds

    def _round(self) -> dict[str, float]:
        self._shuffle(self._order)
        times: dict[str, float] = {}
        for contestant in self._order:
            self.prepare(contestant)
            self._wait()
            start = time.perf_counter()
            contestant.update()
            self._wait()
            times[contestant.name] = time.perf_counter() - start
        return times


# Contestants ----------------------------------------------------------------------------------------------------------


def averaged_tensors(model: nn.Module) -> list[Tensor]:
    """The tensors in one average: each parameter once, and the running statistics of batch norm."""
    statistics = ("running_mean", "running_var")
    return [*model.parameters(), *(b for name, b in model.named_buffers() if name.rpartition(".")[2] in statistics)]


def memory_limit(model: nn.Module, averages: int) -> Contestant:
    """The memory traffic that no update can avoid: every average read and written in place, the live weights read."""
    tensors = averaged_tensors(model)
    elements = averages * sum(tensor.numel() for tensor in tensors)
    bank = torch.randn(min(elements, LIMIT_ELEMENTS), device=tensors[0].device)
    passes, rest = divmod(elements, bank.numel())
    live = [
        torch.randn(sum(tensor.numel() for tensor in tensors if tensor.dtype == dtype), device=bank.device).to(dtype)
        for dtype in {tensor.dtype for tensor in tensors}
    ]

    def update() -> None:
        for _ in range(passes):
            bank.mul_(-1.0)  # no drift, no denormals
        if rest:
            bank[:rest].mul_(-1.0)
        for tensor in live:
            tensor.sum()

    return Contestant(LIMIT, update, live)


def averaging(
    name: str, model: nn.Module, update: Callable[[], object], averages: Callable[[str], list[Tensor]]
) -> Contestant:
    """A contestant that updates averages of a model; `averages` returns the named parameter of each average."""
    key, live = max(model.named_parameters(), key=lambda item: item[1].numel())
    return Contestant(name, update, averaged_tensors(model), lambda: [*averages(key), live])


def bank_contestant(name: str, model: nn.Module, bank: EMABank) -> Contestant:
    """A bank that averages at every call."""
    return averaging(name, model, bank.update, lambda key: [bank.weights(average)[key] for average in bank.names])


def torch_contestant(name: str, model: nn.Module, decays: Sequence[float], *, use_buffers: bool = False) -> Contestant:
    """One instance of torch's `AveragedModel` per average."""
    averages = [
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers) for decay in decays
    ]

    def update() -> None:
        for average in averages:
            average.update_parameters(model)

    return averaging(name, model, update, lambda key: [average.module.get_parameter(key) for average in averages])


# The command ----------------------------------------------------------------------------------------------------------


def run_bench(arguments: "BenchArguments") -> None:
    """Time updates of the chosen model, print a table, and write a JSON file if its path is given."""
    console = Console(highlight=False)
    device = _device(arguments.device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    about = conditions() | {"device": device.type}
    model = _build(arguments.model).to(device)
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    console.print(f"Updating averages of {arguments.model} ({size:.3g} million parameters) ...")
    cases = [_measure(model, averages, arguments.seconds, device) for averages in arguments.averages]
    shares = [case["background"] for case in cases if case["background"] is not None]
    disturbed = max(shares, default=0.0) > QUIET
    ratios = {} if disturbed else {"over_limit": LIMIT, "over_emabank": BANK}
    table = Table(box=SIMPLE_HEAD)
    for title in ("averages", "updated by", "ms: median (10–90 %)", *([] if disturbed else ["× limit", f"× {BANK}"])):
        table.add_column(title, justify="left" if title == "updated by" else "right", no_wrap=True)
    for case in cases:
        times = case.pop("times")
        case["rows"] = []
        for name, own in times.items():
            over = {key: paired_ratio(own, times[other]) for key, other in ratios.items()}
            case["rows"].append({"name": name, "ms": (ms := spread(1e3 * second for second in own)), **over})
            table.add_row(str(case["averages"]), name, str(ms), *(f"{ratio.median:.2f}" for ratio in over.values()))
        table.add_section()
    console.print(table)
    background = "This system does not say whether other processes disturbed the measurement."
    if shares:
        advice = ", so no ratios are shown; measure again on an idle machine" if disturbed else ": undisturbed"
        background = f"Other processes used {max(shares):.1%} of the processor time{advice}."
    console.print(
        f"{about['cpu']}, {about['cores']} cores, {about['threads']} thread{'s' * (about['threads'] != 1)}, "
        f"{device.type}, torch {about['torch']}; "
        f"{min(case['rounds'] for case in cases)} rounds or more.\n"
        f"{BANK} and {AGAIN} are two identical banks: they differ by noise.\n{background}"
    )
    if arguments.json is not None:
        write_json(arguments.json, {"conditions": about, "model": arguments.model, "cases": cases})
        console.print(f"Wrote {arguments.json}")


def _measure(model: nn.Module, averages: int, seconds: float, device: torch.device) -> dict[str, Any]:
    decays = DECAYS[:averages]
    contestants = [
        memory_limit(model, averages),
        *(bank_contestant(name, model, EMABank(model, decays, every=1)) for name in (BANK, AGAIN)),
        torch_contestant(TORCH, model, decays),
    ]
    rounds = Rounds(contestants, device)
    load = BackgroundLoad()
    played = rounds.play(seconds, least=MIN_ROUNDS)
    times = {contestant.name: [times[contestant.name] for times in played] for contestant in contestants}
    return {"averages": averages, "rounds": len(played), "background": load.share(), "times": times}


def _build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "transformer":  # the blocks of GPT-2 small
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(768, 12, 3072), 12, enable_nested_tensor=False)
    return build_network(name, classes=10)


def _device(name: str) -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return accelerator or torch.device("cpu")
    if name != "cpu" and (accelerator is None or accelerator.type != name):
        raise ValueError(f"device must be {accelerator.type if accelerator else 'cpu'} on this machine; got {name}")
    return torch.device(name)


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON; it replaces a file at `path` only when it is complete."""
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False, default=asdict) + "\n")
