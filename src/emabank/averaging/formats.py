"""Checkpoints on disk, torch or safetensors, in one file or several: read in pieces, written in the same layout.

Nothing in a file is executed, and no file outside the checkpoint's folder is read. May import files of the library.
"""

import ctypes
import errno
import json
import math
import mmap
import os
import re
import secrets
import shutil
import struct
import tempfile
import zipfile
import zlib
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from emabank.files import FORMAT, room_for, sync, write_atomically, write_torch

# Tensors --------------------------------------------------------------------------------------------------------------

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


# safetensors files ----------------------------------------------------------------------------------------------------

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
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


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
            header[name] = {"dtype": _DTYPE_NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
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


# torch files ----------------------------------------------------------------------------------------------------------

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_INSIDE = ("state_dict", "model_state_dict", "model", "module")  # where Lightning and others put a state dict
_ALIGNED = 64  # bytes, as torch aligns its own memory
_AT_ONCE = 2**20  # bytes read to verify a checksum


class TorchFile:
    """The tensors of one state dict in a file, and what is around it.

    Args:
        path: of the file.
        key: under which the state dict is; by default that is found out.
    """

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        with open(path, "rb") as file:  # what is missing or not readable says so itself
            self._zipped = file.read(4) == b"PK\x03\x04"
        try:
            self.in_pieces = self._zipped and _is_stored(path)
            with torch.serialization.safe_globals([Namespace]):  # arguments of a command: attributes and no code
                content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=self.in_pieces)
        except Exception as error:  # torch raises many kinds on bytes that are not its own
            raise ValueError(_why(path, error)) from error
        self.key, self._content, self._state = _state_dict(path, content, key)
        self._tensors: dict[str, Tensor] = {}
        for name, value in self._state.items():
            if isinstance(value, Tensor):
                self._tensors[str(name)] = _plain(path, name, value)
        self.specs = {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()}
        if sum(spec.nbytes for spec in self.specs.values()) > room_for(path):
            raise ValueError(f"{path} claims tensors of many times its size; a file that is a bomb looks like that.")

    def verify(self) -> None:
        """Hold all that is in the file against its checksums; `ValueError` where something has changed.

        torch writes them and never looks at them. A file in its older format has none.
        """
        if self._zipped:
            _refuse_changed(self.path)

    def identity(self, name: str) -> object:
        """Equal for two names of one and the same tensor."""
        tensor = self._tensors[name]
        if not tensor.numel():
            return name
        where = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        return *where, tensor.shape, tensor.stride(), tensor.dtype

    def read(self, name: str, piece: Piece) -> Tensor:
        """Some elements, in one dimension; not to be written to."""
        return self._tensors[name][piece.index].resolve_conj().resolve_neg().reshape(-1)

    def write(self, path: Path, make: Callable[[str], Iterator[Tensor]], same_as: Mapping[str, str]) -> None:
        """Write a file with all that is in this one, but for the tensors what `make` gives, piece by piece.

        torch writes everything at once, so the values wait in a file without a name, which is mapped for it. A name in
        `same_as` is that of one and the same tensor as another name.
        """
        with tempfile.TemporaryFile(dir=path.parent) as waiting:
            begins: dict[str, int] = {}
            for name in self.specs:
                if name in same_as:
                    continue
                waiting.seek(-waiting.tell() % _ALIGNED, os.SEEK_CUR)
                begins[name] = waiting.tell()
                for part in make(name):
                    waiting.write(raw(part))
            end = waiting.tell()
            waiting.truncate(end)
            waiting.flush()
            # Private: torch warns of memory that may not be written to.
            mapped = mmap.mmap(waiting.fileno(), end, access=mmap.ACCESS_COPY) if end else None
            made = {name: self._filled(name, mapped, begin) for name, begin in begins.items()}
            write_torch(path, self._around({name: made[same_as.get(name, name)] for name in self.specs}))

    def _filled(self, name: str, mapped: mmap.mmap | None, begin: int) -> Tensor:
        spec, like = self.specs[name], self._state[name]
        if mapped is None or not spec.nbytes:
            tensor = torch.empty(spec.shape, dtype=spec.dtype)
        else:
            bytes_of_it = torch.frombuffer(mapped, dtype=torch.uint8, count=spec.nbytes, offset=begin)
            tensor = bytes_of_it.view(spec.dtype).view(spec.shape)
        return torch.nn.Parameter(tensor, like.requires_grad) if isinstance(like, torch.nn.Parameter) else tensor

    def _around(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """All that is in the file, with other tensors in the state dict."""
        state: dict[str, Any] = OrderedDict() if isinstance(self._state, OrderedDict) else {}
        state.update({name: tensors.get(name, value) for name, value in self._state.items()})
        if isinstance(self._state, OrderedDict):
            vars(state).update(vars(self._state))  # where torch keeps the versions of modules
        if self.key is None:
            return state
        return {name: state if name == self.key else value for name, value in self._content.items()}


def _is_stored(path: Path) -> bool:
    """Whether what is in a zip archive lies there as it is: what somebody packed cannot be mapped."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > room_for(path):
        raise ValueError("it would unpack to many times its size")
    return all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)


def _refuse_changed(path: Path) -> None:
    """Raise where a record of a zip archive does not match its CRC-32; torch.save can be told to write 0 there."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.CRC:
                continue
            try:
                with archive.open(entry) as record:
                    while record.read(_AT_ONCE):
                        pass
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"{path} is damaged: its content does not match its checksum ({entry.filename}); use another copy "
                    "of it."
                ) from error


