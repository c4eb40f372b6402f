"""Ctrl-C everywhere in a call, one at a time: in the library, in contextlib, and where torch swaps tensors."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import emabank

_SOURCES = (str(Path(emabank.__file__).parent), contextlib.__file__, str(Path(torch.__file__).parent / "nn" / "utils"))


def interrupted_everywhere(call: Callable[[], Any], event: str = "line", step: int = 1) -> Iterator[str]:
    """Run `call` over and over, with a KeyboardInterrupt `step` lines (or opcodes) later each time.

    Yields where it was interrupted, until it runs to its end.
    """
    for count in range(0, 1_000_000, step):
        place = _interrupted(call, event, count)
        if place is None:
            return
        yield place


def _interrupted(call: Callable[[], Any], event: str, count: int) -> str | None:
    left, place = count, None

    def trace(frame: FrameType, kind: str, _: Any) -> Any:
        nonlocal left, place
        if not frame.f_code.co_filename.startswith(_SOURCES):
            return None
        frame.f_trace_opcodes = event == "opcode"
        if kind == event and place is None:
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
