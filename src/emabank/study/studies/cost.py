"""The cost of runs and averages on this machine, measured with the network and the settings of the runs.

The cost of a run is its number of images times the cost per image. A few random images are enough to measure that: a
full batch of a paper-sized network would take minutes on a CPU. The cost of averages is the time of an update
relative to that of a training step, timed in turns.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from emabank import EMABank
from emabank.study.averages import stops, windows
from emabank.study.config import HardwareConfig, ProtocolConfig, RunConfig
from emabank.study.data.images import Dataset
from emabank.study.models import build_network
from emabank.study.predict import autocast_context, threads
from emabank.study.report.results import Overhead
from emabank.study.runs.environment import environment

_CHOSEN = 6  # snapshots that validation chooses, kept and measured at the end of the run
_CHOSEN_NOISY = 3  # further snapshots, chosen by noisy validation labels
_TRANSFERRED = 6  # snapshots whose features are evaluated on each transfer target
_HEAD = 2  # passes over a target per snapshot: one for its features, and about as much for the linear head
_IMAGES, _ROUNDS, _ENOUGH = 4, 3, 1.0  # images per pass, timed passes, and the seconds that are enough
REPETITIONS = 8
EVERY = 16  # the paper's sampling period


class Size(NamedTuple):
    """The size of a data set, known before its files are downloaded."""

    train: int
    test: int
    image: tuple[int, int, int]
    """Channels, height, width."""
    classes: int


_CIFAR = Size(50_000, 10_000, (3, 32, 32), 10)
SIZES = {
    "digits": Size(1297, 500, (1, 8, 8), 10),
    "digits-0-4": Size(649, 252, (1, 8, 8), 5),
    "digits-5-9": Size(648, 248, (1, 8, 8), 5),
    "cifar10": _CIFAR,
    "cifar10n": _CIFAR,
    "cifar100": _CIFAR._replace(classes=100),
    "cifar100n": _CIFAR._replace(classes=100),
    "tiny-imagenet": Size(100_000, 10_000, (3, 64, 64), 200),
}


class Speed(NamedTuple):
    """The cost of one image."""

    training: float
    """Seconds of a forward and backward pass."""
    forward: float
    """Seconds of a forward pass."""
    flops: float
    """Floating-point operations of a forward pass; training takes three times as many."""


class Cost(NamedTuple):
    """The estimated cost of one or more runs."""

    seconds: float = 0.0
    flops: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(self.seconds + other.seconds, self.flops + other.flops)


def measure_speed(
    network: str, width: int | None, batch: int, dataset: str, pixels: int | None, hardware: HardwareConfig
) -> Speed:
    """Time a network on a few images, with the threads and the memory format of its runs."""
    size, device = SIZES[dataset], torch.device(hardware.device)
    image = size.image if pixels is None else (size.image[0], pixels, pixels)
    with threads(hardware.threads), torch.random.fork_rng(devices=[]):
        model, inputs = _network_and_inputs(network, width, size.classes, [_IMAGES, *image], hardware, device)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(inputs)
        with torch.no_grad():
            forward = _shortest(lambda: model(inputs), device) / _IMAGES
        if forward * batch < _ENOUGH:  # a small network: overhead per call matters, so use real batches
            inputs = torch.cat([inputs] * math.ceil(batch / _IMAGES))[:batch]
        labels = torch.zeros(len(inputs), dtype=torch.long, device=device)

        def step() -> None:
            torch.autograd.backward(F.cross_entropy(model(inputs), labels))

        both = _shortest(step, device) / len(inputs)
        with torch.no_grad():
            forward = min(forward, _shortest(lambda: model(inputs), device) / len(inputs))
    return Speed(both, min(forward, both), counter.get_total_flops() / _IMAGES)


def _network_and_inputs(
    network: str, width: int | None, classes: int, shape: Sequence[int], hardware: HardwareConfig, device: torch.device
) -> tuple[nn.Module, Tensor]:
    """A network and random images of this shape, on the device and in the memory format of its runs."""
    form = torch.channels_last if hardware.channels_last else torch.contiguous_format
    model = build_network(network, classes=classes, channels=shape[1], width=width).to(device)
    if hardware.channels_last:
        model.to(memory_format=form)  # type: ignore[call-overload]
    return model, torch.rand(shape, device=device).contiguous(memory_format=form)


def _shortest(part: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few times, because other load can only add to them.

    The first is a warm-up, unless it alone takes long enough.
    """
    times: list[float] = []
    while len(times) <= _ROUNDS and sum(times) < _ENOUGH:
        times.append(_seconds(part, device))
    return min(times[1:] or times)


