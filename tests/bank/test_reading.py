"""The ways to read an average, and errors for wrong arguments."""

import copy

import pytest
import torch
from torch import nn

from emabank import BestTracker, EMABank, PowerEMA, Uniform, recalibrate_batchnorm
from tests.support.models import build, small_bank, train
from tests.support.oracle import states_equal


def test_call_gives_the_output_of_the_module_and_changes_nothing() -> None:
    model, bank = small_bank()
    train(model, 4, bank.update)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    x = torch.randn(5, 6)
    torch.testing.assert_close(bank.call(0.9, x), bank.module(0.9)(x))
    torch.testing.assert_close(bank.call("live", input=x), copy.deepcopy(model).eval()(x).detach())
    assert states_equal(before, model.state_dict())
    assert modes == [m.training for m in model.modules()]
    assert not bank.call(0.9, x).requires_grad


def test_call_after_an_update_or_a_load_uses_the_new_average() -> None:
    model, bank = small_bank()
    train(model, 2, bank.update)
    first = bank.call(0.9, torch.ones(1, 6))
    assert torch.equal(bank.call(0.9, torch.ones(1, 6)), first)
    state = bank.state_dict()
    train(model, 1, bank.update)
    second = bank.call(0.9, torch.ones(1, 6))
    assert not torch.equal(second, first)
    torch.testing.assert_close(second, bank.module(0.9)(torch.ones(1, 6)))
    bank.load_state_dict(state)
    assert torch.equal(bank.call(0.9, torch.ones(1, 6)), first)


def test_call_does_not_write_into_live_buffers() -> None:
    model = build("odd")
    bank = EMABank(model, [0.9], every=1)
    bank.update()
    bank.call(0.9, torch.ones(2, 6))
    assert float(model.seen) == 0.0


def test_call_does_not_write_into_the_average() -> None:
    class Norm(nn.BatchNorm1d):
        stays_in_training = True  # so that a forward pass changes its statistics

        def train(self, mode: bool = True) -> "Norm":
            return super().train(self.stays_in_training)

    bank = EMABank(nn.Sequential(nn.Linear(2, 3), Norm(3)), [0.9])
    bank.update()
    inputs = torch.randn(5, 2) + 3
    bank.call(0.9, inputs)
    Norm.stays_in_training = False
    torch.testing.assert_close(bank.call(0.9, inputs), bank.module(0.9)(inputs))


