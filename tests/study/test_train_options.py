"""The options of the training loop: bootstrapping, SWA, precision, memory format; and divergence."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from emabank import EMA, EMABank
from emabank.study import train
from emabank.study.data.splits import stratified_subset
from tests.study.small_runs import (
    NAMES,
    CheckpointFiles,
    config,
    in_float64,
    logits_of,
    network_with,
    parts_of,
    plain_training,
    trained,
    training_of,
    weights_of_each_epoch,
)
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import EMAOracle, assert_close, constant, exact, live_weights, states_equal

# Bootstrapping, constant rates, SWA


def test_bootstrapping_copies_the_average_into_the_live_weights_after_every_epoch():
    run_config = config(training={"bootstrap": "ema-20%"})
    banks: list[EMABank] = []

    def after_epoch(model: nn.Module, epoch: int) -> None:
        if epoch < 4:  # after the last epoch the live weights stay as measured
            model.load_state_dict(banks[0].weights("average"))

    oracle = plain_training(
        run_config,
        at_start=lambda model: banks.append(EMABank(model, {"average": EMA(half_life=4, warmup=None)}, every=1)),
        after_step=lambda model: banks[0].update() and None,
        after_epoch=after_epoch,
    )
    training = trained(run_config)
    assert states_equal(training.model.state_dict(), oracle.state_dict())
    assert states_equal(
        training.bank.weights("ema-20%", batchnorm="averaged"), banks[0].weights("average", batchnorm="averaged")
    )
    assert not states_equal(training.model.state_dict(), trained(config()).model.state_dict())


def test_bootstrapping_every_few_steps_first_updates_the_average():
    """Otherwise the steps since its last update would be lost."""
    run_config = config(training={"bootstrap": "ema-60%", "bootstrap_every": 3}, averages={"every": 2})
    banks: list[EMABank] = []

    def after_step(model: nn.Module) -> None:
        banks[0].update()
        if banks[0].num_steps % 3 == 0:
            banks[0].flush()
            model.load_state_dict(banks[0].weights("average"))

    oracle = plain_training(
        run_config,
        at_start=lambda model: banks.append(EMABank(model, {"average": EMA(half_life=12, warmup=None)}, every=2)),
        after_step=after_step,
    )
    training = trained(run_config)
    assert states_equal(training.model.state_dict(), oracle.state_dict())
    assert not states_equal(training.model.state_dict(), trained(config()).model.state_dict())


def test_a_rate_held_from_an_epoch_on_changes_nothing_before():
    run_config = config(constant_from=2)
    training, weights = weights_of_each_epoch(run_config)
    _, unforked = weights_of_each_epoch(config())
    rates = [epoch["rate"] for epoch in training.history()]
    at_the_fork = 0.2 * (1 + math.cos(math.pi * 8 / 18))
    assert rates[2:] == pytest.approx([at_the_fork] * 2)
    for epoch in range(1, 5):
        assert states_equal(weights["live", epoch], unforked["live", epoch]) == (epoch <= 2)
    assert states_equal(training.model.state_dict(), plain_training(run_config).state_dict())


def test_swa_is_the_mean_of_the_live_weights_after_every_epoch_since_the_fork():
    run_config = config(
        trained_on="100%", constant_from=2, swa=True, measuring={"test_curves": True}, training={"epochs": 5}
    )
    training, weights = weights_of_each_epoch(run_config)
    live = [exact(weights["live", epoch]) for epoch in (3, 4, 5)]
    mean = {key: sum(state[key] for state in live) / 3 for key in live_weights(training.model)}
    kept = {selected.keep.name: selected for selected in training.kept()}
    assert list(kept) == ["live-last", "swa-recomputed-last"]
    assert kept["swa-recomputed-last"].keep.epoch == 5
    assert_close(kept["swa-recomputed-last"].tensors, mean)
    assert {metric.epoch for metric in training.test_curves if metric.weights == "swa"} == {3, 4, 5}


def test_swa_is_measured_from_its_first_sample_and_never_chosen():
    tuned = trained(config(constant_from=1, swa=True, training={"epochs": 3}))
    assert {metric.epoch for metric in tuned.measured if metric.weights == "swa"} == {2, 3}
    assert {row.average for row in tuned.selector.averages.history} == set(NAMES)


# Hardware


def test_weights_and_averages_stay_float32_in_bfloat16_training():
    training = trained(config(hardware={"precision": "bf16"}))
    tensors = [*training.model.parameters(), *training.bank.weights(NAMES[0]).values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32, torch.int64}
    assert training.losses != trained(config()).losses
    assert training.losses == pytest.approx(trained(config()).losses, rel=0.1)


def test_trap36_a_step_skipped_by_the_loss_scaler_does_not_update_the_average():
    run_config = config(training={"network": "own", "epochs": 1}, hardware={"precision": "fp16"})
    training = training_of(run_config, make_model=Loud)
    taken: list[int] = []
    oracle = EMAOracle(live_weights(training.model), 1, constant(0.5))  # a half-life of one step of five

    def after_step(*_: object) -> None:
        taken.append(len(taken))
        oracle.after_step(live_weights(training.model))

    training.optimizer.register_step_post_hook(after_step)
    training.run()
    assert 0 < len(taken) < training.steps == 5
    assert training.bank.num_steps == len(taken)
    assert_close(training.bank.weights("ema-20%", batchnorm="averaged"), oracle.value())


class Loud(nn.Module):
    """Its gradients overflow in fp16 at the initial loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)).relu() * 256) / 16


