"""The environment of a training: versions and hardware, never names of machines, people or folders.

Standard library only: versions are looked up without importing the packages.
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
    """The environment of a training that starts now; `also` adds what only the training knows, such as the device."""
    return {
        "started": now(),
        "emabank": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": threads,
        **(also or {}),
    }


def now() -> str:
    """The UTC time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """How many cores this process may use: a batch system may give it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The name of the processor, as far as the system knows it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor() or platform.machine()
