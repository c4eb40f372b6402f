"""Every rule on every model equals the float64 oracle, and a bank does not change training."""

import pytest
import torch
from torch import nn

from emabank import EMABank, recalibrate_batchnorm
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
def test_training_with_a_bank_is_bit_identical_to_training_without(name: str) -> None:
    plain, averaged = build(name), build(name)
    bank = EMABank(averaged, AVERAGES, every=2)

    def after() -> None:
        if bank.update() and name != "crowd":
            averaged.eval()
            with bank.applied("plain"):
                averaged(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
            averaged.train()
            bank.call("paper", torch.ones(2, 6))
            recalibrate_batchnorm(bank, torch.utils.data.DataLoader(torch.ones(17, 6), batch_size=4, shuffle=True))
            bank.module("tail"), bank.weights("uniform"), bank.state_dict()

    train(plain, 8)
    state_alone = torch.get_rng_state()
    train(averaged, 8, after)
    assert torch.equal(state_alone, torch.get_rng_state())
    for key, value in plain.state_dict().items():
        assert torch.equal(value, averaged.state_dict()[key]), key
