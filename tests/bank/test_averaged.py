"""Which tensors are averaged, and by which name."""

import pytest
import torch
from torch import nn

from emabank import EMA, BestTracker, EMABank
from tests.support.models import build, small_bank, train
from tests.support.oracle import live_weights, states_equal


def test_trap08_integer_and_bool_buffers_are_copied() -> None:
    model, bank = small_bank()
    model.register_buffer("flags", torch.tensor([True, False]))
    train(model, 5, bank.update)
    assert int(bank.weights(0.9)["1.num_batches_tracked"]) == 5
    model.flags[1] = True
    assert bank.weights(0.9)["flags"].tolist() == [True, True]


def test_trap09_non_persistent_buffers_are_in_the_module_and_not_in_the_state_dict() -> None:
    model = build("odd")
    bank = EMABank(model, [0.9], every=1)
    train(model, 3, bank.update)
    assert "seen" not in bank.weights(0.9)
    assert float(bank.module(0.9).seen) == 3.0
    other = build("odd", seed=5)
    bank.copy_to(other, 0.9)
    assert float(other.seen) == 3.0


def test_trap10_spectral_norm_vectors_are_copied_so_that_the_norm_stays_1() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)))
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    train(model, 60, bank.update)
    state = bank.weights(0.9)
    key = "0.parametrizations.weight.0._u"
    assert torch.equal(state[key], model.state_dict()[key])
    # The live singular vectors nearly fit the averaged weight, so its norm is near 1, not near 47.
    assert torch.linalg.matrix_norm(bank.module(0.9)[0].weight, 2) < 1.3


def test_trap11_tied_parameters_are_averaged_once_and_stay_tied() -> None:
    model = build("tied")
    first = model.embed.weight.detach().clone()
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    with torch.no_grad():
        model.embed.weight.add_(1.0)
    bank.update()
    torch.testing.assert_close(bank.weights(0.9)["out.weight"], first + 0.1)
    module = bank.module(0.9)
    assert module.out.weight is module.embed.weight
    torch.testing.assert_close(module.out.weight, first + 0.1)
    other = build("tied", seed=3)
    bank.copy_to(other, 0.9)
    torch.testing.assert_close(other.embed.weight, first + 0.1)
    assert bank.call(0.9, torch.ones(2, 3)).shape == (2, 3, 11)


def test_trap12_frozen_parameters_stay_bit_equal_and_can_be_unfrozen() -> None:
    model, bank = small_bank([EMA(0.9, warmup=None)])
    model[0].weight.requires_grad_(False)
    train(model, 10, bank.update)
    assert torch.equal(bank.weights(0.9)["0.weight"], model[0].weight)
    model[0].weight.requires_grad_(True)
    before = model[0].weight.detach().clone()
    train(model, 3, bank.update)
    assert not torch.equal(model[0].weight, before)
    assert not torch.equal(bank.weights(0.9)["0.weight"], before)


def test_trap13_tensors_are_matched_by_name_not_by_position() -> None:
    model, bank = small_bank([EMA(0.5, warmup=None)])
    before = live_weights(model)
    model._modules["4"], model._modules["0"] = model._modules.pop("4"), model._modules.pop("0")  # another order
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    bank.update()
    for name in ("0.weight", "4.weight"):
        torch.testing.assert_close(bank.weights(0.5)[name].double(), before[name] + 0.5)


def wrap(model: nn.Module) -> nn.Module:
    return nn.DataParallel(torch.compile(nn.DataParallel(model), backend="eager"))


def test_trap14_wrappers_are_removed_at_any_depth_on_either_side() -> None:
    def nested(wrapper) -> nn.Module:
        return wrapper(nn.Sequential(wrapper(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))), nn.Linear(3, 2)))

    plain, bank = nested(lambda model: model), EMABank(nested(wrap), [0.9], every=1)
    bank.update()
    assert list(bank.weights(0.9)) == list(plain.state_dict())
    plain.load_state_dict(bank.weights(0.9))
    expected = plain.eval()(torch.ones(2, 6))
    other = nested(wrap)
    bank.copy_to(other, 0.9)
    for output in (
        bank.call(0.9, torch.ones(2, 6)),
        bank.module(0.9)(torch.ones(2, 6)),
        other.eval()(torch.ones(2, 6)),
    ):
        torch.testing.assert_close(output, expected)


def test_trap59_a_submodule_called_module_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.Linear(2, 1), "_orig_mod": nn.Linear(2, 1)})
    keys = ["module.weight", "module.bias", "_orig_mod.weight", "_orig_mod.bias"]
    assert list(EMABank(wrap(model), [0.9]).weights(0.9)) == keys