@pytest.mark.parametrize("options", [{"channels_last": True, "fused": False}, {"fused": True}])
def test_channels_last_and_fused_give_the_same_numbers_up_to_rounding(options: dict[str, bool]):
    run_configs = [config(hardware=hardware) for hardware in (options, dict.fromkeys(options, False))]
    training, other = (trained(run_config, make_model=in_float64(run_config)) for run_config in run_configs)
    convolution = next(
        layer for layer in training.model.modules() if isinstance(layer, nn.Conv2d) and layer.in_channels > 1
    )
    assert "channels_last" not in options or convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert training.optimizer.defaults["fused"] == options["fused"] and not other.optimizer.defaults["fused"]
    assert training.losses == pytest.approx(other.losses, rel=1e-9)
    assert_close(training.model.state_dict(), other.model.state_dict(), rtol=1e-9)


def test_compiling_trains_the_same_weights_under_the_same_names(monkeypatch: pytest.MonkeyPatch):
    # The default back end needs a minute to compile; all of them wrap the model, which is what matters here.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    training, plain = (
        trained(config(hardware={"compile": on}, training={"network": "vgg-small", "epochs": 2}))
        for on in (True, False)
    )
    assert training._forward is not training.model
    assert training.losses == pytest.approx(plain.losses, rel=1e-5)
    assert_close(exact(training.model.state_dict()), exact(plain.model.state_dict()), rtol=1e-4)
    assert training.bank.weights(NAMES[0]).keys() == plain.bank.weights(NAMES[0]).keys()


# Diverging


@pytest.mark.parametrize(
    "options", [{}, {"trained_on": "100%"}, {"training": {"network": "vgg-small"}, "averages": {"every": 16}}]
)
def test_a_diverging_run_ends_early_and_keeps_nothing(options: dict[str, Any], tmp_path: Path):
    training, checkpoints = training_of(config(rate=1e6, **options)), CheckpointFiles(tmp_path)
    lines: list[str] = []
    training.run(checkpoints, checkpoint_seconds=0, on_epoch=lambda epoch, words: lines.append(words))
    assert training.diverged
    assert training.epoch == 1
    assert training.kept() == []
    assert lines[-1].endswith("diverged")
    resumed = training_of(config(rate=1e6, **options))
    resumed.load_state_dict(checkpoints.load_checkpoint())
    assert resumed.diverged
    assert resumed.is_over
    assert states_equal(resumed.state_dict(), training.state_dict())


@pytest.mark.parametrize(("trained_on", "epochs"), [("80%", 1), ("100%", 4)])
def test_a_run_with_infinite_logits_in_evaluation_has_diverged(trained_on: str, epochs: int):
    # On all images nothing is measured before the end.
    training = trained(config(training={"network": "own"}, trained_on=trained_on), make_model=Overflowing)
    assert np.isfinite(training.losses).all()
    assert training.diverged
    assert training.epoch == epochs
    assert training.kept() == []


class Overflowing(nn.Module):
    """Finite in training, infinite in evaluation, as with running statistics that lag behind growing weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(x.flatten(1))
        return logits if self.training else logits * 1e38 * 1e38


@pytest.mark.parametrize("until", [2, 4])
def test_an_average_with_nan_logits_is_never_chosen_and_does_not_end_the_run(
    until: int, monkeypatch: pytest.MonkeyPatch
):
    training = training_of(config())

    def predict_each(*args, **options):
        found = train_predict_each(*args, **options)
        return {
            (weights, statistics): logits if weights == "live" or training.epoch > until else logits * math.nan
            for (weights, statistics), logits in found.items()
        }

    train_predict_each = train.predict_each
    monkeypatch.setattr(train, "predict_each", predict_each)
    training.run()
    assert not training.diverged
    kept = {selected.keep.name for selected in training.kept()}
    if until == 4:
        assert training.selector.selected() == {}
        assert kept == {"live-last"}
    else:
        assert {training.selector.selected()[criterion]["epoch"] for criterion in ("accuracy", "loss")} <= {3, 4}
        assert len(kept) == 10  # by clean and by noisy labels


# Measuring less -----------------------------------------------------------------------------------------------------


def test_curves_on_fewer_images_use_the_same_images_every_epoch():
    measuring = {"recompute": "each-epoch", "on_train": True, "test_curves": True}
    run_config = config(data={"test_subset": None}, measuring={**measuring, "curve_images": 60}, trained_on="100%")
    training, weights = weights_of_each_epoch(run_config)
    parts = parts_of(run_config)
    for split, part in (("train", parts.train), ("test", parts.test)):
        chosen = part.take(stratified_subset(part.clean, 60, seed=0))
        for epoch in (1, 4):
            for name in ("live", "ema-20%"):
                logits = logits_of(network_with(run_config, weights[name, epoch]), chosen, parts)
                expected = float((logits.argmax(1) == chosen.labels).float().mean())
                statistics = "own" if name == "live" else "averaged"
                measured = [*training.measured, *training.test_curves]
                key = (epoch, name, statistics, split, "accuracy")
                [value] = [m.value for m in measured if tuple(m)[:5] == key]
                assert value == pytest.approx(expected)
    whole = trained(config(data={"test_subset": None}, measuring=measuring, trained_on="100%"))
    assert states_equal(whole.model.state_dict(), training.model.state_dict())


def test_curve_images_do_not_affect_validation():
    few, whole = (
        trained(config(measuring=measuring, training={"epochs": 1})) for measuring in ({"curve_images": 10}, {})
    )
    assert few.measured == whole.measured


def test_training_images_are_measured_every_few_epochs_and_after_the_last():
    measuring = {"on_train": True, "test_curves": True}
    options = {"trained_on": "100%", "training": {"epochs": 5}}
    every, third = (trained(config(measuring={**measuring, **more}, **options)) for more in ({}, {"train_every": 3}))
    assert third.measured == [metric for metric in every.measured if metric.epoch in (3, 5)]
    assert third.test_curves == every.test_curves
