"""batchnorm.py: pooled statistics against a float64 pass over all data at once, and everything left as it was."""

import copy
import random
from collections import OrderedDict, UserDict
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pooling import assert_statistics, images, net, pooled, trained_bank
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from emabank import EMA, EMABank, recalibrate_batchnorm


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
    with pytest.raises(ValueError, match="at least one batch"):
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


def test_trap20_what_else_is_in_training_mode_freezes_no_layer() -> None:
    model = nn.Sequential(net(), nn.Dropout()).eval()
    model[1].train()
    assert recalibrate_batchnorm(model, [images()]).layers == ("0.1", "0.4")
    model[0][1].train()  # the model is in eval mode, but one such layer is not: the other is frozen
    assert recalibrate_batchnorm(model, [images()]).frozen == ("0.4",)


def test_trap20_recomputed_statistics_of_frozen_layers_are_their_own_and_not_averaged_ones() -> None:
    model = net()
    bank = trained_bank(model)
    for layer in (model[1], model[4]):
        layer.eval()
    assert recalibrate_batchnorm(bank, [images()]).frozen == ("1", "4")
    state = bank.weights(0.9, batchnorm="recomputed")
    assert torch.equal(state["4.running_var"], model[4].running_var)
    assert not torch.equal(state["4.running_var"], bank.weights(0.9, batchnorm="averaged")["4.running_var"])


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
    with pytest.raises(ValueError, match="str: pass forward="):
        recalibrate_batchnorm(net(), ["text"])


class Pair(NamedTuple):
    inputs: Tensor
    extra: dict[str, Tensor]


class Encoding(UserDict):
    """As the tokenizers' BatchEncoding: it moves itself, and knows more than its items."""

    lengths = (3, 4)

    def to(self, device: torch.device) -> "Encoding":
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Graph:
    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> "Graph":
        self.nodes = self.nodes.to(device)
        return self


@pytest.mark.parametrize(
    ("batch", "inputs"),
    [
        (Pair(torch.ones(4, 2), {"mask": torch.ones(4)}), lambda batch: batch.inputs),
        (Encoding(x=torch.ones(4, 2)), lambda batch: batch["x"][: batch.lengths[1]]),
        (Graph(torch.ones(4, 2)), lambda batch: batch.nodes),
        (OrderedDict(x=(torch.ones(4, 2),)), lambda batch: batch["x"][0]),
        (MappingProxyType({"x": torch.ones(4, 2)}), lambda batch: batch["x"]),
        ([torch.ones(4, 2), "name"], lambda batch: batch[0]),
        (SimpleNamespace(x=torch.ones(4, 2)), lambda batch: batch.x),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trap21_a_batch_keeps_its_type_and_the_loader_its_batch(batch: Any, inputs: Any) -> None:
    seen = []

    def forward(model: nn.Module, batch: Any) -> None:
        seen.append(batch)
        model(inputs(batch).double())

    before = copy.deepcopy(vars(batch)) if hasattr(batch, "__dict__") else None
    recalibrate_batchnorm(nn.BatchNorm1d(2).double(), [batch], forward=forward)
    assert type(seen[0]) is type(batch)
    assert before is None or str(vars(batch)) == str(before)


def test_trap21_every_part_of_a_batch_is_moved() -> None:
    seen = []
    model = nn.BatchNorm1d(2).to("meta")
    data = torch.ones(4, 2)
    batches = [Pair(data, {"mask": torch.ones(4)}), Encoding(x=data), Graph(data), MappingProxyType({"x": [data]})]

    def forward(_: nn.Module, batch: Any) -> None:
        seen.append(batch)
        raise StopIteration

    for batch in batches:
        with pytest.raises(StopIteration):
            recalibrate_batchnorm(model, [batch], forward=forward)
    moved = [seen[0].inputs, seen[0].extra["mask"], seen[1]["x"], seen[2].nodes, seen[3]["x"][0]]
    assert {tensor.device.type for tensor in moved} == {"meta"}
    assert {batches[0].inputs.device.type, batches[1]["x"].device.type, batches[2].nodes.device.type} == {"cpu"}


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
    assert all(torch.equal(v, averaged[k]) for k, v in bank.weights(0.9, batchnorm="averaged").items())
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
def test_trap58_a_lone_value_that_nothing_can_normalise_is_refused(sizes: list[int]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="layer '1' got a single value .* at least two samples"):
        recalibrate_batchnorm(model, list(torch.randn(sum(sizes), 3).split(sizes)))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_trap58_lone_values_after_others_leave_deep_variances_right() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())]
    model, data = nn.Sequential(*layers), torch.randn(300, 6) + 1
    want = pooled(model, list(data.split(50)))
    recalibrate_batchnorm(model, list(data.split([50, 50] + [1] * 200)))
    for name in ("1", "4", "7"):
        ratio = model.state_dict()[f"{name}.running_var"] / want[f"{name}.running_var"]
        assert ratio.min() > 0.7 and ratio.max() < 1.4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_trap49_bad_values_in_the_data_are_refused_by_the_names_of_layer_and_average(bad: float) -> None:
    for target in (trained_bank(net()), net()):
        model = target if isinstance(target, nn.Module) else target.model
        before = copy.deepcopy(model.state_dict())
        data = images()
        data[3, 0, 2, 2] = bad
        with pytest.raises(FloatingPointError, match="layer '1'" + (" .*'ema-0.5'" * isinstance(target, EMABank))):
            recalibrate_batchnorm(target, [images(), data])
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        if isinstance(target, EMABank):
            with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
                target.weights(0.9, batchnorm="recomputed")


def test_statistics_that_are_nan_are_repaired() -> None:
    model = net()
    model[1].running_mean.fill_(float("nan"))
    recalibrate_batchnorm(model, [images()])
    assert_statistics(model.state_dict(), pooled(net(), [images()]))


def test_max_batches_reads_no_more() -> None:
    read = []

    def loader():
        for k in range(5):
            read.append(k)
            yield images(4, seed=k)

    assert recalibrate_batchnorm(net(), loader(), max_batches=2).batches == 2
    assert read == [0, 1]
    with pytest.raises(ValueError, match="max_batches"):
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


def test_a_pass_that_reaches_no_layer_is_refused() -> None:
    bank = trained_bank(net())
    with pytest.raises(ValueError, match="No batch reached a batch-norm layer \\('1', '4'\\)"):
        recalibrate_batchnorm(bank, [images()], forward=lambda model, batch: model[0](batch))
    with pytest.raises(RuntimeError):
        bank.weights(0.9, batchnorm="recomputed")


def test_averages_belong_to_a_bank() -> None:
    with pytest.raises(ValueError, match="averages must"):
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
