"""The estimated cost of runs: the images that training really processes, and the operations of the layers."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from emabank.study.config import (
    HardwareConfig,
    Keep,
    LearntName,
    Place,
    RunConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.run_job import Job, network_of, run_job
from emabank.study.studies import cost
from emabank.study.studies.cost import SIZES, Speed, cost_of, measure_speed, operations
from tests.study.small_runs import config
from tests.study.small_runs import one_thread as one_thread

DIGITS = digits_dataset()
TRAINING, FORWARD, OPERATIONS = Speed(1.0, 0.0, 0.0), Speed(0.0, 1.0, 0.0), Speed(0.0, 0.0, 1.0)


def run_config(*, data: dict[str, Any] | None = None, **run: Any) -> RunConfig:
    """A refit on 100 images, without wrong labels."""
    data = {"noise": 0.0, "subset": 100, **(data or {})}
    return config(data=data, **{"trained_on": "100%", **run})


# Images ---------------------------------------------------------------------------------------------------------------


def test_sizes_of_the_data_sets():
    assert set(SIZES) == set(get_args(LearntName))
    for name in ("digits", "digits-0-4", "digits-5-9"):
        dataset, size = digits_dataset(name), SIZES[name]
        assert (size.train, size.test, size.classes) == (len(dataset.train), len(dataset.test), dataset.classes)
        assert list(size.image) == list(dataset.train.images.shape[1:])


def counting_model(config: RunConfig, counts: list[int]) -> nn.Module:
    """The network of a run, which counts the images with and without gradients."""

    def count(module: nn.Module, inputs: Any) -> None:
        counts[0 if torch.is_grad_enabled() else 1] += len(inputs[0])

    model = network_of(config, DIGITS)()
    model.register_forward_pre_hook(count)
    return model


@pytest.mark.parametrize(
    "measuring",
    [{}, {"on_train": True, "train_every": 3}, {"recompute": "each-epoch", "test_curves": True, "on_train": True}],
    ids=str,
)
@pytest.mark.parametrize("trained_on", ["80%", "100%"])
def test_counted_images_are_those_the_network_processes(tmp_path: Path, measuring: dict[str, Any], trained_on: str):
    """Exact for an epoch. At the end, one or two passes over the training images are not counted, and weights that
    several criteria chose are counted each time, though they predict once.
    """
    seen: dict[int, list[int]] = {}
    for epochs in (2, 4):
        config = run_config(training={"epochs": epochs}, measuring=measuring, trained_on=trained_on)
        counts = seen[epochs] = [0, 0]
        run = run_job(Job(config), Place(runs=tmp_path), DIGITS, make_model=partial(counting_model, config, counts))
        selected = {(r.weights, r.batchnorm, r.epoch, r.selected_by) for r in run.rows() if r.selected_by is not None}
        once = {weights[:3] for weights in selected}
        counts[1] += (len(selected) - len(once)) * 150
        counts[1] += sum(80 for _, batchnorm, _, _ in selected if batchnorm == "recomputed")
        counts[1] -= sum(80 for _, batchnorm, _ in once if batchnorm == "recomputed")
        assert counts[0] == cost_of(config, TRAINING).seconds
        assert cost_of(config, FORWARD).seconds == pytest.approx(counts[1], abs=2 * 100)
    few, many = (
        cost_of(run_config(training={"epochs": e}, measuring=measuring, trained_on=trained_on), FORWARD).seconds
        for e in (2, 4)
    )
    assert seen[4][1] - seen[2][1] == many - few


def test_a_run_counts_its_subset_or_all_images():
    assert cost_of(run_config(data={"subset": 300}), TRAINING).seconds == 4 * 300
    assert cost_of(run_config(data={"subset": None}), TRAINING).seconds == 4 * 1297
    assert cost_of(run_config(data={"subset": 10**6}), TRAINING).seconds == 4 * 1297, "all images"


def test_an_swa_run_counts_epochs_from_its_fork():
    config = run_config(training={"epochs": 20})
    assert cost_of(replace(config, constant_from=15, swa=True), TRAINING).seconds == 5 * 100
    assert cost_of(replace(config, constant_from=15), TRAINING).seconds == 20 * 100, "its fork is unknown before tuning"


def test_transfer_counts_the_images_of_its_targets_for_each_set_of_weights():
    keep = (Keep(weights="live", epoch=2, batchnorm="own", selected_by="accuracy"),)
    config = run_config(keep=keep)
    for targets, count in ((("digits-0-4",), 649 + 252), (("digits-0-4", "digits"), 649 + 252 + 1297 + 500)):
        more = cost_of(replace(config, transfer=targets), FORWARD).seconds - cost_of(config, FORWARD).seconds
        assert more == 6 * 2 * count


@pytest.mark.parametrize(
    ("flops", "text"), [(0.0, "0 MFLOP"), (1e9, "1 GFLOP"), (123.4e12, "123 TFLOP"), (7e19, "70 EFLOP")]
)
def test_operations_are_printed_in_a_fitting_unit(flops: float, text: str):
    assert operations(flops) == text


# Speed ----------------------------------------------------------------------------------------------------------------


def speed_of(network: str = "resnet8", **hardware: Any) -> Speed:
    return measure_speed(network, 4, 32, "digits", None, HardwareConfig(device="cpu", **hardware).completed())


@pytest.mark.parametrize("network", ["resnet8", "vgg-small"])
def test_operations_equal_the_sum_over_the_layers(network: str):
    config = run_config(training={"network": network})
    model, counted = network_of(config, DIGITS)(), [0.0]

    def count(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            counted[0] += 2 * output.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        elif isinstance(layer, nn.Linear):
            counted[0] += 2 * output.numel() * layer.in_features

    for layer in model.modules():
        layer.register_forward_hook(count)
    model.eval()(torch.zeros(1, 1, 8, 8))
    speed = speed_of(network)
    assert speed.flops == counted[0]
    assert speed.training >= speed.forward > 0


@pytest.mark.parametrize("channels_last", [True, False])
def test_speed_uses_the_runs_threads_and_memory_format_and_restores_the_state(
    monkeypatch: pytest.MonkeyPatch, channels_last: bool
):
    original = cost.build_network
    seen: set[tuple[int, bool, bool]] = set()

    def record(layer: nn.Conv2d, inputs: Any) -> None:
        formats = (tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (inputs[0], layer.weight))
        seen.add((torch.get_num_threads(), *formats))  # type: ignore[arg-type]

    def build(*args: Any, **kwargs: Any) -> nn.Module:
        model = original(*args, **kwargs)
        next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d)).register_forward_pre_hook(record)
        return model

    monkeypatch.setattr(cost, "build_network", build)
    monkeypatch.setitem(SIZES, "digits", SIZES["digits"]._replace(image=(3, 8, 8)))  # with 1 channel, formats are equal
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    speed_of(threads=2, channels_last=channels_last)
    assert seen == {(2, channels_last, channels_last)}
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
