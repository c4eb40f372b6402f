"""What a run keeps so that window and stopping epoch can be chosen after it: snapshots of two power-function averages.

They are in a bank of their own, so that all else of the run is as without them. May import config, plain, runs and the
library's public names.
"""

import math
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from emabank import EMABank, PowerEMA
from emabank.posthoc import Snapshots, snapshot_steps
from emabank.study.config import RunConfig
from emabank.study.serialize import run_id, to_dict

WIDTHS = (0.05, 0.1)
"""Relative widths: those of EDM2."""


class Afterwards:
    """Two power-function averages and their snapshots, as many as a run is told; of most runs nothing is kept.

    There is a snapshot at the end of epochs, and as many at even distances inside each as the number allows.
    """

    def __init__(self, config: RunConfig, model: nn.Module, optimizer: Optimizer, *, steps_per_epoch: int) -> None:
        snapshots, epochs, every = config.posthoc, config.recipe.training.epochs, config.recipe.averages.every
        self._epochs = max(1, math.ceil(epochs / snapshots)) if snapshots else 0
        self._inside = max(1, min(steps_per_epoch // every, snapshots // epochs)) if snapshots else 0
        self._steps_per_epoch, self._steps = steps_per_epoch, epochs * steps_per_epoch
        self._run = run_id(to_dict(config))
        self._bank: EMABank | None = None
        self._snapshots: Snapshots | None = None
        if snapshots:
            self._bank = EMABank(model, [PowerEMA(width) for width in WIDTHS], every=every, on_nonfinite="skip")
            self._bank.attach(optimizer)

    def keep_in(self, folder: Path) -> None:
        """Write snapshots to a folder from now on; what a training has left there that went further is removed."""
        if self._bank is None:
            return
        if self._bank.num_steps == 0:  # from the beginning, whatever an earlier start left
            for step in snapshot_steps(folder):
                (folder / f"step-{step:09d}.pt").unlink()
        # Of the steps in between, `after_step` decides: an interruption must not add snapshots.
        self._snapshots = Snapshots(self._bank, folder, every_steps=self._steps + 1, run=self._run)

    def after_step(self, steps: int) -> None:
        """Write a snapshot if one is due after so many steps of the run."""
        if self._snapshots is None or self._bank is None or self._bank.num_skipped:  # then it has diverged
            return
        if self.is_due(steps) and self._bank.num_updates:
            self._snapshots.save()

    def is_due(self, steps: int) -> bool:
        """Whether a snapshot belongs after so many steps."""
        epoch, inside = divmod(steps, self._steps_per_epoch)
        if inside == 0:
            return epoch % self._epochs == 0 or steps == self._steps
        places = (round(place * self._steps_per_epoch / self._inside) for place in range(1, self._inside))
        return inside in places

    def state_dict(self) -> dict[str, Any] | None:
        """The averages; loads with `weights_only=True`."""
        return None if self._bank is None else self._bank.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on where the one that gave `state` stood."""
        if self._bank is None:
            return
        if state is None:
            raise ValueError("this checkpoint is of a run without snapshots; a run with them starts at the beginning")
        self._bank.reset()  # or it would warn, at its first step, of weights that were loaded behind its back
        self._bank.load_state_dict(state)