def _state_dict(path: Path, content: Any, key: str | None) -> tuple[str | None, Mapping[str, Any], Mapping[str, Any]]:
    """Under which key the state dict is, what is around it, and itself."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__} and no state dict.")
    whole = cast("Mapping[str, Any]", content)
    if whole.get("format") == FORMAT and "kind" in whole:
        return None, whole, _own(path, whole)
    inside = [name for name, value in whole.items() if _has_tensors(value)]
    if key is not None:
        if key not in inside:
            raise ValueError(f"{path} has no state dict under {key!r}; it has {_listed(inside)}.")
        return key, whole, whole[key]
    known = [name for name in _INSIDE if name in inside]
    if not known and _has_tensors(whole):
        return None, whole, whole
    if not known and len(inside) != 1:
        advice = "; say which with key" if inside else ""
        raise ValueError(f"{path} is no state dict, and inside it there are {_listed(inside)}{advice}.")
    found = (known or inside)[0]
    return found, whole, whole[found]


def _own(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state dict in a file that emabank wrote with a checksum, which the average would not fit any more."""
    state = content.get("state")
    if content["kind"] != "snapshot" or not _has_tensors(state):
        raise ValueError(
            f"{path} holds an emabank {content['kind']}, which is more than a state dict; write one average of a bank "
            "with emabank.checkpoint.export."
        )
    return cast("Mapping[str, Any]", state)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(each, Tensor) for each in cast("Any", value).values())


def _listed(names: list[str]) -> str:
    return f"state dicts under {', '.join(map(repr, names))}" if names else "none"


def _plain(path: Path, name: Any, tensor: Tensor) -> Tensor:
    if not isinstance(name, str):
        raise ValueError(f"{path}: the tensor {name!r} has no string for a name.")
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        kind = f"{type(tensor).__name__} of layout {tensor.layout}"
        raise ValueError(f"{path}: {name!r} is a {kind}, quantised perhaps; only plain dense tensors can be averaged.")
    if tensor.is_meta:
        raise ValueError(f"{path}: {name!r} is on the device meta and has no values.")
    return tensor.detach()


def _why(path: Path, error: Exception) -> str:
    text = str(error).strip()
    foreign = re.search(r"GLOBAL (\S+)", text)
    if isinstance(error, UnpicklingError) and foreign:
        return (
            f"{path} cannot be read with weights only: it holds a {foreign[1]}, and would have to execute code of the "
            "file for it. If you trust the file, load it yourself and save its state dict alone (for Lightning, with "
            "hyper-parameters that are plain numbers, strings, lists and dicts)."
        )
    text = text.partition("WeightsUnpickler error:")[2].strip() or text  # without torch's advice to read it unsafely
    reason = text.splitlines()[0][:200] if text else type(error).__name__
    return f"{path} is damaged or no file of torch.save ({reason}); use another copy of it."


# Checkpoints ----------------------------------------------------------------------------------------------------------

# What transformers, peft and diffusers call the weights; each may be in shards, with an index. The first is meant.
_WEIGHTS_NAMES = tuple(
    f"{name}{suffix}"
    for suffix in (SUFFIX, ".bin")
    for name in ("model", "pytorch_model", "adapter_model", "diffusion_pytorch_model")
)
_INDEX = ".index.json"
_SHARD = re.compile(r"-\d+-of-\d+\.")
TRAINING = ("optimizer", "scheduler", "rng_state", "scaler", "trainer_state", "training_args", "random_states")


