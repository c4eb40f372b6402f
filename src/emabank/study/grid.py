"""Every window at every stopping epoch of one finished run, put together from its snapshots and measured on validation.

May import the library's public names, train, measures and averages.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from emabank import recalibrate_batchnorm
from emabank.posthoc import Synthesis, snapshot_steps, synthesize_many
from emabank.study.averages import stops, windows
from emabank.study.data.splits import Parts
from emabank.study.measures import Measured, by_split, measures
from emabank.study.runs.rows import BatchNorm
from emabank.study.train import Training

PROFILE_ERROR, DISTANCE = "profile_error", "weight_distance"
"""How far off the weights of the samples are; and, at the end, the network's own weights, over their length."""


def grid(training: Training, parts: Parts, folder: Path, make_model: Callable[[], nn.Module]) -> list[Measured]:
    """What each window would have given at each stopping epoch, with recomputed statistics where there is batch norm.

    Processes that train together all call it; the first of them reads the snapshots.
    """
    recipe, group = training.config.recipe, training.group
    steps, epochs = training.schedule.steps, recipe.training.epochs
    rules = windows(recipe.averages, steps)
    found: list[Measured] = []
    made: dict[str, Synthesis] = {}
    kept = snapshot_steps(folder) if group.is_first else []
    for epoch in stops(epochs):
        at_step = max((step for step in kept if step <= epoch * steps // epochs), default=0)
        made = group.from_first(synthesize_many(folder, rules, at_step=at_step) if group.is_first else None)
        for name in rules:
            found += _measured(training, parts, make_model, epoch, name, made[name])
    last = stops(epochs)[-1]
    found += [
        Measured(
            last,
            name,
            "averaged",
            "val",
            DISTANCE,
            _distance(made[name].weights, training.bank.weights(name, batchnorm="averaged")),
        )
        for name in training.bank.names
    ]
    return found


def _measured(
    training: Training, parts: Parts, make_model: Callable[[], nn.Module], epoch: int, name: str, made: Synthesis
) -> Iterable[Measured]:
    model = training.placed(make_model())
    model.load_state_dict(made.weights)
    model.eval()
    statistics: BatchNorm = "averaged"
    if training.has_batchnorm:
        statistics = "recomputed"
        recalibrate_batchnorm(training.shared(model), training.plain_batches("train"))
    logits = training.logits(model, {name: None}, "val")[name]
    said = {**measures("val", by_split(parts)["val"], logits), PROFILE_ERROR: made.error}
    return [Measured(epoch, name, statistics, "val", metric, value) for metric, value in said.items()]


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    keys = [key for key, tensor in other.items() if tensor.is_floating_point()]
    off = sum(float((one[key].cpu().double() - other[key].cpu().double()).square().sum()) for key in keys)
    return math.sqrt(off / sum(float(other[key].double().square().sum()) for key in keys))
