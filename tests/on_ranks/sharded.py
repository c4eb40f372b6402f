"""The work of each process in the tests of sharded models (FSDP2)."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from emabank import EMA, EMABank, PowerEMA, Uniform, posthoc, recalibrate_batchnorm

WIDTH = 7  # over two processes every shard is uneven, over four some are smaller still
AVERAGES = {"fast": EMA(per_update=0.5, warmup=None), "slow": EMA(0.95), "uniform": Uniform()}


class Net(nn.Module):
    """Uneven shards, a layer of one row, batch norm, a tied weight, a frozen parameter and a large tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.middle = nn.Sequential(nn.Linear(WIDTH, 300), nn.ReLU(), nn.Linear(300, WIDTH))
        self.square = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.square.weight
        self.last = nn.Linear(WIDTH, 1)
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.tied(self.square(self.middle(self.norm(self.first(x)))))) * self.scale.sum()


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def shard(model: Net) -> Net:
    fully_shard(model.middle)
    return fully_shard(model)


def batches(count: int, size: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 5, generator=generator) for _ in range(count)]


def train(model: nn.Module, bank: EMABank, data: list[Tensor]) -> None:
    """Train with the same batch on every process, so that the weights are those of one process."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)
    for batch in data:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()


def train_alone(steps: int = 6) -> tuple[Net, EMABank]:
    model = build()
    bank = EMABank(model, AVERAGES, every=2)
    train(model, bank, batches(steps))
    return model, bank


def train_sharded(steps: int = 6) -> tuple[Net, EMABank]:
    model = shard(build())
    bank = EMABank(model, AVERAGES, every=2)
    train(model, bank, batches(steps))
    return model, bank


def gather(state: dict[str, Any]) -> dict[str, Tensor]:
    return {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in state.items()}


def assert_same(actual: dict[str, Any], expected: dict[str, Any], *, exactly: bool = False) -> None:
    assert list(actual) == list(expected)
    for key, value in expected.items():
        tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(actual[key], value, **tolerance, msg=lambda text, key=key: f"{key}: {text}")


# Tests ----------------------------------------------------------------------------------------------------------------


def check_averages() -> None:
    _, alone = train_alone()
    _model, bank = train_sharded()
    for name in AVERAGES:
        weights = bank.weights(name)
        assert isinstance(weights["first.weight"], DTensor)
        assert not isinstance(weights["norm.running_mean"], DTensor)
        assert_same(gather(weights), alone.weights(name))
        full = bank.weights(name, full=True)
        assert not any(isinstance(value, DTensor) for value in full.values())
        assert_same(full, alone.weights(name))
    assert_same(gather(bank.weights("live")), alone.weights("live"))
    with pytest.raises(RuntimeError, match="weights.*copy_to.*applied"):
        bank.module("slow")
    with pytest.raises(RuntimeError, match="call.*applied"):
        bank.functional("slow")


def communication_of_an_update() -> dict[str, int]:
    _model, bank = train_sharded()
    bank.update()
    with CommDebugMode() as communication:
        assert bank.update()
    return {str(key): count for key, count in communication.get_comm_counts().items()}


def update_with_nan_on_one_rank() -> tuple[bool, int]:
    model = shard(build())
    bank = EMABank(model, AVERAGES, every=1, on_nonfinite="skip")
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.first.weight.to_local().fill_(float("nan"))
    return bank.update(), bank.num_skipped


def check_applied() -> None:
    _, alone = train_alone()
    plain, _ = train_alone()
    model, bank = train_sharded()
    probe = batches(1)[0]
    model.eval(), plain.eval()
    live = plain(probe)
    torch.testing.assert_close(model(probe), live)  # the root stays gathered after this
    for name in AVERAGES:
        with bank.applied(name), alone.applied(name):
            torch.testing.assert_close(model(probe), alone.model.eval()(probe))
        torch.testing.assert_close(model(probe), live)
        torch.testing.assert_close(bank.call(name, probe), alone.call(name, probe))
        torch.testing.assert_close(model(probe), live)


def check_statistics_in_an_evaluation() -> None:
    """Every rank measures its own batches, but evaluates an average with the statistics that `weights` gives."""
    model = shard(build())
    bank = EMABank(model, AVERAGES, every=2)
    train(model, bank, [batch + dist.get_rank() for batch in batches(4)])
    probe, live = batches(1)[0], model.norm.running_mean.clone()
    alone = build().eval()
    for name, output in bank.evaluate(lambda model: model(probe), averages=AVERAGES).items():
        alone.load_state_dict(bank.weights(name, full=True))
        torch.testing.assert_close(output, alone(probe))
    assert torch.equal(model.norm.running_mean, live)


def check_applied_with_an_exception() -> None:
    model, bank = train_sharded()
    probe = batches(1)[0]
    model.eval()
    live = model(probe)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    handle = model.tied.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), bank.applied("slow"):
        model(probe)
    handle.remove()
    torch.testing.assert_close(model(probe), live)


def check_recalibration() -> None:
    _, alone = train_alone()
    _model, bank = train_sharded()
    data = batches(4, size=6)
    rank, world = dist.get_rank(), dist.get_world_size()
    expected = recalibrate_batchnorm(alone, data)
    shared = recalibrate_batchnorm(bank, data[rank::world])
    assert (shared.layers, shared.batches) == (expected.layers, expected.batches)
    for name in AVERAGES:
        assert_same(bank.weights(name, batchnorm="recomputed", full=True), alone.weights(name, batchnorm="recomputed"))


def check_copy_to() -> None:
    _, alone = train_alone()
    _, bank = train_sharded()
    plain, sharded = build(), shard(build())
    bank.copy_to(plain, "slow")
    bank.copy_to(sharded, "slow")
    expected = build()
    alone.copy_to(expected, "slow")
    assert_same(plain.state_dict(), expected.state_dict())
    assert_same(gather(sharded.state_dict()), expected.state_dict())


def save(folder: Path) -> dict[str, dict[str, Tensor]]:
    _, bank = train_sharded()
    dcp.save({"bank": bank}, checkpoint_id=folder)
    return {name: bank.weights(name, full=True) for name in AVERAGES}


def load(folder: Path, steps: int) -> tuple[int, dict[str, dict[str, Tensor]]]:
    model = shard(build())
    bank = EMABank(model, AVERAGES, every=2)
    dcp.load({"bank": bank}, checkpoint_id=folder)
    assert bank.num_steps == steps
    return bank.num_updates, {name: bank.weights(name, full=True) for name in AVERAGES}


def check_tensor_parallel() -> None:
    """A tensor-parallel model evaluates its averages, in place or as a copy, like one process."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    alone, model = build().middle, build().middle
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    data = [torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    expected, bank = EMABank(alone, AVERAGES, every=1), EMABank(model, AVERAGES, every=1)
    train(alone, expected, data)
    train(model, bank, data)
    for name in AVERAGES:
        output = expected.call(name, data[0])
        torch.testing.assert_close(bank.call(name, data[0]), output)
        torch.testing.assert_close(bank.module(name)(data[0]), output)


def check_loading_an_unsharded_state() -> None:
    _, alone = train_alone()
    model = shard(build())
    bank = EMABank(model, AVERAGES, every=2)
    bank.load_state_dict(alone.state_dict())
    counts = {key: value for key, value in model.state_dict().items() if "num_batches" in key}
    for name in AVERAGES:
        assert_same(bank.weights(name, full=True) | counts, alone.weights(name) | counts, exactly=True)
    back = EMABank(build(), AVERAGES, every=2)
    back.load_state_dict(bank.state_dict())


def check_warning_of_loaded_weights() -> None:
    """Weights that were loaded into a sharded model after its bank was built are noticed."""
    model = shard(build())
    bank = EMABank(model, AVERAGES, every=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=0.1)
    with pytest.warns(UserWarning, match="call bank.reset\\(\\) after loading"):
        bank.update()


def write_snapshots(folder: Path) -> list[str]:
    """The names of the snapshots that this process has written."""
    written: list[str] = []
    real = posthoc.write_state
    posthoc.write_state = lambda path, *rest, **options: (written.append(path.name), real(path, *rest, **options))
    _train_with_snapshots(shard(build()), folder)
    return written


def write_snapshots_alone(folder: Path) -> Path:
    _train_with_snapshots(build(), folder)
    return folder


def _train_with_snapshots(model: nn.Module, folder: Path) -> None:
    bank = EMABank(model, [PowerEMA(0.05), PowerEMA(0.1)], every=1)
    writer = posthoc.Snapshots(bank, folder, every_steps=2)
    for batch in batches(6):
        train(model, bank, [batch])
        writer.update()
