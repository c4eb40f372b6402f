"""batchnorm.py: statistics by the layer's own arithmetic, or by ours where that is faster, come to the same."""

import pytest
import torch
from pooling import assert_statistics, images, net, pooled, trained_bank
from torch import Tensor, nn

from emabank import EMA, EMABank, batchnorm, recalibrate_batchnorm


@pytest.fixture
def measured_here(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of what was measured in place of a layer."""
    seen: list[torch.Size] = []
    measure = batchnorm._mean_and_squares

    def watched(value: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(value.shape)
        return measure(value)

    monkeypatch.setattr(batchnorm, "_mean_and_squares", watched)
    return seen


def wide(order: torch.memory_format = torch.contiguous_format) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    return made.to(memory_format=order)


def large(n: int, seed: int = 1, shift: float = 0.0) -> Tensor:
    return torch.randn(n, 2, 36, 36, generator=torch.Generator().manual_seed(seed)) + shift


def test_large_batches_are_measured_here_and_come_to_the_same(measured_here: list[torch.Size]) -> None:
    model = wide()
    bank = trained_bank(model, steps=2)
    batches = [large(20, 1), large(20, 2, shift=2.0), large(9, 3), large(1, 4)]
    recalibrate_batchnorm(bank, batches)
    assert len(measured_here) == 2 * 2 * 3  # averages, layers, and the batches of at least 2 ** 16 values
    for name in bank.names:
        assert_statistics(bank.weights(name, batchnorm="recomputed"), pooled(bank.module(name), batches))


def test_what_is_measured_here_is_as_exact_far_from_zero(measured_here: list[torch.Size]) -> None:
    layer = nn.BatchNorm2d(2)
    values = torch.randn(70, 2, 32, 32) + 1000
    recalibrate_batchnorm(layer, list(values.split(40)))
    assert measured_here
    channels = values.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(layer.running_mean.double(), channels.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.running_var.double(), channels.var(1), rtol=2e-5, atol=0)


def test_large_batches_in_half_precision_are_measured_in_float32(measured_here: list[torch.Size]) -> None:
    layer, values = nn.BatchNorm2d(2), (torch.randn(70, 2, 32, 32) + 3.3).to(torch.bfloat16)
    recalibrate_batchnorm(layer, list(values.split(40)))
    assert measured_here
    channels = values.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(layer.running_mean.double(), channels.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.running_var.double(), channels.var(1), rtol=2e-5, atol=0)


class Doubled(nn.BatchNorm2d):
    """A layer with a forward pass of its own, which must not be left out."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(2 * input)


def test_layers_measure_for_themselves_where_they_are_faster_or_of_another_kind(
    measured_here: list[torch.Size],
) -> None:
    values = torch.randn(70, 2, 32, 32)
    layer = Doubled(2)
    recalibrate_batchnorm(layer, [values])
    torch.testing.assert_close(layer.running_mean, 2 * values.mean((0, 2, 3)))
    halved = nn.BatchNorm2d(2).to(torch.bfloat16)
    recalibrate_batchnorm(halved, [values.to(torch.bfloat16)])
    last = wide(torch.channels_last)
    batches = [large(20, seed).contiguous(memory_format=torch.channels_last) for seed in (1, 2)]
    recalibrate_batchnorm(last, batches)
    assert_statistics(last.state_dict(), pooled(last, batches))
    recalibrate_batchnorm(nn.BatchNorm1d(70), [torch.randn(1000, 70)])
    recalibrate_batchnorm(net(), [images()])
    assert not measured_here


@pytest.mark.parametrize("n", [3, 20])  # measured by the layer, and here
def test_a_layer_that_is_met_twice_pools_both_and_seems_in_training_mode(n: int) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.seen = nn.BatchNorm2d(2), list[bool]()

        def forward(self, x: Tensor) -> Tensor:
            self.seen += [self.norm.training, self.training]
            return self.norm(self.norm(x) + 5)

    model, data = Twice().eval(), large(n)
    nn.init.constant_(model.norm.weight, 3.0)
    recalibrate_batchnorm(model, [data, data])
    first = nn.functional.batch_norm(data, None, None, model.norm.weight, model.norm.bias, training=True)
    both = torch.cat([data, first + 5]).repeat(2, 1, 1, 1).double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(model.norm.running_mean.double(), both.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.norm.running_var.double(), both.var(1), rtol=1e-4, atol=1e-5)
    assert model.seen == [True, False] * 2
    assert not model.norm.training


def test_tied_tensors_are_averaged_everywhere_and_replaced_buffers_stay_with_their_average() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("calls", torch.zeros(()))
            self.met: list[float] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1  # another tensor in its place
            self.met.append(float(self.calls))
            return self.norm(self.second(self.first(x)))

    torch.manual_seed(0)
    model = Tied()
    bank = EMABank(model, [EMA(0.5, warmup=None), EMA(0.9, warmup=None)], every=1)
    bank.update()
    with torch.no_grad():
        model.first.weight += 1
    bank.update()
    data = torch.randn(6, 3)
    recalibrate_batchnorm(bank, [data, data])
    for name in bank.names:
        weight = bank.weights(name)["first.weight"]
        torch.testing.assert_close(
            bank.weights(name, batchnorm="recomputed")["norm.running_mean"], (data @ weight.T @ weight.T).mean(0)
        )
    assert model.met == [1, 1, 2, 2]
    assert int(model.calls) == 0
    assert model.second.weight is model.first.weight
