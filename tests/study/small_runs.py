"""Runs of a few seconds on digits with wrong labels, and plain loops that compute the expected results."""

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    HardwareConfig,
    MeasuringConfig,
    Recipe,
    RunConfig,
    TrainingConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.data.images import Dataset, Images, fingerprint
from emabank.study.data.loader import MEASURED_AT_ONCE, Loader
from emabank.study.data.splits import Parts, make_parts
from emabank.study.distributed import ALONE, ProcessGroup
from emabank.study.run_job import network_of
from emabank.study.runs import storage
from emabank.study.runs.reader import RunFolder
from emabank.study.schedules import Schedule
from emabank.study.train import Training

CPU = torch.device("cpu")
NAMES = ("ema-5%", "ema-20%", "ema-60%")
MakeModel = Callable[[], nn.Module]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Generator[None]:
    """Results are compared bit for bit, so the number of threads is fixed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def digits() -> tuple[Dataset, str]:
    """The data set, read once, and its fingerprint."""
    dataset = digits_dataset()
    return dataset, fingerprint(dataset)


def config(
    *,
    data: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    averages: dict[str, Any] | None = None,
    measuring: dict[str, Any] | None = None,
    hardware: dict[str, Any] | None = None,
    **run: Any,
) -> RunConfig:
    """160 training, 40 validation and 50 test images; 4 epochs of 5 steps."""
    recipe = Recipe(
        data=DataConfig(**{"noise": 0.4, "subset": 200, "test_subset": 50, "crop": 1, "flip": True, **(data or {})}),
        training=TrainingConfig(**{"width": 4, "epochs": 4, "batch": 32, "warmup_epochs": 0.4, **(training or {})}),
        averages=AveragesConfig(**{"half_lives": (5.0, 20.0, 60.0), **(averages or {})}),
        measuring=MeasuringConfig(**(measuring or {})),
        hardware=HardwareConfig(**{"device": "cpu", **(hardware or {})}),
    )
    return RunConfig(recipe=recipe, **{"rate": 0.4, "seed": 0, "trained_on": "80%", "fingerprint": digits()[1], **run})


def parts_of(config: RunConfig) -> Parts:
    return make_parts(config.recipe.data, digits()[0], config.trained_on)


def with_random_test_images(parts: Parts) -> Parts:
    """The parts with test images and test labels drawn at random."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, parts.test.images.shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (len(images),), generator=generator)
    return replace(parts, test=Images(images, labels, labels))


def training_of(
    config: RunConfig, *, parts: Parts | None = None, make_model: MakeModel | None = None, group: ProcessGroup = ALONE
) -> Training:
    """A training that has not started."""
    make_model = make_model or network_of(config, digits()[0])
    return Training(config, parts or parts_of(config), make_model, device=CPU, group=group)


def trained(config: RunConfig, *, parts: Parts | None = None, make_model: MakeModel | None = None) -> Training:
    """A finished training; torch's random state is as before."""
    with torch.random.fork_rng():
        training = training_of(config, parts=parts, make_model=make_model)
        training.run()
    return training


def in_float64(config: RunConfig) -> MakeModel:
    """The configuration's network in float64, for trainings that add in another order.

    In float32, rounding that flips one ReLU near zero moves a training by percents within a few steps.
    """

    def make_model() -> nn.Module:
        model = network_of(config, digits()[0])().double()
        model.register_forward_pre_hook(lambda model, inputs: (inputs[0].double(),))
        return model

    return make_model


def weights_of_each_epoch(config: RunConfig) -> tuple[Training, dict[tuple[str, int], dict[str, Tensor]]]:
    """A finished training, and a copy of all weights at the end of each epoch, by name and epoch."""
    found: dict[tuple[str, int], dict[str, Tensor]] = {}

    def observe(training: Training) -> None:
        banks = [training.bank, *([] if training.swa is None else [training.swa])]
        names = ["live", *(name for bank in banks for name in bank.names)]
        for name in names:
            bank = banks[-1] if name == "swa" else banks[0]
            found[name, training.epoch] = bank.weights(name, batchnorm="averaged")

    with torch.random.fork_rng():
        training = training_of(config)
        training.run(observe=observe)
    return training, found


