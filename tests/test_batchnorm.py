"""Recalibration of batch-norm statistics, against statistics pooled in float64."""

import copy
import random
from collections import OrderedDict, UserDict
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from emabank import EMA, EMABank, recalibrate_batchnorm
from tests.support.oracle import states_equal
from tests.support.processes import interrupt_everywhere


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
    """Mean and unbiased variance over all inputs by definition, in float64; each batch is normalised by itself."""
    model = copy.deepcopy(model).double().eval()
    heap: dict[str, list[Tensor]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
            layer.register_forward_hook(lambda m, args, out, n=name: heap.setdefault(n, []).append(args[0]))
    with torch.no_grad():
        for batch in batches:
            model(batch.double())
    statistics = {}
    for name, inputs in heap.items():
        values = torch.cat([x.transpose(0, 1).flatten(1) for x in inputs], dim=1)
        statistics[f"{name}.running_mean"], statistics[f"{name}.running_var"] = values.mean(1), values.var(1)
    return statistics


def assert_statistics(state: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for key, value in want.items():
        torch.testing.assert_close(state[key].double(), value, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_trap18_statistics_are_pooled_over_all_samples_of_every_average(order: torch.memory_format) -> None:
    model = net().to(memory_format=order)
    bank = trained_bank(model)
    parts = [images(10), images(10, seed=2) + 2, images(5, seed=3), images(1, seed=4)]
    batches = [part.contiguous(memory_format=order) for part in parts]
    result = recalibrate_batchnorm(bank, batches)
    assert result.layers == ("1", "4")
    assert result.batches == 4
    assert not result.frozen
    assert not result.unreached
    for name in bank.names:
        assert_statistics(bank.weights(name, batchnorm="recomputed"), pooled(bank.module(name), batches))


def test_a_module_is_recalibrated_in_place() -> None:
    model = net().eval()
    batches = list(images().split(6))
    want = pooled(model, batches)
    before = copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(model, batches)
    assert_statistics(model.state_dict(), want)
    for key, value in model.state_dict().items():
        assert key in want or torch.equal(value, before[key])


def test_trap16_an_exception_anywhere_changes_nothing() -> None:
    def faulty():
        yield images(4)
        raise OSError("the disk is gone")

    for target in (net(), trained_bank(net())):
        model = target if isinstance(target, nn.Module) else target.model
        before = snapshot(model)
        for loader, error in ((faulty(), OSError), ([images(4), images(4)[:, :1]], RuntimeError)):
            with pytest.raises(error):
                recalibrate_batchnorm(target, loader)
            assert snapshot(model) == before
    with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
        target.weights(0.5, batchnorm="recomputed")


def test_trap19_dropout_and_user_modules_stay_in_eval_mode() -> None:
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


def test_trap20_frozen_layers_are_skipped_but_a_model_in_eval_mode_is_recalibrated() -> None:
    model = net()
    model[1].eval()
    mean = model[1].running_mean.clone()
    result = recalibrate_batchnorm(model, [images()])
    assert result.layers == ("4",)
    assert result.frozen == ("1",)
    assert torch.equal(model[1].running_mean, mean)
    assert not model[1].training
    assert model[4].training
    result = recalibrate_batchnorm(model.eval(), [images()])
    assert result.layers == ("1", "4")
    assert result.frozen == ()
    assert not any(m.training for m in model.modules())


def test_trap20_only_the_modes_of_batch_norm_layers_decide_which_are_frozen() -> None:
    model = nn.Sequential(net(), nn.Dropout()).eval()
    model[1].train()
    assert recalibrate_batchnorm(model, [images()]).layers == ("0.1", "0.4")
    model[0][1].train()  # so the layer in eval mode is frozen
    assert recalibrate_batchnorm(model, [images()]).frozen == ("0.4",)


def test_trap20_recomputed_statistics_of_frozen_layers_are_the_live_ones() -> None:
    model = net()
    bank = trained_bank(model)
    for layer in (model[1], model[4]):
        layer.eval()
    assert recalibrate_batchnorm(bank, [images()]).frozen == ("1", "4")
    state = bank.weights(0.9, batchnorm="recomputed")
    assert torch.equal(state["4.running_var"], model[4].running_var)
    assert not torch.equal(state["4.running_var"], bank.weights(0.9, batchnorm="averaged")["4.running_var"])


@pytest.mark.parametrize("read", ["module", "applied"])
def test_trap20_layers_after_a_frozen_one_are_measured_with_the_statistics_it_is_read_with(read: str) -> None:
    model = net()
    bank = trained_bank(model)
    model[1].eval()  # its averages still lag behind
    recalibrate_batchnorm(bank, [images()])
    inputs: list[Tensor] = []
    model[4].register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    if read == "applied":
        with bank.applied(0.9), torch.no_grad():
            model.eval()(images())
    else:
        averaged = bank.module(0.9)
        averaged[4].register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        averaged(images())
    mean = inputs[-1].double().mean(dim=(0, 2, 3))
    torch.testing.assert_close(bank.weights(0.9)["4.running_mean"].double(), mean, rtol=2e-5, atol=1e-6)


def test_trap21_batches_of_every_kind() -> None:
    class Named(nn.BatchNorm1d):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            return super().forward(x)

    data, labels = torch.randn(12, 2), torch.zeros(12)
    for batch in (data, (data, labels), [data, labels], {"x": data, "labels": labels}, object()):
        model, is_own = Named(2), type(batch) is object
        recalibrate_batchnorm(model, [batch], forward=(lambda model, _: model(x=data)) if is_own else None)
        torch.testing.assert_close(model.running_mean, data.mean(0))


class Pair(NamedTuple):
    inputs: Tensor
    extra: dict[str, Tensor]


class Encoding(UserDict):
    """Like BatchEncoding of transformers: has `to`, in place, and more attributes than its items."""

    lengths = (3, 4)

    def to(self, device: torch.device) -> "Encoding":
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


@pytest.mark.parametrize(
    ("batch", "tensors"),
    [
        (Pair(torch.ones(4), {"mask": torch.ones(4)}), lambda batch: [batch.inputs, batch.extra["mask"]]),
        (Encoding(x=torch.ones(4)), lambda batch: [batch["x"][: batch.lengths[1]]]),
        (OrderedDict(x=(torch.ones(4),)), lambda batch: batch["x"]),
        (MappingProxyType({"x": [torch.ones(4)]}), lambda batch: batch["x"]),
        ([torch.ones(4), "name", SimpleNamespace(x=torch.ones(4))], lambda batch: batch[:1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trap21_a_moved_batch_keeps_its_type_and_the_original_stays(batch: Any, tensors: Any) -> None:
    moved = []

    def forward(_: nn.Module, batch: Any) -> None:
        moved.append(batch)
        raise StopIteration

    with pytest.raises(StopIteration):
        recalibrate_batchnorm(nn.BatchNorm1d(2).to("meta"), [batch], forward=forward)
    assert type(moved[0]) is type(batch)
    assert {tensor.device.type for tensor in tensors(moved[0])} == {"meta"}
    assert {tensor.device.type for tensor in tensors(batch)} == {"cpu"}


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
    result = recalibrate_batchnorm(model, list(torch.randn(40, 3).split(9)))
    assert result.layers == ("1", "2", "3")
    assert model[1].momentum is None
    assert int(model[1].num_batches_tracked) == 0


def test_trap23_trap60_random_streams_are_unchanged() -> None:
    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, k: int) -> Tensor:
            return torch.randn(2) + random.random() + float(np.random.rand())

    generator = torch.Generator().manual_seed(5)

    def streams() -> list[str]:
        states = [torch.get_rng_state().tolist(), generator.get_state().tolist()]
        return [*map(str, states), repr(random.getstate()), repr(np.random.get_state())]

    before = streams()
    for options in (
        {"shuffle": True},
        {"shuffle": True, "generator": generator},
        {"sampler": RandomSampler(range(12), generator=generator)},
    ):
        recalibrate_batchnorm(nn.Sequential(nn.BatchNorm1d(2)), DataLoader(Noisy(), batch_size=4, **options))
        assert streams() == before


def test_trap24_recomputed_statistics_are_stored_separately_until_the_next_update() -> None:
    model = net()
    bank = trained_bank(model)
    live, averaged = copy.deepcopy(model.state_dict()), bank.weights(0.9)
    recalibrate_batchnorm(bank, [images()], averages=[0.9, "live"])
    assert states_equal(model.state_dict(), live)
    assert states_equal(bank.weights(0.9, batchnorm="averaged"), averaged)
    recomputed = bank.weights(0.9, batchnorm="recomputed")
    assert not torch.equal(recomputed["1.running_mean"], averaged["1.running_mean"])
    with bank.applied(0.9, batchnorm="recomputed"):
        assert torch.equal(model[1].running_mean, recomputed["1.running_mean"])
    with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
        bank.weights(0.5, batchnorm="recomputed")
    restored = EMABank(net(), [EMA(d, warmup=None) for d in (0.5, 0.9)], every=1)
    state = bank.state_dict()
    restored.load_state_dict(state)
    for tensor in state["recomputed"]["ema-0.9"]["tensors"].values():
        tensor.zero_()  # trap 43: the loaded state is a copy
    assert torch.equal(restored.weights(0.9, batchnorm="recomputed")["1.running_var"], recomputed["1.running_var"])
    bank.weights("live", batchnorm="recomputed")
    bank.update()
    for name in (0.9, "live"):
        with pytest.raises(RuntimeError):
            bank.weights(name, batchnorm="recomputed")


def test_trap25_data_is_not_read_for_a_model_without_batch_norm() -> None:
    def untouched():
        raise AssertionError("the data was read")
        yield

    bank = EMABank(nn.Linear(2, 2), [0.9], every=1)
    bank.update()
    assert recalibrate_batchnorm(bank, untouched()).layers == ()
    assert torch.equal(bank.weights(0.9, batchnorm="recomputed")["bias"], bank.weights(0.9)["bias"])


def test_trap58_the_last_batch_may_have_one_sample() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    data = torch.randn(17, 3)
    bank = EMABank(model, [0.9], every=1)
    bank.update()
    recalibrate_batchnorm(bank, DataLoader(TensorDataset(data), batch_size=4))
    first = model[0](data).detach()
    state = bank.weights(0.9, batchnorm="recomputed")
    torch.testing.assert_close(state["1.running_mean"], first.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state["1.running_var"], first.var(0), rtol=1e-4, atol=1e-6)
    assert torch.isfinite(state["4.running_var"]).all()


@pytest.mark.parametrize("sizes", [[1], [1] * 40, [1, 29], [2, 1, 27], [8, 1]])
def test_trap58_a_single_value_after_too_few_samples_is_refused(sizes: list[int]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="layer '1' got a single value .* two samples or more"):
        recalibrate_batchnorm(model, list(torch.randn(sum(sizes), 3).split(sizes)))
    assert states_equal(model.state_dict(), before)


def test_trap58_batches_of_one_sample_keep_deep_variances_right() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())]
    model, data = nn.Sequential(*layers), torch.randn(300, 6) + 1
    want = pooled(model, list(data.split(50)))
    recalibrate_batchnorm(model, list(data.split([50, 50] + [1] * 200)))
    for name in ("1", "4", "7"):
        ratio = model.state_dict()[f"{name}.running_var"] / want[f"{name}.running_var"]
        assert ratio.min() > 0.7 and ratio.max() < 1.4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_trap49_nonfinite_data_is_an_error_that_names_layer_and_average(bad: float) -> None:
    data = images()
    data[3, 0, 2, 2] = bad
    for target, message in ((net(), "layer '1'"), (trained_bank(net()), "layer '1' .*'ema-0.5'")):
        model = target if isinstance(target, nn.Module) else target.model
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(FloatingPointError, match=message):
            recalibrate_batchnorm(target, [images(), data])
        assert states_equal(model.state_dict(), before)
    with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
        target.weights(0.9, batchnorm="recomputed")


def test_a_nan_average_is_an_error_that_names_the_average() -> None:
    model = net()
    bank = EMABank(model, {"early": 0.5, "late": EMA(0.5, start=3)}, every=1, on_nonfinite="ignore")
    nn.init.constant_(model[0].bias, torch.nan)
    bank.update()
    with pytest.raises(FloatingPointError, match="average 'early' holds NaN"):
        recalibrate_batchnorm(bank, [images()])


def test_nan_statistics_are_repaired() -> None:
    model = net()
    model[1].running_mean.fill_(float("nan"))
    recalibrate_batchnorm(model, [images()])
    assert_statistics(model.state_dict(), pooled(net(), [images()]))


def test_max_batches_limits_what_is_read() -> None:
    read = []

    def loader():
        for k in range(5):
            read.append(k)
            yield images(4, seed=k)

    assert recalibrate_batchnorm(net(), loader(), max_batches=2).batches == 2
    assert read == [0, 1]


def test_unreached_layers_are_named_and_keep_their_statistics() -> None:
    class Detour(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Detour()
    result = recalibrate_batchnorm(model, [torch.randn(8, 2)])
    assert result.layers == ("used",)
    assert result.unreached == ("spare",)
    assert torch.equal(model.spare.running_mean, torch.zeros(2))


def test_a_pass_that_reaches_no_layer_is_refused() -> None:
    bank = trained_bank(net())
    with pytest.raises(ValueError, match="No batch reached a batch-norm layer \\('1', '4'\\)"):
        recalibrate_batchnorm(bank, [images()], forward=lambda model, batch: model[0](batch))
    with pytest.raises(RuntimeError):
        bank.weights(0.9, batchnorm="recomputed")


def test_trap17_trap21_wrong_arguments_are_refused() -> None:
    for arguments, message in (
        ({"loader": []}, "at least one batch"),
        ({"loader": ["text"]}, "str: pass forward="),
        ({"loader": [images()], "averages": [0.9]}, "^averages must"),
        ({"loader": [images()], "max_batches": 0}, "^max_batches must"),
    ):
        with pytest.raises(ValueError, match=message):
            recalibrate_batchnorm(net(), **arguments)
    with pytest.raises(KeyError, match="ema-0.9"):
        recalibrate_batchnorm(EMABank(net(), [0.9]), [images()], averages=[0.5])
    with pytest.raises(ValueError, match="^averages must name at least one"):
        recalibrate_batchnorm(EMABank(net(), [0.9]), [images()], averages=[])
    with pytest.raises(ValueError, match="^target must be a bank or a module; got a list"):
        recalibrate_batchnorm([], [images()])  # type: ignore[arg-type]


def test_a_default_device_of_torch_changes_no_measurement() -> None:
    model, batches = net(), [images()]
    with torch.device("meta"):  # in place of an accelerator
        recalibrate_batchnorm(model, batches)
    assert_statistics(model.state_dict(), pooled(model, [images()]))


def test_trap14_wrapped_models_are_recalibrated() -> None:
    inner = net()
    bank = EMABank(nn.DataParallel(torch.compile(inner, backend="eager")), [0.9], every=1)
    bank.update()
    result = recalibrate_batchnorm(bank, [images()])
    assert result.layers == ("1", "4")
    assert_statistics(bank.weights(0.9, batchnorm="recomputed"), pooled(inner, [images()]))


# Precision ------------------------------------------------------------------------------------------------------------


def channels(values: Tensor) -> Tensor:
    return values.double().transpose(0, 1).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [3.3, 1000])
def test_statistics_are_exact_far_from_zero_and_in_half_precision(dtype: torch.dtype, shift: float) -> None:
    layer, values = nn.BatchNorm2d(2), (torch.randn(70, 2, 32, 32) + shift).to(dtype)
    recalibrate_batchnorm(layer, list(values.split(40)))
    torch.testing.assert_close(layer.running_mean.double(), channels(values).mean(1), rtol=1e-6, atol=0)
    exact = 1e-5 if dtype == torch.float32 else 1e-4  # torch's kernel for halves is off by 3e-5 on some processors
    torch.testing.assert_close(layer.running_var.double(), channels(values).var(1), rtol=exact, atol=0)


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
    """Normalises twice its input."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(2 * input)


class Ghost(nn.BatchNorm2d):
    """Normalises each half of a batch by itself."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([super(Ghost, self).forward(part) for part in input.chunk(2)])


class CustomEval(nn.BatchNorm2d):
    """In eval mode it does not call batch_norm."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            return super().forward(input)
        shape = (1, -1, 1, 1)
        return (input - self.running_mean.view(shape)) * torch.rsqrt(self.running_var.view(shape) + self.eps)


@pytest.mark.parametrize(("kind", "factor"), [(Doubled, 2), (Ghost, 1)])
def test_a_layer_with_its_own_forward_is_measured_by_what_it_normalises(kind: type, factor: int) -> None:
    first, second = torch.randn(40, 2, 5, 5), 3 * torch.randn(30, 2, 5, 5) + 2
    layer = kind(2)
    assert recalibrate_batchnorm(layer, [first, second]).layers == ("",)
    everything = channels(torch.cat([first, second])) * factor
    torch.testing.assert_close(layer.running_mean.double(), everything.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.running_var.double(), everything.var(1), rtol=1e-5, atol=0)


def test_a_layer_that_does_not_call_batch_norm_is_refused_by_name() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), CustomEval(2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'1' \(a CustomEval\)"):
        recalibrate_batchnorm(model, [images(3)])
    assert states_equal(model.state_dict(), before)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("inner", [True, False])
def test_a_scripted_layer_is_refused_by_name(inner: bool) -> None:
    part = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(part)) if inner else torch.jit.script(part)
    with pytest.raises(ValueError, match="'1.1' is a TorchScript module" if inner else "'1' is a TorchScript module"):
        recalibrate_batchnorm(model, [torch.randn(8, 2)])
    dict(model.train().named_modules())["1.1" if inner else "1"].eval()
    assert recalibrate_batchnorm(model, [torch.randn(8, 2)]).frozen == (("1.1",) if inner else ("1",))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
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


def test_a_layer_that_is_called_twice_pools_both_inputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x) + 5)

    model, data = Twice().eval(), images(3)
    nn.init.constant_(model.norm.weight, 3.0)
    recalibrate_batchnorm(model, [data, data])
    first = functional.batch_norm(data, None, None, model.norm.weight, model.norm.bias, training=True)
    both = channels(torch.cat([data, first + 5]).repeat(2, 1, 1, 1))
    torch.testing.assert_close(model.norm.running_mean.double(), both.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.norm.running_var.double(), both.var(1), rtol=1e-4, atol=1e-5)


def test_buffers_that_a_forward_pass_adds_or_fills_are_removed() -> None:
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


class Small(nn.Module):
    """A tied weight, dropout, and a buffer that each forward pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.norm, self.drop = nn.BatchNorm1d(2, momentum=0.3), nn.Dropout()
        self.register_buffer("calls", torch.zeros(()))
        self.counts: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1  # another tensor in its place
        self.counts.append(float(self.calls))
        return self.drop(self.norm(self.second(self.first(x)) + 0 * self.norm.running_mean))


def test_tied_tensors_and_replaced_buffers_have_the_values_of_each_average() -> None:
    torch.manual_seed(0)
    model = Small()
    bank = EMABank(model, [EMA(0.5, warmup=None), EMA(0.9, warmup=None)], every=1)
    with torch.no_grad():
        model.first.weight += 1
    bank.update()
    data = torch.randn(6, 2)
    recalibrate_batchnorm(bank, [data, data])
    for name in bank.names:
        state = bank.weights(name, batchnorm="recomputed")
        hidden = data @ state["first.weight"].T + state["first.bias"]
        expected = (hidden @ state["first.weight"].T + state["second.bias"]).mean(0)
        torch.testing.assert_close(state["norm.running_mean"], expected)
    assert model.counts == [1, 1, 2, 2]
    assert int(model.calls) == 0
    assert model.second.weight is model.first.weight


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


def snapshot(model: nn.Module) -> list[Any]:
    """Everything that a pass over the data could change: tensors, their values, modes, hooks, momenta."""
    facts: list[Any] = [torch.is_grad_enabled(), torch.get_rng_state().tolist()]
    for module in model.modules():
        facts += [module.training, getattr(module, "momentum", None)]
        facts += [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")]
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            facts.append((key, type(tensor), id(tensor), None if tensor is None else tensor.tolist()))
    return facts


@pytest.mark.parametrize(
    ("kind", "event", "step"),
    [("bank", "line", 1), ("bank", "opcode", 37), ("module", "line", 1)],  # every opcode would take minutes
)
def test_trap30_an_interrupt_anywhere_leaves_the_live_model_unchanged(kind: str, event: str, step: int) -> None:
    torch.manual_seed(0)
    target = model = Small()
    model.drop.eval()
    if kind == "bank":
        target = EMABank(model, [0.5], every=1)
        target.update()
    data = [torch.randn(4, 2), torch.randn(3, 2)]
    recalibrated, old = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(recalibrated, data)
    before, places = snapshot(model), 0
    for place in interrupt_everywhere(lambda: recalibrate_batchnorm(target, data), event, step):
        if str(model.state_dict()) == str(recalibrated.state_dict()):  # interrupted at the return
            model.load_state_dict(old)
        assert snapshot(model) == before, place
        places += 1
    assert places > 300
