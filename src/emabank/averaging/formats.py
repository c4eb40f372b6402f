"""Checkpoints on disk: torch and safetensors files, single or sharded, and folders of torch.distributed.checkpoint.

They are read in chunks and written in the same layout.

Nothing in a file is executed, and no file outside the checkpoint's folder is read.
"""

import errno
import io
import itertools
import json
import math
import mmap
import os
import pickle
import re
import secrets
import shutil
import struct
import tempfile
import warnings
import zipfile
import zlib
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from emabank.atomic import sync, write_atomically
from emabank.checkpoint import (
    FORMAT,
    SAFETENSORS_DTYPES,
    safetensors_header,
    tensor_bytes,
    write_torch,
)

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
def _mapped_values(
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
            name: _tensor_at(memory[offset : offset + specs[name].nbytes], specs[name].dtype).view(specs[name].shape)
            for name, offset in offsets.items()
        }
        yield {name: tensors[aliases.get(name, name)] for name in specs}


def _tensor_at(memory: memoryview, dtype: torch.dtype) -> Tensor:
    """A flat tensor in this memory, which it keeps alive."""
    return (
        torch.frombuffer(memory, dtype=torch.uint8).view(dtype) if memory else torch.empty(0, dtype=dtype, device="cpu")
    )


def _write_safetensors(
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
        _write_safetensors(path, self.specs, self._metadata, new_values)


def _header_entry(name: str, entry: Any) -> tuple[str, str, int, int, tuple[int, ...]]:
    begin, end = cast("list[Any]", entry["data_offsets"])
    shape = tuple(cast("list[Any]", entry["shape"]))
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise ValueError("an offset or a size is not a non-negative integer")
    return name, str(entry["dtype"]), begin, end, shape


# torch ---------------------------------------------------------------------------------------------------------------

TORCH = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
_STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "module")  # as Lightning and others have it
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
            raise ValueError(_unreadable(path, error)) from error
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
        with _mapped_values(path.parent, self.specs, new_values, aliases) as tensors:
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
    usual = [name for name in _STATE_DICT_KEYS if name in keys]
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


def _unreadable(path: Path, error: Exception) -> str:
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


# torch.distributed.checkpoint ----------------------------------------------------------------------------------------

_DCP_METADATA = ".metadata"
_DCP_WEIGHTS = ".distcp"
_DCP_LIGHTNING = "meta.pt"  # hyper-parameters and epoch; without it Lightning does not take a folder for a checkpoint
_DCP_TRAINING_STATE = ("optim", "lr_", "scheduler", "train", "dataloader", "rng", "scaler", "sampler")


_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128,
    "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16, "CharStorage": torch.int8,
    "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip


class _StoredTensor(NamedTuple):
    """A tensor as torch.save describes it: where it is in a storage."""

    dtype: torch.dtype
    record: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def rebuilt(
        cls, storage: tuple[torch.dtype, str], offset: int, shape: Any, stride: Any, *_: Any
    ) -> "_StoredTensor":
        """The arguments are those of the function that torch.save names."""
        return cls(*storage, offset, shape, stride)


