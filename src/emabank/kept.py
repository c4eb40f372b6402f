"""Kept: copies of weights by average and epoch, in memory or one file each. May import files and torch."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

import torch
from torch import Tensor

from emabank.files import read_state, write_state

Place = tuple[str, int]  # the average and the epoch


class Kept:
    """Weights by average and epoch: in memory, or one file each in a folder.

    >>> kept = Kept(folder=None)
    >>> kept.keep({("live", 1): {"scale": 2.0}}, wanted={("live", 1)})
    >>> kept.copy(("live", 1))
    {'scale': 2.0}
    >>> kept.keep({}, wanted=set())
    >>> kept.places
    set()
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: dict[Place, dict[str, Any] | _Written] = {}

    @property
    def places(self) -> set[Place]:
        return set(self._kept)

    def keep(self, fresh: Mapping[Place, dict[str, Any]], wanted: set[Place]) -> None:
        """Store the fresh ones, then let go of what is not wanted any more; a failed write changes nothing."""
        stored: dict[Place, dict[str, Any] | _Written] = {}
        try:
            for place, weights in fresh.items():
                stored[place] = weights if self._folder is None else _written(self._folder, place, weights)
        except BaseException:
            _remove(stored[place] for place in stored if place not in self._kept)
            raise
        every = {**self._kept, **stored}
        self._kept = {place: every[place] for place in every if place in wanted}
        _remove(every[place] for place in every if place not in wanted)

    def copy(self, place: Place) -> dict[str, Any]:
        kept = self._kept[place]
        if not isinstance(kept, _Written):
            return copied(kept)
        try:
            # Another tracker in the same folder has files of the same names.
            return read_state(kept.path, kind="snapshot", checksum=kept.checksum)
        except FileNotFoundError as error:
            reason = f"The snapshot of {place[0]!r} at epoch {place[1]} is gone from the tracker's folder"
            raise FileNotFoundError(error.errno, reason, str(kept.path)) from error


def copied(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a state dict, also of sparse tensors, not all of which torch can copy that way.

    >>> copied({"scale": [2.0]})
    {'scale': [2.0]}
    """
    tensors = [value for value in weights.values() if isinstance(value, Tensor) and value.layout is not torch.strided]
    memo: dict[int, Any] = {id(tensor): tensor.clone() for tensor in tensors}
    return deepcopy(dict(weights), memo)


class _Written(NamedTuple):
    path: Path
    checksum: int


def _written(folder: Path, place: Place, weights: dict[str, Any]) -> _Written:
    average, epoch = place
    name = quote(average, safe=" ")[:100]
    if name != average.lower():  # cut, quoted, or told apart by case alone, which not every file system does
        name += f"-{crc32(average.encode()):08x}"
    path = folder / f"{name}-epoch-{epoch}.pt"
    return _Written(path, write_state(path, weights, kind="snapshot"))


def _remove(stored: Iterable[dict[str, Any] | _Written]) -> None:
    for one in stored:
        if isinstance(one, _Written):
            one.path.unlink(missing_ok=True)