class File(Protocol):
    """One file of a checkpoint.

    Attributes:
        specs: what is in it, in order.
        key: under which a state dict was found inside it, or None.
        in_pieces: whether it can be read in pieces; if not, all of it is in memory.
    """

    specs: dict[str, Spec]
    key: str | None
    in_pieces: bool

    def verify(self) -> None: ...

    def read(self, name: str, piece: Piece) -> Tensor: ...

    def identity(self, name: str) -> object: ...

    def write(self, path: Path, make: Callable[[str], Iterator[Tensor]], same_as: Mapping[str, str]) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Args:
        path: as it was given: a file, or a folder.
        files: by name, below `folder`.
        index: the file that says which tensor is in which, if there is one.
    """

    path: Path
    folder: Path
    files: Mapping[str, File]
    places: Mapping[str, str]
    index: str | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is more than one file."""
        return self.index is not None or self.path == self.folder

    @property
    def specs(self) -> dict[str, Spec]:
        """Every tensor of the checkpoint."""
        return {tensor: spec for file in self.files.values() for tensor, spec in file.specs.items()}

    def verify(self) -> None:
        """Hold every value against the checksums that the files carry; `ValueError` names the one that is damaged."""
        for file in self.files.values():
            file.verify()

    def read(self, tensor: str, piece: Piece) -> Tensor:
        """Some elements of a tensor, in one dimension, on the CPU; not to be written to."""
        return self.files[self.places[tensor]].read(tensor, piece)

    def identity(self, tensor: str) -> object:
        """Equal for two names of one and the same tensor."""
        return self.places[tensor], self.files[self.places[tensor]].identity(tensor)


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """What is in a file or folder; `ValueError` where that is damaged, unsafe or no checkpoint.

    >>> open_checkpoint(Path(__file__))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: formats.py is no checkpoint: give a .safetensors, .pt, ... or .index.json file, or a folder.
    """
    if path.is_dir():
        inside = weights_in(path)
        if inside is None:
            raise ValueError(
                f"{path} is no checkpoint: there is not one file of weights in it, such as {_WEIGHTS_NAMES[0]}."
            )
        return _opened(path, inside, key)
    return _opened(path, path, key)


def is_weights(path: Path) -> bool:
    """Whether a file may be a checkpoint of its own, by its name: no shard, and no other state of a training.

    >>> [is_weights(Path(name)) for name in ("step-5.pt", "optimizer.pt", "model-00001-of-00002.safetensors")]
    [True, False, False]
    """
    fits = path.suffix.lower() in (SUFFIX, *SUFFIXES)
    return fits and not path.name.startswith((".", *TRAINING)) and not _SHARD.search(path.name)


def weights_in(folder: Path) -> Path | None:
    """The file of a folder that makes it a checkpoint, or the index of such files; None where there is none."""
    for name in _WEIGHTS_NAMES:
        for each in (folder / name, folder / f"{name}{_INDEX}"):
            if each.is_file():
                return each
    others = [each for each in folder.iterdir() if is_weights(each) and each.is_file()]
    return others[0] if len(others) == 1 else None


def _opened(path: Path, file: Path, key: str | None) -> Checkpoint:
    if file.name.endswith(_INDEX):
        listed = _shards(file)
        files = {name: _file(file.parent / name, key) for name in dict.fromkeys(listed.values())}
        index = file.name
    else:
        files, listed, index = {file.name: _file(file, key)}, {}, None
    places: dict[str, str] = {}
    for name, each in files.items():
        for tensor, spec in each.specs.items():
            if tensor in places:
                raise ValueError(f"{path} has the tensor {tensor!r} twice, in {places[tensor]} and in {name}.")
            if spec.is_number and not spec.can_be_averaged:
                raise ValueError(
                    f"{path}: the tensor {tensor!r} is {spec}, which means nothing without its scales; convert the "
                    "checkpoints to a wider type before averaging them."
                )
            places[tensor] = name
    missing = [tensor for tensor, name in listed.items() if places.get(tensor) != name]
    if missing:
        raise ValueError(f"{file} says that {missing[0]!r} is in {listed[missing[0]]}, where it is not.")
    if not places:
        raise ValueError(f"{path} has no tensors.")
    return Checkpoint(path, file.parent, files, places, index)


