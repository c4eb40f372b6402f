"""One safetensors file, read in pieces and written in pieces; nothing but the pieces asked for comes into memory.

The format is the length of a JSON text in eight bytes, that text, which says where each tensor is, and the tensors one
after the other. So the package safetensors is not needed, which reads whole tensors or rows. May
import tensors, and files of the library.
"""

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from emabank.averaging.tensors import Piece, Spec, raw
from emabank.checkpoint import FORMAT

SUFFIX = ".safetensors"
_LONGEST = 100_000_000  # bytes of the JSON text; the package safetensors refuses longer ones as well
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class SafetensorsFile:
    """The tensors of one file, and its metadata; `ValueError` where it is damaged or something else."""

    in_pieces = True
    key: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            text = file.read(length) if length <= min(_LONGEST, size - 8) else b""
        try:
            header = json.loads(text)
            metadata = header.pop("__metadata__", None) or {}
            self.metadata = {str(key): str(value) for key, value in metadata.items()}
            placed = {name: _placed(entry) for name, entry in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged or no safetensors file; use another copy of it.") from error
        if FORMAT in self.metadata:
            raise ValueError(
                f"{path} holds more than a state dict (emabank.checkpoint.save wrote it); write one average of a bank "
                "with emabank.checkpoint.export."
            )
        ordered = dict(sorted(placed.items(), key=lambda item: item[1][1:]))
        self.specs: dict[str, Spec] = {}
        self._begins: dict[str, int] = {}
        here = 8 + length
        for name, (dtype, begin, end, shape) in ordered.items():
            if dtype not in _DTYPES:
                raise ValueError(f"{path}: the tensor {name!r} is {dtype}, which cannot be averaged; convert it first.")
            spec = Spec(shape, _DTYPES[dtype])
            if begin != here - 8 - length or end - begin != spec.nbytes:
                raise ValueError(f"{path} is damaged: the tensor {name!r} is not where it should be.")
            self.specs[name], self._begins[name] = spec, here
            here += spec.nbytes
        if here != size:
            raise ValueError(f"{path} is damaged: it should have {here:,} bytes and has {size:,}.")

    def verify(self) -> None:
        """Nothing: the format has no checksums. That every tensor is where it should be was seen when it was opened."""

    def identity(self, name: str) -> object:
        """Equal for two names of one and the same tensor, of which there are none in this format."""
        return name

    def read(self, name: str, piece: Piece) -> Tensor:
        """Some elements, in one dimension."""
        tensor = torch.empty(piece.stop - piece.start, dtype=self.specs[name].dtype)
        left = raw(tensor)
        with open(self.path, "rb", buffering=0) as file:  # anew each time: many checkpoints may have many files
            file.seek(self._begins[name] + piece.start * tensor.itemsize)
            while left:
                got = file.readinto(left)
                if not got:
                    raise ValueError(f"{self.path} has become shorter while it was read; it must not change meanwhile.")
                left = left[got:]
        return tensor

    def write(self, path: Path, make: Callable[[str], Iterator[Tensor]], same_as: Mapping[str, str]) -> None:
        """Write a file with the same tensors, names and metadata, of what `make` gives for each, piece by piece."""
        del same_as  # there are no ties in this format
        header: dict[str, Any] = {"__metadata__": self.metadata} if self.metadata else {}
        begin = 0
        for name, spec in self.specs.items():
            offsets = [begin, begin + spec.nbytes]
            header[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
            begin += spec.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in self.specs:
                for part in make(name):
                    file.write(raw(part))


def _placed(entry: Any) -> tuple[str, int, int, tuple[int, ...]]:
    begin, end = cast("list[Any]", entry["data_offsets"])
    shape = tuple(cast("list[Any]", entry["shape"]))
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise ValueError("a place or a size that is none")
    return str(entry["dtype"]), begin, end, shape
