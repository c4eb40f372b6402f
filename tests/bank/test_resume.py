"""A state saved and loaded, and a model that changes under the bank."""

import copy
import io
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn

from emabank import EMA, EMABank
from tests.support.models import build, small_bank, train
from tests.support.oracle import AVERAGES, EMAOracle, assert_close, constant, live_weights, states_equal


@pytest.mark.parametrize("split", [1, 5, 8, 13])
def test_trap40_a_resumed_bank_is_bit_identical_wherever_it_is_split(split: int) -> None:
    model = build("mlp")
    uninterrupted = EMABank(model, AVERAGES, every=4)
    train(model, split, uninterrupted.update)
    file = io.BytesIO()
    torch.save(uninterrupted.state_dict(), file)
    file.seek(0)
    train(model, 1)
    resumed = EMABank(model, AVERAGES, every=4)
    resumed.load_state_dict(torch.load(file, weights_only=True))  # trap 44
    train(model, 20 - split, lambda: (uninterrupted.update(), resumed.update()), seed=2)
    assert states_equal(resumed.state_dict(), uninterrupted.state_dict())
    for name in AVERAGES:
        assert states_equal(uninterrupted.weights(name), resumed.weights(name)), name
        assert uninterrupted.decay(name) == resumed.decay(name)


def test_trap42_loading_keeps_the_averages_dtype() -> None:
    model = build("mlp")
    narrow, wide = EMABank(model, [0.9], every=1), EMABank(model, [0.9], every=1, dtype=torch.float64)
    train(model, 3, lambda: (narrow.update(), wide.update()))
    narrow.load_state_dict(wide.state_dict())
    wide.load_state_dict(narrow.state_dict())
    assert narrow.weights(0.9)["0.weight"].dtype == torch.float32
    assert wide.weights(0.9)["0.weight"].dtype == torch.float64


def test_trap43_states_and_weights_are_copies() -> None:
    model, bank = small_bank()
    train(model, 3, bank.update)
    state, weights = bank.state_dict(), bank.weights(0.9)
    frozen = copy.deepcopy(weights)
    train(model, 3, bank.update)
    assert states_equal(weights, frozen)
    bank.load_state_dict(state)
    for tensor in state["averages"]["ema-0.9"]["tensors"].values():
        tensor.zero_()
    assert bank.weights(0.9)["0.weight"].abs().sum() > 0
    weights["0.weight"].zero_()
    assert bank.weights(0.9)["0.weight"].abs().sum() > 0


def test_trap45_one_average_is_a_plain_state_dict_of_the_model() -> None:
    for name in ("mlp", "wide", "conv", "odd", "tied", "half_precision"):
        model = build(name)
        bank = EMABank(model, [0.9], every=1)
        train(model, 3, bank.update)
        other = build(name, seed=9)
        other.load_state_dict(bank.weights(0.9), strict=True)
        assert list(bank.weights(0.9)) == list(model.state_dict())


LOADS = {
    "copied": lambda model, state: model.load_state_dict(state),
    "assigned": lambda model, state: model.load_state_dict(state, assign=True),
    "copied into data": lambda model, state: [p.data.copy_(state[name]) for name, p in model.named_parameters()],
    "as data": lambda model, state: [setattr(p, "data", state[name]) for name, p in model.named_parameters()],
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", ["wide", "half_precision", "conv", "crowd"])
def test_trap56_weights_loaded_after_the_bank_was_built_are_noticed(name: str, load: str) -> None:
    for resets in (False, True):
        model = build(name)
        bank = EMABank(model, [0.99], every=16)
        LOADS[load](model, build(name, seed=8).state_dict())
        if resets:
            bank.reset()
            train(model, 3, bank.update)  # a warning would be an error
        else:
            with pytest.warns(UserWarning, match=r"call bank.reset\(\) after loading"):
                train(model, 1, bank.update)


def zero(model: nn.Module) -> nn.Module:
    nn.init.zeros_(model[-1].weight)
    return model


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p, lr=1e-3),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=1e-2),
    ],
)
def test_trap56_an_ordinary_first_step_does_not_warn_of_loaded_weights(optimizer) -> None:
    models = {
        "one number": lambda: nn.Linear(1, 1),
        "two numbers": lambda: nn.Linear(2, 1, bias=False),
        "small": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)),
        "linear": lambda: nn.Linear(20, 10),
        "zero layer": lambda: zero(nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))),
        "wide": lambda: nn.Sequential(nn.Linear(6, 2000), nn.ReLU(), nn.Linear(2000, 5)),
    }
    for name, make in models.items():
        for seed in range(5):
            torch.manual_seed(seed)
            model = make()
            bank, steps = EMABank(model, [0.9]), optimizer(model.parameters())
            inputs = torch.randn(32, next(model.parameters()).shape[1])
            (model(inputs) - 3 * inputs.sum(1, keepdim=True)).square().mean().backward()
            steps.step()
            bank.update()
            assert bank.num_steps == 1, name


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.to(memory_format=torch.channels_last),
        lambda m: m.to(memory_format=torch.contiguous_format),
        lambda m: m.double(),
        lambda m: m.bfloat16(),
    ],
)
def test_trap57_a_model_with_a_new_dtype_or_memory_format_is_followed(change) -> None:
    model = build("conv").to(memory_format=torch.contiguous_format)
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    oracle = EMAOracle(live_weights(model), 1, constant(0.9))
    generator = torch.Generator().manual_seed(2)
    for step in range(6):
        if step == 3:
            change(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9).add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=0.1)
        bank.update()
        oracle.after_step(live_weights(model))
    assert_close(bank.weights(0.9), oracle.value())
    with bank.applied(0.9):
        weight = model.state_dict()["layers.0.weight"]
    assert weight.dtype == model.layers[0].weight.dtype


