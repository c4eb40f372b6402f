"""The machine: under which conditions a number was measured, and who else was at work meanwhile.

No number here is printed or kept without them. Imports torch alone.
"""

import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

CPU = torch.device("cpu")
QUIET_SHARE = 0.05  # of all cores; more than that in other hands and a number decides nothing


def conditions() -> dict[str, object]:
    """What a reader needs to judge a number or to measure it again."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "last_level_cache_mib": last_level_cache_bytes() // 2**20,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "huge_pages": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def last_level_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the largest cache of the first core; 32 MiB where the system does not say."""
    sizes = [0]
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes) or 32 * 2**20


class Watch(Protocol):
    """Tells what others took of the machine."""

    def share(self) -> float | None: ...


class Bystanders:
    """Watches what processes that are no part of the run take of the machine, from when it is made.

    Args:
        neighbour: a process that is meant to be busy, so that it does not count.
    """

    def __init__(self, neighbour: int | None = None, proc: Path = Path("/proc")) -> None:
        self._neighbour, self._proc = neighbour, proc
        self._begin = self._now()

    def share(self) -> float | None:
        """Their share of all cores since then, from 0 to 1; None where the system does not say."""
        if self._begin is None or (now := self._now()) is None:
            return None
        total, busy, own = (after - before for after, before in zip(now, self._begin, strict=True))
        return max(0.0, busy - own) / total if total > 0 else None

    def _now(self) -> tuple[int, int, float] | None:
        """Ticks of all cores, those that were not idle, and those of this process and its neighbour."""
        try:
            ticks = [int(field) for field in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
            own = (os.times().user + os.times().system) * os.sysconf("SC_CLK_TCK")
            if self._neighbour is not None:
                # After the name in brackets, which may hold anything, user and system time are fields 12 and 13.
                fields = (self._proc / str(self._neighbour) / "stat").read_text().rpartition(")")[2].split()
                own += int(fields[11]) + int(fields[12])
        except (OSError, ValueError):
            return None
        return sum(ticks), sum(ticks) - ticks[3] - ticks[4], own


class AllButWorkers:
    """What others take of the machine, where the workers of a DataLoader, children of this process, are no others."""

    def __init__(
        self,
        neighbour: int | None = None,
        *,
        workers: Sequence[int] | None = None,
        watch: Callable[[int | None], Watch] = Bystanders,
    ) -> None:
        if workers is None:
            workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        self._everyone, self._without = watch(neighbour), [watch(worker) for worker in workers]

    def share(self) -> float | None:
        """Their share of all cores; what a worker took is the difference that leaving it out makes."""
        everyone = self._everyone.share()
        without = [each.share() for each in self._without]
        if everyone is None or any(share is None for share in without):
            return None
        return max(0.0, everyone - sum(everyone - (share or 0.0) for share in without))


def settled(device: torch.device) -> Callable[[], object]:
    """Waits until a device has done all that it was asked for; a CPU always has."""
    return (lambda: None) if device.type == "cpu" else torch.get_device_module(device).synchronize


def available_bytes(device: torch.device = CPU) -> int | None:
    """Memory that can be had on a device, on a CPU without swapping; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().splitlines()[0]
    except OSError:
        return "unknown"
