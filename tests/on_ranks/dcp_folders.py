"""The work of each process in the tests of averaging folders of torch.distributed.checkpoint."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from tests.on_ranks.sharded import batches, build, gather, shard


def write_training(folder: Path, steps: tuple[int, ...]) -> dict[int, dict[str, Tensor]]:
    """Train with FSDP2, and save model, optimizer and step at `steps`; returns the full weights by step."""
    model = shard(build())
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=0.05)
    weights: dict[int, dict[str, Tensor]] = {}
    for step, batch in enumerate(batches(max(steps)), start=1):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in steps:
            state, optimizer_state = get_state_dict(model, optimizer)
            content = {"model": state, "optimizer": optimizer_state, "train_state": {"step": step}}
            dcp.save(content, checkpoint_id=folder / f"step-{step}")
            weights[step] = {name: value.clone() for name, value in gather(state).items()}
    return weights


def write_columns(folder: Path) -> None:
    """A tensor sharded by columns and one by rows, saved without a key, as torchtitan does."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for step in (1, 2):
        values = step * torch.arange(35.0).view(5, 7)
        dcp.save(
            {
                "columns": distribute_tensor(values, mesh, [Shard(1)]),
                "rows": distribute_tensor(values, mesh, [Shard(0)]),
                "optimizer": {"moment": distribute_tensor(values, mesh, [Shard(0)])},
            },
            checkpoint_id=folder / f"step-{step}",
        )


def write_large(folder: Path, rows: int) -> None:
    """Two tensors of rows x 1024 numbers in bfloat16, sharded, at three steps."""
    for step in (1, 2, 3):
        model = nn.Sequential(*(nn.Linear(1024, rows, bias=False, dtype=torch.bfloat16) for _ in range(2)))
        for layer in model:
            nn.init.constant_(layer.weight, float(step))
        dcp.save({"model": fully_shard(model).state_dict()}, checkpoint_id=folder / f"large-{step}")


def load_sharded(folder: Path) -> dict[str, Tensor]:
    """Load an average into a sharded model; returns the full weights."""
    model = shard(build())
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    return gather(model.state_dict())
