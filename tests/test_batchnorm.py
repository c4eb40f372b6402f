"""batchnorm.py: pooled statistics against a float64 pass over all data at once, and everything left as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from emabank import EMA, EMABank, batchnorm, recalibrate_batchnorm


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))


def images(n: int = 23, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def trained_bank(model: nn.Module, averages=(0.5, 0.9), steps: int = 4) -> EMABank:
    bank = EMABank(model, [EMA(d, warmup=None) for d in averages], every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        model(images(8, seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()
    return bank


def pooled(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """The statistics by definition, in float64: each batch goes through with its own, all inputs are kept, and mean and
    unbiased variance are taken over the whole heap.
    """
    model = copy.deepcopy(model).double().eval()
    heap: dict[str, list[Tensor]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
            layer.register_forward_hook(lambda m, args, out, n=name: heap.setdefault(n, []).append(args[0]))
    with torch.no_grad():
        for batch in batches:
            model(batch.double())
    found = {}
    for name, inputs in heap.items():
        values = torch.cat([x.transpose(0, 1).flatten(1) for x in inputs], dim=1)
        found[f"{name}.running_mean"], found[f"{name}.running_var"] = values.mean(1), values.var(1)
    return found


def assert_statistics(state: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for key, value in want.items():
        torch.testing.assert_close(state[key].double(), value, rtol=2e-5, atol=1e-6)


def test_trap18_statistics_are_pooled_over_all_samples_of_every_average() -> None:
    model = net()
    bank = trained_bank(model)
    batches = list(images(27).split([10, 10, 5, 2]))
    done = recalibrate_batchnorm(bank, batches)
    assert done.layers == ("1", "4")
    assert done.batches == 4
    assert not done.frozen
    assert not done.unreached
    for name in bank.names:
        assert_statistics(bank.weights(name, batchnorm="recomputed"), pooled(bank.module(name), batches))


def test_trap18_a_mean_of_batch_variances_is_not_the_pooled_variance() -> None:
    batches = [torch.full((4, 1), -3.0) + torch.randn(4, 1) * 0.1, torch.full((2, 1), 2.0)]
    layer = nn.BatchNorm1d(1)
    recalibrate_batchnorm(layer, batches)
    everything = torch.cat(batches)
    torch.testing.assert_close(layer.running_var, everything.var(0))
    torch.testing.assert_close(layer.running_mean, everything.mean(0))
    assert float(layer.running_var) > 5 > float(torch.stack([b.var(0) for b in batches]).mean())


def test_a_module_is_recalibrated_in_place() -> None:
    model = net().eval()
    batches = list(images().split(6))
    want = pooled(model, batches)
    before = copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(model, batches)
    assert_statistics(model.state_dict(), want)
    for key, value in model.state_dict().items():
        assert key in want or torch.equal(value, before[key])


def test_trap16_an_exception_anywhere_leaves_everything_as_it_was() -> None:
    def faulty():
        yield images(4)
        raise OSError("the disk is gone")

    for target in (net(), trained_bank(net())):
        model = target if isinstance(target, nn.Module) else target.model
        model[1].momentum = 0.3
        before = copy.deepcopy(model.state_dict())
        for loader, error in ((faulty(), OSError), ([images(4), torch.randn(4, 9, 6, 6)], RuntimeError)):
            with pytest.raises(error):
                recalibrate_batchnorm(target, loader)
            assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
            assert [m.training for m in model.modules()] == [True] * 6
            assert (model[1].momentum, model[4].momentum) == (0.3, 0.1)
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        if isinstance(target, EMABank):
            with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
                target.weights(0.5, batchnorm="recomputed")


def test_trap17_an_empty_loader_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batch"):
        recalibrate_batchnorm(net(), [])


def test_trap19_dropout_stays_off_and_user_modules_in_eval_mode() -> None:
    seen = []

    class Spy(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.training)
            return super().forward(x)

    model = nn.Sequential(Spy(0.9), nn.BatchNorm1d(2))
    data = torch.randn(50, 2)
    recalibrate_batchnorm(model, [data])
    assert seen == [False]
    assert model[0].training
    torch.testing.assert_close(model[1].running_mean, data.mean(0))


def test_trap20_frozen_layers_stay_and_are_named_but_a_model_in_eval_mode_is_recalibrated() -> None:
    model = net()
    model[1].eval()
    kept = model[1].running_mean.clone()
    done = recalibrate_batchnorm(model, [images()])
    assert done.layers == ("4",)
    assert done.frozen == ("1",)
    assert torch.equal(model[1].running_mean, kept)
    assert not model[1].training
    assert model[4].training
    done = recalibrate_batchnorm(model.eval(), [images()])
    assert done.layers == ("1", "4")
    assert done.frozen == ()
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize("kind", ["tensor", "tuple", "list", "mapping", "forward"])
def test_trap21_batches_of_every_kind(kind: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            return self.norm(x)

    data, labels = torch.randn(12, 2), torch.zeros(12)
    forward = None
    batches: list = {
        "tensor": [data],
        "tuple": [(data, labels)],
        "list": [[data, labels]],
        "mapping": [{"x": data, "labels": labels}],
        "forward": [object()],
    }[kind]
    if kind == "forward":
        forward = lambda model, batch: model.norm(input=data)  # noqa: E731 - a method of the model, by keyword
    model = Named()
    recalibrate_batchnorm(model, batches, forward=forward)
    torch.testing.assert_close(model.norm.running_mean, data.mean(0))


def test_trap21_other_batches_get_a_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"a batch is a str; .* pass forward=".replace("a batch", "A batch")):
        recalibrate_batchnorm(net(), ["text"])


def test_trap21_under_autocast_statistics_stay_float32() -> None:
    model = net()
    batches = list(images().split(6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        recalibrate_batchnorm(model, batches)
    assert model[4].running_var.dtype == torch.float32
    for key, value in pooled(model, batches).items():
        torch.testing.assert_close(model.state_dict()[key].double(), value, rtol=0.05, atol=0.05)


def test_trap22_layers_of_every_kind() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.BatchNorm1d(3, momentum=None),
        nn.SyncBatchNorm(3),
        nn.BatchNorm1d(3, affine=False),
    )
    done = recalibrate_batchnorm(model, list(torch.randn(40, 3).split(9)))
    assert done.layers == ("1", "2", "3")
    assert model[1].momentum is None
    assert int(model[1].num_batches_tracked) == 0


def test_trap23_trap60_no_random_stream_is_moved() -> None:
    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, k: int) -> Tensor:
            return torch.randn(2) + random.random() + float(np.random.rand())

    for generator in (None, torch.Generator().manual_seed(5)):
        loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=generator)

        def draws(loader=loader, generator=generator) -> tuple:
            order = next(iter(loader)).tolist()
            return order, torch.rand(1).item(), random.random(), float(np.random.rand())

        drawn = []
        for recalibrate in (False, True):
            torch.manual_seed(3)
            random.seed(3)
            np.random.seed(3)
            if generator is not None:
                generator.manual_seed(9)
            if recalibrate:
                recalibrate_batchnorm(nn.Sequential(nn.BatchNorm1d(2)), loader)
            drawn.append(draws())
        assert drawn[0] == drawn[1]


def test_trap24_live_averaged_and_recomputed_statistics_stand_side_by_side() -> None:
    model = net()
    bank = trained_bank(model)
    live, averaged = copy.deepcopy(model.state_dict()), bank.weights(0.9)
    recalibrate_batchnorm(bank, [images()])
    assert all(torch.equal(v, live[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, averaged[k]) for k, v in bank.weights(0.9).items())
    recomputed = bank.weights(0.9, batchnorm="recomputed")
    assert not torch.equal(recomputed["1.running_mean"], averaged["1.running_mean"])
    with bank.applied(0.9, batchnorm="recomputed"):
        assert torch.equal(model[1].running_mean, recomputed["1.running_mean"])
    assert torch.equal(bank.module(0.9, batchnorm="recomputed")[1].running_var, recomputed["1.running_var"])
    x = images(5, seed=3)
    torch.testing.assert_close(bank.call(0.9, x, batchnorm="recomputed"), bank.module(0.9, batchnorm="recomputed")(x))


def test_recomputed_statistics_last_until_the_next_update() -> None:
    model = net()
    bank = trained_bank(model)
    with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
        bank.weights(0.9, batchnorm="recomputed")
    recalibrate_batchnorm(bank, [images()], averages=[0.9, "live"])
    bank.weights(0.9, batchnorm="recomputed"), bank.weights("live", batchnorm="recomputed")
    with pytest.raises(RuntimeError):
        bank.weights(0.5, batchnorm="recomputed")
    restored = EMABank(net(), [EMA(d, warmup=None) for d in (0.5, 0.9)], every=1)
    restored.load_state_dict(bank.state_dict())
    assert torch.equal(
        restored.weights(0.9, batchnorm="recomputed")["1.running_var"],
        bank.weights(0.9, batchnorm="recomputed")["1.running_var"],
    )
    bank.update()
    for name in (0.9, "live"):
        with pytest.raises(RuntimeError):
            bank.weights(name, batchnorm="recomputed")
    assert bank.weights(0.9)


def test_trap25_a_model_without_batch_norm_needs_no_pass() -> None:
    def untouched():
        raise AssertionError("the data was read")
        yield

    bank = EMABank(nn.Linear(2, 2), [0.9], every=1)
    bank.update()
    assert recalibrate_batchnorm(bank, untouched()).layers == ()
    assert torch.equal(bank.weights(0.9, batchnorm="recomputed")["bias"], bank.weights(0.9)["bias"])


def test_trap58_a_last_batch_of_one_is_fine() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    data = torch.randn(9, 3)
    bank = EMABank(model, [0.9], every=1)
    bank.update()
    recalibrate_batchnorm(bank, DataLoader(TensorDataset(data), batch_size=4))
    first = model[0](data).detach()
    state = bank.weights(0.9, batchnorm="recomputed")
    torch.testing.assert_close(state["1.running_mean"], first.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state["1.running_var"], first.var(0), rtol=1e-4, atol=1e-6)
    assert torch.isfinite(state["4.running_var"]).all()
    recalibrate_batchnorm(model, [data[:1], data[1:]])  # and a first batch of one
    with pytest.raises(ValueError, match="at least two samples"):
        recalibrate_batchnorm(model, [data[:1]])


def test_statistics_that_are_nan_are_repaired() -> None:
    model = net()
    model[1].running_mean.fill_(float("nan"))
    recalibrate_batchnorm(model, [images()])
    assert_statistics(model.state_dict(), pooled(net(), [images()]))


def test_max_batches_reads_no_more() -> None:
    given = []

    def loader():
        for k in range(5):
            given.append(k)
            yield images(4, seed=k)

    assert recalibrate_batchnorm(net(), loader(), max_batches=2).batches == 2
    assert given == [0, 1]
    with pytest.raises(ValueError, match="max_batches=0"):
        recalibrate_batchnorm(net(), [], max_batches=0)


def test_layers_that_no_batch_reaches_are_named_and_keep_what_they_had() -> None:
    class Detour(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Detour()
    done = recalibrate_batchnorm(model, [torch.randn(8, 2)])
    assert done.layers == ("used",)
    assert done.unreached == ("spare",)
    assert torch.equal(model.spare.running_mean, torch.zeros(2))


def test_averages_belong_to_a_bank() -> None:
    with pytest.raises(ValueError, match="averages="):
        recalibrate_batchnorm(net(), [images()], averages=[0.9])
    with pytest.raises(KeyError, match="ema-0.9"):
        recalibrate_batchnorm(EMABank(net(), [0.9]), [images()], averages=[0.5])


def test_trap14_wrapped_models_are_recalibrated() -> None:
    inner = net()
    bank = EMABank(nn.DataParallel(torch.compile(inner, backend="eager")), [0.9], every=1)
    bank.update()
    done = recalibrate_batchnorm(bank, [images()])
    assert done.layers == ("1", "4")
    assert_statistics(bank.weights(0.9, batchnorm="recomputed"), pooled(inner, [images()]))


# The layer's own arithmetic, or ours where that is faster -------------------------------------------------------------


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
    return made.to(memory_format=order)  # type: ignore[call-overload]


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
