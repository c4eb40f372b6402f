"""Ctrl-C at every line of the library, and of torch where it swaps tensors, that a call runs through, one at a time."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import emabank

_SOURCES = (str(Path(emabank.__file__).parent), str(Path(torch.__file__).parent / "nn" / "utils"))


def interrupted_at_every_line(call: Callable[[], Any]) -> Iterator[str]:
    """Run `call` over and over, with a KeyboardInterrupt one line later each time; yields where, until none is left."""
    for count in range(100_000):
        place = _interrupted(call, count)
        if place is None:
            return
        yield place
    raise AssertionError("the call does not end")


def _interrupted(call: Callable[[], Any], count: int) -> str | None:
    left, place = count, None

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, place
        if not frame.f_code.co_filename.startswith(_SOURCES):
            return None
        if event == "line" and place is None:
            left -= 1
            if left < 0:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return place