class Cached(nn.Module):
    """Derives its scale once in eval mode, and drops it in train(), as nflows and GPyTorch do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.cache = nn.Parameter(torch.zeros(3)), None

    def train(self, mode: bool = True) -> "Cached":
        self.cache = None if mode else self.cache
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return x * self.weight.exp()
        self.cache = self.weight.detach().exp() if self.cache is None else self.cache
        return x * self.cache


@pytest.mark.parametrize("training", [True, False])
def test_what_a_model_caches_in_eval_mode_is_never_that_of_other_weights(training: bool) -> None:
    model, x = Cached(), torch.ones(3)
    bank = EMABank(model, {"fast": 0.5, "mean": Uniform()}, every=1)
    for _ in range(3):
        with torch.no_grad():
            model.weight += 1
        bank.update()
        expected = {name: bank.weights(name)["weight"].exp() for name in ("live", "fast", "mean")}
        model.train()
        model.train(training)
        torch.testing.assert_close(model(x), expected["live"])
        for name, output in bank.evaluate(lambda model: model(x)).items():
            torch.testing.assert_close(output, expected[name])
            torch.testing.assert_close(bank.call(name, x), expected[name])
            torch.testing.assert_close(bank.module(name)(x), expected[name])
        torch.testing.assert_close(model(x), expected["live"])


def test_modules_have_the_models_dtypes_and_weights_the_stored_dtype() -> None:
    model = build("half_precision")
    bank = EMABank(model, [0.99], every=2)
    for _ in range(2):  # before and after the first update
        train(model, 1, bank.update)
        assert {p.dtype for p in bank.module(0.99).parameters()} == {torch.bfloat16, torch.float32}
        assert {t.dtype for t in bank.weights(0.99).values()} == {torch.float32}
    assert {t.dtype for t in bank.weights("live").values()} == {torch.bfloat16, torch.float32}


def test_functional_tensors_are_in_the_live_dtypes_and_buffers_are_copies() -> None:
    model = build("mlp").bfloat16()
    bank = EMABank(model, [0.9], every=1, parameters=lambda name, _: name == "4.bias", buffers="copy")
    bank.to("cpu").update()
    tensors = bank.functional(0.9)
    assert torch.equal(tensors["4.bias"], bank.weights(0.9)["4.bias"].bfloat16())
    assert tensors["1.running_var"].data_ptr() != model[1].running_var.data_ptr()
    assert tensors["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_copy_to_refuses_a_model_that_does_not_fit() -> None:
    model, bank = small_bank()
    with pytest.raises(ValueError, match="^model must be"):
        bank.copy_to(0.9, model)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'4.weight' is"):
        bank.copy_to(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)), 0.9)
    with pytest.raises(ValueError, match="missing"):
        bank.copy_to(nn.Linear(2, 1), 0.9)


def test_copy_to_its_own_model_bootstraps_the_live_weights() -> None:
    model, bank = small_bank()
    train(model, 5, bank.update)
    want, steps = bank.weights(0.9), int(model[1].num_batches_tracked)
    bank.copy_to(model, 0.9)
    assert states_equal(model.state_dict(), want)
    assert int(model[1].num_batches_tracked) == steps


def test_unknown_averages_are_refused() -> None:
    _model, bank = small_bank([0.9, Uniform(), PowerEMA(0.1)])
    assert bank.names == ("ema-0.9", "uniform", "power-0.1")
    with pytest.raises(KeyError, match=r"ema-0\.9, uniform, power-0\.1"):
        bank.weights(0.5)
    for use in (bank.decay, bank.reset):
        with pytest.raises(KeyError, match="'live' is not an average"):
            use("live")


def test_wrong_arguments_are_refused() -> None:
    for option, value in (
        ("every", 0),
        ("buffers", "ignore"),
        ("dtype", torch.bfloat16),
        ("on_nonfinite", "warn"),
        ("parameters", "some"),
        ("parameters", lambda *_: False),
    ):
        with pytest.raises(ValueError, match=f"^{option} must"):
            small_bank(**{option: value})
    with pytest.raises(ValueError, match="^model must"):
        EMABank([torch.ones(2)], [0.9])
    with pytest.raises(ValueError, match="^batchnorm must"):
        EMABank(nn.Linear(2, 1), [0.9]).weights(0.9, batchnorm="own")


def test_evaluate_measures_the_live_weights_and_every_average_and_restores_the_model() -> None:
    model, bank = small_bank([0.9, Uniform()])
    train(model, 4, bank.update)
    model[1].eval()
    x = torch.randn(5, 6)
    expected = {name: bank.module(name)(x) for name in ("live", *bank.names)}
    before, modes, rng = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()], torch.get_rng_state()
    noise = []

    def measure(model: nn.Module) -> torch.Tensor:
        noise.append(float(torch.rand(())))
        return model(x)

    results = bank.evaluate(measure)
    assert list(results) == ["live", *bank.names]
    for name, value in results.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)
        assert not value.requires_grad
    assert len(set(noise)) == 1
    with pytest.raises(ZeroDivisionError):
        bank.evaluate(lambda model: 1 / 0)
    assert states_equal(model.state_dict(), before)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), rng)
    assert list(bank.evaluate(measure, averages=[0.9])) == ["ema-0.9"]


def test_recomputed_statistics_are_the_default_while_they_are_current() -> None:
    model, bank = small_bank()
    train(model, 4, bank.update)
    averaged = bank.weights(0.9)
    recalibrate_batchnorm(bank, [torch.randn(32, 6) * 3 + 1])
    recomputed = bank.weights(0.9, batchnorm="recomputed")
    assert not states_equal(averaged, recomputed)
    assert bank.statistics(0.9) == "recomputed"
    assert states_equal(bank.weights(0.9), recomputed)
    assert states_equal(bank.weights(0.9, batchnorm="averaged"), averaged)
    x = torch.randn(3, 6)
    wanted = bank.module(0.9, batchnorm="recomputed")(x)
    torch.testing.assert_close(bank.call(0.9, x), wanted)
    torch.testing.assert_close(bank.evaluate(lambda model: model(x))["ema-0.9"], wanted)
    tracker = BestTracker(bank, {"loss": "min"})
    tracker.evaluate(1, lambda model: {"loss": float(model(x).square().mean()) + 100.0 * (model(x) != wanted).any()})
    assert states_equal(tracker.weights("loss", 0.9), recomputed)
    assert tracker.advice().batchnorm in ("recomputed", None)
    train(model, 1, bank.update)
    assert bank.statistics(0.9) == "averaged"
    assert states_equal(bank.weights(0.9), bank.weights(0.9, batchnorm="averaged"))


def test_moving_the_bank_or_resetting_another_average_keeps_recomputed_statistics() -> None:
    model = build("mlp")
    bank = EMABank(model, {"kept": 0.9, "reset": 0.99})
    train(model, 2, bank.update)
    recalibrate_batchnorm(bank, [torch.randn(32, 6)])
    recomputed = bank.weights("kept")
    bank.to("cpu").reset("reset")
    assert (bank.statistics("kept"), bank.statistics("reset")) == ("recomputed", "averaged")
    assert states_equal(bank.weights("kept"), recomputed)
