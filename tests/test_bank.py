"""bank.py: counting, averaging, reading, against the float64 oracle and against a training run without a bank."""

import copy
import gc
import io
import pickle
import tracemalloc
import warnings

import pytest
import torch
from reference import EMAOracle, PowerOracle, UniformOracle, capped, live_weights
from torch import Tensor, nn
from zoo import ZOO, build, sgd, train_step

from emabank import EMA, EMABank, PowerEMA, Uniform, recalibrate_batchnorm, rules

AVERAGES = {
    "plain": EMA(0.9, warmup=None),
    "paper": EMA(0.998),
    "updates": EMA(0.95, warmup="updates"),
    "per-step": EMA(per_step=0.97, warmup=None),
    "half-life": EMA(half_life=7.5, warmup=None),
    "late": EMA(0.8, warmup=None, start=7),
    "uniform": Uniform(),
    "tail": Uniform(start=9),
    "power": PowerEMA(0.15),
}


def oracles(model: nn.Module, every: int) -> dict[str, object]:
    first = live_weights(model)
    gamma = rules.power_gamma(0.15)
    return {
        "plain": EMAOracle(first, every, capped(0.9, unit=None)),
        "paper": EMAOracle(first, every, capped(0.998, unit="steps")),
        "updates": EMAOracle(first, every, capped(0.95, unit="updates")),
        "per-step": EMAOracle(first, every, capped(0.97**every, unit=None)),
        "half-life": EMAOracle(first, every, capped(0.5 ** (every / 7.5), unit=None)),
        "late": EMAOracle(first, every, capped(0.8, unit=None), start=7),
        "uniform": UniformOracle(first, every),
        "tail": UniformOracle(first, every, start=9),
        "power": PowerOracle(first, every, gamma),
    }


