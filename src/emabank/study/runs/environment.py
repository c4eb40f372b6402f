"""Under which conditions a run was trained: versions and hardware, never names of machines, people or folders.

Standard library only: versions are looked up, nothing is imported for them.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from emabank import __version__


def environment(*, threads: int, also: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The conditions of a training that starts now; `also` adds what only the training knows, such as the device.

    >>> sorted(environment(threads=1, also={"device": "cpu"}))
    ['cores', 'cpu', 'device', 'emabank', 'numpy', 'platform', 'python', 'started', 'threads', 'torch']
    """
    return {
        "started": now(),
        "emabank": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": _cores(),
        "threads": threads,
        **(also or {}),
    }


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 has it.

    >>> len(now())
    20
    """
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):  # a batch system may give a process fewer cores than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor() or platform.machine()
