"""Writes and reads the files of a run: JSON with checksums, weights, predictions, checkpoints.

Every file is written atomically. Reading a file executes nothing in it; a damaged file raises `ValueError`. torch,
numpy and safetensors are imported by the functions that need them.
"""

import json
import os
import re
import stat
import warnings
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from zipfile import ZipFile

from emabank.atomic import write_atomically

if TYPE_CHECKING:
    from numpy import float32, int64
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

CHECKSUM = "checksum"
_CHECKSUM = re.compile(r"crc32:[0-9a-f]{8}")
_NOTES = "emabank"  # the key of emabank's notes in a file's metadata
_KIND = "checkpoint of a run"
_CURRENT, _PREVIOUS, _NEXT = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.next.pt"
_MAPPING, _TUPLE = "__mapping__", "__tuple__"


# JSON -----------------------------------------------------------------------------------------------------------------
#
# `with_checksum` adds a checksum as the last entry, because a flipped bit can leave valid JSON with another meaning.
# Files without one, such as those of an earlier emabank, are read as they are.


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum as the last entry."""
    return {**content, CHECKSUM: _checksum(content)}


def read_checked(path: Path) -> dict[str, Any]:
    """The JSON object in a file, without its checksum; a short `ValueError` if the file is damaged."""
    content = read_any(path)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    values = {key: value for key, value in cast("dict[str, Any]", content).items() if key != CHECKSUM}
    if CHECKSUM in content:
        intact = content[CHECKSUM] == _checksum(values)
    else:
        # The key of the checksum may be damaged: no other value looks like a checksum.
        intact = not any(isinstance(value, str) and _CHECKSUM.fullmatch(value) for value in values.values())
    if not intact:
        raise ValueError("its content does not match its checksum")
    return values


def read_json(path: Path) -> dict[str, Any]:
    """Like `read_checked`, but empty if the file is missing or damaged."""
    try:
        return read_checked(path)
    except (OSError, ValueError):
        return {}


def read_any(path: Path) -> Any:
    """The value in a JSON file; a short `ValueError` if it is damaged, `FileNotFoundError` if it is missing."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no regular file")  # reading a pipe would block
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error


def write_json(path: Path, content: Any) -> None:
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """The content as the text of a JSON file."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def file_checksum(path: Path) -> int:
    total = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def _checksum(content: Mapping[str, Any]) -> str:
    """A checksum of the values after a JSON round trip, not of the text: equal values have equal checksums."""
    try:
        text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return f"crc32:{zlib.crc32(text.encode()):08x}"


# Weights and predictions ---------------------------------------------------------------------------------------------


class Predictions(NamedTuple):
    """The logits of one set of weights on one part of the data, and the labels."""

    logits: "NDArray[float32]"
    """One row per example, one column per class."""
    labels: "NDArray[int64]"


def write_weights(path: Path, tensors: "Mapping[str, Tensor]", notes: Mapping[str, Any]) -> None:
    """Write a state dict as a safetensors file, which other programs can read, with `notes` in its metadata."""
    from emabank.checkpoint import write_safetensors

    plain = {key: tensor.detach().cpu() for key, tensor in tensors.items()}
    metadata = {"format": "pt", _NOTES: json.dumps(dict(notes), allow_nan=False)}
    write_atomically(path, lambda temporary: write_safetensors(temporary, plain, metadata))


def read_weights(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """A state dict on the CPU, and its notes; `ValueError` if the file is damaged."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            notes = json.loads((file.metadata() or {}).get(_NOTES, "{}"))
            return {key: file.get_tensor(key) for key in file.keys()}, notes  # noqa: SIM118
    except Exception as error:  # safetensors raises its own errors
        raise ValueError(f"{path} is damaged, cut short or no safetensors file; use another copy of it") from error