class _DcpUnpickler(pickle.Unpickler):
    """Reads the metadata of a folder, and the description of a tensor; knows no function that does anything."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _StoredTensor.rebuilt
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module_name == "pathlib":
            return PurePosixPath
        if module_name == "torch":
            value = _STORAGE_DTYPES.get(global_name) or getattr(torch, global_name, None)
            if value is torch.Size or isinstance(value, torch.dtype):
                return value
        if (module_name, global_name) == ("torch.serialization", "_get_layout"):
            return str
        if module_name.startswith("torch.distributed.checkpoint."):
            from torch.distributed.checkpoint import filesystem, metadata

            value = getattr(metadata, global_name, None) or getattr(filesystem, global_name, None)
            if isinstance(value, type) and value.__module__ == module_name:
                return value
        raise pickle.UnpicklingError(f"GLOBAL {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> tuple[torch.dtype, str]:
        _, dtype, record, *_ = pid
        return dtype, record


class _MemoryFile(io.RawIOBase):
    """Memory, to be read as a file without copying it."""

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._position = memory, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, len(self._memory))[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        values = self._memory[self._position : self._position + len(buffer)]
        buffer[: len(values)] = values
        self._position += len(values)
        return len(values)


class _Shard(NamedTuple):
    """A part of a tensor: where it is in the tensor, and in which bytes of a file; `crc` is their checksum, or 0."""

    offsets: tuple[int, ...]
    stored: _StoredTensor
    file_name: str
    start: int
    stop: int
    crc: int


class DcpFolder:
    """A folder of torch.distributed.checkpoint, however many processes wrote it: the tensors of the model.

    Args:
        folder: the folder.
        key: the key of the state dict that was saved; by default it is detected.
    """

    in_memory = False

    def __init__(self, folder: Path, key: str | None = None) -> None:
        self._folder = folder
        with _damage_named(folder):
            with open(folder / _DCP_METADATA, "rb") as file:
                metadata = _DcpUnpickler(file).load()
            entries: Mapping[str, Any] = metadata.state_dict_metadata
            # The first part of a name that was nested in the state dict; empty if it was not.
            nested: Mapping[str, Sequence[object]] = metadata.planner_data or {}
            tops = {name: str(nested[name][0]) if len(nested.get(name, ())) > 1 else "" for name in entries}
            tops = {name: "" if top.endswith("_extra_state") else top for name, top in tops.items()}  # of a module
            items = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
            keys = {tops[name] for name, entry in entries.items() if hasattr(entry, "chunks")}
        self.key = _find_dcp_key(folder, keys, key)
        self.specs: dict[str, Spec] = {}
        self._shards: dict[str, list[_Shard]] = {}
        self._objects: dict[str, Any] = {}  # whatever is not a tensor: where it is
        for full_name, entry in entries.items():
            if tops[full_name] != (self.key or ""):
                continue
            name = full_name.removeprefix(f"{self.key}.")
            with _damage_named(folder):
                if not hasattr(entry, "chunks"):
                    self._objects[name] = items[full_name, ()]
                    self._item(self._objects[name])  # raises if it is not there
                    continue
                spec = Spec(tuple(entry.size), entry.properties.dtype)
                shards = [self._open_shard(chunk, items[full_name, tuple(chunk.offsets)]) for chunk in entry.chunks]
                is_complete = sum(math.prod(shard.stored.shape) for shard in shards) == math.prod(spec.shape)
                if not is_complete or any(shard.stored.dtype != spec.dtype for shard in shards):
                    raise ValueError(f"the shards of {name!r} are not the tensor that {_DCP_METADATA} describes")
            self.specs[name], self._shards[name] = spec, shards

    def _bytes(self, file_name: str, start: int, stop: int) -> memoryview:
        """Mapped only as long as they are used: a mapping holds a file open, and a large run has thousands of them."""
        _check_file_name(file_name)
        with open(self._folder / file_name, "rb") as file:
            # A private mapping, because torch warns of read-only memory.
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        if len(memory) < stop:
            raise ValueError(f"{file_name} has {len(memory):,} of {stop:,} bytes or more")
        return memory[start:stop]

    def _item(self, item: Any) -> memoryview:
        return self._bytes(item.relative_path, item.offset, item.offset + item.length)

    def _values(self, shard: _Shard) -> Tensor:
        values = _tensor_at(self._bytes(shard.file_name, shard.start, shard.stop), shard.stored.dtype)
        return values.as_strided(shard.stored.shape, shard.stored.stride, shard.stored.offset)

    def _open_shard(self, chunk: Any, item: Any) -> _Shard:
        memory = self._item(item)
        with zipfile.ZipFile(cast("Any", _MemoryFile(memory))) as archive:
            root = archive.namelist()[0].partition("/")[0]
            stored: _StoredTensor = _DcpUnpickler(archive.open(f"{root}/data.pkl")).load()
            record = archive.getinfo(f"{root}/data/{stored.record}")
        if tuple(stored.shape) != tuple(chunk.sizes) or record.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"a shard in {item.relative_path} is not as {_DCP_METADATA} describes it")
        name_size, extra_size = struct.unpack_from("<HH", memory, record.header_offset + 26)
        start = item.offset + record.header_offset + 30 + name_size + extra_size
        stop = min(start + record.file_size, item.offset + item.length)
        shard = _Shard(tuple(chunk.offsets), stored, item.relative_path, start, stop, record.CRC)
        self._values(shard)  # raises if it is not in these bytes
        return shard

    def check_checksums(self) -> None:
        """Compare the shards with the checksums of torch.save; `ValueError` if one changed."""
        for name, shards in self._shards.items():
            for shard in shards:
                if shard.crc not in (0, zlib.crc32(self._bytes(shard.file_name, shard.start, shard.stop))):
                    raise ValueError(
                        f"{self._folder} is damaged: {name!r} does not match its checksum; use another copy."
                    )

    def storage_key(self, name: str) -> object:
        """Equal for two names of the same tensor; this format has no such names."""
        return name

    def read(self, name: str, chunk: Chunk) -> Tensor:
        """A chunk of a tensor, flat, put together from its shards."""
        spec = self.specs[name]
        box = [(index.start, index.stop) if isinstance(index, slice) else (index, index + 1) for index in chunk.index]
        box = [(start, min(stop, size)) for (start, stop), size in zip(box, spec.shape, strict=False)]
        box += [(0, size) for size in spec.shape[len(box) :]]
        values = torch.empty([stop - start for start, stop in box], dtype=spec.dtype, device="cpu")
        for shard in self._shards[name]:
            common = [
                (max(start, offset), min(stop, offset + size))
                for (start, stop), offset, size in zip(box, shard.offsets, shard.stored.shape, strict=True)
            ]
            if all(start < stop for start, stop in common):
                target = tuple(
                    slice(start - origin, stop - origin) for (start, stop), (origin, _) in zip(common, box, strict=True)
                )
                source = tuple(
                    slice(start - offset, stop - offset)
                    for (start, stop), offset in zip(common, shard.offsets, strict=True)
                )
                values[target] = self._values(shard)[source]
        return values.reshape(-1)

    def write(self, path: Path, new_values: NewValues, aliases: Mapping[str, str]) -> None:
        """Write a folder with new values, without training state, for any number of processes to load.

        `path` is that of its metadata.
        """
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        class Planner(DefaultSavePlanner):
            """Writes pickled objects as they are, because unpickling them could execute code."""

            def transform_object(self, write_item: Any, object: Any) -> Any:
                return object

        with _mapped_values(path.parent, self.specs, new_values, aliases) as tensors, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            writer = FileSystemWriter(path.parent, sync_files=False)
            values = {**tensors, **{name: io.BytesIO(self._item(item)) for name, item in self._objects.items()}}
            content = values if self.key is None else {self.key: values}
            try:
                save(content, storage_writer=writer, planner=Planner(), no_dist=True)
            except CheckpointException as error:  # which wraps a full disk, and Ctrl-C
                reason, _ = next(iter(error.failures.values()))
                raise (reason.__context__ if isinstance(reason.__context__, OSError) else reason) from None


@contextmanager
def _damage_named(folder: Path) -> Generator[None]:
    """Errors name the folder, whatever they are: a pickle can hold anything."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(_unreadable(folder, error)) from error


