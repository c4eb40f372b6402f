"""A checkpoint as it lies on disk, in one file or in several: which tensors there are, and pieces of them.

Nothing in a file is executed, and no file outside the checkpoint's folder is read. May import the kinds of files.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from torch import Tensor

from emabank.averaging.safetensors_file import SUFFIX, SafetensorsFile
from emabank.averaging.tensors import Piece, Spec
from emabank.averaging.torch_file import SUFFIXES, TorchFile

# What transformers, peft and diffusers call the weights; each may be in shards, with an index. The first is meant.
_NAMES = tuple(
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
    ValueError: sources.py is no checkpoint: give a .safetensors, .pt, ... or .index.json file, or a folder.
    """
    if path.is_dir():
        inside = weights_in(path)
        if inside is None:
            raise ValueError(f"{path} is no checkpoint: there is not one file of weights in it, such as {_NAMES[0]}.")
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
    for name in _NAMES:
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
