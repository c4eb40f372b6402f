"""The processes that train one run together (torchrun starts them): which one this is, its share, and what they tell.

Whatever they tell each other must be said by all at once. A process that is alone says nothing. May import torch.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

_CPU = torch.device("cpu")
RANK, WORLD, LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"  # what torchrun tells each process


@dataclass(frozen=True)
class Ranks:
    """One process among `world` that work on the same run.

    >>> Ranks().is_alone, Ranks(rank=1, world=3).share(8)
    (True, slice(3, 6, None))
    """

    rank: int = 0
    world: int = 1
    device: torch.device = _CPU

    @property
    def is_alone(self) -> bool:
        return self.world == 1

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This one's part of so many things in a row; all parts together are all of them, in order."""
        least, more = divmod(count, self.world)
        low = self.rank * least + min(self.rank, more)
        return slice(low, low + least + (self.rank < more))

    def totals(self, *numbers: float) -> list[float]:
        """The sums over all processes."""
        if self.is_alone:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def from_all(self, mine: np.ndarray | None) -> np.ndarray:
        """The arrays of all processes, one below the other; one that has nothing gives None."""
        each: list[np.ndarray | None] = [mine] * self.world
        if not self.is_alone:
            dist.all_gather_object(each, mine)
        return np.concatenate([array for array in each if array is not None])

    def from_first(self, thing: Any = None) -> Any:
        """What the first process has; the others give nothing."""
        if self.is_alone:
            return thing
        box = [thing if self.is_first else None]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


ALONE = Ranks()


def asked_for() -> bool:
    """Whether torchrun has started this process as one of several.

    >>> asked_for()
    False
    """
    return int(os.environ.get(WORLD, "1")) > 1


@contextmanager
def joined(device: str) -> Generator[Ranks]:
    """This process among those that torchrun has started; alone where it has not.

    Each process has a GPU of its own, by its number on the machine.

    >>> with joined("cpu") as ranks:
    ...     ranks.is_alone
    True
    """
    if not asked_for():
        yield ALONE
        return
    place = _CPU
    if device != "cpu":
        place = torch.device(device, int(os.environ.get(LOCAL, "0")))
        torch.accelerator.set_device_index(place)
    dist.init_process_group("cpu:gloo" if place.type == "cpu" else None)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), place)
    finally:
        dist.destroy_process_group()


@contextmanager
def without_them(ranks: Ranks) -> Generator[None]:
    """A process that is gone, which the others notice in whatever they tell each other next, is told in a sentence."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "Connection"))
        if ranks.is_alone or not lost:
            raise
        reason = str(error).splitlines()[0][:200]
        raise ConnectionError(
            f"process {ranks.rank} of {ranks.world} that train together has lost the others ({reason}); the same "
            "command goes on from the last checkpoint"
        ) from error