def run(model: nn.Module, steps: int, after=lambda: None, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optimizer = sgd(model)
    for _ in range(steps):
        train_step(model, optimizer, generator)
        after()


def assert_close(got: dict[str, Tensor], want: dict[str, Tensor], *, rtol: float = 3e-6) -> None:
    """Equal up to float32's rounding, relative to the largest value of the tensor."""
    for name, value in want.items():
        scale = float(value.abs().max()) if value.numel() else 1.0
        torch.testing.assert_close(got[name].to(value.dtype), value, rtol=0, atol=rtol * max(scale, 1e-30), msg=name)


def small_bank(averages=(0.9,), **options) -> tuple[nn.Module, EMABank]:
    model = build("mlp")
    return model, EMABank(model, averages, **{"every": 1, **options})


# The oracle -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ZOO)
def test_trap03_every_rule_equals_the_oracle_on_every_model(name: str, every: int) -> None:
    model = build(name)
    if name == "crowd":
        model = nn.ParameterList(list(model)[::6]) if every == 3 else model
    bank, oracle = EMABank(model, AVERAGES, every=every), oracles(model, every)

    def after() -> None:
        bank.update()
        for each in oracle.values():
            each.after_step(live_weights(model))

    run(model, 20, after)
    for key, each in oracle.items():
        assert_close(bank.weights(key), each.value())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float64_averages_are_exact_to_float64(dtype: torch.dtype) -> None:
    model = build("wide").to(dtype)
    bank = EMABank(model, AVERAGES, every=1, dtype=torch.float64)
    oracle = oracles(model, 1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9).add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        bank.update()
        for each in oracle.values():
            each.after_step(live_weights(model))
    for key, each in oracle.items():
        assert_close(bank.weights(key), each.value(), rtol=1e-14)


@pytest.mark.parametrize("name", ZOO)
def test_training_with_a_bank_is_bit_for_bit_training_without(name: str) -> None:
    alone, watched = build(name), build(name)
    bank = EMABank(watched, AVERAGES, every=2)

    def after() -> None:
        if bank.update() and name != "crowd":
            watched.eval()
            with bank.applied("plain"):
                watched(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
            watched.train()
            bank.call("paper", torch.ones(2, 6))
            recalibrate_batchnorm(bank, torch.utils.data.DataLoader(torch.ones(9, 6), batch_size=4, shuffle=True))
            bank.module("tail"), bank.weights("uniform"), bank.state_dict()

    run(alone, 8)
    state_alone = torch.get_rng_state()
    run(watched, 8, after)
    assert torch.equal(state_alone, torch.get_rng_state())
    for key, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[key]), key


def test_trap04_the_lag_on_a_ramp_is_the_same_at_every_period() -> None:
    lags = []
    for every in (1, 16):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        bank = EMABank(model, [EMA(0.99**every, warmup=None)], every=every)
        for step in range(1, 3201):
            with torch.no_grad():
                model.weight.fill_(float(step))
            bank.update()
        lags.append(3200 - float(bank.weights(bank.names[0])["weight"]))
    # A period of 16 sees the ramp in stairs: its lag is T·α/(1-α), that of T = 1 is α/(1-α); they differ by < T/2.
    assert lags[0] == pytest.approx(99.0, abs=0.1)
    assert abs(lags[1] - lags[0]) < 8


def test_trap01_the_floor_of_float32_is_as_stated() -> None:
    """The relative gap that an update can no longer close is about 5.4e-8 / (1 - decay)."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.1 + 1e-3)
    bank = EMABank(model, [EMA(0.998, warmup=None)], every=1)
    nn.init.constant_(model.weight, 1.1)
    for _ in range(8000):
        bank.update()
    live, average = (float(w["weight"].double()) for w in (bank.weights("live"), bank.weights(0.998)))
    assert 0 < abs(average / live - 1) < 6e-8 / (1 - 0.998)


# What is averaged -----------------------------------------------------------------------------------------------------


def test_trap08_integer_and_bool_buffers_are_copied() -> None:
    model, bank = small_bank()
    model.register_buffer("flags", torch.tensor([True, False]))
    run(model, 5, bank.update)
    assert int(bank.weights(0.9)["1.num_batches_tracked"]) == 5
    model.flags[1] = True
    assert bank.weights(0.9)["flags"].tolist() == [True, True]


def test_trap09_non_persistent_buffers_are_in_the_module_and_not_in_the_state_dict() -> None:
    model = build("odd")
    bank = EMABank(model, [0.9], every=1)
    run(model, 3, bank.update)
    assert "seen" not in bank.weights(0.9)
    assert float(bank.module(0.9).seen) == 3.0
    other = build("odd", seed=5)
    bank.copy_to(other, 0.9)
    assert float(other.seen) == 3.0


def test_trap10_spectral_norm_vectors_are_copied_so_that_the_norm_stays_1() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)))
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    run(model, 60, bank.update)
    state = bank.weights(0.9)
    key = "0.parametrizations.weight.0._u"
    assert torch.equal(state[key], model.state_dict()[key])
    # The live singular vectors belong to nearly the averaged weight, so its norm is near 1, not near 47.
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
    run(model, 10, bank.update)
    assert torch.equal(bank.weights(0.9)["0.weight"], model[0].weight)
    model[0].weight.requires_grad_(True)
    before = model[0].weight.detach().clone()
    run(model, 3, bank.update)
    assert not torch.equal(model[0].weight, before)
    assert not torch.equal(bank.weights(0.9)["0.weight"], before)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.append(nn.Linear(3, 3)), r"new: '5.weight', '5.bias'"),
        (lambda m: m.__delitem__(4), r"missing: '4.weight', '4.bias'"),
        (lambda m: m.__setitem__(4, nn.Linear(8, 4)), r"'4.weight' is \(4, 8\), not \(3, 8\)"),
        (lambda m: setattr(m[4].weight, "data", torch.zeros(1, 1)), r"'4.weight' is \(1, 1\), not \(3, 8\)"),
        (lambda m: m.__setitem__(1, nn.Identity()), r"missing: '1.weight', '1.bias'"),
    ],
)
def test_trap13_a_model_that_changed_is_an_error_that_names_what(change, says: str) -> None:
    model, bank = small_bank()
    bank.update()
    change(model)
    with pytest.raises(ValueError, match=says):
        bank.update()


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


def test_trap13_replaced_parameters_of_the_same_shape_are_followed() -> None:
    model, bank = small_bank([EMA(0.5, warmup=None)])
    before = live_weights(model)
    model[4] = nn.Linear(8, 3)
    model.load_state_dict({k: v + 1 if v.is_floating_point() else v for k, v in model.state_dict().items()}, assign=True)
    bank.update()
    torch.testing.assert_close(
        bank.weights(0.5)["4.weight"].double(), (before["4.weight"] + model[4].weight.double()) / 2
    )


def test_trap14_wrapped_models_give_plain_keys_on_either_side() -> None:
    plain = build("mlp")
    for wrap in (nn.DataParallel, lambda m: torch.compile(m, backend="eager"), lambda m: nn.DataParallel(
        torch.compile(m, backend="eager")
    )):
        model = build("mlp")
        bank = EMABank(wrap(model), [0.9], every=1)
        bank.update()
        plain.load_state_dict(bank.weights(0.9))
        bank.copy_to(wrap(build("mlp", seed=4)), 0.9)
        bank.module(0.9).load_state_dict(plain.state_dict())
        assert bank.call(0.9, torch.ones(2, 6)).shape == (2, 3)


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
    run(model, 5, bank.update)
    state = bank.weights(0.9)
    assert torch.equal(state["mask"], model.mask) and torch.equal(state["bias_mask"], model.bias_mask)


def test_parts_of_a_model() -> None:
    for choice, averaged in (
        ("all", {"0.weight", "0.bias", "4.weight", "4.bias", "1.weight", "1.bias"}),
        ("trainable", {"4.weight", "4.bias", "1.weight", "1.bias"}),
        (lambda name, parameter: name.startswith("4"), {"4.weight", "4.bias"}),
    ):
        model = build("mlp")
        model[0].requires_grad_(False)
        bank = EMABank(model, [EMA(0.9, warmup=None)], every=1, parameters=choice, buffers="copy")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
            model[1].running_mean.add_(1.0)
        bank.update()
        state, live = bank.weights(0.9), model.state_dict()
        assert {name for name in state if not torch.equal(state[name], live[name])} == averaged
        assert set(bank.state_dict()["averages"]["ema-0.9"]["tensors"]) == averaged


# Swapping and life cycle ----------------------------------------------------------------------------------------------


def states_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_trap26_trap30_an_exception_restores_the_live_weights_and_all_buffers(error: type[BaseException]) -> None:
    model, bank = small_bank()
    run(model, 4, bank.update)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error), bank.applied(0.9):
        assert not states_equal(model.state_dict(), before)
        model(torch.randn(8, 6))  # batch norm in training mode moves its statistics
        model[1].running_mean = torch.ones(8)  # and someone puts another buffer in place
        raise error
    assert states_equal(model.state_dict(), before)
    assert bank.update()


def test_trap26_an_exception_while_swapping_in_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    model, bank = small_bank()
    run(model, 4, bank.update)
    before = copy.deepcopy(model.state_dict())
    values = bank._values(0.9, "averaged")
    values["4.bias"] = torch.zeros(99)  # the last parameter does not fit
    monkeypatch.setattr(bank, "_values", lambda *_: values)
    with pytest.raises(RuntimeError, match="99"), bank.applied(0.9):
        raise AssertionError("never entered")
    assert states_equal(model.state_dict(), before)
    assert bank.update()


def test_trap30_an_interrupt_while_restoring_still_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    from emabank import copies

    model, bank = small_bank()
    run(model, 4, bank.update)
    before = copy.deepcopy(model.state_dict())
    real, calls = copies._put_back, []

    def interrupted(kept) -> None:
        calls.append(1)
        real(kept[: len(kept) // 2] if len(calls) == 1 else kept)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(copies, "_put_back", interrupted)
    with pytest.raises(KeyboardInterrupt), bank.applied(0.9):
        pass
    assert states_equal(model.state_dict(), before)


def test_trap27_trap28_trap34_inside_applied_nothing_else_may_happen() -> None:
    model, bank = small_bank([0.9, 0.99])
    bank.update()
    other = build("mlp", seed=2)
    with bank.applied(0.9):
        for what in (
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
                what()
        assert states_equal(bank.weights(0.9), model.state_dict())
    assert bank.update()


def test_trap29_nothing_is_rebound_and_autograd_does_not_notice() -> None:
    model, bank = small_bank()
    run(model, 3, bank.update)
    tensors = [*model.parameters(), *model.buffers()]
    pointers, versions = [t.data_ptr() for t in tensors], [p._version for p in model.parameters()]
    loss = model.eval()(torch.ones(4, 6)).square().sum()  # a graph that is alive across the swap
    with bank.applied(0.9):
        model(torch.ones(2, 6))
    loss.backward()
    assert [id(t) for t in tensors] == [id(t) for t in [*model.parameters(), *model.buffers()]]
    assert pointers == [t.data_ptr() for t in tensors] and versions == [p._version for p in model.parameters()]


def test_trap31_before_the_first_update_every_read_gives_the_live_weights() -> None:
    model, bank = small_bank([0.9, Uniform(start=50)], every=16)
    run(model, 5, bank.update)
    live = model.state_dict()
    for name in (0.9, "uniform-50", "live"):
        assert states_equal(bank.weights(name), live)
        assert states_equal(bank.module(name).state_dict(), live)
        with bank.applied(name):
            assert states_equal(model.state_dict(), live)
    run(model, 20, bank.update)
    assert not states_equal(bank.weights(0.9), model.state_dict())
    assert states_equal(bank.weights("uniform-50"), model.state_dict())


def test_trap32_an_exported_module_is_a_plain_quiet_model() -> None:
    model, bank = small_bank()
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model[0].register_forward_pre_hook(lambda *_: seen.append(2))
    model[4].register_full_backward_hook(lambda *_: seen.append(3))
    model.bank = bank  # as a Lightning module would hold it
    run(model, 3, bank.update)
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
    assert bank.weights(0.9)["0.weight"].abs().sum() > 0 and model[0].weight.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_trap32_hooks_that_make_the_weight_stay_in_the_exported_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)), nn.utils.spectral_norm(nn.Linear(4, 3)))
    bank = EMABank(model, [EMA(0.9, warmup=None)], every=1)
    run(model, 5, bank.update)
    module = bank.module(0.9)
    x = torch.randn(3, 6)
    with bank.applied(0.9):
        torch.testing.assert_close(module(x), model.eval()(x))


def test_a_model_that_cannot_be_copied_is_refused_with_the_ways_that_work() -> None:
    class Handle(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle a handle")

    bank = EMABank(Handle(2, 1), [0.9])
    with pytest.raises(RuntimeError, match=r"bank.weights\(name\), bank.copy_to\(.*bank.applied\(name\)"):
        bank.module(0.9)


def again_by_pickle(bank: EMABank) -> EMABank:
    return pickle.loads(pickle.dumps(bank))


@pytest.mark.parametrize("again", [copy.deepcopy, again_by_pickle])
def test_trap33_deepcopy_and_pickle_of_a_bank(again) -> None:
    model, bank = small_bank(AVERAGES)
    handle = bank.attach(sgd(model))
    bank._count_step()
    other = again(bank)
    handle.remove()
    assert other.model is not model and other.num_steps == 1
    with torch.no_grad():
        for each in (model, other.model):
            for parameter in each.parameters():
                parameter.mul_(1.01)
    assert bank.update() and other.update()
    for name in bank.names:
        assert states_equal(bank.weights(name), other.weights(name))
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    bank.update()
    assert not states_equal(bank.weights("plain"), other.weights("plain"))


def test_trap33_a_model_that_holds_its_bank_can_be_copied() -> None:
    model, bank = small_bank()
    model.bank = bank
    bank.update()
    other = copy.deepcopy(model)
    assert other.bank.model is other
    assert other.bank.update()


# Counting -------------------------------------------------------------------------------------------------------------


def test_trap35_steps_are_counted_over_epochs() -> None:
    _, bank = small_bank(every=16)
    averaged = [[bank.update() for _ in range(391)].count(True) for _ in range(16)]
    assert sum(averaged) == 391 and set(averaged) == {24, 25}


def test_trap36_gradient_accumulation_and_skipped_steps_are_not_counted() -> None:
    model, bank = small_bank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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


def test_trap61_a_fused_optimizer_that_skips_inside_is_not_counted() -> None:
    model, bank = small_bank()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    bank.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert bank.num_steps == 2


def test_trap37_flush_takes_the_rest_of_the_period_in_and_does_not_shift_it() -> None:
    model, bank = small_bank([EMA(0.9, warmup=None), Uniform()], every=16)
    oracle = {
        "ema-0.9": EMAOracle(live_weights(model), 16, capped(0.9, unit=None)),
        "uniform": UniformOracle(live_weights(model), 16),
    }
    assert not bank.flush()
    flushed = []

    def after() -> None:
        bank.update()
        for each in oracle.values():
            each.after_step(live_weights(model))
        if bank.num_steps in (21, 32):
            flushed.append(bank.flush())
            for each in oracle.values():
                each.take(live_weights(model))

    run(model, 40, after)
    assert flushed == [True, False]
    assert bank.num_updates == 3
    for name, each in oracle.items():
        assert_close(bank.weights(name), each.value())


def test_trap38_counters_are_python_ints() -> None:
    _, bank = small_bank()
    bank.update()
    state = bank.state_dict()
    assert all(type(n) is int for n in (bank.num_steps, bank.num_updates, state["num_steps"], state["num_updates"]))


def test_trap39_an_update_that_is_not_due_allocates_nothing() -> None:
    _, bank = small_bank(every=10**9)
    for _ in range(1000):
        bank.update()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            bank.update()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert grown < 200  # the counter itself


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
    with pytest.raises(RuntimeError, match="a step of the attached optimizer"), bank.applied(0.9):
        optimizer.step()
    with pytest.raises(RuntimeError, match="twice"):
        bank.update()


def test_reset_starts_an_average_afresh() -> None:
    model, bank = small_bank([0.9, EMA(0.5, warmup=None)])
    run(model, 5, bank.update)
    bank.reset(0.9)
    assert states_equal(bank.weights(0.9), model.state_dict())
    untouched = bank.weights(0.5)
    fresh = EMABank(model, [0.9], every=1)
    run(model, 5, lambda: (bank.update(), fresh.update()), seed=2)
    assert states_equal(bank.weights(0.9), fresh.weights(0.9))
    assert not states_equal(bank.weights(0.5), untouched)
    bank.reset()
    assert states_equal(bank.weights(0.5), model.state_dict())


# Numbers gone bad -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "wide", "half_precision", "odd"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_trap49_non_finite_weights_never_enter_an_average(name: str, value: float) -> None:
    for policy in ("raise", "skip"):
        model = build(name)
        bank = EMABank(model, AVERAGES, every=1, on_nonfinite=policy)
        run(model, 3, bank.update)
        before = {key: bank.weights(key) for key in ("plain", "uniform")}
        parameters = [p for p in model.parameters() if p.requires_grad and p.numel()]
        victim = parameters[-1]
        kept = victim.detach().clone()
        with torch.no_grad():
            victim.view(-1)[-1:].fill_(value) if victim.is_contiguous() else victim.fill_(value)
        if policy == "raise":
            with pytest.raises(FloatingPointError, match=r"NaN or inf at step 4, in '"):
                bank.update()
        else:
            assert bank.update() is False
            assert bank.num_skipped == 1
        with torch.no_grad():
            victim.copy_(kept)
        live = model.state_dict()
        for key, state in before.items():
            now = bank.weights(key)
            assert all(torch.equal(state[k], now[k]) for k in state if state[k].dtype == torch.float32 and k in live)
        assert bank.update()


def test_trap63_a_lone_bad_value_in_a_huge_tensor_is_reported_and_never_handed_out() -> None:
    model = nn.Linear(1500, 1500, bias=False)
    bank = EMABank(model, [0.9], every=1)
    bank.update()
    with torch.no_grad():
        model.weight[1000, 1000] = float("nan")
    updates = 0
    with pytest.raises(FloatingPointError, match="'weight'"):
        for _ in range(16):
            bank.update()
            updates += 1
    assert updates < 16
    if updates:
        for read in (bank.weights, bank.module, lambda name: bank.applied(name).__enter__()):
            with pytest.raises(FloatingPointError, match="reset"):
                read(0.9)
        with pytest.raises(FloatingPointError):
            bank.state_dict()


def test_a_weight_that_is_bad_from_the_start_is_refused() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[0] = float("nan")
    with pytest.raises(ValueError, match="'bias' hold NaN or inf when the bank is built"):
        EMABank(model, [0.9])


def test_weights_that_overflow_a_sum_are_not_taken_for_bad() -> None:
    model = nn.Linear(3000, 3, bias=False)
    with torch.no_grad():
        model.weight.fill_(3e38)
    bank = EMABank(model, [0.9], every=1)
    assert bank.update()
    assert torch.isfinite(bank.weights(0.9)["weight"]).all()


# Checkpoint and resume ------------------------------------------------------------------------------------------------


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
        (lambda s: s.pop("averages"), "averages are missing"),
        (lambda s: s.update(format=99), "format 99"),
        (lambda s: s.update(every=8), "every=8"),
        (lambda s: s["averages"].pop("ema-0.9"), "same averages"),
        (lambda s: s["averages"].update({"x": s["averages"]["ema-0.9"]}), "same averages"),
        (lambda s: s["averages"]["ema-0.9"]["rule"].update(warmup="updates"), "same rule"),
        (lambda s: s["averages"]["ema-0.9"]["tensors"].pop("0.bias"), "missing: '0.bias'"),
        (lambda s: s["averages"]["ema-0.9"]["tensors"].update(more=torch.ones(1)), "new: 'more'"),
        (lambda s: s["averages"]["ema-0.99"]["tensors"].update({"0.bias": torch.ones(9)}), r"\(9,\), not \(8,\)"),
    ],
)
def test_trap41_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage, says: str) -> None:
    model, bank = small_bank([0.9, 0.99], every=16)
    run(model, 20, bank.update)
    before, state = bank.state_dict(), bank.state_dict()
    damage(state)
    run(model, 20, bank.update)
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
    run(model, 3, lambda: (narrow.update(), wide.update()))
    narrow.load_state_dict(wide.state_dict())
    wide.load_state_dict(narrow.state_dict())
    assert narrow.weights(0.9)["0.weight"].dtype == torch.float32
    assert wide.weights(0.9)["0.weight"].dtype == torch.float64


def test_trap43_what_is_handed_out_and_taken_in_is_not_aliased() -> None:
    model, bank = small_bank()
    run(model, 3, bank.update)
    state, weights = bank.state_dict(), bank.weights(0.9)
    frozen = copy.deepcopy(weights)
    run(model, 3, bank.update)
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
        run(model, 3, bank.update)
        other = build(name, seed=9)
        other.load_state_dict(bank.weights(0.9), strict=True)
        assert list(bank.weights(0.9)) == list(model.state_dict())


def test_trap56_weights_loaded_after_the_bank_was_built_are_noticed() -> None:
    model, bank = small_bank(every=16)
    model.load_state_dict(build("mlp", seed=8).state_dict())
    with pytest.warns(UserWarning, match=r"call bank.reset\(\) after loading"):
        run(model, 1, bank.update)
    for step in ("reset", "none"):
        model, bank = small_bank(every=1)
        if step == "reset":
            model.load_state_dict(build("mlp", seed=8).state_dict())
            bank.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(model, 3, bank.update)


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
    oracle = EMAOracle(live_weights(model), 1, capped(0.9, unit=None))
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


# Reading --------------------------------------------------------------------------------------------------------------


def test_call_gives_the_output_of_the_module_and_touches_nothing() -> None:
    model, bank = small_bank()
    run(model, 4, bank.update)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    x = torch.randn(5, 6)
    torch.testing.assert_close(bank.call(0.9, x), bank.module(0.9)(x))
    torch.testing.assert_close(bank.call("live", input=x), copy.deepcopy(model).eval()(x).detach())
    assert states_equal(before, model.state_dict()) and modes == [m.training for m in model.modules()]
    assert not bank.call(0.9, x).requires_grad


def test_call_gathers_once_until_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    model, bank = small_bank()
    run(model, 2, bank.update)
    reads = []
    real = bank._tracked.read
    monkeypatch.setattr(bank._tracked, "read", lambda k: (reads.append(k), real(k))[1])
    first = bank.call(0.9, torch.ones(1, 6))
    bank.call(0.9, torch.ones(1, 6))
    assert len(reads) == 1
    run(model, 1, bank.update)
    assert not torch.equal(bank.call(0.9, torch.ones(1, 6)), first)
    assert len(reads) == 2


def test_call_does_not_let_a_forward_pass_write_into_live_buffers() -> None:
    model = build("odd")
    bank = EMABank(model, [0.9], every=1)
    bank.update()
    bank.call(0.9, torch.ones(2, 6))
    assert float(model.seen) == 0.0


def test_exported_modules_have_the_models_dtypes_and_states_the_stored_precision() -> None:
    model = build("half_precision")
    bank = EMABank(model, [0.9], every=1)
    run(model, 2, bank.update)
    assert {p.dtype for p in bank.module(0.9).parameters()} == {torch.bfloat16, torch.float32}
    assert {t.dtype for t in bank.weights(0.9).values()} == {torch.float32}


def test_copy_to_refuses_a_model_that_does_not_fit() -> None:
    _, bank = small_bank()
    with pytest.raises(ValueError, match="'4.weight' is"):
        bank.copy_to(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)), 0.9)
    with pytest.raises(ValueError, match="missing"):
        bank.copy_to(nn.Linear(2, 1), 0.9)


def test_copy_to_its_own_model_bootstraps_the_live_weights() -> None:
    model, bank = small_bank()
    run(model, 5, bank.update)
    want, steps = bank.weights(0.9), int(model[1].num_batches_tracked)
    bank.copy_to(model, 0.9)
    assert states_equal(model.state_dict(), want)
    assert int(model[1].num_batches_tracked) == steps


def test_names_numbers_and_live() -> None:
    model, bank = small_bank([0.9, Uniform(), PowerEMA(0.1)])
    assert bank.names == ("ema-0.9", "uniform", "power-0.1")
    with pytest.raises(KeyError, match=r"ema-0\.9, uniform, power-0\.1"):
        bank.weights(0.5)
    for use in (bank.decay, bank.reset):
        with pytest.raises(KeyError, match="'live' is not an average"):
            use("live")


def test_repr_shows_what_a_decay_means() -> None:
    text = repr(EMABank(build("mlp"), [0.998, Uniform()]))
    assert "0.998 per update" in text and "0.99987488 per step" in text and "half-life 5540 steps" in text
    assert "every 16 steps" in text and "uniform" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 0}, "every=0"),
        ({"buffers": "ignore"}, "'average' and 'copy'"),
        ({"dtype": torch.bfloat16}, "torch.float32 and torch.float64"),
        ({"on_nonfinite": "warn"}, "'raise' and 'skip'"),
        ({"parameters": "some"}, "'some'"),
        ({"parameters": lambda *_: False}, "No parameter is averaged"),
    ],
)
def test_bad_options_get_a_clear_sentence(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        small_bank(**options)


def test_a_bank_wants_a_module() -> None:
    with pytest.raises(ValueError, match="torch.nn.Module; given: list"):
        EMABank([torch.ones(2)], [0.9])
    with pytest.raises(ValueError, match="lazy"):
        EMABank(nn.LazyLinear(2), [0.9])
    with pytest.raises(ValueError, match="'averaged' and 'recomputed'"):
        EMABank(nn.Linear(2, 1), [0.9]).weights(0.9, batchnorm="own")


def test_the_bank_can_be_moved() -> None:
    model, bank = small_bank()
    run(model, 3, bank.update)
    before = bank.weights(0.9)
    assert bank.to("cpu") is bank
    assert states_equal(bank.weights(0.9), before)
