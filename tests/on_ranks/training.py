"""What each process does in the tests of a run that several train together."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from emabank.study.measures import Measured
from emabank.study.ranks import Ranks
from tests.study.small_runs import config, in_float64, training_of

MEASURED = {"recompute": "each-epoch", "on_train": True, "test_curves": True}


def ranks() -> Ranks:
    return Ranks(dist.get_rank(), dist.get_world_size())


def training(
    given: dict[str, Any],
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], list[Measured], list[float]]:
    """Live weights, averages, what was measured and the losses of a run of a network in float64."""
    run = training_of(config(**given), make_model=in_float64(config(**given)), ranks=ranks())
    run.run()
    averages = {name: run.bank.weights(name) for name in run.bank.names}
    return dict(run.model.state_dict()), averages, [*run.measured, *run.test_curves], run.losses
