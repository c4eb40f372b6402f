"""The bank for Accelerate with a real accelerator: averages as computed by hand, and training unchanged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from emabank import recalibrate_batchnorm
from tests.support.models import accuracy_and_loss, copies, data, network
from tests.support.oracle import assert_equal, ema
from tests.support.trainers import AVERAGES

accelerate = pytest.importorskip("accelerate", reason="the extra accelerate is not installed")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402

from emabank.integrations.accelerate import AcceleratedBank  # noqa: E402

VALIDATION = data(20, seed=2).tensors


def evaluate(model: nn.Module) -> Mapping[str, float]:
    assert not any(module.training for module in model.modules())
    accuracy, loss = accuracy_and_loss(model, VALIDATION)
    torch.rand(3)  # an evaluation may draw random numbers
    return {"loss": loss, "accuracy": accuracy}


class Run:
    """A usual training loop with Accelerate."""

    def __init__(self, *, accumulate: int = 1, averages: bool = True, **keywords: Any) -> None:
        set_seed(3)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        model = network(dropout=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        loader = DataLoader(data(48, seed=1), batch_size=8, shuffle=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.first = copies(self.model)
        self.weights: list[dict[str, Tensor]] = []
        self.averages = None
        if averages:
            criteria: Any = {"loss": "min", "accuracy": "max"}
            settings = {"every": 1, "criteria": criteria, "recalibrate_on": self.loader, **keywords}
            self.averages = AcceleratedBank(self.accelerator, self.model, AVERAGES, **settings)
        self.metrics: dict[str, dict[str, float]] = {}

    def epoch(self, at: int) -> None:
        self.model.train()
        for inputs, targets in self.loader:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(cross_entropy(self.model(inputs), targets))
                self.optimizer.step()
                self.optimizer.zero_grad()
                if self.averages is not None:
                    self.averages.update()
            self.weights.append(copies(self.model))
        if self.averages is None:
            self.model.eval()
            self.metrics = {"live": dict(evaluate(self.model))}
        else:
            self.model.train()
            self.metrics = self.averages.evaluate(evaluate, at=at)
            assert all(module.training for module in self.model.modules())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_averages_and_metrics_equal_those_computed_by_hand(accumulate: int):
    loop = Run(accumulate=accumulate, recalibrate=True)
    loop.epoch(1)
    loop.epoch(2)
    bank = loop.averages.bank
    sampled = loop.weights[accumulate - 1 :: accumulate]
    assert bank.num_steps == len(sampled) == 12 // accumulate
    for name, rule in AVERAGES.items():
        weights = bank.weights(name, batchnorm="averaged")
        for key in ("0.weight", "1.running_var", "3.bias"):
            expected = ema(loop.first[key], [sample[key] for sample in sampled], rule.decay)
            torch.testing.assert_close(weights[key].double(), expected, rtol=1e-5, atol=1e-6)
        module = bank.module(name)
        recalibrate_batchnorm(module, [data(48, seed=1).tensors[0]])
        accuracy, loss = accuracy_and_loss(module, VALIDATION)
        assert loop.metrics[name]["loss"] == pytest.approx(loss, rel=1e-4)
        assert loop.metrics[name]["accuracy"] == pytest.approx(accuracy)
    assert loop.averages.tracker.best("loss").value == min(
        row.value for row in loop.averages.tracker.history if row.metric == "loss"
    )


def test_training_is_not_changed_by_the_bank():
    runs = []
    for averages in (False, True):
        loop = Run(averages=averages)
        loop.epoch(1)
        loop.epoch(2)
        runs.append(loop)
    plain, averaged = runs
    assert averaged.metrics["live"] == plain.metrics["live"]
    assert_equal(averaged.weights, plain.weights)


def test_metrics_are_logged_under_the_averages_name(monkeypatch: pytest.MonkeyPatch):
    loop, rows = Run(), []
    monkeypatch.setattr(loop.accelerator, "log", lambda values, step: rows.append((step, values)))
    loop.epoch(7)
    ((step, values),) = rows
    assert step == 7
    assert set(values) == {"loss", "accuracy", "loss/fast", "loss/slow", "accuracy/fast", "accuracy/slow"}
    assert values["loss/slow"] == loop.metrics["slow"]["loss"]


def test_a_complete_evaluation_counts_after_a_partial_one_but_not_twice():
    loop = Run()
    loop.averages.evaluate(evaluate, at=1, complete=False)
    loop.epoch(1)
    assert loop.averages.tracker.best("loss", "slow").value == loop.metrics["slow"]["loss"]
    with pytest.raises(ValueError, match="already observed at epoch 1"):
        loop.epoch(1)


def test_the_accelerator_saves_and_loads_the_averages(tmp_path: Path):
    uninterrupted = Run()
    for at in (1, 2, 3):
        uninterrupted.epoch(at)
        if at == 1:
            uninterrupted.accelerator.save_state(str(tmp_path))
    resumed = Run()
    resumed.accelerator.load_state(str(tmp_path))
    for at in (2, 3):
        resumed.epoch(at)
    assert resumed.averages.bank.num_steps == 18
    for name in AVERAGES:
        assert_equal(resumed.averages.bank.weights(name), uninterrupted.averages.bank.weights(name))
    assert resumed.averages.tracker.history == uninterrupted.averages.tracker.history
    assert_equal(resumed.averages.best_weights(), uninterrupted.averages.best_weights())


def test_the_best_weights_are_a_checkpoint_that_accelerate_loads(tmp_path: Path):
    loop = Run(snapshots="each")
    for at in (1, 2, 3):
        loop.epoch(at)
    tracker = loop.averages.tracker
    loop.accelerator.save(tracker.weights("loss", "slow"), tmp_path / "model.safetensors", safe_serialization=True)
    fresh = network(dropout=0.5)
    accelerate.load_checkpoint_in_model(fresh, tmp_path)
    assert accuracy_and_loss(fresh, VALIDATION)[1] == pytest.approx(tracker.best("loss", "slow").value, rel=1e-5)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_an_evaluation_restores_the_live_weights(error: type[BaseException]):
    loop = Run()
    loop.epoch(1)
    before, calls = copies(loop.model), []

    def fail(model: nn.Module) -> dict[str, float]:
        calls.append(copies(model))
        if len(calls) == 3:
            raise error("now")
        return {"loss": 1.0, "accuracy": 1.0}

    loop.model.train()
    with pytest.raises(error):
        loop.averages.evaluate(fail, at=2)
    assert not torch.equal(calls[-1]["0.weight"], before["0.weight"]), "no average was in the model"
    assert_equal(copies(loop.model), before)
    assert all(module.training for module in loop.model.modules())
    assert len(loop.averages.tracker.history) == 6


def test_batch_norm_needs_a_loader():
    with pytest.raises(ValueError, match="there is none.*recalibrate_on="):
        Run(recalibrate_on=None)
    assert Run(recalibrate_on=None, recalibrate=False).averages is not None
