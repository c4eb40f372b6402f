"""The CIFAR files are pickles. They are read here without Python's unpickler: nothing in them can run anything.

`read_pickle` knows the few instructions that the published files are made of, and stand-ins for the few numpy names
in them, which also serve torch's reader of label files. May import numpy and the standard library.
"""

import pickle
import pickletools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

# Stand-ins for the numpy names of a pickled array --------------------------------------------------------------------

_DTYPES = {"u1": np.uint8, "i8": np.int64}


class DtypeStandIn:
    """Takes the place of `numpy.dtype`: bytes and little-endian 64-bit integers only, so never objects."""

    def __init__(self, code: Any, align: Any = 0, copy: Any = 1) -> None:
        name = code.decode("ascii") if isinstance(code, bytes) else code
        if name not in _DTYPES:
            raise ValueError(f"an array of type {name!r}")
        self.dtype = np.dtype(_DTYPES[name])

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("|", "<", b"|", b"<"):
            raise ValueError(f"an array of byte order {state[1]!r}")


class ArrayStandIn:
    """Takes the place of `numpy.ndarray`: `array` is a view of bytes that the file really holds."""

    array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran_order, content = state
        if not isinstance(kind, DtypeStandIn) or not isinstance(content, bytes | memoryview) or fortran_order:
            raise ValueError("an array in a form that the published files do not have")
        if len(shape) > 4 or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"an array of shape {shape!r}")
        # A view that must fit the bytes: no shape can ask for memory.
        self.array = np.frombuffer(content, dtype=kind.dtype).reshape(shape)


def reconstruct(kind: Any, shape: Any, code: Any) -> ArrayStandIn:
    """Takes the place of numpy's function of this name: an array whose content follows.

    >>> reconstruct(ArrayStandIn, (0,), b"b").array is None
    True
    """
    if kind is not ArrayStandIn or shape != (0,) or code not in ("b", b"b"):
        raise ValueError("an array in a form that the published files do not have")
    return ArrayStandIn()


# The published files say numpy.core; what numpy 2 writes says numpy._core.
STAND_INS: Mapping[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": reconstruct,
    "numpy._core.multiarray._reconstruct": reconstruct,
    "numpy.ndarray": ArrayStandIn,
    "numpy.dtype": DtypeStandIn,
}

# The reader ----------------------------------------------------------------------------------------------------------


def read_pickle(content: bytes, *, source: str) -> dict[str, Any]:
    r"""The dict that a CIFAR file holds; its arrays are views of `content`, its strings are bytes.

    `ValueError` when it is damaged, or asks for a global or an instruction that no CIFAR file needs.

    >>> read_pickle(b"\x80\x02}U\x06labels](K\x01K\x02es.", source="a file")
    {'labels': [1, 2]}
    >>> read_pickle(b"cos\nsystem\n.", source="a file")
    Traceback (most recent call last):
    ValueError: a file asks for the global os.system, which no CIFAR file needs: nothing was run; use the published file
    """
    try:
        value = _Machine(content).run()
        if type(value) is not dict:
            raise ValueError("not a dict")
        items = cast("dict[bytes, Any]", value).items()
        return {key.decode("ascii"): item.array if isinstance(item, ArrayStandIn) else item for key, item in items}
    except _Refused as refused:
        raise ValueError(f"{source} asks for {refused}: nothing was run; use the published file") from None
    except Exception as error:  # whatever wrong bytes lead to; the reason is for whoever debugs
        raise ValueError(f"{source} is damaged, cut short or no CIFAR file; use the published file") from error


class _Refused(Exception):
    pass


_MOST_INSTRUCTIONS = 1_000_000  # CIFAR-100's training file, the longest, has a quarter of it; bounds the memory


