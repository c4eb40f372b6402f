"""What is known of a tensor without its values, and how a large one is cut into pieces. Imports torch alone."""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_MOST = 2**17  # elements of a piece: 1 MiB in float64, so that what is worked on stays in a core's cache
_LEAST = 2**14  # below this, cutting costs time and saves no memory worth mentioning
_SUMMED = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex128,
    torch.complex64,
    torch.complex32,
)


@dataclass(frozen=True)
class Spec:
    """What a tensor is, without its values.

    >>> Spec((2, 3), torch.bfloat16).nbytes, str(Spec((2, 3), torch.bfloat16))
    (12, 'bfloat16 [2, 3]')
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def is_number(self) -> bool:
        """Whether means of it make sense: no count, mask or index."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def can_be_averaged(self) -> bool:
        """Not what has eight bits or fewer: it is worth something only with scales that are tensors of their own."""
        return self.dtype in _SUMMED

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True)
class Piece:
    """Some elements of a tensor that follow each other: from `start` to `stop`, or what `tensor[index]` is."""

    start: int
    stop: int
    index: tuple[int | slice, ...]


def pieces(shape: tuple[int, ...], most: int | None = None) -> Iterator[Piece]:
    """A tensor cut into pieces of at most so many elements, in order.

    By default that is an eighth of the tensor, but not many at once in any case, so that some pieces in float64 are
    together smaller than two of the tensors.

    >>> [(piece.start, piece.stop) for piece in pieces((3, 2), most=4)]
    [(0, 4), (4, 6)]
    """
    numel = math.prod(shape)
    if numel:
        yield from _cut(shape, most or max(_LEAST, min(_MOST, numel // 8)), 0, ())


def _cut(shape: tuple[int, ...], most: int, start: int, index: tuple[int | slice, ...]) -> Iterator[Piece]:
    numel = math.prod(shape)
    if numel <= most:
        yield Piece(start, start + numel, index)
        return
    row = math.prod(shape[1:])
    if row > most:
        for at in range(shape[0]):
            yield from _cut(shape[1:], most, start + at * row, (*index, at))
        return
    for at in range(0, shape[0], most // row):
        end = min(at + most // row, shape[0])
        yield Piece(start + at * row, start + end * row, (*index, slice(at, end)))


def raw(tensor: Tensor) -> memoryview:
    r"""The bytes of a contiguous tensor, to be read or written in place.

    Through ctypes, because torch works without numpy and .numpy() knows no bfloat16.

    >>> bytes(raw(torch.tensor([1, 2], dtype=torch.uint8)))
    b'\x01\x02'
    """
    if not tensor.numel():
        return memoryview(b"")
    block = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    block.tensor = tensor  # pyright: ignore[reportAttributeAccessIssue]  # alive as long as its bytes are looked at
    return memoryview(block).cast("B")
