"""A busy neighbour: one process of its own that keeps one core's worth of work going while others are measured."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

# The neighbour watches its parent: it never outlives a benchmark that was killed.
_WATCH = "import os, sys\nparent = os.getppid()\n"
KINDS = {
    "spin": _WATCH + "while os.getppid() == parent:\n    for _ in range(100000): pass\n",
    "memory": _WATCH
    + "block = bytearray(256 << 20)\n"
    + "half = len(block) // 2\n"
    + "view = memoryview(block)\n"
    + "while os.getppid() == parent: view[:half] = view[half:]\n",
}


@contextlib.contextmanager
def busy_neighbour(kind: str) -> Iterator[int]:
    """Run the neighbour for the length of the block; gives its pid, and ends that process and no other.

    Args:
        kind: `spin` computes in registers; `memory` copies 128 MiB over and over, so it takes bandwidth as well.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no neighbour {kind!r}; there are {', '.join(KINDS)}")
    process = subprocess.Popen([sys.executable, "-c", KINDS[kind]])
    try:
        time.sleep(0.5)  # let it start, so that the first round meets it too
        yield process.pid
    finally:
        process.kill()
        process.wait()
