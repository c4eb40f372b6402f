"""Weights and predictions as files: safetensors and npz, written atomically, read without running anything.

torch, numpy and safetensors come with the functions that need them.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

if TYPE_CHECKING:
    from numpy import float32, int64
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

PARTS = ("train", "val", "test")
_NOTES = "emabank"  # the key of our own notes among a file's metadata


class Predictions(NamedTuple):
    """What a set of weights says about one part of the data, and what would have been right."""

    logits: "NDArray[float32]"
    """One line an example, one column a class."""
    labels: "NDArray[int64]"


def write_weights(path: Path, tensors: "Mapping[str, Tensor]", notes: Mapping[str, Any]) -> None:
    """Write a state dict as a safetensors file, which other programs read too, with plain values noted in it.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_weights(Path(folder, "live.safetensors"), {"bias": torch.ones(2)}, {"epoch": 3})
    ...     read_weights(Path(folder, "live.safetensors"))
    ({'bias': tensor([1., 1.])}, {'epoch': 3})
    """
    from emabank.checkpoint import write_atomically, write_safetensors

    plain = {key: tensor.detach().cpu() for key, tensor in tensors.items()}
    metadata = {"format": "pt", _NOTES: json.dumps(dict(notes), allow_nan=False)}
    write_atomically(path, lambda temporary: write_safetensors(temporary, plain, metadata))


def read_weights(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """A state dict on the CPU, and what was noted beside it; `ValueError` names a file that is not whole.

    >>> read_weights(Path(__file__))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: arrays.py is damaged, cut short or no safetensors file.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            notes = json.loads((file.metadata() or {}).get(_NOTES, "{}"))
            return {key: file.get_tensor(key) for key in file.keys()}, notes  # noqa: SIM118
    except Exception as error:  # safetensors has errors of its own
        raise ValueError(f"{path} is damaged, cut short or no safetensors file; use another copy of it") from error


def write_predictions(path: Path, parts: "Mapping[str, tuple[ArrayLike, ArrayLike]]") -> None:
    """Write logits (as float32) and labels for each part of the data, which is "train", "val" or "test".

    Not compressed: the last bits of logits are noise, and packing them saves little for the time it takes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions(Path(folder, "live.npz"), {"val": ([[0.5, 2.0]], [1])})
    ...     read_predictions(Path(folder, "live.npz"))["val"].labels
    array([1])
    """
    import numpy as np

    from emabank.checkpoint import write_atomically

    arrays: dict[str, Any] = {}
    for part, given in parts.items():
        if part not in PARTS:
            raise ValueError(f"predictions for {part!r} were given; the parts are {', '.join(map(repr, PARTS))}")
        logits, labels = np.asarray(given[0], dtype=np.float32), np.asarray(given[1])
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or labels.dtype.kind not in "iu":
            raise ValueError(
                f"the {part} predictions are logits of shape {logits.shape} with {labels.dtype} labels of shape "
                f"{labels.shape}; give one line of logits and one integer label an example"
            )
        arrays |= {f"logits_{part}": logits, f"labels_{part}": labels.astype(np.int64)}

    # Packed in memory first: on a full disk older versions of numpy leave an archive open that complains later.
    packed = BytesIO()
    np.savez(packed, **arrays)
    write_atomically(path, lambda temporary: temporary.write_bytes(packed.getbuffer()))


def read_predictions(path: Path) -> dict[str, Predictions]:
    """What `write_predictions` wrote, by part of the data; `ValueError` names a file that is not whole.

    >>> read_predictions(Path(__file__))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: arrays.py is damaged, cut short or holds no predictions.
    """
    import numpy as np

    try:
        with ZipFile(path) as archive:  # nothing is compressed, so a file cannot hold more than it has bytes
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise ValueError("far too large")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            parts = [key.removeprefix("logits_") for key in arrays.files if key.startswith("logits_")]
            if not parts:
                raise ValueError("another archive")
            return {part: Predictions(arrays[f"logits_{part}"], arrays[f"labels_{part}"]) for part in parts}
    except Exception as error:  # zipfile and numpy have errors of their own
        raise ValueError(f"{path} is damaged, cut short or holds no predictions; use another copy of it") from error
