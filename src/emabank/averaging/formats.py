"""Files of weights: those of torch and of safetensors, read in chunks and written in the same format.

Nothing in a file is executed.
"""

import itertools
import json
import math
import mmap
import os
import pickle
import re
import struct
import tempfile
import zipfile
import zlib
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from emabank.checkpoint import FORMAT, SAFETENSORS_DTYPES, safetensors_header, tensor_bytes, write_torch

# From the name of a tensor to the values to write for it: contiguous, chunk by chunk.
NewValues = Callable[[str], Iterator[Tensor]]

# Tensors and chunks --------------------------------------------------------------------------------------------------

_MAX_CHUNK = 2**17  # elements: 1 MiB in float64, so that the working set stays in a core's cache
_MIN_CHUNK = 2**14  # smaller chunks cost time and save no memory worth mentioning


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_continuous(self) -> bool:
        """Whether a mean makes sense: not for counts, masks and indices."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True)
class Chunk:
    """Consecutive elements of a tensor: `flat[start:stop]`, which is also `tensor[index]`."""

    start: int
    stop: int
    index: tuple[int | slice, ...]


def chunks(shape: tuple[int, ...], limit: int | None = None) -> Iterator[Chunk]:
    """Split a tensor into chunks of at most `limit` elements, in order.

    By default a chunk is an eighth of the tensor, and at most 131,072 elements: five of them in float64 take less
    memory than two such tensors.
    """
    numel = math.prod(shape)
    limit = limit or max(_MIN_CHUNK, min(_MAX_CHUNK, numel // 8))
    if 0 < numel <= limit:
        yield Chunk(0, numel, ())
    if numel <= limit:
        return
    row_size, dim = numel, -1
    while row_size > limit:  # the first dimension whose rows are small enough is the one to split
        dim += 1
        row_size //= shape[dim]
    step, start = limit // row_size, 0
    for outer in itertools.product(*map(range, shape[:dim])):
        for row in range(0, shape[dim], step):
            stop = start + min(step, shape[dim] - row) * row_size
            yield Chunk(start, stop, (*outer, slice(row, row + step)))
            start = stop


@contextmanager
def mapped_values(
    folder: Path, specs: Mapping[str, Spec], new_values: NewValues, aliases: Mapping[str, str]
) -> Generator[dict[str, Tensor]]:
    """New values as tensors mapped from an unnamed temporary file, because torch writes whole tensors only.

    `aliases` maps a tensor's name to the name of the same tensor that comes first.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        offsets: dict[str, int] = {}
        for name in specs:
            if name in aliases:
                continue
            file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
            offsets[name] = file.tell()
            for values in new_values(name):
                file.write(tensor_bytes(values))
        size = file.truncate(max(file.tell(), 1))
        file.flush()
        # A private mapping, because torch warns of read-only memory; of one byte at least, if all is empty.
        memory = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY))
        tensors = {
            name: tensor_at(memory[offset : offset + specs[name].nbytes], specs[name].dtype).view(specs[name].shape)
            for name, offset in offsets.items()
        }
        yield {name: tensors[aliases.get(name, name)] for name in specs}


def tensor_at(memory: memoryview, dtype: torch.dtype) -> Tensor:
    """A flat tensor in this memory, which it keeps alive."""
    return (
        torch.frombuffer(memory, dtype=torch.uint8).view(dtype) if memory else torch.empty(0, dtype=dtype, device="cpu")
    )


def write_safetensors(
    path: Path, specs: Mapping[str, Spec], metadata: Mapping[str, str], new_values: NewValues
) -> None:
    with open(path, "wb") as file:
        file.write(safetensors_header({name: (spec.dtype, spec.shape) for name, spec in specs.items()}, metadata))
        for name in specs:
            for values in new_values(name):
                file.write(tensor_bytes(values))


# safetensors ---------------------------------------------------------------------------------------------------------

SAFETENSORS = ".safetensors"
_MAX_HEADER = 100_000_000  # bytes; the same limit as in the package safetensors


