"""The overhead of averages: times of alternating steps and updates, and the memory of the averages."""

import json
from dataclasses import fields, replace
from importlib import metadata
from typing import Any

import pytest
import torch

from emabank import EMABank
from emabank.study.config import AveragesConfig, HardwareConfig, ProtocolConfig, TrainingConfig
from emabank.study.data.digits import digits_dataset
from emabank.study.models import build_network
from emabank.study.report.results import Overhead
from emabank.study.studies import cost as overhead
from emabank.study.studies.cost import measure_overhead
from tests.study.small_runs import one_thread as one_thread

DIGITS = digits_dataset()
SMALL = ProtocolConfig(training=TrainingConfig(width=4, batch=8), hardware=HardwareConfig(device="cpu"))


def test_overhead_is_json_with_the_fields_that_the_report_reads():
    found = measure_overhead(SMALL, DIGITS, repetitions=2)
    assert set(found) == {field.name for field in fields(Overhead)}
    again = json.loads(json.dumps(found, allow_nan=False))
    assert Overhead(**again).network == "resnet8"
    assert (found["averages"], found["every"]) == (5, 16), "the paper's period, not the protocol's"
    conditions = found["conditions"]
    assert (conditions["batch"], conditions["device"], conditions["threads"]) == (8, "cpu", 1)
    assert conditions["torch"] == metadata.version("torch")


@pytest.mark.parametrize("network", ["resnet8", "vgg-small"])
@pytest.mark.parametrize("half_lives", [(1.0,), (0.44, 0.88, 1.8, 3.5, 7.1)])
def test_memory_is_one_copy_of_parameters_and_statistics_per_average(network: Any, half_lives: tuple[float, ...]):
    config = replace(
        SMALL, training=replace(SMALL.training, network=network), averages=AveragesConfig(half_lives=half_lives)
    )
    found = measure_overhead(config, DIGITS, repetitions=1)
    model = build_network(network, classes=10, channels=1, width=4)
    tensors = model.state_dict().values()
    averaged = sum(4 * tensor.numel() for tensor in tensors if tensor.is_floating_point())
    counters = sum(8 * tensor.numel() for tensor in tensors if not tensor.is_floating_point())
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert found["averages"] == len(half_lives)
    assert len(half_lives) * averaged <= found["bytes"] <= len(half_lives) * (averaged + counters)


def test_steps_and_updates_are_timed_separately(monkeypatch: pytest.MonkeyPatch):
    """On a fake clock: a step takes 3, an update 1, and each call takes longer than the one before."""
    clock = {"now": 0.0, "calls": 0.0}

    def slowed(seconds: float, original: Any) -> Any:
        def call(self: Any) -> Any:
            clock["calls"] += 0.5
            clock["now"] += seconds + (0.01 * clock["calls"])
            return original(self)

        return call

    class Time:
        @staticmethod
        def perf_counter() -> float:
            return clock["now"]

    monkeypatch.setattr(overhead, "time", Time)
    monkeypatch.setattr(torch.optim.SGD, "step", slowed(3.0, torch.optim.SGD.step))
    monkeypatch.setattr(EMABank, "update", slowed(1.0, EMABank.update))
    found = measure_overhead(SMALL, DIGITS, repetitions=3)
    assert found["step_seconds"] == pytest.approx((3.025, 3.035, 3.045))
    assert found["update_seconds"] == pytest.approx((1.03, 1.04, 1.05))


def test_steps_use_the_runs_threads_precision_and_memory_format_and_restore_the_state(monkeypatch: pytest.MonkeyPatch):
    original, seen = overhead.build_network, []

    def record(_: Any, inputs: Any, output: torch.Tensor) -> None:
        is_last = inputs[0].is_contiguous(memory_format=torch.channels_last)
        seen.append((torch.get_num_threads(), is_last, output.dtype))

    def build(*args: Any, **kwargs: Any) -> torch.nn.Module:
        model = original(*args, **kwargs)
        next(module for module in model.modules() if isinstance(module, torch.nn.Conv2d)).register_forward_hook(record)
        return model

    monkeypatch.setattr(overhead, "build_network", build)
    hardware = HardwareConfig(device="auto", threads=2, precision="bf16", channels_last=True)
    train, test = (replace(part, images=part.images.expand(-1, 3, -1, -1)) for part in (DIGITS.train, DIGITS.test))
    coloured = replace(DIGITS, train=train, test=test)  # with 1 channel, formats are equal
    threads, state, images = torch.get_num_threads(), torch.get_rng_state(), DIGITS.train.images.clone()
    found = measure_overhead(replace(SMALL, hardware=hardware), coloured, repetitions=1)
    assert set(seen) == {(2, True, torch.bfloat16)}
    assert (found["conditions"]["precision"], found["conditions"]["threads"]) == ("bf16", 2)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert torch.equal(DIGITS.train.images, images)