def _find_dcp_key(folder: Path, keys: set[str], key: str | None) -> str | None:
    """The key of the model; None if its tensors are not below a key, as torchtitan saves them."""
    keys = {name for name in keys if not name.startswith(_DCP_TRAINING_STATE)}
    candidates = [name for name in (*_STATE_DICT_KEYS, "") if name in keys] or sorted(keys)
    if key is None and candidates and (len(keys) == 1 or candidates[0] in (*_STATE_DICT_KEYS, "")):
        key = candidates[0]
    if key not in keys:
        raise ValueError(f"key must be one of {', '.join(map(repr, sorted(keys)))} in {folder}; got {key!r}.")
    return key or None


# Checkpoints: one file, or a folder ----------------------------------------------------------------------------------

WeightsFile = SafetensorsFile | TorchFile | DcpFolder

_INDEX = ".index.json"
# What transformers, peft and diffusers call the weights, alone or in shards with an index; the first one wins.
_WEIGHTS_NAMES = tuple(
    f"{stem}{suffix}"
    for suffix in (SAFETENSORS, ".bin")
    for stem in ("model", "pytorch_model", "adapter_model", "diffusion_pytorch_model")
)
_TRAINING_STATE = ("optimizer", "scheduler", "rng_state", "scaler", "trainer_state", "training_args", "random_states")
_OTHER_WEIGHTS = (SAFETENSORS, *TORCH, _DCP_WEIGHTS, ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".npz", _INDEX)
_MAX_COPIED = 64 * 2**20  # bytes of a file copied along with the weights; the largest tokenizers have about half


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Args:
        path: the file or folder, as the caller named it.
        folder: the folder of the files.
        files: the weights, by file name.
        file_of: from the name of a tensor to that of its file.
        index: the name of the index file, if the weights are in shards.
    """

    path: Path
    folder: Path
    files: Mapping[str, WeightsFile]
    file_of: Mapping[str, str]
    index: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.index is not None or self.path == self.folder

    def is_exported_to(self, out: Path) -> bool:
        """Whether `out` is one safetensors file for a folder of torch.distributed.checkpoint."""
        return suffix_of(out) == SAFETENSORS and any(isinstance(file, DcpFolder) for file in self.files.values())

    @cached_property
    def specs(self) -> dict[str, Spec]:
        return {name: spec for file in self.files.values() for name, spec in file.specs.items()}

    def read(self, name: str, chunk: Chunk) -> Tensor:
        """A chunk of a tensor, flat, on the CPU; read-only."""
        return self.files[self.file_of[name]].read(name, chunk)

    def storage_key(self, name: str) -> object:
        """Equal for two names of the same tensor."""
        return self.files[self.file_of[name]].storage_key(name)


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Open a file or folder; a `ValueError` if it is damaged, unsafe or not a checkpoint."""
    main = weights_file(path) if path.is_dir() else path
    if main is None:
        raise ValueError(f"{path} must contain one file of weights, such as {_WEIGHTS_NAMES[0]}, to be a checkpoint.")
    is_index = main.name.endswith(_INDEX)
    shard_of = _read_index(main) if is_index else {}
    names = dict.fromkeys(shard_of.values()) if is_index else [main.name]
    files = {name: _open_file(main.parent / name, key) for name in names}
    file_of: dict[str, str] = {}
    for file_name, file in files.items():
        for name, spec in file.specs.items():
            if name in file_of:
                raise ValueError(f"{path} has tensor {name!r} twice, in {file_of[name]} and in {file_name}.")
            if spec.is_continuous and spec.dtype.itemsize < 2:  # scales of 8-bit floats are tensors of their own
                raise ValueError(
                    f"{path}: tensor {name!r} is {spec}, which means nothing without its scales; convert the "
                    "checkpoints to a wider type before averaging them."
                )
            file_of[name] = file_name
    for name, file_name in shard_of.items():
        if file_of.get(name) != file_name:
            raise ValueError(f"{main} lists tensor {name!r} in {file_name}, which does not have it.")
    if not file_of:
        raise ValueError(f"{path} has no tensors.")
    return Checkpoint(path, main.parent, files, file_of, main.name if is_index else None)