def write_predictions(path: Path, parts: "Mapping[str, tuple[ArrayLike, ArrayLike]]") -> None:
    """Write logits (as float32) and labels for each part of the data: "train", "val" or "test".

    Not compressed: the last bits of logits are noise, so compression saves little for its time.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    for part, (logits, labels) in parts.items():
        arrays[f"logits_{part}"] = np.asarray(logits, dtype=np.float32)
        arrays[f"labels_{part}"] = np.asarray(labels, dtype=np.int64)
    # Built in memory first: on a full disk, older versions of numpy leave an archive open that complains later.
    packed = BytesIO()
    np.savez(packed, **arrays)
    write_atomically(path, lambda temporary: temporary.write_bytes(packed.getbuffer()))


def read_predictions(path: Path) -> dict[str, Predictions]:
    """The predictions in a file, by part of the data; `ValueError` if the file is damaged."""
    import numpy as np

    try:
        with ZipFile(path) as archive:  # not compressed, so the content cannot be larger than the file
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise ValueError("far too large")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            parts = [key.removeprefix("logits_") for key in arrays.files if key.startswith("logits_")]
            if not parts:
                raise ValueError("another archive")
            return {part: Predictions(arrays[f"logits_{part}"], arrays[f"labels_{part}"]) for part in parts}
    except Exception as error:  # zipfile and numpy raise their own errors
        raise ValueError(f"{path} is damaged, cut short or holds no predictions; use another copy of it") from error


# Checkpoints: the last two, so that a damaged one costs time but not the run -----------------------------------------


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the current checkpoint and keep the one before it; a kill at any moment leaves an intact one.

    A state is nested dicts, lists and tuples of numbers, strings, None and tensors. Integer keys, as optimizers have
    them, are restored as integers, and tensors on the CPU.
    """
    write_state(folder / _NEXT, state)
    finish_checkpoint(folder)


def finish_checkpoint(folder: Path) -> None:
    """Make the new checkpoint, if there is one, the current one. It is complete, even if a kill came right after."""
    if (folder / _NEXT).exists():
        if (folder / _CURRENT).exists():
            os.replace(folder / _CURRENT, folder / _PREVIOUS)
        os.replace(folder / _NEXT, folder / _CURRENT)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest intact checkpoint; None if there is none.

    A damaged file is renamed to end in `.damaged`, and a warning names it.
    """
    from emabank import checkpoint

    damaged: list[str] = []
    for name in (_NEXT, _CURRENT, _PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = read_state(path)
        except checkpoint.NewerVersionError:  # intact, but written by a newer version: starting over would lose it
            raise
        except ValueError:
            os.replace(path, folder / f"{name}.damaged")
            damaged.append(str(path))
        else:
            if damaged:
                _warn(damaged, f"training resumes from {name}")
            return state
    if damaged:
        _warn(damaged, "training starts from the beginning")
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run; forks stay."""
    for name in (_NEXT, _CURRENT, _PREVIOUS):
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}.damaged").unlink(missing_ok=True)


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state atomically, with a checksum over every value."""
    from emabank import checkpoint

    checkpoint.write_state(path, {"state": _encoded(state)}, kind=_KIND)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state from `write_state`; `ValueError` if the file is damaged. Nothing in it is executed."""
    from emabank import checkpoint

    try:
        return _decoded(checkpoint.read_state(path, kind=_KIND)["state"])
    except (TypeError, LookupError, RecursionError) as error:  # intact, but not written by `write_state`
        raise ValueError(f"{path} is damaged, or no checkpoint of a run; use another copy of it") from error


def _warn(damaged: list[str], consequence: str) -> None:
    sentence = f"damaged, and put aside with .damaged behind the name: {', '.join(damaged)}; {consequence}"
    warnings.warn(sentence, RuntimeWarning, stacklevel=4)  # the caller of RunWriter.load_checkpoint


def _encoded(value: Any) -> Any:
    """Encode tuples, and dicts whose keys are not all strings, because the file format has neither."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        if all(isinstance(key, str) and key not in (_MAPPING, _TUPLE) for key, _ in items):
            return {key: _encoded(item) for key, item in items}
        return {_MAPPING: [[_encoded(key), _encoded(item)] for key, item in items]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [_encoded(item) for item in cast("list[Any]", value)]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    values = cast("dict[str, Any]", value)
    if _MAPPING in values:
        return {_decoded(key): _decoded(item) for key, item in values[_MAPPING]}
    if _TUPLE in values:
        return tuple(_decoded(item) for item in values[_TUPLE])
    return {key: _decoded(item) for key, item in values.items()}
