"""The work of each process in the tests of drop-ins."""

import pytest
import torch

from emabank.compat.diffusers import EMAModel
from emabank.compat.torch_ema import ExponentialMovingAverage
from tests.on_ranks.sharded import batches, build, shard


def check_lists_of_shards() -> None:
    """Averages of sharded parameters equal those of one process; a check for NaN is refused."""
    models = [build(), shard(build())]
    averages = [
        (ExponentialMovingAverage(model.parameters(), 0.9), EMAModel(model.parameters(), 0.9, update_after_step=-3))
        for model in models
    ]
    for model, (torch_ema, diffusers) in zip(models, averages, strict=True):
        optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05)
        for batch in batches(4):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if model is models[1]:
                model.reshard()
            torch_ema.update(model.parameters())
            diffusers.step(model.parameters())
        with torch_ema.average_parameters(model.parameters()):
            pass
    for unsharded, sharded in zip(*averages, strict=True):
        for value, expected in zip(sharded.shadow_params, unsharded.shadow_params, strict=True):
            torch.testing.assert_close(value.full_tensor(), expected)
        sharded.on_nonfinite = "skip"
        update = sharded.update if isinstance(sharded, ExponentialMovingAverage) else sharded.step
        with pytest.raises(ValueError, match="sharded parameters"):
            update(models[1].parameters())
