"""The work of each process in the tests of DistributedDataParallel models."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from emabank import EMA, EMABank, Uniform, recalibrate_batchnorm

AVERAGES = {"fast": EMA(per_update=0.5, warmup=None), "slow": EMA(0.95), "uniform": Uniform()}
KEPT: list[object] = []  # a DDP model that is freed right after its last collective may deadlock in gloo


def build(*, norm: bool) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8) if norm else nn.ReLU(), nn.Linear(8, 1)]
    return nn.Sequential(*layers)


def batches(count: int, size: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 5, generator=generator) for _ in range(count)]


def own_share(batch: Tensor) -> Tensor:
    return batch[dist.get_rank() :: dist.get_world_size()]


def train(model: nn.Module, bank: EMABank, data: list[Tensor]) -> list[dict[str, Tensor]]:
    """Train; returns the statistics of the model at each of the bank's samples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen: list[dict[str, Tensor]] = []
    for batch in data:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if bank.update():
            seen.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    return seen


def compare_with_one_process() -> dict[str, dict[str, Tensor]]:
    """Without batch norm every rank has the averages of one process with the whole batch; returns them."""
    alone = build(norm=False)
    expected = EMABank(alone, AVERAGES, every=2)
    train(alone, expected, batches(6))
    model = DistributedDataParallel(build(norm=False))
    bank = EMABank(model, AVERAGES, every=2)
    train(model, bank, [own_share(batch) for batch in batches(6)])
    for name in AVERAGES:
        for key, value in expected.weights(name).items():
            torch.testing.assert_close(bank.weights(name)[key], value)
    return {name: bank.weights(name) for name in AVERAGES}


def statistics() -> tuple[dict[str, dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Averages, and the statistics that this rank had at each sample."""
    model = DistributedDataParallel(build(norm=True))
    bank = EMABank(model, AVERAGES, every=2)
    seen = train(model, bank, [own_share(batch) for batch in batches(6)])
    return {name: bank.weights(name) for name in AVERAGES}, seen


def instance_norm() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A copying average, and the statistics of this rank; the layer is no batch norm but has running statistics."""
    torch.manual_seed(0)
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    model = DistributedDataParallel(nn.Sequential(nn.Conv1d(1, 3, 1), norm, nn.Conv1d(3, 1, 1)))
    bank = EMABank(model, {"copy": EMA(0.0, warmup=None)}, every=1)
    [seen] = train(model, bank, [own_share(batches(1)[0]).unsqueeze(1)])
    KEPT.append(bank)
    return bank.weights("copy"), seen


def recalibrate() -> dict[str, Tensor]:
    alone = build(norm=True)
    expected = EMABank(alone, AVERAGES, every=1)
    expected.update()
    recalibrate_batchnorm(expected, batches(5))
    model = DistributedDataParallel(build(norm=True))
    bank = EMABank(model, AVERAGES, every=1)
    bank.update()
    data = batches(5)
    done = recalibrate_batchnorm(bank, data[dist.get_rank() :: dist.get_world_size()])  # three batches and two
    assert done.batches == 5
    recomputed = bank.weights("slow", batchnorm="recomputed")
    for key, value in expected.weights("slow", batchnorm="recomputed").items():
        torch.testing.assert_close(recomputed[key], value)
    return recomputed


def recalibrate_with_one_empty_rank() -> tuple[int, dict[str, Tensor]]:
    model = DistributedDataParallel(build(norm=True))
    bank = EMABank(model, AVERAGES, every=1)
    bank.update()
    done = recalibrate_batchnorm(bank, batches(3) if dist.get_rank() == 0 else [])
    return done.batches, bank.weights("slow", batchnorm="recomputed")


def dtypes_sent() -> set[torch.dtype]:
    """The dtypes that an update and a recalibration send."""
    seen: set[torch.dtype] = set()

    def record(function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            seen.update(value.dtype for value in args if isinstance(value, Tensor))
            return function(*args, **keywords)

        return call

    model = DistributedDataParallel(build(norm=True))
    bank = EMABank(model, AVERAGES, every=1)
    patched = {name: record(getattr(dist, name)) for name in ("all_reduce", "all_gather", "broadcast")}
    with mock.patch.multiple(dist, **patched):
        train(model, bank, [own_share(batch) for batch in batches(2)])
        recalibrate_batchnorm(bank, batches(3))
    return seen


def equal_statistics() -> tuple[Tensor, Tensor]:
    """Statistics that are the same on every rank, before and after an update that copies them."""
    model = build(norm=True)
    model[1].running_mean.copy_(torch.randn(8, generator=torch.Generator().manual_seed(3)))
    bank = EMABank(DistributedDataParallel(model), {"copy": EMA(0.0, warmup=None)}, every=1)
    bank.update()
    KEPT.append(bank)
    return model[1].running_mean, bank.weights("copy")["1.running_mean"]
