"""The training loop with each of its options: bootstrapping, SWA, precisions, memory order; spikes and divergence."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, EMABank
from emabank.study import train
from emabank.study.config import Keep
from emabank.study.data.images import make_images
from emabank.study.data.splits import stratified_subset
from emabank.study.evaluate import EpochMetric, epoch_metrics
from emabank.study.serialize import to_dict
from emabank.study.train import Training
from tests.study.small_runs import (
    NAMES,
    Drawer,
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


def test_bootstrapping_puts_the_average_into_the_live_weights_once_an_epoch_and_keeps_the_momentum():
    given = config(training={"bootstrap": "ema-20%"})
    banks: list[EMABank] = []

    def after_epoch(model: nn.Module, epoch: int) -> None:
        if epoch < 4:  # after the last epoch nothing is trained any more, and the live weights stay what was measured
            model.load_state_dict(banks[0].weights("average"))

    oracle = plain_training(
        given,
        at_start=lambda model: banks.append(EMABank(model, {"average": EMA(half_life=4, warmup=None)}, every=1)),
        after_step=lambda model: banks[0].update() and None,
        after_epoch=after_epoch,
    )
    training = trained(given)
    assert states_equal(training.model.state_dict(), oracle.state_dict())
    assert states_equal(
        training.bank.weights("ema-20%", batchnorm="averaged"), banks[0].weights("average", batchnorm="averaged")
    )
    assert not states_equal(training.model.state_dict(), trained(config()).model.state_dict())


def test_bootstrapping_every_few_steps_copies_an_average_that_has_just_taken_the_live_weights_in():
    """Steps between two updates of the average would otherwise be lost."""
    given = config(training={"bootstrap": "ema-60%", "bootstrap_every": 3}, averages={"every": 2})
    banks: list[EMABank] = []

    def after_step(model: nn.Module) -> None:
        banks[0].update()
        if banks[0].num_steps % 3 == 0:
            banks[0].flush()
            model.load_state_dict(banks[0].weights("average"))

    oracle = plain_training(
        given,
        at_start=lambda model: banks.append(EMABank(model, {"average": EMA(half_life=12, warmup=None)}, every=2)),
        after_step=after_step,
    )
    training = trained(given)
    assert states_equal(training.model.state_dict(), oracle.state_dict())
    assert not states_equal(training.model.state_dict(), trained(config()).model.state_dict())


def test_from_an_epoch_on_the_rate_is_constant_and_before_all_is_the_same():
    given = config(constant_from=2)
    training, weights = weights_of_each_epoch(given)
    _, usual = weights_of_each_epoch(config())
    rates = [each["rate"] for each in training.history()]
    at_the_fork = 0.2 * (1 + math.cos(math.pi * 8 / 18))
    assert rates[2:] == pytest.approx([at_the_fork] * 2)
    for epoch in range(1, 5):
        assert states_equal(weights["live", epoch], usual["live", epoch]) == (epoch <= 2)
    assert states_equal(training.model.state_dict(), plain_training(given).state_dict())


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Training]:
    """A run with SWA, forked from another run after its second epoch, and the same trained from the beginning."""
    keep = (Keep(weights="live", epoch=1, batchnorm="own", selected_by="accuracy"),)
    trunk_config = config(trained_on="100%", keep=keep, measuring={"test_curves": True}, training={"epochs": 5})
    swa_config = replace(trunk_config, keep=(), constant_from=2, swa=True)
    drawer = Drawer(tmp_path_factory.mktemp("trunk"))
    with torch.random.fork_rng():
        training_of(trunk_config).run(drawer, forks=(2,))
        fork = training_of(swa_config)
        fork.load_state_dict(drawer.load_fork(2))
        fork.run()
    return fork, trained(swa_config)


def test_a_run_that_was_forked_equals_the_same_run_from_the_beginning_bit_for_bit(forked):
    fork, scratch = (
        {key: value for key, value in each.state_dict().items() if key not in ("kept", "random")} for each in forked
    )
    assert states_equal(fork, scratch)
    assert states_equal(*([[str(kept.keep), kept.tensors] for kept in each.kept()] for each in forked))
    assert states_equal(*(each.history() for each in forked))


def test_swa_is_the_mean_of_the_live_weights_at_the_ends_of_the_epochs_after_the_fork(forked):
    scratch = forked[1]
    _, weights = weights_of_each_epoch(scratch.config)
    live = [exact(weights["live", epoch]) for epoch in (3, 4, 5)]
    mean = {key: sum(each[key] for each in live) / 3 for key in live_weights(scratch.model)}
    kept = {each.keep.name: each for each in scratch.kept()}
    assert list(kept) == ["live-last", "swa-recomputed-last"]
    assert kept["swa-recomputed-last"].keep.epoch == 5
    assert_close(kept["swa-recomputed-last"].tensors, mean)


def test_swa_is_measured_from_its_first_sample_on_and_never_chosen(forked):
    curves = forked[1].test_curves
    assert {each.epoch for each in curves if each.weights == "swa"} == {3, 4, 5}
    tuned = trained(config(constant_from=1, swa=True, training={"epochs": 3}))
    assert {each.epoch for each in tuned.measured if each.weights == "swa"} == {2, 3}
    assert {row.average for row in tuned.selector.averages.history} == set(NAMES)


# How it is computed


def test_in_bfloat16_the_weights_and_the_averages_stay_float32():
    training = trained(config(hardware={"precision": "bf16"}))
    tensors = [*training.model.parameters(), *training.bank.weights(NAMES[0]).values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32, torch.int64}
    assert training.losses != trained(config()).losses
    assert training.losses == pytest.approx(trained(config()).losses, rel=0.1)


def test_trap36_a_step_that_the_loss_scaler_leaves_out_is_no_step_of_the_average():
    given = config(training={"network": "own", "epochs": 1}, hardware={"precision": "fp16"})
    training = training_of(given, make_model=Loud)
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
    """A network whose gradients are too large for fp16 while the loss scale is as it is at first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)).relu() * 256) / 16


