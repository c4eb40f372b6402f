"""What runs will cost: the images that a run sees, times what one image costs. Imports no torch.

What an image costs is measured by estimate.py, or taken from the operations of the network and a yardstick, which needs
nothing but numbers that are known: that is for `emabank list`.
"""

import math
from typing import NamedTuple

from emabank.study.averages import stops, windows
from emabank.study.config import DataConfig, Recipe, RunConfig
from emabank.study.models.operations import Counted, counted

_CHOSEN = 5  # sets of weights that validation chooses, to be kept and measured at the end
_CHOSEN_NOISY = 3  # and by noisy validation labels
_TRANSFERRED = 6  # of these, those whose features are evaluated on other data sets
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


def size_of(data: DataConfig) -> Size:
    """What is known of the data of a configuration: its images may be smaller than those of the data set.

    >>> size_of(DataConfig(dataset="cifar10", size=16)).image
    (3, 16, 16)
    """
    size = SIZES[data.dataset]
    return size if data.size is None else size._replace(image=(size.image[0], data.size, data.size))


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


class Yardstick(NamedTuple):
    """What one core of a machine does, as far as rough numbers can say it."""

    multiply_adds: float
    """A second, in convolutions of networks that are not tiny."""
    step: float
    """Seconds of a training step whatever its size: all the calls it is made of. It counts in tiny networks alone."""
    forward: float
    """Seconds of the forward pass of a batch, likewise."""


CORES, MACHINE = 2, "AMD EPYC"
OURS = Yardstick(multiply_adds=1e10, step=5e-3, forward=2.2e-3)
"""One of these cores with torch 2.13, in round numbers. `measure_speed` of the networks of the studies gave 0.6 to 1.6
times what they say of a training step (with other work on the machine). Whole studies at demo scale took 51 s
(batchnorm), 216 s (generalization) and 255 s (all) on both cores (docs/log.md); they say 45, 187 and 254 s.
"""


def usual_speed(config: RunConfig, yardstick: Yardstick = OURS) -> Speed:
    """What an image of a run costs on a machine that is known by its yardstick; nothing is measured.

    >>> from emabank.study.studies.variants import example_config
    >>> from emabank.study.studies.scales import protocol_of
    >>> speed = usual_speed(example_config("tune", protocol_of("cifar100-resnet18", "paper")))
    >>> f"{speed.training:.2f} s, {speed.flops / 1e9:.1f} GFLOP"
    '0.17 s, 1.1 GFLOP'
    """
    batch, once = config.recipe.training.batch, counted_for(config.recipe).multiply_adds
    seconds = once / yardstick.multiply_adds
    return Speed(
        training=3 * seconds + yardstick.step / batch, forward=seconds + yardstick.forward / batch, flops=2 * once
    )


def counted_for(recipe: Recipe) -> Counted:
    """The operations and parameters of a complete recipe's network for the images of its data set.

    >>> from emabank.study.config import TrainingConfig
    >>> counted_for(Recipe(training=TrainingConfig(width=8))).parameters
    19074
    """
    training, size = recipe.training, size_of(recipe.data)
    return counted(training.network, training.width, size.image, size.classes)


def cost_of(config: RunConfig, speed: Speed) -> Cost:
    """What a whole run costs: training, what is measured each epoch, and what is measured of the weights it keeps.

    >>> from emabank.study.config import TrainingConfig
    >>> run = RunConfig(recipe=Recipe(training=TrainingConfig(epochs=10)), rate=0.1, seed=0, trained_on="100%")
    >>> round(cost_of(run, Speed(1.0, 0.0, 0.0)).seconds)  # ten times 1297 images
    12970
    """
    recipe = config.recipe
    size = size_of(recipe.data)
    images = min(recipe.data.subset or size.train, size.train)
    held_out = images // 5 if config.trained_on == "80%" else 0
    learnt = images - held_out
    test = min(recipe.data.test_subset or size.test, size.test)
    averages = len(recipe.averages.names)
    sets = 1 + averages
    recomputed = recipe.measuring.recompute == "each-epoch"
    most = recipe.measuring.curve_images or max(learnt, test)
    on_test = min(test, most) if recipe.measuring.test_curves and config.trained_on == "100%" else 0
    on_train = min(learnt, most)
    each_epoch = sets * (held_out + on_test)
    each_epoch += averages * (on_train + held_out + on_test) if recomputed else 0
    epochs = recipe.training.epochs - ((config.constant_from or 0) if config.swa else 0)
    targets = sum(SIZES[name].train + SIZES[name].test for name in config.transfer)
    chosen = _CHOSEN + _CHOSEN_NOISY * recipe.data.has_wrong_labels
    kept = 1 + (chosen if config.trained_on == "80%" else len(config.keep) + config.swa)
    at_the_end = kept * (on_train + held_out + test) + (0 if config.swa else _TRANSFERRED * _HEAD * targets)
    tried = len(stops(epochs)) * len(windows(recipe.averages, epochs)) if config.posthoc else 0
    looks = math.ceil(epochs / recipe.measuring.train_every) if recipe.measuring.on_train else 0
    forward = epochs * each_epoch + looks * sets * on_train + at_the_end + tried * (learnt + held_out)
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
