"""Averages on huge pages: what the kernel is asked, and what happens where it has none to give."""

import ctypes
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from emabank import EMA, EMABank, hugepages

CPU = torch.device("cpu")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(tensor: torch.Tensor) -> list[str]:
    """How the kernel marks the mapping that the middle of a tensor lies in; "hg": huge pages are wanted for it."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if "-" in first:
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= tensor.data_ptr() + tensor.nbytes // 2 < high
        elif inside and first == "VmFlags:":
            return others
    return []


@pytest.mark.skipif(not SETTING.exists(), reason="this kernel knows no huge pages")
def test_large_averages_are_marked_for_huge_pages():
    """Whether the kernel has some to give at the moment is its own affair."""
    tensor = hugepages.zeros(16 << 20, dtype=torch.float32, device=CPU)
    assert not tensor.any()
    assert "hg" in flags_at(tensor)


@pytest.mark.parametrize("missing", ["system", "advice", "call", "refused"])
def test_without_huge_pages_averages_are_the_same(missing: str, monkeypatch: pytest.MonkeyPatch):
    hugepages._madvise.cache_clear()
    if missing == "system":
        monkeypatch.setattr(sys, "platform", "darwin")
    elif missing == "advice":
        monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    elif missing == "call":
        monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    else:
        monkeypatch.setattr(hugepages, "_madvise", lambda: lambda start, length, advice: -1)
    model = nn.Linear(1100, 600)
    try:
        bank = EMABank(model, EMA(0.5, warmup=None), every=1)
    finally:
        getattr(hugepages._madvise, "cache_clear", lambda: None)()
    start = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
    bank.update()
    torch.testing.assert_close(bank.weights(bank.names[0])["weight"], start + 0.5)


def test_only_whole_pages_of_the_tensor_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []

    def note(start: int, length: int, advice: int) -> int:
        asked.append((start, length))
        return 0

    monkeypatch.setattr(hugepages, "_madvise", lambda: note)
    hugepages.zeros(1000, dtype=torch.float32, device=CPU)
    assert not asked
    tensor = hugepages.zeros(5 << 20, dtype=torch.uint8, device=CPU)
    ((start, length),) = asked
    assert start % hugepages.HUGE == length % hugepages.HUGE == 0
    assert tensor.data_ptr() <= start
    assert start + length <= tensor.data_ptr() + tensor.nbytes


def test_an_accelerators_tensor_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hugepages, "_advise", lambda tensor: pytest.fail("not the CPU's memory"))
    assert hugepages.zeros(5, dtype=torch.float32, device=torch.device("meta")).shape == (5,)
