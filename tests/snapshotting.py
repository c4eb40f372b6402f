"""A small training with averages kept live beside snapshots, for the tests of averages put together afterwards."""

import copy
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, EMABank, PowerEMA, Uniform
from emabank.posthoc import Snapshots, snapshot_steps

WIDTHS = {"narrow": PowerEMA(0.05), "wide": PowerEMA(0.1)}
LIVE = {
    "short": EMA(half_life=8, warmup=None),
    "long": EMA(half_life=40, warmup=None),
    "warmed": EMA(0.97),
    "late": EMA(half_life=25, start=90),
    "uniform": Uniform(),
    "tail": Uniform(start=130),
    "power": PowerEMA(0.15),
}

SHORTEST = EMA(half_life=1, warmup=None)


class Training:
    """A small network on random data, with averages kept live beside the snapshots."""

    def __init__(self, folder: Path, *, every: int = 1, every_steps: int = 4, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.bank = EMABank(self.model, WIDTHS, every=every)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "shortest has a half-life|short has|warmed has|long has|late has")
            self.live = EMABank(self.model, {**LIVE, "shortest": SHORTEST}, every=every)
        self.folder, self.options = folder, {"every_steps": every_steps, **options}
        self.snapshots = Snapshots(self.bank, folder, **self.options)

    def go(self, steps: int) -> "Training":
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.bank.num_steps)
            inputs = torch.randn(8, 6, generator=generator)
            (self.model(inputs) - inputs[:, :2]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.model.seen += 1
            self.live.update()
            self.bank.update()
            self.snapshots.update()
        return self

    def state(self) -> dict[str, Any]:
        return copy.deepcopy([part.state_dict() for part in (self.model, self.optimizer, self.bank)])

    def resume(self, state: list[Any]) -> "Training":
        for part, saved in zip((self.model, self.optimizer, self.bank), copy.deepcopy(state), strict=True):
            part.load_state_dict(saved)
        self.snapshots = Snapshots(self.bank, self.folder, **self.options)
        return self


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far weights are apart, over their length."""
    keys = [key for key, tensor in other.items() if tensor.is_floating_point()]
    off = math.sqrt(sum(float((one[key].double() - other[key].double()).square().sum()) for key in keys))
    return off / math.sqrt(sum(float(other[key].double().square().sum()) for key in keys))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("snapshots")).go(200)


def thinned(training: Training, folder: Path, apart: int) -> Path:
    """A folder with the snapshots of every so many steps only."""
    folder.mkdir()
    for step in snapshot_steps(training.folder):
        if step % apart == 0:
            shutil.copy(training.folder / f"step-{step:09d}.pt", folder)
    return folder
