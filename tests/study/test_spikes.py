"""A loss that leaps and comes back is told and survived; one that becomes NaN ends the run, which is marked."""

import math

import pytest
import torch
from torch import Tensor, nn

from emabank.study.measures import Measured
from tests.study.small_runs import config, trained
from tests.study.small_runs import one_thread as one_thread


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
    bad: list[Measured] = [each for each in training.measured if not math.isfinite(each.value)]
    assert not bad
    for name in training.bank.names:
        assert all(torch.isfinite(tensor).all() for tensor in training.bank.weights(name).values())
