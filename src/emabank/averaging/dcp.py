"""Folders of torch.distributed.checkpoint (FSDP, torchtitan, Lightning), read shard by shard in one process.

Nothing in a file is executed, and no file outside the folder is read.
"""

import io
import math
import mmap
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from emabank.averaging.formats import (
    STATE_DICT_KEYS,
    Chunk,
    NewValues,
    Spec,
    check_file_name,
    mapped_values,
    tensor_at,
    unreadable,
)

METADATA = ".metadata"
SHARD = ".distcp"  # the suffix of its files
LIGHTNING = "meta.pt"  # hyper-parameters and epoch; without it Lightning does not take a folder for a checkpoint
_TRAINING_STATE = ("optim", "lr_", "scheduler", "train", "dataloader", "rng", "scaler", "sampler")


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
        if module_name in ("pathlib", "pathlib._local"):  # the second: written by Python 3.13
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
            with open(folder / METADATA, "rb") as file:
                metadata = _DcpUnpickler(file).load()
            entries: Mapping[str, Any] = metadata.state_dict_metadata
            # The first part of a name that was nested in the state dict; empty if it was not.
            nested: Mapping[str, Sequence[object]] = metadata.planner_data or {}
            tops = {name: str(nested[name][0]) if len(nested.get(name, ())) > 1 else "" for name in entries}
            tops = {name: "" if top.endswith("_extra_state") else top for name, top in tops.items()}  # of a module
            items = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
            keys = {tops[name] for name, entry in entries.items() if hasattr(entry, "chunks")}
        self.key = _find_key(folder, keys, key)
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
                    raise ValueError(f"the shards of {name!r} are not the tensor that {METADATA} describes")
            self.specs[name], self._shards[name] = spec, shards

    def _bytes(self, file_name: str, start: int, stop: int) -> memoryview:
        """Mapped only as long as they are used: a mapping holds a file open, and a large run has thousands of them."""
        check_file_name(file_name)
        with open(self._folder / file_name, "rb") as file:
            # A private mapping, because torch warns of read-only memory.
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        if len(memory) < stop:
            raise ValueError(f"{file_name} has {len(memory):,} of {stop:,} bytes or more")
        return memory[start:stop]

    def _item(self, item: Any) -> memoryview:
        return self._bytes(item.relative_path, item.offset, item.offset + item.length)

    def _values(self, shard: _Shard) -> Tensor:
        values = tensor_at(self._bytes(shard.file_name, shard.start, shard.stop), shard.stored.dtype)
        return values.as_strided(shard.stored.shape, shard.stored.stride, shard.stored.offset)

    def _open_shard(self, chunk: Any, item: Any) -> _Shard:
        memory = self._item(item)
        with zipfile.ZipFile(cast("Any", _MemoryFile(memory))) as archive:
            root = archive.namelist()[0].partition("/")[0]
            stored: _StoredTensor = _DcpUnpickler(archive.open(f"{root}/data.pkl")).load()
            record = archive.getinfo(f"{root}/data/{stored.record}")
        if tuple(stored.shape) != tuple(chunk.sizes) or record.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"a shard in {item.relative_path} is not as {METADATA} describes it")
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

        with mapped_values(path.parent, self.specs, new_values, aliases) as tensors, warnings.catch_warnings():
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
        raise ValueError(unreadable(folder, error)) from error


def _find_key(folder: Path, keys: set[str], key: str | None) -> str | None:
    """The key of the model; None if its tensors are not below a key, as torchtitan saves them."""
    keys = {name for name in keys if not name.startswith(_TRAINING_STATE)}
    candidates = [name for name in (*STATE_DICT_KEYS, "") if name in keys] or sorted(keys)
    if key is None and candidates and (len(keys) == 1 or candidates[0] in (*STATE_DICT_KEYS, "")):
        key = candidates[0]
    if key not in keys:
        raise ValueError(f"key must be one of {', '.join(map(repr, sorted(keys)))} in {folder}; got {key!r}.")
    return key or None
