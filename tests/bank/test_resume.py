"""A state saved and loaded, and a model that changes under the bank."""

import copy
import io

import pytest
import torch
from torch import nn

from emabank import EMA, EMABank
from tests.support.models import build, sgd, small_bank, train, train_step
from tests.support.oracle import AVERAGES, EMAOracle, assert_close, constant, live_weights, states_equal


@pytest.mark.parametrize("split", [1, 5, 8, 13])
def test_trap40_a_run_split_anywhere_and_resumed_is_the_same_bit_for_bit(split: int) -> None:
    def continued(model: nn.Module, bank: EMABank, optimizer, generator: torch.Generator, steps: int) -> None:
        for _ in range(steps):
            train_step(model, optimizer, generator)
            bank.update()

    def fresh():
        model = build("mlp")
        return model, EMABank(model, AVERAGES, every=4), sgd(model), torch.Generator().manual_seed(1)

    whole = fresh()
    torch.manual_seed(7)
    continued(*whole, 20)
    first = fresh()
    torch.manual_seed(7)
    continued(*first, split)
    file = io.BytesIO()
    torch.save(
        {
            "model": first[0].state_dict(),
            "bank": first[1].state_dict(),
            "optimizer": first[2].state_dict(),
            "generator": first[3].get_state(),
            "random": torch.get_rng_state(),
        },
        file,
    )
    file.seek(0)
    state = torch.load(file, weights_only=True)  # trap 44
    second = fresh()
    second[0].load_state_dict(state["model"])
    second[1].load_state_dict(state["bank"])
    second[2].load_state_dict(state["optimizer"])
    second[3].set_state(state["generator"])
    torch.set_rng_state(state["random"])
    continued(*second, 20 - split)
    assert states_equal(whole[0].state_dict(), second[0].state_dict())
    for name in AVERAGES:
        assert states_equal(whole[1].weights(name), second[1].weights(name)), name
        assert whole[1].decay(name) == second[1].decay(name)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda s: s.pop("averages"), "missing: \\['averages'\\]"),
        (lambda s: s.update(format=99), "format 99"),
        (lambda s: s.update(every=8), "every=8"),
        (lambda s: s["averages"].pop("ema-0.99"), "same averages"),
        (lambda s: s["averages"].update({"x": s["averages"]["ema-0.99"]}), "same averages"),
        (lambda s: s["averages"]["ema-0.99"]["rule"].update(warmup="updates"), "same rule"),
        (lambda s: s["averages"]["ema-0.99"]["tensors"].pop("0.bias"), "missing: '0.bias'"),
        (lambda s: s["averages"]["ema-0.99"]["tensors"].update(more=torch.ones(1)), "new: 'more'"),
        (lambda s: s["averages"]["ema-0.999"]["tensors"].update({"0.bias": torch.ones(9)}), r"\(9,\), not \(8,\)"),
    ],
)
def test_trap41_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage, says: str) -> None:
    model, bank = small_bank([0.99, 0.999], every=16)
    train(model, 20, bank.update)
    before, state = bank.state_dict(), bank.state_dict()
    damage(state)
    train(model, 20, bank.update)
    kept = bank.state_dict()
    with pytest.raises(ValueError, match=says):
        bank.load_state_dict(state)
    after = bank.state_dict()
    assert after["num_steps"] == kept["num_steps"] != before["num_steps"]
    for name in bank.names:
        assert states_equal(after["averages"][name]["tensors"], kept["averages"][name]["tensors"])


def test_trap42_loading_keeps_the_averages_dtype() -> None:
    model = build("mlp")
    narrow, wide = EMABank(model, [0.9], every=1), EMABank(model, [0.9], every=1, dtype=torch.float64)
    train(model, 3, lambda: (narrow.update(), wide.update()))
    narrow.load_state_dict(wide.state_dict())
    wide.load_state_dict(narrow.state_dict())
    assert narrow.weights(0.9)["0.weight"].dtype == torch.float32
    assert wide.weights(0.9)["0.weight"].dtype == torch.float64


