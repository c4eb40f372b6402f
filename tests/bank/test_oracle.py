"""Every rule on every model against the float64 oracle, and against a training run without a bank."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from emabank import EMA, EMABank, Uniform, recalibrate_batchnorm
from tests.support.models import ZOO, build, train
from tests.support.oracle import AVERAGES, assert_close, live_weights, oracles


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ZOO)
def test_trap03_every_rule_equals_the_oracle_on_every_model(name: str, every: int) -> None:
    model = build(name)
    if name == "crowd":
        model = nn.ParameterList(list(model)[::6]) if every == 3 else model
    bank, expected = EMABank(model, AVERAGES, every=every), oracles(model, every)

    def after() -> None:
        bank.update()
        for oracle in expected.values():
            oracle.after_step(live_weights(model))

    train(model, 20, after)
    for key, oracle in expected.items():
        assert_close(bank.weights(key), oracle.value())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float64_averages_are_exact_to_float64(dtype: torch.dtype) -> None:
    model = build("wide").to(dtype)
    bank = EMABank(model, AVERAGES, every=1, dtype=torch.float64)
    expected = oracles(model, 1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9).add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        bank.update()
        for oracle in expected.values():
            oracle.after_step(live_weights(model))
    for key, oracle in expected.items():
        assert_close(bank.weights(key), oracle.value(), rtol=1e-14)


@pytest.mark.parametrize("name", ZOO)
def test_training_with_a_bank_is_bit_for_bit_training_without(name: str) -> None:
    alone, watched = build(name), build(name)
    bank = EMABank(watched, AVERAGES, every=2)

    def after() -> None:
        if bank.update() and name != "crowd":
            watched.eval()
            with bank.applied("plain"):
                watched(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
            watched.train()
            bank.call("paper", torch.ones(2, 6))
            recalibrate_batchnorm(bank, torch.utils.data.DataLoader(torch.ones(17, 6), batch_size=4, shuffle=True))
            bank.module("tail"), bank.weights("uniform"), bank.state_dict()

    train(alone, 8)
    state_alone = torch.get_rng_state()
    train(watched, 8, after)
    assert torch.equal(state_alone, torch.get_rng_state())
    for key, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[key]), key


# Other libraries ------------------------------------------------------------------------------------------------------


class Timm:
    """timm's ModelEmaV3 in float64: `update(model, step)` copies the weights at step 1."""

    def __init__(self, weight: Tensor, decay: float, *, use_warmup: bool = False) -> None:
        self.average, self.decay, self.use_warmup = weight.detach().double(), decay, use_warmup

    def update(self, weight: Tensor, step: int) -> None:
        cap = 1 - step ** -(2 / 3) if self.use_warmup else 1.0 if step > 1 else 0.0
        self.average = torch.lerp(weight.detach().double(), self.average, min(self.decay, cap))


class Torch:
    def __init__(self, weight: Tensor, **keywords: Any) -> None:
        self.averaged = AveragedModel(nn.ParameterList([weight]), **keywords)

    def update(self, weight: Tensor, step: int) -> None:
        self.averaged.update_parameters(nn.ParameterList([weight]))

    @property
    def average(self) -> Tensor:
        return self.averaged.module[0].detach().double()


@pytest.mark.parametrize(
    ("peer", "rule"),
    [
        (Torch, Uniform()),
        (partial(Torch, multi_avg_fn=get_ema_multi_avg_fn(0.8)), EMA(0.8, warmup=None, start=1)),
        (partial(Timm, decay=0.8), EMA(0.8, warmup=None, start=1)),
        (partial(Timm, decay=0.6, use_warmup=True), EMA(0.6, warmup="power", start=1)),
    ],
)
def test_a_bank_gives_the_averages_of_other_libraries(peer: Any, rule: Any) -> None:
    model = nn.Linear(4, 3)
    theirs, bank = peer(model.weight), EMABank(model, {"average": rule}, every=1)
    for step in range(1, 9):
        nn.init.normal_(model.weight)
        theirs.update(model.weight, step)
        bank.update()
        torch.testing.assert_close(bank.weights("average")["weight"].double(), theirs.average, rtol=1e-5, atol=1e-6)
