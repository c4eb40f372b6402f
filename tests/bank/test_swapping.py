"""Averages are applied, exported and copied without a change to the live weights."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from emabank import EMA, EMABank, Uniform
from tests.support.models import alive_storages, build, sgd, small_bank, train
from tests.support.oracle import states_equal


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_trap26_trap30_an_exception_restores_the_live_weights_and_all_buffers(error: type[BaseException]) -> None:
    model, bank = small_bank()
    model.register_buffer("calls", torch.zeros((), dtype=torch.long))
    model.register_forward_hook(lambda module, inputs, output: module.calls.add_(1) and None)
    train(model, 4, bank.update)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error), bank.applied(0.9):
        assert not states_equal(model.state_dict(), before)
        model(torch.randn(8, 6))  # moves batch-norm statistics, and a counter that is not averaged
        model[1].running_mean = torch.ones(8)  # and user code replaces a buffer
        raise error
    assert states_equal(model.state_dict(), before)
    assert bank.update()


def test_trap27_trap28_trap34_other_calls_are_refused_inside_applied() -> None:
    model, bank = small_bank([0.9, 0.99])
    bank.update()
    other = build("mlp", seed=2)
    with bank.applied(0.9):
        for call in (
            bank.update,
            bank.flush,
            bank.reset,
            bank.state_dict,
            lambda: bank.load_state_dict({}),
            lambda: bank.applied(0.99).__enter__(),
            lambda: bank.copy_to(other, 0.9),
            lambda: bank.to("cpu"),
            lambda: copy.deepcopy(bank),
            lambda: bank.weights(0.99),
            lambda: bank.weights("live"),
        ):
            with pytest.raises(RuntimeError, match=r"applied\('ema-0.9'\)"):
                call()
        assert states_equal(bank.weights(0.9), model.state_dict())
    assert bank.update()


def test_trap29_applied_replaces_no_tensor_and_keeps_autograd_valid() -> None:
    model, bank = small_bank()
    train(model, 3, bank.update)
    tensors = [*model.parameters(), *model.buffers()]
    pointers, versions = [t.data_ptr() for t in tensors], [p._version for p in model.parameters()]
    loss = model.eval()(torch.ones(4, 6)).square().sum()  # a graph that is alive across the swap
    with bank.applied(0.9):
        model(torch.ones(2, 6))
    loss.backward()
    assert [id(t) for t in tensors] == [id(t) for t in [*model.parameters(), *model.buffers()]]
    assert pointers == [t.data_ptr() for t in tensors]
    assert versions == [p._version for p in model.parameters()]


def test_trap31_before_the_first_update_every_read_gives_the_live_weights() -> None:
    model, bank = small_bank([0.99, Uniform(start=50)], every=16)
    train(model, 5, bank.update)
    live = model.state_dict()
    for name in (0.99, "uniform-50", "live"):
        assert states_equal(bank.weights(name), live)
        assert states_equal(bank.module(name).state_dict(), live)
        with bank.applied(name):
            assert states_equal(model.state_dict(), live)
    train(model, 20, bank.update)
    assert not states_equal(bank.weights(0.99), model.state_dict())
    assert states_equal(bank.weights("uniform-50"), model.state_dict())


def test_trap32_an_exported_module_is_independent_and_has_no_hooks() -> None:
    model, bank = small_bank()
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model[0].register_forward_pre_hook(lambda *_: seen.append(2))
    model[4].register_full_backward_hook(lambda *_: seen.append(3))
    model.bank = bank  # as a Lightning module would hold it
    train(model, 3, bank.update)
    seen.clear()
    module = bank.module(0.9)
    module(torch.randn(4, 6))
    assert seen == []
    assert not any(m.training for m in module.modules())
    assert not any(p.requires_grad for p in module.parameters())
    assert module.bank is None
    assert {id(m) for m in module.modules()}.isdisjoint({id(m) for m in model.modules()})
    pointers = {t.data_ptr() for t in model.state_dict().values()}
    assert all(t.data_ptr() not in pointers for t in module.state_dict().values())
    with torch.no_grad():
        for value in module.state_dict().values():
            value.zero_()
    assert bank.weights(0.9)["0.weight"].abs().sum() > 0
    assert model[0].weight.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_trap32_hooks_that_compute_a_weight_stay_in_the_exported_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)), nn.utils.spectral_norm(nn.Linear(4, 3)))
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    train(model, 5, bank.update)
    module = bank.module(0.9)
    x = torch.randn(3, 6)
    with bank.applied(0.9):
        torch.testing.assert_close(module(x), model.eval()(x))


def test_a_model_that_cannot_be_copied_is_refused_with_alternatives() -> None:
    class Handle(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle a handle")

    bank = EMABank(Handle(2, 1), [0.9])
    with pytest.raises(RuntimeError, match=r"bank.weights\(name\), bank.copy_to\(.*bank.applied\(name\)"):
        bank.module(0.9)


def test_a_model_that_stores_an_activation_can_be_exported() -> None:
    model, bank = small_bank()
    model.last = model(torch.randn(4, 6))  # part of a graph, which deepcopy refuses
    assert not bank.module(0.9).last.requires_grad


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda bank: pickle.loads(pickle.dumps(bank))])
def test_trap33_a_copied_or_pickled_bank_is_independent(duplicate) -> None:
    model, bank = small_bank([EMA(0.9, warmup=None)])
    model.bank = bank  # a model may hold its bank
    optimizer = sgd(model)
    handle = bank.attach(optimizer)
    optimizer.step()
    other = duplicate(bank)
    handle.remove()
    assert other.model is not model and other.model.bank is other
    for copied in (bank, other):
        with torch.no_grad():
            copied.model[0].weight.mul_(1.01)
        assert copied.update()
    assert other.num_steps == 2
    assert states_equal(bank.weights(0.9), other.weights(0.9))
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    bank.update()
    assert not states_equal(bank.weights(0.9), other.weights(0.9))


def test_trap33_saving_and_applying_use_no_extra_memory() -> None:
    bank = EMABank(nn.Linear(700, 700), [0.9])
    size = 4 * 700 * 701
    file = io.BytesIO()
    torch.save(bank, file)
    assert len(file.getvalue()) < 2.1 * size
    before = sum(alive_storages().values())
    with bank.applied(0.9):
        assert sum(alive_storages().values()) - before < 1.1 * size  # the live weights; the average has been copied in