class SafetensorsFile:
    """One safetensors file: the size of a JSON header, the header, and the tensors one after the other.

    The package safetensors is not used: it cannot write a file in chunks, and a file that shrinks while it is mapped
    would kill the process.
    """

    in_memory = False
    key: str | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        with open(path, "rb") as file:
            file_size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            header_size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else file_size
            text = file.read(header_size) if header_size <= min(_MAX_HEADER, file_size - 8) else b""
        try:
            header = json.loads(text)
            metadata = header.pop("__metadata__", None) or {}
            self._metadata = {str(key): str(value) for key, value in metadata.items()}
            entries = [_header_entry(name, entry) for name, entry in header.items()]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged or not a safetensors file; use another copy of it.") from error
        self.specs: dict[str, Spec] = {}
        self._offsets: dict[str, int] = {}
        data = offset = 8 + header_size
        for name, dtype, begin, end, shape in sorted(entries, key=lambda entry: entry[2:]):
            if dtype not in SAFETENSORS_DTYPES:
                raise ValueError(f"{path}: tensor {name!r} is {dtype}, which cannot be averaged; convert it first.")
            spec = Spec(shape, SAFETENSORS_DTYPES[dtype])
            if begin != offset - data or end - begin != spec.nbytes:
                raise ValueError(f"{path} is damaged: the header gives a wrong position for tensor {name!r}.")
            self.specs[name], self._offsets[name] = spec, offset
            offset += spec.nbytes
        if offset != file_size:
            raise ValueError(f"{path} is damaged: it should have {offset:,} bytes and has {file_size:,}.")

    def check_checksums(self) -> None:
        """Do nothing: the format has no checksums. Opening the file has checked the position of every tensor."""

    def storage_key(self, name: str) -> object:
        """Equal for two names of the same tensor; this format has no such names."""
        return name

    def read(self, name: str, chunk: Chunk) -> Tensor:
        """A chunk of a tensor, flat."""
        dtype = self.specs[name].dtype
        values = bytearray((chunk.stop - chunk.start) * dtype.itemsize)
        with open(self._path, "rb") as file:  # per chunk: many sharded checkpoints are more files than may be open
            file.seek(self._offsets[name] + chunk.start * dtype.itemsize)
            if file.readinto(values) < len(values):
                raise ValueError(f"{self._path} became shorter while it was read; try again when nothing writes to it.")
        return torch.frombuffer(values, dtype=dtype)

    def write(self, path: Path, new_values: NewValues, aliases: Mapping[str, str]) -> None:
        """Write a file with the same tensors and metadata, and new values."""
        del aliases  # the format has none
        write_safetensors(path, self.specs, self._metadata, new_values)


def _header_entry(name: str, entry: Any) -> tuple[str, str, int, int, tuple[int, ...]]:
    begin, end = cast("list[Any]", entry["data_offsets"])
    shape = tuple(cast("list[Any]", entry["shape"]))
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise ValueError("an offset or a size is not a non-negative integer")
    return name, str(entry["dtype"]), begin, end, shape


# torch ---------------------------------------------------------------------------------------------------------------

TORCH = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "module")  # as Lightning and others have it
_ALIGNMENT = 64  # bytes, as torch aligns its own memory