def _seconds(part: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    part()
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
    return time.perf_counter() - started


def cost_of(config: RunConfig, speed: Speed) -> Cost:
    """The cost of a whole run: training, the evaluation after every epoch, and the evaluation of the kept weights."""
    recipe, measuring = config.recipe, config.recipe.measuring
    size = SIZES[recipe.data.dataset]
    images = min(recipe.data.subset or size.train, size.train)
    held_out = images // 5 if config.trained_on == "80%" else 0
    learnt = images - held_out
    test = min(recipe.data.test_subset or size.test, size.test)
    averages = len(recipe.averages.names)
    sets = 1 + averages
    most = measuring.curve_images or max(learnt, test)
    on_test = min(test, most) if measuring.test_curves and config.trained_on == "100%" else 0
    on_train = min(learnt, most)
    each_epoch = sets * (held_out + on_test)
    each_epoch += averages * (on_train + held_out + on_test) if measuring.recompute == "each-epoch" else 0
    epochs = recipe.training.epochs - ((config.constant_from or 0) if config.swa else 0)
    targets = sum(SIZES[name].train + SIZES[name].test for name in config.transfer)
    chosen = _CHOSEN + _CHOSEN_NOISY * recipe.data.has_wrong_labels
    kept = 1 + (chosen if config.trained_on == "80%" else len(config.keep) + config.swa)
    at_the_end = kept * (on_train + held_out + test) + (0 if config.swa else _TRANSFERRED * _HEAD * targets)
    tried = len(stops(epochs, config.posthoc)) * len(windows(recipe.averages, epochs)) if config.posthoc else 0
    looks = math.ceil(epochs / measuring.train_every) if measuring.on_train else 0
    forward = epochs * each_epoch + looks * sets * on_train + at_the_end + tried * (learnt + held_out)
    trained = epochs * learnt
    return Cost(trained * speed.training + forward * speed.forward, (3 * trained + forward) * speed.flops)


def operations(flops: float) -> str:
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"


def measure_overhead(config: ProtocolConfig, dataset: Dataset, *, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """The cost of a protocol's averages, as plain values: times of training steps and of updates, and the memory."""
    training, hardware = config.training, config.hardware
    device = torch.device("cpu" if hardware.device == "auto" else hardware.device)
    shape = [training.batch, *dataset.train.images.shape[1:]]
    with threads(hardware.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = _network_and_inputs(training.network, training.width, dataset.classes, shape, hardware, device)
        labels = torch.randint(0, dataset.classes, [training.batch], device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=hardware.fused)
        # The cost does not depend on the decays.
        bank = EMABank(model, [1 - 0.032 / 2**i for i in range(len(config.averages.names))], every=1)

        def step() -> None:
            with autocast_context(hardware.precision, device):
                loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        # In turns, so that other load affects both. The first two rounds are a warm-up.
        turns = [(_seconds(step, device), _seconds(bank.update, device)) for _ in range(repetitions + 2)][2:]
    overhead = Overhead(
        network=training.network,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        averages=len(bank.names),
        every=EVERY,
        step_seconds=tuple(seconds for seconds, _ in turns),
        update_seconds=tuple(seconds for _, seconds in turns),
        bytes=sum(t.numel() * t.element_size() for name in bank.names for t in bank.weights(name).values()),
        conditions={
            **environment(threads=hardware.threads),
            "batch": training.batch,
            "device": device.type,
            "precision": hardware.precision,
        },
    )
    return asdict(overhead)
