"""The processes that train one run together, which torchrun starts: the rank of this one, its share, and collectives.

All ranks must call a collective together; a process that is alone communicates nothing. Imports torch and numpy.
"""

import gc
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

_CPU = torch.device("cpu")
RANK, WORLD, LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"  # set by torchrun


@dataclass(frozen=True)
class ProcessGroup:
    """One process among `world` that work on the same run."""

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
        arrays: list[np.ndarray | None] = [mine] * self.world
        if not self.is_alone:
            dist.all_gather_object(arrays, mine)
        return np.concatenate([array for array in arrays if array is not None])

    def from_first(self, thing: Any = None) -> Any:
        """What the first process has; the others give nothing."""
        if self.is_alone:
            return thing
        box = [thing if self.is_first else None]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


ALONE = ProcessGroup()


def under_torchrun() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get(WORLD, "1")) > 1


@contextmanager
def join_group(device: str) -> Generator[ProcessGroup]:
    """This process among those that torchrun started; alone where it did not.

    Each process has a GPU of its own, by its number on the machine.
    """
    if not under_torchrun():
        yield ALONE
        return
    place = _CPU
    if device != "cpu":
        place = torch.device(device, int(os.environ.get(LOCAL, "0")))
        torch.accelerator.set_device_index(place)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # torchrun ends the others so when a rank has died
    dist.init_process_group("cpu:gloo" if place.type == "cpu" else None)
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), place)
        gc.collect()  # a DistributedDataParallel that outlives its group may abort the interpreter as it exits
    finally:
        dist.destroy_process_group()


@contextmanager
def peer_loss_as_error(group: ProcessGroup) -> Generator[None]:
    """Turn the error that the next collective raises when a rank has died into one sentence."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "Connection"))
        if group.is_alone or not lost:
            raise
        reason = str(error).splitlines()[0][:200]
        raise ConnectionError(
            f"rank {group.rank} of {group.world} lost contact with the other ranks ({reason}); the same command "
            "resumes from the last checkpoint"
        ) from error