class _Machine:
    """A stack, a memo and the instructions below."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks that marks have put aside
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        content = self.content
        for _ in range(_MOST_INSTRUCTIONS):
            code = content[self.at]
            self.at += 1
            if code == pickle.STOP[0]:
                return self.stack.pop()
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise _Refused(self.explain(code))
            instruction(self)
        raise ValueError("far more instructions than any CIFAR file has")

    def explain(self, code: int) -> str:
        """What a refused instruction is after: the first global of the pickle, if it has one."""
        words: list[str] = []
        with suppress(Exception):  # genops decodes and runs nothing; what is damaged ends it
            for instruction, argument, _ in pickletools.genops(self.content):
                if instruction.name in ("GLOBAL", "INST"):
                    return _needless(str(argument).replace(" ", ".", 1))
                if instruction.name == "STACK_GLOBAL":
                    return _needless(".".join(words[-2:]))
                if isinstance(argument, str):
                    words.append(argument)
        return f"the pickle instruction {bytes([code])!r}, which no CIFAR file needs"

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.content):
            raise EOFError
        return self.content[start : self.at]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> str:
        end = self.content.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode("ascii")

    def until_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def protocol(self) -> None:
        if self.number(1) != 2:
            raise _Refused(self.explain(pickle.PROTO[0]))

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def short_string(self) -> None:
        self.stack.append(self.take(self.content[self.at] + 1)[1:])

    def long_string(self) -> None:
        size = self.number(4)
        start, self.at = self.at, self.at + size
        if self.at > len(self.content):
            raise EOFError
        self.stack.append(memoryview(self.content)[start : self.at])  # the images: not copied

    def put(self, size: int) -> None:
        self.memo[self.number(size)] = self.stack[-1]

    def get(self, size: int) -> None:
        self.stack.append(self.memo[self.number(size)])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError
        cast("list[Any]", target).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        # Only strings as keys: hashing tuples nested in each other can take for ever.
        if type(target) is not dict or not all(type(key) is bytes for key in items[::2]):
            raise TypeError
        cast("dict[bytes, Any]", target).update(zip(items[::2], items[1::2], strict=True))

    def find_global(self) -> None:
        name = f"{self.line()}.{self.line()}"
        if name not in STAND_INS:
            raise _Refused(_needless(name))
        self.stack.append(STAND_INS[name])

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function not in (reconstruct, DtypeStandIn) or type(arguments) is not tuple:
            raise TypeError
        self.stack.append(function(*cast("tuple[Any, ...]", arguments)))

    def build(self) -> None:
        state, value = self.stack.pop(), self.stack[-1]
        if not isinstance(value, ArrayStandIn | DtypeStandIn):
            raise TypeError
        value.__setstate__(state)


def _needless(name: str) -> str:
    return f"the global {name}, which no CIFAR file needs"


_TABLE: list[tuple[bytes, Callable[[_Machine], None]]] = [
    (pickle.PROTO, _Machine.protocol),
    (pickle.MARK, _Machine.mark),
    (pickle.NONE, lambda m: m.push(None)),
    (pickle.NEWTRUE, lambda m: m.push(True)),
    (pickle.NEWFALSE, lambda m: m.push(False)),
    (pickle.BININT1, lambda m: m.push(m.number(1))),
    (pickle.BININT2, lambda m: m.push(m.number(2))),
    (pickle.BININT, lambda m: m.push(m.number(4, signed=True))),
    (pickle.SHORT_BINSTRING, _Machine.short_string),
    (pickle.BINSTRING, _Machine.long_string),
    (pickle.BINPUT, lambda m: m.put(1)),
    (pickle.LONG_BINPUT, lambda m: m.put(4)),
    (pickle.BINGET, lambda m: m.get(1)),
    (pickle.LONG_BINGET, lambda m: m.get(4)),
    (pickle.EMPTY_DICT, lambda m: m.push({})),
    (pickle.EMPTY_LIST, lambda m: m.push([])),
    (pickle.EMPTY_TUPLE, lambda m: m.push(())),
    (pickle.TUPLE1, lambda m: m.tuple_of(1)),
    (pickle.TUPLE2, lambda m: m.tuple_of(2)),
    (pickle.TUPLE3, lambda m: m.tuple_of(3)),
    (pickle.TUPLE, lambda m: m.push(tuple(m.until_mark()))),
    (pickle.APPEND, lambda m: m.extend([m.stack.pop()])),
    (pickle.APPENDS, lambda m: m.extend(m.until_mark())),
    (pickle.SETITEM, lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()])),
    (pickle.SETITEMS, lambda m: m.set_items(m.until_mark())),
    (pickle.GLOBAL, _Machine.find_global),
    (pickle.REDUCE, _Machine.reduce),
    (pickle.BUILD, _Machine.build),
]
_INSTRUCTIONS = {code[0]: instruction for code, instruction in _TABLE}
