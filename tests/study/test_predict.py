"""Predictions of several sets of weights in one pass: those of one model after another, and nothing is touched."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from emabank.study.data.loader import batches
from emabank.study.predict import predict, predict_each
from emabank.study.train import Training
from tests.study.small_runs import config, logits_of, network_with, parts_of, training_of
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal


class Small(nn.Module):
    """Everything whose mode matters: batch norm, dropout, and a part that is frozen on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.frozen = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.frozen(self.norm(self.first(x)).relu())))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    model = Small()
    for _ in range(3):
        model(torch.randn(8, 4))
    model.train()
    model.frozen.eval()
    return model


def some_weights(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.rand(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor
        for key, tensor in Small().state_dict().items()
    }


def some_batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [(torch.randn(size, 4, generator=generator), torch.zeros(size)) for size in (5, 5, 1)]


@pytest.fixture(scope="module")
def training() -> Training:
    with torch.random.fork_rng():
        training = training_of(config(training={"epochs": 2}))
        training.run()
    return training


def test_each_set_of_weights_says_what_a_network_with_them_says(training: Training):
    given, parts = training.config, parts_of(training.config)
    sets: dict[str, Any] = {"live": None, **{name: training.bank.functional(name) for name in training.bank.names}}
    loader = batches(parts.test, size=16, normalisation=parts.normalisation)
    found = predict_each(training.model, sets, loader)
    assert list(found) == list(sets)
    for name, logits in found.items():
        model = network_with(given, training.bank.weights(name))
        with torch.no_grad():
            one_by_one = torch.cat([model(inputs) for inputs, _ in loader])
        assert logits.dtype == np.float32
        assert np.array_equal(logits, one_by_one.numpy()), name
        np.testing.assert_allclose(logits, logits_of(model, parts.test, parts).numpy(), atol=1e-4)
    assert all(not np.array_equal(found[a], found[b]) for a, b in itertools.combinations(found, 2))


def test_what_a_set_does_not_name_is_taken_from_the_model(model: nn.Module):
    found = predict_each(model, {"headless": {"last.bias": torch.full((3,), 7.0)}, "live": None}, some_batches())
    bias = model.get_parameter("last.bias").detach().numpy()
    np.testing.assert_allclose(found["headless"], found["live"] - bias + 7.0, atol=1e-5)


class Tied(nn.Module):
    """One weight under two names, and a buffer that each forward pass puts another tensor in place of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.second(self.first(x)) + self.calls


def test_a_tied_tensor_is_replaced_under_all_its_names_and_no_batch_sees_what_another_left():
    model = Tied()
    one = [(torch.ones(1, 2), torch.zeros(1))]
    for names in (["first.weight"], ["second.weight"], ["first.weight", "second.weight"]):
        weights = dict.fromkeys(names, torch.full((2, 2), 3.0))
        found = predict_each(model, {"tied": {**weights, "calls": torch.zeros(())}}, one * 2)
        assert found["tied"].tolist() == [[37.0, 37.0]] * 2  # (3 + 3) * 3 twice, and the first call
    assert model.second.weight is model.first.weight


def test_each_batch_is_prepared_once_and_in_order(model: nn.Module):
    given = iter(some_batches())  # cannot be iterated twice
    found = predict_each(model, {seed: some_weights(seed) for seed in range(3)}, given)
    assert {logits.shape for logits in found.values()} == {(11, 3)}
    single = Small()
    single.load_state_dict(some_weights(1))
    assert np.array_equal(found[1], predict(single, some_batches()))


def test_the_model_its_modes_and_the_random_numbers_are_left_as_they_were(model: nn.Module):
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    sets = {"live": None, **{seed: some_weights(seed) for seed in range(2)}}
    state = torch.get_rng_state()
    # A DataLoader draws a seed from the global generator each time it is iterated.
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8)), batch_size=4, shuffle=True)
    torch.set_rng_state(state)
    predict_each(model, sets, loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert True in modes
    assert False in modes
    assert states_equal(model.state_dict(), before)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_after_an_error_the_modes_are_as_before_too(model: nn.Module):
    modes = [module.training for module in model.modules()]
    with pytest.raises(RuntimeError):
        predict(model, [(torch.zeros(2, 99), torch.zeros(2))])
    assert [module.training for module in model.modules()] == modes


def test_in_half_precision_the_logits_are_near_and_float32(model: nn.Module):
    exact = predict(model, some_batches())
    for precision in ("bf16", "fp16"):
        found = predict(model, some_batches(), precision=precision)
        assert found.dtype == np.float32
        assert not np.array_equal(found, exact)
        np.testing.assert_allclose(found, exact, atol=0.05)


def test_in_half_precision_no_set_of_weights_is_taken_for_another(model: nn.Module):
    # Autocast keeps what it has cast; that of one set must not be used for the next.
    sets = {seed: some_weights(seed) for seed in range(3)}
    together = predict_each(model, sets, some_batches(), precision="bf16")
    for seed, weights in sets.items():
        assert np.array_equal(together[seed], predict_each(model, {0: weights}, some_batches(), precision="bf16")[0])


def test_no_images_are_refused_in_one_sentence(model: nn.Module):
    with pytest.raises(ValueError, match=r"^there are no images to predict; give at least one batch$"):
        predict(model, [])
    assert model.training