def test_trap43_what_is_handed_out_and_taken_in_is_not_aliased() -> None:
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


def zeroed(model: nn.Module) -> nn.Module:
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
def test_trap56_no_ordinary_first_step_is_taken_for_loaded_weights(optimizer) -> None:
    models = {
        "one number": lambda: nn.Linear(1, 1),
        "two numbers": lambda: nn.Linear(2, 1, bias=False),
        "small": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)),
        "linear": lambda: nn.Linear(20, 10),
        "zero layer": lambda: zeroed(nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))),
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
def test_trap57_a_model_that_is_cast_or_laid_out_anew_is_followed(change) -> None:
    model = build("conv").to(memory_format=torch.contiguous_format)
    bank, oracle = EMABank(model, [EMA(0.9, warmup=None)], every=1), None
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
        got = model.state_dict()["layers.0.weight"]
    assert got.dtype == model.layers[0].weight.dtype


def test_a_parameter_that_is_turned_in_its_place_is_followed() -> None:
    model = nn.Linear(3, 3, bias=False)
    bank = EMABank(model, [EMA(0.5, warmup=None)], every=1)
    oracle = EMAOracle(live_weights(model), 1, constant(0.5))
    model.weight.data = model.weight.data.t()  # the same memory, another stride
    bank.update()
    oracle.after_step(live_weights(model))
    assert_close(bank.weights(0.5), oracle.value())


class Same(nn.Linear):
    """Equal to whatever it is compared with."""

    __hash__ = nn.Linear.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def parameter_where_there_was_none(m: nn.Module) -> None:
    m.linear.bias = nn.Parameter(torch.zeros(4))


def other_frozen_parameter(m: nn.Module) -> None:
    del m.frozen
    m.chilled = nn.Parameter(torch.zeros(2), requires_grad=False)


def turned(m: nn.Module) -> None:
    m.linear.weight.data = m.linear.weight.data.t()


def turned_row(m: nn.Module) -> None:
    m.row.data = m.row.data.t()  # the same stride, too


def cut(m: nn.Module) -> None:
    m.linear.weight.data = m.linear.weight.data[:2]


def other_statistics(m: nn.Module) -> None:
    m.norm.running_mean = torch.zeros(7)


def equal_module(m: nn.Module) -> None:
    m.same = Same(2, 2)


def lazy_child(m: nn.Module) -> None:
    m.head = nn.LazyLinear(2)


def renamed(m: nn.Module) -> None:
    m.normal = m.norm
    del m.norm


def complex_now(m: nn.Module) -> None:
    m.linear.weight.data = m.linear.weight.data.to(torch.complex64)


def without_values(m: nn.Module) -> None:
    m.to("meta")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (parameter_where_there_was_none, "new: 'linear.bias'"),
        (other_frozen_parameter, "missing: 'frozen'; new: 'chilled'"),
        (turned, r"'linear.weight' is \(3, 4\), not \(4, 3\)"),
        (turned_row, r"'row' is \(5, 1\), not \(1, 5\)"),
        (cut, r"'linear.weight' is \(2, 3\), not \(4, 3\)"),
        (other_statistics, r"'norm.running_mean' is \(7,\), not \(4,\)"),
        (equal_module, "'same.weight' is"),
        (lazy_child, "'head.weight' is not initialised"),
        (renamed, "missing: 'norm.weight'"),
        (complex_now, "'linear.weight' must be floating"),
        (without_values, "is on the meta device"),
    ],
)
def test_a_model_that_no_longer_fits_is_refused_by_name_and_no_average_moves(change, says: str) -> None:
    model = nn.Module()
    model.linear, model.norm, model.same = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), Same(3, 3)
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    model.row = nn.Parameter(torch.randn(1, 5))
    bank = EMABank(model, [0.9], every=1, parameters="trainable")
    bank.update()
    change(model)
    for _ in range(2):
        with pytest.raises(ValueError, match=says):
            bank.update()
    assert bank.num_updates == 1
