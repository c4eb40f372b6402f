"""Choose averages after a run: keep snapshots of two power-function averages, then try windows and stopping epochs.

These averages have their own bank, so that they change nothing else in the run.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from emabank import EMABank, PowerEMA
from emabank.posthoc import Snapshots, Synthesis, snapshot_steps, synthesize_many
from emabank.study.averages import stops, windows
from emabank.study.config import RunConfig
from emabank.study.data.splits import Parts
from emabank.study.evaluate import EpochMetric, by_split, epoch_metrics
from emabank.study.runs.rows import BatchNorm
from emabank.study.serialize import run_id, to_dict

if TYPE_CHECKING:
    from emabank.study.train import Training

WIDTHS = (0.05, 0.1)
"""Relative widths, as in EDM2."""


class PosthocRecorder:
    """Writes snapshots of two power-function averages; does nothing if the configuration asks for none.

    The number of snapshots decides whether they are at the end of every epoch or of every few epochs, or also evenly
    spaced inside each epoch.
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

    def keep_in(self, folder: Path, *, is_first: bool = True) -> None:
        """Write snapshots to a folder from now on, and remove those there that are later than the current step.

        If several ranks train together, the first one removes and writes.
        """
        if self._bank is None:
            return
        if self._bank.num_steps == 0 and is_first:  # training starts over
            for step in snapshot_steps(folder):
                (folder / f"step-{step:09d}.pt").unlink()
        # `after_step` decides when to write. A period beyond the end keeps interruptions from adding snapshots.
        self._snapshots = Snapshots(self._bank, folder, every_steps=self._steps + 1, run=self._run)

    def after_step(self, steps: int) -> None:
        """Write a snapshot if one is due after this many steps."""
        if self._snapshots is None or self._bank is None or self._bank.num_skipped:  # the run has diverged
            return
        if self.is_due(steps) and self._bank.num_updates:
            self._snapshots.save()

    def is_due(self, steps: int) -> bool:
        """Whether a snapshot is due after this many steps."""
        epoch, inside = divmod(steps, self._steps_per_epoch)
        if inside == 0:
            return epoch % self._epochs == 0 or steps == self._steps
        places = (round(place * self._steps_per_epoch / self._inside) for place in range(1, self._inside))
        return inside in places

    def state_dict(self) -> dict[str, Any] | None:
        """The state of the averages; loads with `weights_only=True`."""
        return None if self._bank is None else self._bank.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if self._bank is None:
            return
        if state is None:
            raise ValueError("this checkpoint is of a run without snapshots; a run with them starts at the beginning")
        self._bank.load_state_dict(state)


# Afterwards -----------------------------------------------------------------------------------------------------

PROFILE_ERROR, DISTANCE = "profile_error", "weight_distance"
"""Metrics of a synthesized average: the error of its sample weights and, at the last epoch, how far its network weights
are from those of the average that the run kept, relative to these."""


def evaluate_grid(
    training: "Training", parts: Parts, folder: Path, make_model: Callable[[], nn.Module]
) -> list[EpochMetric]:
    """Measure what each window would have given at each stopping epoch, with recomputed batch-norm statistics, if any.

    All processes that train together call this, and the first one reads the snapshots.
    """
    recipe, group = training.config.recipe, training.group
    steps, epochs = training.schedule.steps, recipe.training.epochs
    rules = windows(recipe.averages, steps)
    measured: list[EpochMetric] = []
    made: dict[str, Synthesis] = {}
    kept = snapshot_steps(folder) if group.is_first else []
    for epoch in stops(epochs, training.config.posthoc):
        at_step = max((step for step in kept if step <= epoch * steps // epochs), default=0)
        made = group.from_first(synthesize_many(folder, rules, at_step=at_step) if group.is_first else None)
        for name in rules:
            measured += _evaluate(training, parts, make_model, epoch, name, made[name])
    for name in training.bank.names:
        distance = _distance(made[name].weights, training.bank.weights(name, batchnorm="averaged"))
        measured.append(EpochMetric(epochs, name, "averaged", "val", DISTANCE, distance))
    return measured


def _evaluate(
    training: "Training", parts: Parts, make_model: Callable[[], nn.Module], epoch: int, name: str, made: Synthesis
) -> Iterable[EpochMetric]:
    statistics: BatchNorm = "recomputed" if training.has_batchnorm else "averaged"
    model = training.module(make_model, made.weights, recompute=training.has_batchnorm)
    logits = training.logits(model, {name: None}, "val")[name]
    metrics = {**epoch_metrics("val", by_split(parts)["val"], logits), PROFILE_ERROR: made.error}
    return [EpochMetric(epoch, name, statistics, "val", metric, value) for metric, value in metrics.items()]


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    keys = [key for key, tensor in other.items() if tensor.is_floating_point()]
    off = sum(float((one[key].cpu().double() - other[key].cpu().double()).square().sum()) for key in keys)
    return math.sqrt(off / sum(float(other[key].double().square().sum()) for key in keys))
