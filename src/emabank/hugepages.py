"""Asks the kernel for large memory pages, with which a pass over gigabytes of averages finds its addresses sooner.

With pages of 4 KiB an update of five averages of a ResNet-18 takes a sixth longer (docs/log.md has the measurement).
Linux gives larger ones by itself where it is set up to; elsewhere, most distributions among it, a program asks. It is
a hint and no more: where it is unknown or refused, nothing happens. Imports torch alone.
"""

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

HUGE = 2 << 20  # bytes of a huge page where most programs run, x86-64 and arm64


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, on huge pages as far as the kernel gives them.

    >>> zeros(2, 3, dtype=torch.float32, device=torch.device("cpu")).sum()
    tensor(0.)
    """
    made = torch.empty(*shape, dtype=dtype, device=device)
    if made.device.type == "cpu":
        _advise(made)  # before the first write: a page has its size from then on
    return made.zero_()


def _advise(tensor: Tensor) -> None:
    start = -(-tensor.data_ptr() // HUGE) * HUGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // HUGE * HUGE  # whole pages, all of them this tensor's
    madvise = _madvise()
    if madvise is not None and length > 0:
        madvise(start, length, mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The C library's madvise; none where there is no such call or no such advice."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is not None:
        found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return found