class Extra(nn.Linear):
    """State that is no tensor, and a hook that renames a key."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.notes = {"seen": [1]}
        self.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update(renamed=state.pop("bias")))

    def get_extra_state(self) -> dict:
        return self.notes


def test_extra_state_is_copied_and_renamed_keys_are_kept() -> None:
    model = Extra()
    bank = EMABank(model, [EMA(0.5, warmup=None)], every=1)
    before = model.bias.detach().clone()
    with torch.no_grad():
        model.bias += 1
    bank.update()
    state = bank.weights(0.5)
    model.notes["seen"].append(2)
    assert set(state) == {"weight", "renamed", "_extra_state"}
    assert state["_extra_state"] == {"seen": [1]}
    torch.testing.assert_close(state["renamed"], before + 0.5)


def test_trap07_parameters_without_dense_values_are_refused() -> None:
    sparse = nn.Module()
    sparse.weight = nn.Parameter(torch.eye(3).to_sparse())
    models = {
        "'weight' is not initialised yet .*lazy": nn.LazyLinear(3),
        "'weight' is on the meta device": nn.Linear(2, 1, device="meta"),
        "'weight' must be a dense .* got torch.sparse_coo": sparse,
    }
    for message, model in models.items():
        with pytest.raises(ValueError, match=message):
            EMABank(model, [0.9])


def test_trap15_an_averaged_running_var_is_not_negative() -> None:
    model, bank = small_bank([EMA(d, warmup=None) for d in (0.5, 0.9, 0.99)])
    for step in range(200):
        with torch.no_grad():
            model[1].running_var.fill_(1e-20 if step % 2 else 1e20)
        bank.update()
    assert all((bank.weights(name)["1.running_var"] >= 0).all() for name in bank.names)


def test_trap54_a_constant_of_minus_infinity_does_not_become_nan() -> None:
    model = build("odd")
    model.bias_mask = nn.Parameter(torch.tensor([0.0, float("-inf")]), requires_grad=False)
    bank = EMABank(model, [0.9], every=1)
    train(model, 5, bank.update)
    state = bank.weights(0.9)
    assert torch.equal(state["mask"], model.mask)
    assert torch.equal(state["bias_mask"], model.bias_mask)


def test_parameters_and_buffers_are_chosen_by_options() -> None:
    statistics = {"1.running_mean", "1.running_var"}
    for choice, buffers, averaged in (
        ("all", "copy", {"0.weight", "0.bias", "4.weight", "4.bias", "1.weight", "1.bias"}),
        ("trainable", "average", {"4.weight", "4.bias", "1.weight", "1.bias", *statistics}),
        (lambda name, parameter: name.startswith("4"), "copy", {"4.weight", "4.bias"}),
    ):
        model = build("mlp")
        model[0].requires_grad_(False)
        model.register_buffer("running_total", torch.zeros(1))  # no statistic of a batch norm
        bank = EMABank(model, [EMA(0.9, warmup=None)], every=1, parameters=choice, buffers=buffers)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
            for buffer in (model[1].running_mean, model[1].running_var, model.running_total):
                buffer.add_(1.0)
        bank.update()
        state, live = bank.weights(0.9), model.state_dict()
        assert {name for name in state if not torch.equal(state[name], live[name])} == averaged
        assert set(bank.state_dict()["averages"]["ema-0.9"]["tensors"]) == averaged


class OnAGraph(nn.Module):
    """A layer on the nodes of a graph; the edges are a sparse buffer."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("edges", torch.eye(16).roll(1, 0).to_sparse(layout=layout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.edges @ x)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_buffer_is_read_from_the_live_model(layout: torch.layout) -> None:
    model = OnAGraph(layout)
    bank = EMABank(model, [EMA(0.5, warmup=None)], every=1)
    train(model, 3, bank.update)
    x = torch.randn(16, 6)
    weights = bank.weights(0.5)
    expected = nn.functional.linear(x.roll(1, 0), weights["linear.weight"], weights["linear.bias"])
    before = model(x)
    with bank.applied(0.5):
        assert torch.allclose(model(x), expected)
    assert torch.equal(model(x), before)
    assert torch.allclose(bank.call(0.5, x), expected)
    assert torch.allclose(bank.module(0.5)(x), expected)
    other = OnAGraph(layout)
    bank.copy_to(other, 0.5)
    assert torch.allclose(other(x), expected)
    tracker = BestTracker(bank, {"loss": "min"})
    tracker.observe(1, {0.5: {"loss": 0.5}})
    tracker.load_state_dict(tracker.state_dict())
    assert tracker.weights("loss")["edges"].layout is layout


def test_the_meta_device_is_refused() -> None:
    with pytest.raises(ValueError, match="^device must .* got 'meta'"):
        EMABank(nn.Linear(2, 1), [0.9], device="meta")
    bank = EMABank(nn.Linear(2, 1), [0.9])
    before = bank.weights(0.9)
    with pytest.raises(ValueError, match="^device must .* got 'meta'"):
        bank.to("meta")
    assert states_equal(bank.weights(0.9), before)
