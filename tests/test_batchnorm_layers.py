"""batchnorm.py: layers of many kinds and inputs in every precision are measured right, or refused by name."""

import copy

import pytest
import torch
from pooling import assert_statistics, pooled, trained_bank
from torch import Tensor, nn
from torch.nn import functional

from emabank import EMA, EMABank, recalibrate_batchnorm


def wide(order: torch.memory_format = torch.contiguous_format) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    return made.to(memory_format=order)


def large(n: int, seed: int = 1, shift: float = 0.0) -> Tensor:
    return torch.randn(n, 2, 36, 36, generator=torch.Generator().manual_seed(seed)) + shift


def channels(values: Tensor) -> Tensor:
    return values.double().transpose(0, 1).flatten(1)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_large_batches_in_either_memory_order(order: torch.memory_format) -> None:
    bank = trained_bank(wide(order), steps=2)
    parts = [large(20, 1), large(20, 2, shift=2.0), large(9, 3), large(1, 4)]
    batches = [part.contiguous(memory_format=order) for part in parts]
    recalibrate_batchnorm(bank, batches)
    for name in bank.names:
        assert_statistics(bank.weights(name, batchnorm="recomputed"), pooled(bank.module(name), batches))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [3.3, 1000])
def test_statistics_are_as_exact_far_from_zero_and_of_half_precision(dtype: torch.dtype, shift: float) -> None:
    layer, values = nn.BatchNorm2d(2), (torch.randn(70, 2, 32, 32) + shift).to(dtype)
    recalibrate_batchnorm(layer, list(values.split(40)))
    torch.testing.assert_close(layer.running_mean.double(), channels(values).mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.running_var.double(), channels(values).var(1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("affine", [True, False])
def test_a_bank_keeps_the_statistics_of_a_bfloat16_model_in_float32(affine: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=affine)).bfloat16()
    bank = EMABank(model, [0.9], every=1)
    bank.update()
    data = (torch.randn(300, 2) + 1).bfloat16()
    recalibrate_batchnorm(bank, list(data.split(100)))
    inputs = torch.cat([model[0](part) for part in data.split(100)]).double()
    state = bank.weights(0.9, batchnorm="recomputed")
    assert state["1.running_mean"].dtype == torch.float32
    torch.testing.assert_close(state["1.running_mean"].double(), inputs.mean(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(state["1.running_var"].double(), inputs.var(0), rtol=1e-5, atol=0)
    with bank.applied(0.9, batchnorm="recomputed"):
        assert torch.equal(model[1].running_var, state["1.running_var"].bfloat16())


# Layers with a forward pass of their own ------------------------------------------------------------------------------


class Doubled(nn.BatchNorm2d):
    """What it normalises is not its input."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(2 * input)


class Ghost(nn.BatchNorm2d):
    """In training it normalises each half of a batch by itself."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([super(Ghost, self).forward(part) for part in input.chunk(2)])


class ByItself(nn.BatchNorm2d):
    """What few layers do: arithmetic of its own."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            return super().forward(input)
        shape = (1, -1, 1, 1)
        return (input - self.running_mean.view(shape)) * torch.rsqrt(self.running_var.view(shape) + self.eps)


@pytest.mark.parametrize(("kind", "factor"), [(Doubled, 2), (Ghost, 1)])
def test_a_layer_with_a_forward_pass_of_its_own_is_measured_by_what_it_normalises(kind: type, factor: int) -> None:
    first, second = torch.randn(40, 2, 5, 5), 3 * torch.randn(30, 2, 5, 5) + 2
    layer = kind(2)
    assert recalibrate_batchnorm(layer, [first, second]).layers == ("",)
    everything = channels(torch.cat([first, second])) * factor
    torch.testing.assert_close(layer.running_mean.double(), everything.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.running_var.double(), everything.var(1), rtol=1e-5, atol=0)


def test_a_layer_with_arithmetic_of_its_own_is_refused_by_name() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), ByItself(2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'1' \(a ByItself\)"):
        recalibrate_batchnorm(model, [large(3)])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_model_that_looks_at_its_statistics_is_measured_all_the_same() -> None:
    class Looking(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self[0].running_mean.sum() * 0

    model = Looking(nn.BatchNorm2d(2))
    assert recalibrate_batchnorm(model, [large(3)]).layers == ("0",)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("inner", [True, False])
def test_a_scripted_layer_is_refused_by_name(inner: bool) -> None:
    part = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(part)) if inner else torch.jit.script(part)
    with pytest.raises(ValueError, match="'1.1' is a TorchScript module" if inner else "'1' is a TorchScript module"):
        recalibrate_batchnorm(model, [torch.randn(8, 2)])
    dict(model.train().named_modules())["1.1" if inner else "1"].eval()
    assert recalibrate_batchnorm(model, [torch.randn(8, 2)]).frozen == (("1.1",) if inner else ("1",))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_layers_behind_a_scripted_part_are_measured_with_the_weights_of_the_average() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.BatchNorm1d(2))
    bank = EMABank(model, [EMA(0.5, warmup=None)], every=1)
    with torch.no_grad():
        model[0].weight.add_(1)
    bank.update()
    data, live = torch.randn(8, 2), model[0].weight.clone()
    recalibrate_batchnorm(bank, [data])
    state = bank.weights(0.5, batchnorm="recomputed")
    torch.testing.assert_close(state["1.running_mean"], (data @ state["0.weight"].T + state["0.bias"]).mean(0))
    assert torch.equal(model[0].weight, live)


def test_a_compiled_part_is_measured_even_if_it_was_compiled_before() -> None:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model = nn.Sequential(nn.Linear(2, 2), torch.compile(part, backend="eager"), nn.BatchNorm1d(3)).eval()
    batches = list(torch.randn(24, 2).split(8))
    with torch.no_grad():
        model(batches[0])
    plain = nn.Sequential(model[0], part, model[2])
    want = pooled(plain, batches)
    assert recalibrate_batchnorm(model, batches).layers == ("1.1", "2")
    assert_statistics(plain.state_dict(), want)


def test_a_layer_that_is_met_twice_pools_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x) + 5)

    model, data = Twice().eval(), large(3)
    nn.init.constant_(model.norm.weight, 3.0)
    recalibrate_batchnorm(model, [data, data])
    first = functional.batch_norm(data, None, None, model.norm.weight, model.norm.bias, training=True)
    both = channels(torch.cat([data, first + 5]).repeat(2, 1, 1, 1))
    torch.testing.assert_close(model.norm.running_mean.double(), both.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.norm.running_var.double(), both.var(1), rtol=1e-4, atol=1e-5)


def test_buffers_that_a_forward_pass_adds_or_fills_are_gone_afterwards() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("cache", None)

        def forward(self, x: Tensor) -> Tensor:
            self.cache = self.norm.weight * 2
            self.norm.register_buffer("mask", torch.ones(2))
            return self.norm(x)

    for target in (Caching(), EMABank(Caching(), [0.9])):
        model = target.model if isinstance(target, EMABank) else target
        recalibrate_batchnorm(target, [torch.randn(8, 2)])
        assert model.cache is None
        assert not hasattr(model.norm, "mask")


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
