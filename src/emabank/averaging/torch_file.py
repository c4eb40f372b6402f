"""One file of torch.save: what is in it is mapped, not read, and nothing in it is executed.

Mapped files are the system's to keep in memory or not; what is held is no more than the pieces asked for. May import
tensors, and files of the library.
"""

import mmap
import os
import re
import tempfile
import zipfile
import zlib
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from torch import Tensor

from emabank.averaging.tensors import Piece, Spec, raw
from emabank.checkpoint import FORMAT, size_limit, write_torch

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
        if sum(spec.nbytes for spec in self.specs.values()) > size_limit(path):
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
    if sum(entry.file_size for entry in entries) > size_limit(path):
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
