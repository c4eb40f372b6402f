"""A checkpoint on disk: one file of weights, or a folder with them in shards and with other files; and its average.

No file outside the checkpoint's folder is read.
"""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from emabank.atomic import sync, write_atomically
from emabank.averaging import dcp
from emabank.averaging.formats import (
    SAFETENSORS,
    TORCH,
    Chunk,
    NewValues,
    SafetensorsFile,
    Spec,
    TorchFile,
    check_file_name,
    write_safetensors,
)

WeightsFile = SafetensorsFile | TorchFile | dcp.DcpFolder

_INDEX = ".index.json"
# What transformers, peft and diffusers call the weights, alone or in shards with an index; the first one wins.
_WEIGHTS_NAMES = tuple(
    f"{stem}{suffix}"
    for suffix in (SAFETENSORS, ".bin")
    for stem in ("model", "pytorch_model", "adapter_model", "diffusion_pytorch_model")
)
_TRAINING_STATE = ("optimizer", "scheduler", "rng_state", "scaler", "trainer_state", "training_args", "random_states")
_OTHER_WEIGHTS = (SAFETENSORS, *TORCH, dcp.SHARD, ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".npz", _INDEX)
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
        return suffix_of(out) == SAFETENSORS and any(isinstance(file, dcp.DcpFolder) for file in self.files.values())

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
    if (folder / dcp.METADATA).is_file():
        return folder / dcp.METADATA
    for name in _WEIGHTS_NAMES:
        for path in (folder / name, folder / f"{name}{_INDEX}"):
            if path.is_file():
                return path
    paths = [path for path in folder.iterdir() if is_weights_file(path) and path.is_file()]
    return paths[0] if len(paths) == 1 else None


def _open_file(path: Path, key: str | None) -> WeightsFile:
    if path.name == dcp.METADATA:
        return dcp.DcpFolder(path.parent, key)
    if suffix_of(path) == SAFETENSORS:
        return SafetensorsFile(path)
    if suffix_of(path):
        return TorchFile(path, key)
    suffixes = ", ".join((SAFETENSORS, *TORCH))
    raise ValueError(f"{path} is not a checkpoint; use a {suffixes} or {_INDEX} file, or a folder.")


def _read_index(path: Path) -> dict[str, str]:
    """From the name of a tensor to that of its file, as transformers writes it."""
    try:
        weight_map: Any = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shard_of = {str(name): cast("str", file_name) for name, file_name in weight_map.items()}
        for file_name in shard_of.values():
            check_file_name(file_name)
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
            write_safetensors(path, like.specs, {"format": "pt"}, new_values)
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
        if path.name in (like.index, dcp.LIGHTNING)
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
