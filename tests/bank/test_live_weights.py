"""The live weights survive every use of an average: shared memory, threads, interrupts, several banks."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, EMABank, recalibrate_batchnorm
from tests.support.models import Tied, build, small_bank, train
from tests.support.oracle import states_equal
from tests.support.processes import interrupt_everywhere

RULE = EMA(0.9, warmup=None)


# Tensors that share memory --------------------------------------------------------------------------------------------


def tied_weights() -> nn.Module:
    model = Tied()
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
    assert model.embed.weight is not model.out.weight
    model.out.weight.data = model.embed.weight.data
    return model


def shared_data() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight.data = model[0].weight.data
    return model


def overlapping_data() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    model[1].weight.data = model[0].weight.data[2:5]
    return model


def buffer_view() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6))
    model[0].running_mean = model[1].weight.data[0]
    return model


@pytest.mark.parametrize("make", [tied_weights, shared_data, overlapping_data, buffer_view])
def test_applied_restores_tensors_that_share_memory(make) -> None:
    torch.manual_seed(0)
    model = make()
    bank = EMABank(model, [RULE], every=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    bank.update()
    before = copy.deepcopy(model.state_dict())
    with bank.applied(0.9):
        assert not states_equal(model.state_dict(), before)
    assert states_equal(model.state_dict(), before)


# Buffers that cannot be copied back -----------------------------------------------------------------------------------


class Masked(nn.Module):
    """A mask without memory of its own, a cache that grows, and a batch norm after both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1).expand(6))
        self.register_buffer("cache", torch.zeros(2, 6))
        self.layer = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        self.cache.resize_(len(x), 6)
        return self.norm(self.layer(x * self.mask))


def test_a_buffer_that_cannot_be_copied_back_does_not_stop_the_restore() -> None:
    torch.manual_seed(0)
    model = Masked()
    bank = EMABank(model, [RULE], every=1)
    train(model, 3, bank.update)
    model.cache.resize_(2, 6)
    before = copy.deepcopy(model.norm.state_dict())
    weight = model.layer.weight.detach().clone()
    with bank.applied(0.9):
        model(torch.randn(16, 6))  # in training mode, so that the statistics and the counter change
    assert states_equal(model.norm.state_dict(), before)
    assert torch.equal(model.layer.weight, weight)