def suffix_of(path: Path) -> str:
    """The suffix of a file of weights; empty if it is none."""
    return next((suffix for suffix in (SAFETENSORS, *TORCH) if path.name.lower().endswith(suffix)), "")


def is_weights_file(path: Path) -> bool:
    """Whether a file name is that of a checkpoint: not a shard, and not other training state."""
    if not suffix_of(path) or path.name.startswith((".", *_TRAINING_STATE)):
        return False
    return not re.search(r"-\d+-of-\d+\.", path.name)


def weights_file(folder: Path) -> Path | None:
    """The file, or index of files, that makes a folder a checkpoint; None if it is not one."""
    if (folder / _DCP_METADATA).is_file():
        return folder / _DCP_METADATA
    for name in _WEIGHTS_NAMES:
        for path in (folder / name, folder / f"{name}{_INDEX}"):
            if path.is_file():
                return path
    paths = [path for path in folder.iterdir() if is_weights_file(path) and path.is_file()]
    return paths[0] if len(paths) == 1 else None


def _open_file(path: Path, key: str | None) -> WeightsFile:
    if path.name == _DCP_METADATA:
        return DcpFolder(path.parent, key)
    if suffix_of(path) == SAFETENSORS:
        return SafetensorsFile(path)
    if suffix_of(path):
        return TorchFile(path, key)
    suffixes = ", ".join((SAFETENSORS, *TORCH))
    raise ValueError(f"{path} is not a checkpoint; use a {suffixes} or {_INDEX} file, or a folder.")


def _check_file_name(name: Any) -> None:
    if not isinstance(name, str) or re.search(r"[/\\\0]|^\.|^$", name):
        raise ValueError(f"{name!r} is not a file of its folder")


