"""How much memory averaging holds, measured in a process of its own: less than one tensor, whatever the layout.

Pages of mapped files (RssFile) are the system's to drop and do not count; what the process holds is RssAnon.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from averaging.made import write

TENSOR = 16 * 2**20  # bytes
MEASURED = """
import sys
from pathlib import Path
import torch
from emabank.averaging import average_checkpoints

def held():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])

folder, suffix, extra = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
small = [folder / f"small-{at}{suffix}" for at in (1, 2)]
average_checkpoints(small, folder / f"small{suffix}")  # whatever is loaded once is there now
most = before = held()
kept = torch.ones(extra, dtype=torch.uint8)

def tell(done, total):
    global most
    most = max(most, held())

average_checkpoints([folder / f"large-{at}{suffix}" for at in (1, 2, 3)], folder / f"large{suffix}", tell=tell)
print(max(most, held()) - before)
"""


def held(folder: Path, suffix: str, extra: int = 0) -> int:
    """Bytes that are held at most while three checkpoints with two large tensors each are averaged."""
    for at in (1, 2, 3):
        write(folder / f"small-{at}{suffix}", {"weight": torch.full((300_000,), at, dtype=torch.bfloat16)})
        large = torch.full((TENSOR // 2 // 1024, 1024), at, dtype=torch.bfloat16)
        write(folder / f"large-{at}{suffix}", {"first": large, "second": large.view(-1) + 1})
    words = [sys.executable, "-c", MEASURED, str(folder), suffix, str(extra)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_less_than_one_tensor_is_held(tmp_path: Path, suffix: str):
    assert held(tmp_path, suffix) < TENSOR


def test_control_two_tensors_more_would_be_seen(tmp_path: Path):
    assert held(tmp_path, ".pt", extra=2 * TENSOR) > 2 * TENSOR
