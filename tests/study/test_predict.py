"""Predictions of several sets of weights in one pass equal those of one model after another, without side effects."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from emabank.study.predict import predict_each
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal


class Small(nn.Module):
    """Batch norm, dropout and a frozen layer: the layers that depend on the mode."""

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


def predict(model: nn.Module, batches: Any, **how: Any) -> Any:
    return predict_each(model, {"live": None}, batches, **how)["live"]


def random_weights(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.rand(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor
        for key, tensor in Small().state_dict().items()
    }


def random_batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [(torch.randn(size, 4, generator=generator), torch.zeros(size)) for size in (5, 5, 1)]


def test_missing_tensors_are_taken_from_the_model(model: nn.Module):
    found = predict_each(model, {"partial": {"last.bias": torch.full((3,), 7.0)}, "live": None}, random_batches())
    bias = model.get_parameter("last.bias").detach().numpy()
    np.testing.assert_allclose(found["partial"], found["live"] - bias + 7.0, atol=1e-5)


class Tied(nn.Module):
    """One weight under two names, and a buffer that every forward pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.second(self.first(x)) + self.calls


def test_tied_tensors_are_replaced_under_all_names_and_buffers_are_reset_between_batches():
    model = Tied()
    batch = torch.ones(1, 2), torch.zeros(1)
    for names in (["first.weight"], ["second.weight"], ["first.weight", "second.weight"]):
        weights = dict.fromkeys(names, torch.full((2, 2), 3.0))
        found = predict_each(model, {"tied": {**weights, "calls": torch.zeros(())}}, [batch] * 2)
        assert found["tied"].tolist() == [[37.0, 37.0]] * 2  # (3 + 3) * 3 twice, and the first call
    assert model.second.weight is model.first.weight


class Cached(nn.Linear):
    """Derives its weight once in eval mode, and drops it in train()."""

    derived: Tensor | None = None

    def train(self, mode: bool = True) -> "Cached":
        self.derived = None if mode else self.derived
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        self.derived = self.weight.exp() if self.derived is None else self.derived
        return x @ self.derived.T


def test_what_a_module_caches_in_eval_mode_is_that_of_each_set():
    model, inputs = nn.Sequential(Cached(3, 2)), torch.randn(4, 3)
    sets = {"live": None, "zero": {"0.weight": torch.zeros(2, 3)}, "one": {"0.weight": torch.ones(2, 3)}}
    outputs = predict_each(model, sets, [(inputs, inputs[:, 0]), (inputs, inputs[:, 0])])
    for name, tensors in sets.items():
        weight = model[0].weight if tensors is None else tensors["0.weight"]
        expected = (inputs @ weight.detach().exp().T).repeat(2, 1)
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-6)


def test_batches_are_read_once_and_in_order(model: nn.Module):
    found = predict_each(model, {seed: random_weights(seed) for seed in range(3)}, iter(random_batches()))
    assert {logits.shape for logits in found.values()} == {(11, 3)}
    single = Small()
    single.load_state_dict(random_weights(1))
    assert np.array_equal(found[1], predict(single, random_batches()))


def test_predicting_leaves_the_model_its_modes_and_the_random_state_unchanged(model: nn.Module):
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    sets = {"live": None, **{seed: random_weights(seed) for seed in range(2)}}
    state = torch.get_rng_state()
    # A DataLoader draws a seed from the global generator each time it is iterated.
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8)), batch_size=4, shuffle=True)
    torch.set_rng_state(state)
    predict_each(model, sets, loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert {True, False} == set(modes)
    assert states_equal(model.state_dict(), before)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_an_error_restores_the_modes(model: nn.Module):
    modes = [module.training for module in model.modules()]
    with pytest.raises(RuntimeError):
        predict(model, [(torch.zeros(2, 99), torch.zeros(2))])
    assert [module.training for module in model.modules()] == modes


def test_half_precision_logits_are_close_and_float32(model: nn.Module):
    exact = predict(model, random_batches())
    for precision in ("bf16", "fp16"):
        found = predict(model, random_batches(), precision=precision)
        assert found.dtype == np.float32
        assert not np.array_equal(found, exact)
        np.testing.assert_allclose(found, exact, atol=0.05)


def test_half_precision_keeps_sets_of_weights_apart(model: nn.Module):
    # Autocast caches the tensors it has cast; those of one set must not be used for the next.
    sets = {seed: random_weights(seed) for seed in range(3)}
    together = predict_each(model, sets, random_batches(), precision="bf16")
    for seed, weights in sets.items():
        assert np.array_equal(together[seed], predict_each(model, {0: weights}, random_batches(), precision="bf16")[0])


def test_predicting_no_images_is_refused(model: nn.Module):
    with pytest.raises(ValueError, match="no images to predict; give at least one batch"):
        predict(model, [])
    assert model.training
