"""What runs will cost on this machine: the images that a run sees, times what one image costs, which is measured.

A few images are enough to know the rest, and a paper-sized network on a CPU would take minutes for a real batch. The
data itself is not needed.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from emabank.study.averages import stops, windows
from emabank.study.config import HardwareConfig, RunConfig
from emabank.study.models import build_network

_CHOSEN = 5  # sets of weights that validation chooses, to be kept and measured at the end
_CHOSEN_NOISY = 3  # and by noisy validation labels
_TRANSFERRED = 6  # of these, those whose features are evaluated on other data sets
_HEAD = 2  # for each set, images of a target: their features, and about as much for the head
_IMAGES, _ROUNDS, _ENOUGH = 4, 3, 1.0  # images, times that are taken, seconds


class Size(NamedTuple):
    """What is known of a data set before its files are there."""

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
    """What one image costs."""

    training: float
    """Seconds, forwards and backwards."""
    forward: float
    """Seconds, forwards alone."""
    flops: float
    """Operations of a forward pass; training takes three times as many."""


class Cost(NamedTuple):
    """What a run, or many, will cost."""

    seconds: float = 0.0
    flops: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(self.seconds + other.seconds, self.flops + other.flops)


def measure_speed(
    network: str, width: int | None, batch: int, dataset: str, pixels: int | None, hardware: HardwareConfig
) -> Speed:
    """Time a few images through a network, with as many threads and the memory order that its runs will have."""
    size = SIZES[dataset]
    image = size.image if pixels is None else (size.image[0], pixels, pixels)
    device = torch.device(hardware.device)
    form = torch.channels_last if hardware.channels_last else torch.contiguous_format
    threads = torch.get_num_threads()
    torch.set_num_threads(hardware.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            model = build_network(network, classes=size.classes, channels=image[0], width=width).to(device)
            if hardware.channels_last:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = torch.rand([_IMAGES, *image], device=device).contiguous(memory_format=form)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(inputs)
            with torch.no_grad():
                forward = _shortest(lambda: model(inputs), device) / _IMAGES
            if forward * batch < _ENOUGH:  # a small network: overhead per call matters, so use real batches
                inputs = torch.rand([batch, *image], device=device).contiguous(memory_format=form)
            labels = torch.zeros(len(inputs), dtype=torch.long, device=device)

            def step() -> None:
                torch.autograd.backward(F.cross_entropy(model(inputs), labels))

            both = _shortest(step, device) / len(inputs)
            with torch.no_grad():
                forward = min(forward, _shortest(lambda: model(inputs), device) / len(inputs))
    finally:
        torch.set_num_threads(threads)
    return Speed(both, min(forward, both), counter.get_total_flops() / _IMAGES)


def _shortest(part: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few times: other load only adds to it.

    The first is for warming up, unless it is long enough already.
    """
    times: list[float] = []
    while len(times) <= _ROUNDS and sum(times) < _ENOUGH:
        started = time.perf_counter()
        part()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:] or times)


def cost_of(config: RunConfig, speed: Speed) -> Cost:
    """What a whole run costs: training, what is measured each epoch, and what is measured of the weights it keeps."""
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
    tried = len(stops(epochs)) * len(windows(recipe.averages, epochs)) if config.posthoc else 0
    looks = math.ceil(epochs / measuring.train_every) if measuring.on_train else 0
    forward = epochs * each_epoch + looks * sets * on_train + at_the_end + tried * (learnt + held_out)
    trained = epochs * learnt
    return Cost(trained * speed.training + forward * speed.forward, (3 * trained + forward) * speed.flops)


def operations(flops: float) -> str:
    """A number of operations as text."""
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"