def plain_training(
    config: RunConfig,
    *,
    at_start: Callable[[nn.Module], None] = lambda model: None,
    after_step: Callable[[nn.Module], None] = lambda model: None,
    after_epoch: Callable[[nn.Module, int], None] = lambda model, epoch: None,
) -> nn.Module:
    """The training written without this package: no bank, no measurements."""
    training, hardware, parts = config.recipe.training, config.recipe.hardware, parts_of(config)
    order = torch.channels_last if hardware.channels_last else torch.contiguous_format
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = network_of(config, digits()[0])().to(memory_format=order)  # type: ignore[call-overload]
        crop, flip = config.recipe.data.crop or 0, bool(config.recipe.data.flip)
        loader = Loader(
            parts.train, size=training.batch, normalisation=parts.normalisation, crop=crop, flip=flip, seed=config.seed
        )
        schedule = Schedule(
            "cosine", peak=config.rate, epochs=training.epochs, steps_per_epoch=len(loader), warmup_epochs=0.4,
            constant_from=config.constant_from,
        )  # fmt: skip
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config.rate, momentum=0.9, nesterov=True, weight_decay=training.weight_decay or 0,
            fused=hardware.fused,
        )  # fmt: skip
        step = 0
        at_start(model)
        for epoch in range(1, training.epochs + 1):
            for inputs, labels in loader:
                optimizer.param_groups[0]["lr"] = schedule.rate(step)
                F.cross_entropy(model(inputs.contiguous(memory_format=order)), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                after_step(model)
            after_epoch(model, epoch)
    return model


def network_with(config: RunConfig, tensors: dict[str, Tensor]) -> nn.Module:
    """A new network in eval mode with these weights."""
    order = torch.channels_last if config.recipe.hardware.channels_last else torch.contiguous_format
    model = network_of(config, digits()[0])().to(memory_format=order)  # type: ignore[call-overload]
    model.load_state_dict(tensors)
    return model.eval()


def inputs_of(part: Images, parts: Parts) -> Tensor:
    """All images of a part, normalised."""
    return (part.images.float() - parts.normalisation.mean[0]) / parts.normalisation.std[0]


def logits_of(model: nn.Module, part: Images, parts: Parts) -> Tensor:
    """Logits of all images of a part, in batches of the size that measuring uses."""
    with torch.no_grad():
        return torch.cat([model(inputs) for inputs in inputs_of(part, parts).split(MEASURED_AT_ONCE)])


def recalibrated(model: nn.Module, parts: Parts) -> nn.Module:
    """The network with batch-norm statistics of the training images, computed in float64."""
    seen: dict[nn.BatchNorm2d, list[Tensor]] = {}
    handles = [
        layer.register_forward_pre_hook(lambda layer, inputs: seen.setdefault(layer, []).append(inputs[0].double()))
        for layer in model.modules()
        if isinstance(layer, nn.BatchNorm2d)
    ]
    logits_of(model.train(), parts.train, parts)
    for handle in handles:
        handle.remove()
    for layer, inputs in seen.items():
        variance, mean = torch.var_mean(torch.cat(inputs), dim=(0, 2, 3), correction=1)
        layer.running_mean, layer.running_var = mean.float(), variance.float()
    return model.eval()


class CheckpointFiles:
    """Saves the checkpoints and forks of a training as files, as a run's folder does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, 0

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        storage.write_state(self.folder / "checkpoint.pt", state)
        self.saved += 1

    def load_checkpoint(self) -> dict[str, Any]:
        return storage.read_state(self.folder / "checkpoint.pt")

    def save_fork(self, epoch: int, state: dict[str, Any]) -> None:
        storage.write_state(self.folder / f"epoch-{epoch}.pt", state)


# Files that interruptions must not change. The remaining files have times and machines.
REPRODUCIBLE = (
    "config.json", "history.json", "rows.jsonl", "test_curves.jsonl", "posthoc.jsonl", "snapshots", "predictions",
    "forks", "posthoc",
)  # fmt: skip


def files_in(folder: RunFolder) -> dict[Any, Any]:
    """The bytes of every reproducible file of a run."""
    paths = [path for name in REPRODUCIBLE for path in (folder.path / name, *(folder.path / name).glob("*"))]
    found: dict[Any, Any] = {}
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".safetensors":  # the order of the metadata in its header varies
                size = 8 + int.from_bytes(content[:8], "little")
                found[path.name, "header"], content = json.loads(content[8:size]), content[size:]
            found[path.relative_to(folder.path).as_posix()] = content
    return found