class Rotary(nn.Module):
    """Notes how long its cache is, as rotary embeddings do, and replaces it when a longer input comes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.grow(2)

    def grow(self, length: int) -> None:
        self.length = length
        self.register_buffer("cache", torch.arange(1.0, length + 1).unsqueeze(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.length:
            self.grow(len(x))
        return self.norm(self.layer(x) * self.cache[: len(x)])


@pytest.mark.parametrize("first", ["evaluate", "call", "recalibrate"])
def test_a_cache_that_has_grown_fits_what_its_module_has_noted(first: str) -> None:
    model = Rotary()
    bank = EMABank(model, {"slow": RULE, "fast": 0.5}, every=1)
    train(model, 3, bank.update)
    long = torch.randn(32, 6)  # longer than any batch in training
    if first == "evaluate":
        bank.evaluate(lambda model: model(long))
    elif first == "call":
        bank.call("slow", long)
    else:
        recalibrate_batchnorm(bank, [long, long])
    for name, output in bank.evaluate(lambda model: model(long)).items():
        torch.testing.assert_close(output, bank.module(name)(long))


def test_a_tensor_that_cannot_be_restored_does_not_stop_the_restore() -> None:
    model, bank = small_bank([RULE])
    train(model, 3, bank.update)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError), bank.applied(0.9):
        model[4].weight.data = torch.zeros(1)  # another shape
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items() if key != "4.weight")


# Threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["applied", "call"])
def test_a_second_thread_is_refused_and_the_live_weights_survive(way: str) -> None:
    model, bank = small_bank([RULE])
    train(model, 5, bank.update)
    before, kinds = copy.deepcopy(model.state_dict()), [type(tensor) for tensor in model.parameters()]
    inside, leave = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            leave.wait(10)
            return x

    model.append(Waits())
    bank = EMABank(model, [RULE], every=1)
    bank.update()

    def use() -> None:
        if way == "call":
            bank.call(0.9, torch.ones(2, 6))
        else:
            with bank.applied(0.9):
                model.eval()(torch.ones(2, 6))

    thread = threading.Thread(target=use)
    thread.start()
    assert inside.wait(10)
    try:
        for attempt in (use, bank.update, bank.state_dict, lambda: bank.weights("live")):
            with pytest.raises(RuntimeError, match=r"applied\('ema-0.9'\)"):
                attempt()
    finally:
        leave.set()
        thread.join()
    assert states_equal(model.state_dict(), before)
    assert [type(tensor) for tensor in model.parameters()] == kinds
    assert bank.update()


# Inference mode -------------------------------------------------------------------------------------------------------


def to_double(model: nn.Module) -> None:
    model.double()


def reassign(model: nn.Module) -> None:
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("change", [to_double, reassign, copy.deepcopy, lambda bank: pickle.loads(pickle.dumps(bank))])
@pytest.mark.parametrize("read", ["applied", "call", "weights", "recalibrate"])
def test_a_bank_still_works_after_reads_in_inference_mode(change, read: str) -> None:
    model, bank = small_bank([RULE])
    train(model, 3, bank.update)
    bank = change(model if change in (to_double, reassign) else bank) or bank
    model = bank.model
    x = torch.ones(2, 6, dtype=model[0].weight.dtype)
    with torch.inference_mode():
        if read == "applied":
            with bank.applied(0.9):
                model(x)
        elif read == "call":
            bank.call(0.9, x)
        elif read == "weights":
            assert not any(tensor.is_inference() for tensor in bank.weights(0.9).values())
        else:
            recalibrate_batchnorm(bank, [x + torch.arange(2).view(2, 1)])
    x = torch.randn(8, 6).to(x)
    model(x).sum().backward()
    assert bank.update()
    bank.call(0.9, x)


def test_a_bank_built_in_inference_mode_works() -> None:
    model, twin = build("mlp"), build("mlp")
    with torch.inference_mode():
        bank = EMABank(model, [RULE], every=1)
    expected = EMABank(twin, [RULE], every=1)
    train(model, 3, bank.update)
    train(twin, 3, expected.update)
    assert states_equal(bank.weights(0.9), expected.weights(0.9))


# Interrupts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["applied", "call"])
def test_an_interrupt_at_any_line_leaves_the_live_model_as_it_was(way: str) -> None:
    model, bank = small_bank([RULE])
    train(model, 3, bank.update)
    before = copy.deepcopy(model.state_dict())
    tensors = [*model.parameters(), *model.buffers()]
    modes = [module.training for module in model.modules()]
    x = torch.ones(2, 6)

    def use() -> None:
        if way == "call":
            bank.call(0.9, x)
        else:
            with bank.applied(0.9):
                pass

    lines = 0
    for place in interrupt_everywhere(use):
        lines += 1
        assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == [id(t) for t in tensors], place
        assert states_equal(model.state_dict(), before), place
        assert [module.training for module in model.modules()] == modes, place
        bank.weights("live")  # would raise if an average were still applied
    assert lines > 30


# Two banks on one model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["whole", "wrapped", "submodule"])
def test_inside_applied_other_banks_of_the_model_are_refused(part: str) -> None:
    model = build("mlp")
    first = EMABank(model, {"one": RULE}, every=1)
    watched = {"whole": model, "wrapped": nn.DataParallel(model), "submodule": model[0]}[part]
    second = EMABank(watched, {"two": RULE}, every=1)
    train(model, 3, lambda: (first.update(), second.update()))
    before, average = copy.deepcopy(model.state_dict()), second.weights("two")
    with first.applied("one"):
        for attempt in (
            second.update,
            second.flush,
            second.reset,
            second.state_dict,
            lambda: second.weights("live"),
            lambda: second.weights("two"),
            lambda: second.module("two"),
            lambda: second.call("two", torch.ones(2, 6)),
            lambda: second.applied("two").__enter__(),
            lambda: EMABank(watched, [0.9]),
        ):
            with pytest.raises(RuntimeError, match=r"applied\('one'\)"):
                attempt()
    assert states_equal(model.state_dict(), before)
    assert states_equal(second.weights("two"), average)
    assert second.update()


def test_a_bank_of_another_model_is_not_affected() -> None:
    _, bank = small_bank()
    _, other = small_bank()
    with bank.applied(0.9):
        assert other.update()
        with other.applied(0.9):
            pass


# Stale reads ----------------------------------------------------------------------------------------------------------


def test_call_before_the_first_update_follows_the_live_weights() -> None:
    model, bank = small_bank([0.99], every=16)
    x = torch.ones(2, 6)
    for _ in range(2):
        torch.testing.assert_close(bank.call(0.99, x), copy.deepcopy(model).eval()(x).detach())
        train(model, 1, bank.update)


def test_call_inside_applied_gives_the_applied_average_and_refuses_the_live_weights() -> None:
    model, bank = small_bank([RULE])
    train(model, 3, bank.update)
    x = torch.ones(2, 6)
    bank.call("live", x)
    expected = bank.module(0.9)(x)
    with bank.applied(0.9):
        torch.testing.assert_close(bank.call(0.9, x), expected)
        with pytest.raises(RuntimeError, match="only that average"):
            bank.call("live", x)


@pytest.mark.parametrize("averaged", ["none yet", "a part"])
def test_recomputed_statistics_of_weights_that_have_moved_are_refused(averaged: str) -> None:
    model = build("mlp")
    late = averaged == "none yet"
    bank = EMABank(model, {"ema": 0.99}, every=16, parameters="all" if late else lambda name, _: name.startswith("1."))
    train(model, 1 if late else 16, bank.update)
    recalibrate_batchnorm(bank, [torch.randn(8, 6)])
    bank.weights("ema", batchnorm="recomputed")
    train(model, 1, bank.update)
    with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
        bank.weights("ema", batchnorm="recomputed")
    with pytest.raises(RuntimeError, match="recalibrate_batchnorm"):
        bank.call("ema", torch.ones(2, 6), batchnorm="recomputed")
