"""The work of each process in the tests of a run that several processes train."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from emabank.study.distributed import ProcessGroup
from emabank.study.evaluate import EpochMetric
from tests.study.small_runs import config, in_float64, training_of

MEASURED = {"recompute": "each-epoch", "on_train": True, "test_curves": True}


def ranks() -> ProcessGroup:
    return ProcessGroup(dist.get_rank(), dist.get_world_size())


def training(
    changes: dict[str, Any],
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], list[EpochMetric], list[float]]:
    """Live weights, averages, metrics and losses of a run of a network in float64."""
    run = training_of(config(**changes), make_model=in_float64(config(**changes)), group=ranks())
    run.run()
    averages = {name: run.bank.weights(name) for name in run.bank.names}
    return dict(run.model.state_dict()), averages, [*run.measured, *run.test_curves], run.losses
