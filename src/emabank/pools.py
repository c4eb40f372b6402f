"""Mean and variance of all values seen, pooled batch by batch, and over the processes that see different batches.

Imports processes and torch; knows nothing of layers and models.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from emabank.processes import Processes

# Variances two layers behind a lone value, over those without it, in the worst channel of 15 random networks: 1.7 where
# it is normalised by 16 others (batches of four give 1.5 by themselves), 4.5 by 8, millions by two.
ENOUGH = 16


class Pool:
    """Mean and variance of everything seen so far, batch by batch (Chan, Golub and LeVeque 1983), in float64.

    It is for tensors on the CPU: not every accelerator has float64. `early` counts the values that were alone in their
    batch when there were not ENOUGH others yet to normalise them by.
    """

    def __init__(self) -> None:
        self.count = self.early = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, count: int, mean: Tensor, squares: Tensor, *, early: int | None = None) -> None:
        """Take in a batch: its mean, and its sum of squared deviations from it; or what another process has pooled,
        with its `early`.
        """
        self.early += int(count == 1 and self.count < ENOUGH) if early is None else early
        if self.count == 0:
            self.count = count
            self.mean, self.squares = (each.to(torch.float64, copy=True) for each in (mean, squares))
            return
        total = self.count + count
        delta = mean - self.mean  # in float64, as what is pooled
        self.squares.add_(squares).addcmul_(delta, delta, value=self.count * count / total)
        self.mean.add_(delta, alpha=count / total)
        self.count = total

    def variance(self, correction: int) -> Tensor:
        return self.squares / (self.count - correction)


def pooled_by_all(
    processes: Processes, pools: Mapping[str, Mapping[str, Pool]], channels: Mapping[str, int], batches: int
) -> tuple[dict[str, dict[str, Pool]], int]:
    """What all processes have pooled for each set of weights and each layer, and the number of their batches.

    `channels` are those of every layer that may have been reached, in the same order on all processes.
    """
    sizes = [1]
    flat = [torch.tensor([float(batches)], dtype=torch.float64)]
    for name in pools:
        for layer, width in channels.items():
            pool = pools[name].get(layer, Pool())
            sizes += [1, 1, width, width]
            flat.append(torch.tensor([pool.count, pool.early], dtype=torch.float64))
            flat += [moment.double().expand(width) for moment in (pool.mean, pool.squares)]
    found: dict[str, dict[str, Pool]] = {name: {} for name in pools}
    total = 0
    for given in processes.from_all(torch.cat(flat)):
        parts = iter(given.split(sizes))
        total += int(next(parts).item())
        for name in pools:
            for layer in channels:
                count, early = int(next(parts).item()), int(next(parts).item())
                mean, squares = next(parts), next(parts)
                if count:
                    found[name].setdefault(layer, Pool()).add(count, mean, squares, early=early)
    return found, total