def _read_index(path: Path) -> dict[str, str]:
    """From the name of a tensor to that of its file, as transformers writes it."""
    try:
        weight_map: Any = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shard_of = {str(name): cast("str", file_name) for name, file_name in weight_map.items()}
        for file_name in shard_of.values():
            _check_file_name(file_name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a valid index of shards ({error}).") from error
    return shard_of


# Writing -------------------------------------------------------------------------------------------------------------


def check_output_path(out: Path, like: Checkpoint, inputs: Sequence[Path], *, replace: bool) -> None:
    """Raise if an average in the layout of `like` cannot, or should not, be written to `out`."""
    real_out = out.resolve()
    for path in inputs:
        real = path.resolve()
        if real_out == real or real_out in real.parents or (path.is_dir() and real in real_out.parents):
            raise ValueError(f"out must not overwrite an input; got {out}, which would overwrite {path}.")
    suffixes = (SAFETENSORS,) if suffix_of(like.path) == SAFETENSORS else TORCH
    is_folder = like.is_folder and not like.is_exported_to(out)
    if is_folder and suffix_of(out):
        raise ValueError(f"out must be a folder, like the last checkpoint; got the name of a file, {out.name}.")
    if not like.is_folder and suffix_of(out) not in suffixes:
        raise ValueError(f"out must end in {' or '.join(suffixes)}, like {like.path.name}; got {out.name}.")
    if not out.exists() and not out.is_symlink():
        return
    if not replace:
        reason = "Already exists; choose another name, or replace it (--force, replace_out=True)"
        raise FileExistsError(errno.EEXIST, reason, str(out))
    if out.is_dir() != is_folder:
        kinds = ("file", "folder") if is_folder else ("folder", "file")
        raise ValueError(f"{out} is a {kinds[0]} and the average is a {kinds[1]}; choose another name.")
    if out.is_dir() and (weights_file(out) is None or any(path.is_dir() for path in out.iterdir())):
        raise ValueError(f"{out} is not a folder with just one checkpoint, so it is not replaced; choose another name.")


def write_checkpoint(
    like: Checkpoint, out: Path, new_values: NewValues, aliases: Mapping[str, str], check: Callable[[], None]
) -> None:
    """Write new values in the layout of `like`; `out` is complete, or as it was before.

    `check` is called when all is written and before it gets its name; if it raises, nothing is left.
    """

    def write_file(path: Path) -> None:
        if like.is_exported_to(out):
            _write_safetensors(path, like.specs, {"format": "pt"}, new_values)
        else:
            (file,) = like.files.values()
            file.write(path, new_values, aliases)
        check()

    if not like.is_folder or like.is_exported_to(out):
        write_atomically(out, write_file)
        return
    out = out.resolve()
    draft = out.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        draft.mkdir(parents=True)
        for name, file in like.files.items():
            file.write(draft / name, new_values, aliases)
        for path in _files_to_copy(like):
            shutil.copyfile(path, draft / path.name)
        check()
        for path in draft.iterdir():
            sync(path, os.O_RDWR)
        _rename_folder(draft, out)
    except OSError as error:
        reason = f"Could not be written ({error.strerror or error}); what was there before is unchanged"
        raise OSError(error.errno or errno.EIO, reason, str(out)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if os.name == "posix":
        with suppress(OSError):  # the folder is complete; some network file systems refuse to sync one
            sync(out.parent, os.O_RDONLY)


def _files_to_copy(like: Checkpoint) -> list[Path]:
    """Configuration, tokenizer and index, which belong to the model; no training state."""
    return [
        path
        for path in like.folder.iterdir()
        if path.name in (like.index, _DCP_LIGHTNING)
        or (
            path.is_file()
            and not path.name.endswith(_OTHER_WEIGHTS)
            and not path.name.startswith((".", *_TRAINING_STATE))
            and path.stat().st_size <= _MAX_COPIED
        )
    ]


def _rename_folder(draft: Path, out: Path) -> None:
    """Rename a folder, and replace one that has the name; a complete folder exists at every moment."""
    if not out.exists():
        os.rename(draft, out)
        return
    old = out.with_name(f".{secrets.token_hex(8)}.old")
    os.rename(out, old)
    try:
        os.rename(draft, out)
    except BaseException:
        if not out.exists():  # an interrupt can arrive after the rename
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