def test_a_parameter_transposed_in_place_is_followed() -> None:
    model = nn.Linear(3, 3, bias=False)
    bank = EMABank(model, [EMA(0.5, warmup=None)], every=1)
    oracle = EMAOracle(live_weights(model), 1, constant(0.5))
    model.weight.data = model.weight.data.t()  # the same memory, another stride
    bank.update()
    oracle.after_step(live_weights(model))
    assert_close(bank.weights(0.5), oracle.value())


class Same(nn.Linear):
    """Equal to every object."""

    __hash__ = nn.Linear.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def replace_frozen(m: nn.Module) -> None:
    del m.frozen
    m.chilled = nn.Parameter(torch.zeros(2), requires_grad=False)


def rename_norm(m: nn.Module) -> None:
    m.normal = m.norm
    del m.norm


def assign(path: str, value: Any) -> Callable[[nn.Module], None]:
    """Set an attribute, or a parameter's data to a function of it."""

    def change(m: nn.Module) -> None:
        *parents, name = path.split(".")
        owner = attrgetter(".".join(parents))(m) if parents else m
        setattr(owner, name, value(getattr(owner, name)) if name == "data" else value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (assign("linear.bias", nn.Parameter(torch.zeros(4))), "new: 'linear.bias'"),  # was None
        (assign("idle.extra", nn.Parameter(torch.zeros(4))), "new: 'idle.extra'"),
        (assign("linear.adapter", nn.Linear(2, 2)), "new: 'linear.adapter.weight', 'linear.adapter.bias'"),
        (assign("head", nn.LazyLinear(2)), "'head.weight' is not initialised"),
        (replace_frozen, "missing: 'frozen'; new: 'chilled'"),
        (rename_norm, "missing: 'norm.weight'"),
        (assign("norm", nn.Identity()), "missing: 'norm.weight', 'norm.bias', 'norm.running_mean'"),
        (assign("norm.running_mean", torch.zeros(7)), r"'norm.running_mean' is \(7,\), not \(4,\)"),
        (assign("same", Same(2, 2)), "'same.weight' is"),
        (assign("linear.weight.data", lambda data: data.t()), r"'linear.weight' is \(3, 4\), not \(4, 3\)"),
        (assign("linear.weight.data", lambda data: data[:2]), r"'linear.weight' is \(2, 3\), not \(4, 3\)"),
        (assign("row.data", lambda data: data.t()), r"'row' is \(5, 1\), not \(1, 5\)"),  # the same stride, too
        (assign("linear.weight.data", lambda data: data.to(torch.complex64)), "'linear.weight' must be floating"),
        (lambda m: m.to("meta"), "is on the meta device"),
    ],
)
def test_trap13_a_model_that_no_longer_fits_is_refused_and_no_average_changes(change, message: str) -> None:
    model = nn.Module()
    model.linear, model.norm, model.same = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), Same(3, 3)
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    model.row, model.idle = nn.Parameter(torch.randn(1, 5)), nn.Identity()
    bank = EMABank(model, [0.9], every=1, parameters="trainable")
    bank.update()
    change(model)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            bank.update()
    assert bank.num_updates == 1