def in_float64_with(hardware: dict[str, Any]) -> Training:
    given = config(hardware=hardware)
    return trained(given, make_model=in_float64(given))


def test_channels_last_gives_the_same_numbers_up_to_rounding():
    training, other = (in_float64_with({"channels_last": choice, "fused": False}) for choice in (True, False))
    convolution = next(
        layer for layer in training.model.modules() if isinstance(layer, nn.Conv2d) and layer.in_channels > 1
    )
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert training.losses == pytest.approx(other.losses, rel=1e-9)
    assert_close(training.model.state_dict(), other.model.state_dict(), rtol=1e-9)


def test_a_fused_optimizer_gives_the_same_numbers_up_to_rounding():
    training, other = (in_float64_with({"fused": choice}) for choice in (True, False))
    assert training.optimizer.defaults["fused"] and not other.optimizer.defaults["fused"]
    assert training.losses == pytest.approx(other.losses, rel=1e-9)
    assert_close(training.model.state_dict(), other.model.state_dict(), rtol=1e-9)


def test_compiled_it_trains_the_same_weights_under_the_same_names(monkeypatch: pytest.MonkeyPatch):
    # The default back end needs about a minute for its first step here; what this loop has to get right is the
    # wrapper around the model, which is there with any of them.
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
    ("given", "epochs"),
    [
        ({"rate": 1e6}, 1),
        ({"rate": 1e6, "trained_on": "100%"}, 1),
        ({"rate": 1e6, "training": {"network": "vgg-small"}, "averages": {"every": 16}}, 1),
    ],
)
def test_a_run_that_diverges_ends_early_and_keeps_nothing(given, epochs, tmp_path: Path):
    training, drawer = training_of(config(**given)), Drawer(tmp_path)
    told: list[str] = []
    training.run(drawer, checkpoint_seconds=0, on_epoch=lambda epoch, words: told.append(words))
    assert training.diverged
    assert training.epoch == epochs
    assert training.kept() == []
    assert told[-1].endswith("diverged")
    again = training_of(config(**given))
    again.load_state_dict(drawer.load_checkpoint())
    assert again.diverged
    assert again.is_over
    assert states_equal(again.state_dict(), training.state_dict())


@pytest.mark.parametrize(("trained_on", "epochs"), [("80%", 1), ("100%", 4)])
def test_a_run_whose_loss_is_finite_and_whose_live_weights_say_inf_has_diverged(trained_on: str, epochs: int):
    # On all images nothing is measured while it trains, and it is found out at the end.
    training = trained(config(training={"network": "own"}, trained_on=trained_on), make_model=Overflowing)
    assert np.isfinite(training.losses).all()
    assert training.diverged
    assert training.epoch == epochs
    assert training.kept() == []


