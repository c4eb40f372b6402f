"""What runs will cost: the time of a few images through the network on this machine, times the images of a run.

A few images are enough to know the rest, and a paper-sized network on a CPU would take minutes for a real batch. The
data itself is not needed. May import models and config.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from emabank.study.config import RunConfig
from emabank.study.models.catalogue import build_network

IMAGES = 4
ROUNDS = 3
ENOUGH = 1.0  # seconds
_CHOSEN = 5  # sets of weights that validation chooses, to be kept and measured at the end
_HEAD = 2  # for each set, images of a target: their features, and about as much for the head


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

    seconds: float
    flops: float

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(self.seconds + other.seconds, self.flops + other.flops)

    def times(self, count: float) -> "Cost":
        return Cost(count * self.seconds, count * self.flops)


NOTHING = Cost(0.0, 0.0)


def measure_speed(config: RunConfig) -> Speed:
    """Time a few images through the network of a run, with as many threads as the run will have.

    >>> from emabank.study.recipe import HardwareConfig, Recipe, TrainingConfig
    >>> recipe = Recipe(training=TrainingConfig(width=4), hardware=HardwareConfig(device="cpu"))
    >>> speed = measure_speed(RunConfig(recipe=recipe, rate=0.1, seed=0, trained_on="80%"))
    >>> speed.training >= speed.forward > 0, speed.flops > 0
    (True, True)
    """
    training, hardware = config.recipe.training, config.recipe.hardware
    size = SIZES[config.recipe.data.dataset]
    device = torch.device(hardware.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(hardware.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            model = build_network(
                training.network, classes=size.classes, channels=size.image[0], width=training.width
            ).to(device)
            inputs = torch.rand([IMAGES, *size.image], device=device)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(inputs)
            with torch.no_grad():
                forward = _best(lambda: model(inputs), device) / IMAGES
            if forward * training.batch < ENOUGH:  # a small network: what a call costs counts, so batches are real
                inputs = torch.rand([training.batch, *size.image], device=device)
            labels = torch.zeros(len(inputs), dtype=torch.long, device=device)

            def step() -> None:
                torch.autograd.backward(F.cross_entropy(model(inputs), labels))

            both = _best(step, device) / len(inputs)
            with torch.no_grad():
                forward = min(forward, _best(lambda: model(inputs), device) / len(inputs))
    finally:
        torch.set_num_threads(threads)
    return Speed(both, min(forward, both), counter.get_total_flops() / IMAGES)


def _best(part: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few times: whatever else the machine does only adds to it.

    The first is for warming up, unless it is long enough already.
    """
    found: list[float] = []
    while len(found) <= ROUNDS and sum(found) < ENOUGH:
        started = time.perf_counter()
        part()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        found.append(time.perf_counter() - started)
    return min(found[1:] or found)


def cost_of(config: RunConfig, speed: Speed) -> Cost:
    """What a whole run costs: training, what is measured each epoch, and what is measured of the weights it keeps.

    >>> from emabank.study.recipe import Recipe, TrainingConfig
    >>> run = RunConfig(recipe=Recipe(training=TrainingConfig(epochs=10)), rate=0.1, seed=0, trained_on="100%")
    >>> round(cost_of(run, Speed(1.0, 0.0, 0.0)).seconds)  # ten times 1297 images
    12970
    """
    recipe = config.recipe
    size = SIZES[recipe.data.dataset]
    whole = min(recipe.data.subset or size.train, size.train)
    held_out = whole // 5 if config.trained_on == "80%" else 0
    learnt = whole - held_out
    test = min(recipe.data.test_subset or size.test, size.test)
    averages = len(recipe.averages.names)
    sets = 1 + averages
    recomputed = recipe.measuring.recompute == "each-epoch"
    on_test = test if recipe.measuring.test_curves and config.trained_on == "100%" else 0
    each_epoch = sets * (held_out + on_test + (learnt if recipe.measuring.on_train else 0))
    each_epoch += averages * (learnt + held_out + on_test) if recomputed else 0
    epochs = recipe.training.epochs - ((config.constant_from or 0) if config.swa else 0)
    targets = sum(SIZES[name].train + SIZES[name].test for name in config.transfer)
    kept = 1 + (_CHOSEN if config.trained_on == "80%" else len(config.keep) + config.swa)
    at_the_end = kept * (learnt + held_out + test + _HEAD * targets)
    forward = epochs * each_epoch + at_the_end
    trained = epochs * learnt
    return Cost(trained * speed.training + forward * speed.forward, (3 * trained + forward) * speed.flops)


def operations(flops: float) -> str:
    """A number of operations, for people.

    >>> operations(3.2e15)
    '3.2 PFLOP'
    """
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"
