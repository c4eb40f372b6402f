"""How fast this machine is: operations as the layers have them, and times that are taken without a trace."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from emabank.study.config import HardwareConfig, Recipe, RunConfig, TrainingConfig
from emabank.study.data.digits import digits_dataset
from emabank.study.run_job import network_of
from emabank.study.studies import estimate
from emabank.study.studies.cost import SIZES
from emabank.study.studies.estimate import ENOUGH, ROUNDS, measure_speed
from tests.study.small_runs import one_thread as one_thread

DIGITS = digits_dataset()


def run_config(network: str = "resnet8") -> RunConfig:
    training: Any = {"network": network, "width": 4, "epochs": 4, "batch": 32, "warmup_epochs": 0.5}
    recipe = Recipe(training=TrainingConfig(**training), hardware=HardwareConfig(device="cpu"))
    return RunConfig(recipe=recipe, rate=0.1, seed=0, trained_on="100%")


@pytest.mark.parametrize("network", ["resnet8", "vgg-small"])
def test_operations_are_those_of_the_layers(network: str):
    config = run_config(network)
    model, counted = network_of(config, DIGITS)(), [0.0]

    def count(layer: nn.Module, given: Any, made: torch.Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            counted[0] += 2 * made.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        elif isinstance(layer, nn.Linear):
            counted[0] += 2 * made.numel() * layer.in_features

    for layer in model.modules():
        layer.register_forward_hook(count)
    model.eval()(torch.zeros(1, 1, 8, 8))
    speed = measure_speed(config)
    assert speed.flops == counted[0]
    assert speed.training >= speed.forward > 0


def test_measuring_leaves_threads_and_random_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch):
    really, threads = estimate.build_network, []

    def build(*given: Any, **more: Any) -> nn.Module:
        threads.append(torch.get_num_threads())
        return really(*given, **more)

    monkeypatch.setattr(estimate, "build_network", build)
    config = run_config()
    hardware = replace(config.recipe.hardware, threads=2)
    before, state = torch.get_num_threads(), torch.get_rng_state()
    measure_speed(replace(config, recipe=replace(config.recipe, hardware=hardware)))
    assert threads == [2], "as many as the run will have"
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_and_weights_lie_in_memory_as_in_the_run(monkeypatch: pytest.MonkeyPatch, channels_last: bool):
    really = estimate.build_network
    seen: list[tuple[bool, bool]] = []

    def see(layer: nn.Conv2d, given: Any) -> None:
        tensors = given[0], layer.weight
        seen.append(tuple(each.is_contiguous(memory_format=torch.channels_last) for each in tensors))  # type: ignore[arg-type]

    def build(*given: Any, **more: Any) -> nn.Module:
        model = really(*given, **{**more, "channels": 3})
        next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d)).register_forward_pre_hook(see)
        return model

    monkeypatch.setattr(estimate, "build_network", build)
    monkeypatch.setitem(SIZES, "digits", SIZES["digits"]._replace(image=(3, 8, 8)))  # one channel has no order
    config = run_config()
    hardware = replace(config.recipe.hardware, channels_last=channels_last)
    measure_speed(replace(config, recipe=replace(config.recipe, hardware=hardware)))
    assert set(seen) == {(channels_last, channels_last)}


class Clock:
    """Time that passes only while something is done."""

    def __init__(self, takes: list[float]) -> None:
        self.now, self.takes, self.calls = 0.0, takes, 0

    def perf_counter(self) -> float:
        return self.now

    def part(self) -> None:
        self.now += self.takes[min(self.calls, len(self.takes) - 1)]
        self.calls += 1


@pytest.mark.parametrize(
    ("takes", "calls", "expected"),
    [
        ([0.5, 0.02, 0.01, 0.03], ROUNDS + 1, 0.01),  # the first warms up, the shortest of the others counts
        ([0.001, 0.02, 0.01, 0.03], ROUNDS + 1, 0.01),
        ([3 * ENOUGH, 0.1], 1, 3 * ENOUGH),  # a network for a GPU: once must do
        ([0.6 * ENOUGH, 0.5 * ENOUGH, 0.1], 2, 0.5 * ENOUGH),
    ],
)
def test_few_rounds_are_timed_and_fewer_of_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, takes: list[float], calls: int, expected: float
):
    clock = Clock(takes)
    monkeypatch.setattr(estimate, "time", clock)
    assert estimate._best(clock.part, torch.device("cpu")) == pytest.approx(expected)
    assert clock.calls == calls