class Overflowing(nn.Module):
    """Sane in training and infinite in evaluation, as with running statistics that lag behind growing weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(x.flatten(1))
        return logits if self.training else logits * 1e38 * 1e38


@pytest.mark.parametrize("until", [2, 4])
def test_an_average_that_says_nan_is_never_chosen_and_ends_nothing(until: int, monkeypatch: pytest.MonkeyPatch):
    training = training_of(config())

    def predict_each(*given, **options):
        found = train_predict_each(*given, **options)
        return {
            (weights, statistics): logits if weights == "live" or training.epoch > until else logits * math.nan
            for (weights, statistics), logits in found.items()
        }

    train_predict_each = train.predict_each
    monkeypatch.setattr(train, "predict_each", predict_each)
    training.run()
    assert not training.diverged
    kept = {each.keep.name for each in training.kept()}
    if until == 4:
        assert training.selector.selected() == {}
        assert kept == {"live-last"}
    else:
        assert {training.selector.selected()[criterion]["epoch"] for criterion in ("accuracy", "loss")} <= {3, 4}
        assert len(kept) == 9  # by clean and by noisy labels


def test_logits_that_are_not_finite_have_measures_that_are_not_numbers():
    part = make_images(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]))
    found = epoch_metrics("train", part, np.array([[0.0, 1.0], [np.inf, 0.0]]))
    assert found.keys() == {"accuracy", "loss"}
    assert all(math.isnan(value) for value in found.values())


# What is measured, and what is read back ------------------------------------------------------------------------------


def test_curves_on_a_part_of_the_images_are_those_of_the_same_images_every_epoch_and_change_nothing_else():
    measuring = {"recompute": "each-epoch", "on_train": True, "test_curves": True}
    given = config(data={"test_subset": None}, measuring={**measuring, "curve_images": 60}, trained_on="100%")
    training, weights = weights_of_each_epoch(given)
    parts = parts_of(given)
    for split, part in (("train", parts.train), ("test", parts.test)):
        chosen = part.take(stratified_subset(part.clean, 60, seed=0))
        for epoch in (1, 4):
            for name in ("live", "ema-20%"):
                logits = logits_of(network_with(given, weights[name, epoch]), chosen, parts)
                expected = float((logits.argmax(1) == chosen.labels).float().mean())
                statistics = "own" if name == "live" else "averaged"
                measured = [*training.measured, *training.test_curves]
                key = (epoch, name, statistics, split, "accuracy")
                [value] = [m.value for m in measured if tuple(m)[:5] == key]
                assert value == pytest.approx(expected)
    whole = trained(config(data={"test_subset": None}, measuring=measuring, trained_on="100%"))
    assert states_equal(whole.model.state_dict(), training.model.state_dict())


def test_validation_is_always_measured_on_all_its_images_and_a_run_without_a_part_keeps_its_identity():
    few, whole = (
        trained(config(measuring=measuring, training={"epochs": 1})) for measuring in ({"curve_images": 10}, {})
    )
    assert few.measured == whole.measured
    assert "curve_images" not in to_dict(whole.config)["recipe"]["measuring"]
    assert to_dict(few.config)["recipe"]["measuring"]["curve_images"] == 10


def test_training_images_are_measured_every_so_many_epochs_and_after_the_last():
    measuring = {"on_train": True, "test_curves": True}
    given = {"trained_on": "100%", "training": {"epochs": 5}}
    every, third = (trained(config(measuring={**measuring, **more}, **given)) for more in ({}, {"train_every": 3}))
    assert third.measured == [metric for metric in every.measured if metric.epoch in (3, 5)]
    assert third.test_curves == every.test_curves
    assert "train_every" not in to_dict(every.config)["recipe"]["measuring"]


# A loss that leaps ----------------------------------------------------------------------------------------------------


class Leaping(nn.Module):
    """A linear classifier whose logits are off by `leap` in one training step, in its 7th."""

    def __init__(self, leap: float) -> None:
        super().__init__()
        self.leap, self.steps = leap, 0
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.layers(inputs)
        if not self.training:
            return logits
        self.steps += 1
        return logits + self.leap * torch.eye(10)[0] if self.steps == 7 else logits


def made(leap: float):
    return trained(config(training={"network": "own"}), make_model=lambda: Leaping(leap))


def test_a_finite_spike_is_told_in_the_history_and_the_run_goes_on():
    calm, spiked = made(0.0), made(1e4)
    assert not spiked.diverged and spiked.epoch == calm.epoch == 4
    losses = [each["training_loss"] for each in spiked.history()]
    assert losses[1] > 100 > max(losses[0], *losses[2:])
    assert all(math.isfinite(each.value) for each in spiked.measured)
    for name in spiked.bank.names:
        assert all(torch.isfinite(tensor).all() for tensor in spiked.bank.weights(name).values())


@pytest.mark.parametrize("leap", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_which_is_marked_and_keeps_nothing_bad(leap: float):
    training = made(leap)
    assert training.diverged and training.epoch == 2
    assert training.kept() == []
    bad: list[EpochMetric] = [each for each in training.measured if not math.isfinite(each.value)]
    assert not bad
    for name in training.bank.names:
        assert all(torch.isfinite(tensor).all() for tensor in training.bank.weights(name).values())
