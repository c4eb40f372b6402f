"""Memory that a process has had, it keeps: activations need not be fetched from the system anew at every step.

Imports the standard library only.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**25  # bytes; glibc allows no more


def keep_freed_memory() -> bool:
    """Have this process keep freed memory, from here on; False where that cannot be had (no glibc).

    A tensor of some megabytes is otherwise given back when it is freed, and fetched again page by page, zeroed by the
    system, when the next layer or step wants one like it. For a process that is there to train, and for no other: what
    a program does with its memory is its owner's business.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))