def _file(path: Path, key: str | None) -> File:
    if path.suffix.lower() == SUFFIX:
        return SafetensorsFile(path)
    if path.suffix.lower() in SUFFIXES:
        return TorchFile(path, key)
    known = ", ".join((SUFFIX, *SUFFIXES))
    raise ValueError(f"{path} is no checkpoint: give a {known} or {_INDEX} file, or a folder.")


def _shards(index: Path) -> dict[str, str]:
    """Which tensor is in which file, from an index as transformers writes it."""
    try:
        listed: Any = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        placed = {str(tensor): cast("str", name) for tensor, name in listed.items()}
        for name in placed.values():
            if not isinstance(name, str) or re.search(r"[/\\\0]|^\.", name):
                raise ValueError(f"it names {name!r}, which is no file of its folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is no index of a checkpoint in shards ({error}).") from error
    return placed


# Writing --------------------------------------------------------------------------------------------------------------

_WEIGHTS = (SUFFIX, *SUFFIXES, ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".npz", ".index.json")
_LARGEST = 64 * 2**20  # bytes of what is copied beside the weights; the largest tokenizers have about half


def refuse_target(out: Path, like: Checkpoint, inputs: Sequence[Path], *, replace: bool) -> None:
    """Raise where an average like `like` cannot go to `out`, or should not."""
    real = out.resolve()
    for path in inputs:
        given = path.resolve()
        if real == given or real in given.parents or (path.is_dir() and given in real.parents):
            raise ValueError(f"The average cannot be written to {out}: {path} is there, which it is made of.")
    kinds = (SUFFIX,) if like.path.suffix.lower() == SUFFIX else SUFFIXES
    if like.is_folder and out.suffix.lower() in (SUFFIX, *SUFFIXES):
        raise ValueError(f"The average of checkpoints that are folders is a folder; {out.name} is the name of a file.")
    if not like.is_folder and out.suffix.lower() not in kinds:
        raise ValueError(f"The average is a file like {like.path.name}; {out.name} has to end in {' or '.join(kinds)}.")
    if not out.exists() and not out.is_symlink():
        return
    if not replace:
        raise FileExistsError(
            errno.EEXIST,
            "There is something already; give another name, or have it replaced (--force, replace_out=True)",
            str(out),
        )
    if out.is_dir() != like.is_folder:
        kind = "folder" if out.is_dir() else "file"
        raise ValueError(f"{out} is a {kind} and the average is none; give another name.")
    if out.is_dir() and (weights_in(out) is None or any(each.is_dir() for each in out.iterdir())):
        raise ValueError(f"{out} holds other things than one checkpoint, so it is not replaced; give another name.")


def write_checkpoint(
    like: Checkpoint, out: Path, make: Callable[[str], Iterator[Tensor]], same_as: Mapping[str, str]
) -> None:
    """Write what `make` gives for each tensor in the layout of `like`, in the place of what is there."""
    if not like.is_folder:
        (file,) = like.files.values()
        write_atomically(out, lambda temporary: file.write(temporary, make, same_as))
        return
    out = out.resolve()
    draft = out.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        draft.mkdir(parents=True)
        for name, file in like.files.items():
            file.write(draft / name, make, same_as)
        for other in beside(like):
            shutil.copyfile(other, draft / other.name)
        for each in draft.iterdir():
            sync(each, os.O_RDWR)
        _take_place(draft, out)
    except OSError as error:
        reason = f"Could not be written ({error.strerror or error}); what was there before is unchanged"
        raise OSError(error.errno or errno.EIO, reason, str(out)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if os.name == "posix":
        with suppress(OSError):  # it is in place; some network file systems refuse to sync a folder
            sync(out.parent, os.O_RDONLY)


def beside(like: Checkpoint) -> list[Path]:
    """The files that belong to a model beside its weights: configuration, tokenizer, index; nothing of its training."""
    return [
        each
        for each in sorted(like.folder.iterdir())
        if each.name == like.index
        or (
            each.is_file()
            and not each.name.endswith(_WEIGHTS)
            and not each.name.startswith((".", *TRAINING))
            and each.stat().st_size <= _LARGEST
        )
    ]


def _take_place(draft: Path, out: Path) -> None:
    """Give a folder its name, also where there is one of that name; at every moment one of the two is whole."""
    if not out.exists():
        os.rename(draft, out)
        return
    old = out.with_name(f".{secrets.token_hex(8)}.old")
    os.rename(out, old)
    try:
        os.rename(draft, out)
    except BaseException:
        if not out.exists():  # an interrupt may come when it has its name already
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