class TorchFile:
    """One file of torch.save, memory-mapped: the tensors of its state dict, and everything else in it.

    Args:
        path: the file.
        key: the key of the state dict in the file; by default it is detected.
    """

    def __init__(self, path: Path, key: str | None = None) -> None:
        self._path = path
        with open(path, "rb") as file:  # raises OSError if the file is missing or unreadable
            self._is_zip = file.read(4) == b"PK\x03\x04"
        try:
            self.in_memory = not self._is_zip or _is_compressed(path)  # only an uncompressed archive can be mapped
            with torch.serialization.safe_globals([Namespace]):  # command-line arguments: attributes and no code
                content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=not self.in_memory)
        except Exception as error:  # torch raises many types on bytes it did not write
            raise ValueError(unreadable(path, error)) from error
        self._content = content
        self.key, self._state = _find_state_dict(path, content, key)
        self.others = [
            str(name) for name, value in content.items() if self.key not in (None, name) and _is_state_dict(value)
        ]
        tensors = {name: value for name, value in self._state.items() if isinstance(value, Tensor)}
        self._tensors = {name: _check_tensor(path, name, tensor) for name, tensor in tensors.items()}
        self.specs = {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()}
        if sum(spec.nbytes for spec in self.specs.values()) > _size_limit(path):
            raise ValueError(f"{path} declares far more tensor data than the file contains; refusing to load it.")

    def check_checksums(self) -> None:
        """Compare the file with its CRC-32 checksums, which torch writes and never reads; `ValueError` if it changed.

        torch's format from before 1.6 has no checksums.
        """
        if not self._is_zip:
            return
        try:
            with zipfile.ZipFile(self._path) as archive:
                # set_crc32_options(False) makes torch.save write 0
                archive.filelist = [record for record in archive.filelist if record.CRC]
                damaged = archive.testzip()
        except (zlib.error, EOFError, RuntimeError, ValueError) as error:  # testzip reports only CRCs and headers
            damaged = str(error)
        if damaged is not None:
            raise ValueError(
                f"{self._path} is damaged: its content does not match its checksum ({damaged}); use another copy of it."
            )

    def storage_key(self, name: str) -> object:
        """Equal for two names of the same tensor."""
        tensor = self._tensors[name]
        if not tensor.numel():
            return name
        pointer = tensor.untyped_storage().data_ptr()
        lazy = tensor.is_conj(), tensor.is_neg()  # other values in the same memory
        return pointer, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, lazy

    def read(self, name: str, chunk: Chunk) -> Tensor:
        """A chunk of a tensor, flat; read-only."""
        return self._tensors[name][chunk.index].resolve_conj().resolve_neg().reshape(-1)

    def write(self, path: Path, new_values: NewValues, aliases: Mapping[str, str]) -> None:
        """Write a file with the same content, and new values for the tensors of the state dict."""
        with mapped_values(path.parent, self.specs, new_values, aliases) as tensors:
            write_torch(path, self._content_with(tensors))

    def number(self, name: str) -> float | None:
        """The number under this name in the file, such as the metric in a checkpoint of timm."""
        value = self._content.get(name)
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value)
        return float(value) if isinstance(value, int | float) else None

    def _content_with(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        state: dict[str, Any] = OrderedDict() if isinstance(self._state, OrderedDict) else {}
        for name, value in self._state.items():
            state[name] = tensors.get(name, value)
            if name in tensors and isinstance(value, torch.nn.Parameter):
                state[name] = torch.nn.Parameter(tensors[name], value.requires_grad)
        if isinstance(self._state, OrderedDict):
            vars(state).update(vars(self._state))  # module versions, in `_metadata`
        return state if self.key is None else {**self._content, self.key: state}


def _size_limit(path: Path) -> int:
    """The most bytes that a file may expand to: a view of one number, or a compressed file, can declare any size."""
    return max(16 * path.stat().st_size, 64 * 2**20)


def _is_compressed(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    if sum(record.file_size for record in records) > _size_limit(path):
        raise ValueError("it would expand to many times its size")
    return any(record.compress_type != zipfile.ZIP_STORED for record in records)


def _find_state_dict(path: Path, content: Any, key: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """The state dict in the content of a file, and its key; None if the content is the state dict."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} has no state dict; it holds a {type(content).__name__}.")
    content = cast("Mapping[str, Any]", content)
    if content.get("format") == FORMAT and "kind" in content:
        # A snapshot is averaged as a plain state dict, because its checksum would not match the average.
        if content["kind"] != "snapshot" or not _is_state_dict(content.get("state")):
            raise ValueError(
                f"{path} holds an emabank {content['kind']}, which is more than a state dict. Use "
                "emabank.checkpoint.export to write one average of a bank."
            )
        return None, content["state"]
    keys = [name for name, value in content.items() if _is_state_dict(value)]
    listed = f"state dicts under {', '.join(map(repr, keys))}" if keys else "no state dict"
    if key is not None:
        if key not in keys:
            raise ValueError(f"key must be that of a state dict; got {key!r}, but {path} has {listed}.")
        return key, content[key]
    usual = [name for name in STATE_DICT_KEYS if name in keys]
    if not usual and _is_state_dict(content):
        return None, content
    if not usual and len(keys) != 1:
        advice = "; choose one with key" if keys else ""
        raise ValueError(f"{path} has {listed}{advice}.")
    key = (usual or keys)[0]
    return key, content[key]


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in cast("Any", value).values())


def _check_tensor(path: Path, name: Any, tensor: Tensor) -> Tensor:
    if not isinstance(name, str):
        raise ValueError(f"{path}: the names of tensors must be strings; got {name!r}.")
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        kind = f"{'quantized ' if tensor.is_quantized else ''}{type(tensor).__name__} of layout {tensor.layout}"
        raise ValueError(f"{path}: tensor {name!r} must be plain and dense; got a {kind}.")
    if tensor.is_meta:
        raise ValueError(f"{path}: tensor {name!r} is on the meta device and has no values.")
    return tensor.detach()


def unreadable(path: Path, error: Exception) -> str:
    text = str(error).strip()
    foreign = re.search(r"GLOBAL (\S+)", text)
    if isinstance(error, pickle.UnpicklingError) and foreign:
        return (
            f"{path} cannot be loaded with weights_only=True: it holds a {foreign[1]}, and loading that could execute "
            "code. If you trust the file, load it yourself and save only its state dict (for Lightning, use "
            "hyper-parameters that are plain numbers, strings, lists and dicts)."
        )
    text = text.partition("WeightsUnpickler error:")[2].strip() or text  # drops torch's advice to load it unsafely
    reason = "" if not text or text.isdecimal() else f" ({text.splitlines()[0][:200]})"  # pickle names bytes by number
    return f"{path} is damaged or was not written by torch.save{reason}; use another copy of it."


def check_file_name(name: Any) -> None:
    """Raise unless this is the name of a file in the checkpoint's own folder."""
    if not isinstance(name, str) or re.search(r"[/\\\0]|^\.|^$", name):
        raise ValueError(f"{name!r} is not a file of its folder")
