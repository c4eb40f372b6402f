"""Freed memory is kept where the system can keep it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from emabank.study import malloc, run_job

FAULTS = """
import resource, sys
import torch
from emabank.study.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    [torch.ones(2_000_000) for _ in range(10)]  # 8 MB each, as the activations of a few layers
for _ in range(20):  # the heap finds its shape
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is asked for")
@pytest.mark.slow
def test_memory_that_was_freed_is_not_fetched_again():
    # How much is given back is chance otherwise: it depends on what lies at the top of the heap.
    generous = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

    def faults(how: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, env=generous).stdout)

    left = faults("leave")
    assert left > 1000  # or there would be nothing to gain
    assert faults("keep") < left / 4


def test_a_system_without_it_or_that_refuses_is_believed(monkeypatch: pytest.MonkeyPatch):
    for library in (object(), SimpleNamespace(mallopt=lambda parameter, value: 0)):
        monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name, library=library: library)
        assert not malloc.keep_freed_memory()


def test_a_worker_keeps_its_memory(monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []
    monkeypatch.setattr(run_job, "keep_freed_memory", lambda: asked.append(True))
    with pytest.raises(ValueError, match="Expecting value"):
        run_job.main(["no job"])
    assert asked == [True]
