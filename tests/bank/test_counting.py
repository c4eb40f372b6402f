"""Which steps count, and which are averaged."""

import gc
import tracemalloc
from functools import partial
from typing import Any

import pytest
import torch

from emabank import EMA, EMABank, Uniform
from tests.support.models import sgd, small_bank, train
from tests.support.oracle import EMAOracle, UniformOracle, assert_close, constant, live_weights, states_equal


def test_trap35_steps_are_counted_over_epochs() -> None:
    _, bank = small_bank([0.99], every=16)
    averaged = [[bank.update() for _ in range(391)].count(True) for _ in range(16)]
    assert sum(averaged) == 391
    assert set(averaged) == {24, 25}


@pytest.mark.parametrize("kind", [torch.optim.SGD, partial(torch.optim.Adam, fused=True)], ids=["plain", "fused"])
def test_trap36_trap61_gradient_accumulation_and_skipped_steps_are_not_counted(kind: Any) -> None:
    model, bank = small_bank()
    optimizer = kind(model.parameters(), lr=0.1)
    bank.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(6):
        loss = model(torch.randn(4, 6)).square().mean() * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        if step % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert bank.num_steps == 2  # three optimizer steps were due, one of them overflowed


def test_trap37_flush_averages_a_partial_period_and_does_not_shift_the_next() -> None:
    model, bank = small_bank([EMA(0.99, warmup=None), Uniform()], every=16)
    expected = {
        "ema-0.99": EMAOracle(live_weights(model), 16, constant(0.99)),
        "uniform": UniformOracle(live_weights(model), 16),
    }
    assert not bank.flush()
    flushed = []

    def after() -> None:
        bank.update()
        for oracle in expected.values():
            oracle.after_step(live_weights(model))
        if bank.num_steps in (21, 32):
            flushed.append(bank.flush())
            for oracle in expected.values():
                oracle.take(live_weights(model))

    train(model, 40, after)
    assert flushed == [True, False]
    assert bank.num_updates == 3
    for name, oracle in expected.items():
        assert_close(bank.weights(name), oracle.value())


def test_trap38_counters_are_python_ints() -> None:
    _, bank = small_bank()
    bank.update()
    state = bank.state_dict()
    assert all(type(n) is int for n in (bank.num_steps, bank.num_updates, state["num_steps"], state["num_updates"]))


def test_trap39_an_update_that_is_not_due_allocates_nothing() -> None:
    _, bank = small_bank([Uniform()], every=10**9)
    for _ in range(1000):
        bank.update()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(10_000):
            bank.update()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
        gc.enable()
    ours = snapshot.filter_traces([tracemalloc.Filter(True, "*/emabank/*")])  # other threads allocate too
    assert sum(trace.size for trace in ours.traces) < 200  # the counter itself


def test_trap62_update_beside_attach_and_a_second_attach_are_refused() -> None:
    model, bank = small_bank()
    optimizer = sgd(model)
    handle = bank.attach(optimizer)
    with pytest.raises(RuntimeError, match="twice"):
        bank.update()
    with pytest.raises(RuntimeError, match="attached to an optimizer already"):
        bank.attach(sgd(model))
    assert bank.num_steps == 0
    handle.remove()
    assert bank.update()
    bank.attach(optimizer)
    optimizer.step()
    assert bank.num_steps == 2
    with pytest.raises(RuntimeError, match="A step of the attached optimizer"), bank.applied(0.9):
        optimizer.step()
    with pytest.raises(RuntimeError, match="twice"):
        bank.update()


def test_reset_restarts_one_average_or_all() -> None:
    model, bank = small_bank([0.9, 0.5])
    train(model, 5, bank.update)
    untouched = bank.weights(0.5)
    bank.reset(0.9)
    assert states_equal(bank.weights(0.9), model.state_dict())
    assert states_equal(bank.weights(0.5), untouched)
    fresh = EMABank(model, [0.9], every=1)
    train(model, 5, lambda: (bank.update(), fresh.update()), seed=2)
    assert states_equal(bank.weights(0.9), fresh.weights(0.9))
    bank.reset()
    assert states_equal(bank.weights(0.5), model.state_dict())


def test_a_run_longer_than_its_steps_warns_once() -> None:
    bank = EMABank(torch.nn.Linear(2, 1), steps=2)
    bank.update(), bank.update()
    with pytest.warns(UserWarning, match=r"step 3 of a bank built with steps=2: pass the number of optimizer steps"):
        bank.update()
    bank.update()
