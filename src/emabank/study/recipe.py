"""What the runs of one protocol have in common: frozen, checked when built. Imports neither torch nor numpy.

The command line is made from these classes, so that each default and each explanation stands here alone. What may be
left out (None) is filled in by `completed`, and always in a run, so that what is written down is complete. May import
what is known of networks.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeVar

from emabank.study.models import network_info
from emabank.study.values import check_choices, check_from, check_share, listed

PublishedName = Literal["digits", "cifar10", "cifar100", "cifar10n", "cifar100n", "tiny-imagenet"]
LearntName = Literal[PublishedName, "digits-0-4", "digits-5-9"]
DatasetName = Literal[LearntName, "own"]
HumanLabels = Literal["aggregate", "worse", "random1", "random2", "random3", "noisy"]
Network = Literal["resnet8", "resnet20", "resnet18", "resnet34", "wrn-28-10", "vgg16", "vgg-small", "own"]

C = TypeVar("C", "DataConfig", "TrainingConfig", "HardwareConfig")
R = TypeVar("R", bound="Recipe")

_HUMAN_LABELS = {"cifar10n": ("worse", "aggregate", "random1", "random2", "random3"), "cifar100n": ("noisy",)}
_SMALL = ("digits", "digits-0-4", "digits-5-9")
_CROP = {"tiny-imagenet": 8, "own": 0, **dict.fromkeys(_SMALL, 0)}  # pixels; 4 elsewhere (method.md, Training)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learned from."""

    dataset: DatasetName = "digits"
    """Which data set; `digits` comes with the package, as do the halves of it that are for transfer."""
    labels: HumanLabels | None = None
    """Which human labels: CIFAR-10N has worse, which is its default, aggregate, random1 to 3; CIFAR-100N has noisy."""
    noise: float = 0.0
    """Share of the training images that get a wrong label at random, from 0 to 1."""
    noise_seed: int = 0
    """Which images get which wrong labels."""
    subset: int | None = None
    """So many training images only, with all classes alike; validation images come out of them. By default all."""
    test_subset: int | None = None
    """So many test images only. By default all."""
    split_seed: int = 0
    """Which fifth of the training images is held out for validation."""
    validation_labels: Literal["clean", "noisy"] = "clean"
    """Whether the held-out images keep wrong labels, as in practice they often do."""
    crop: int | None = None
    """Pixels of padding, by reflection, for random crops. By default 4, on Tiny-ImageNet 8, on digits 0: no crops."""
    flip: bool | None = None
    """Whether images are mirrored at random. By default all but digits are."""

    def __post_init__(self) -> None:
        check_choices(self)
        allowed = _HUMAN_LABELS.get(self.dataset, ())
        if self.labels is not None and self.labels not in allowed:
            raise ValueError(
                f"labels is {self.labels}; {self.dataset} has "
                + (", ".join(allowed) if allowed else "its own labels only: leave labels out")
            )
        check_share("noise", self.noise)
        check_from("noise_seed", self.noise_seed, 0)
        check_from("split_seed", self.split_seed, 0)
        check_from("crop", self.crop, 0)
        check_from("subset", self.subset, 10)
        check_from("test_subset", self.test_subset, 10)
        if self.noise and allowed:
            raise ValueError(f"noise is {self.noise}; {self.dataset} has wrong labels of its own: use noise 0")

    @property
    def has_wrong_labels(self) -> bool:
        """Whether some training images are known to have a wrong label.

        >>> DataConfig(noise=0.4).has_wrong_labels, DataConfig(dataset="cifar10n").has_wrong_labels
        (True, True)
        """
        return self.noise > 0 or self.dataset in _HUMAN_LABELS

    def completed(self) -> "DataConfig":
        """The same with what was left out filled in.

        >>> DataConfig(dataset="cifar10n").completed().labels
        'worse'
        """
        labels = next(iter(_HUMAN_LABELS.get(self.dataset, ())), None)
        return _filled(self, labels=labels, crop=_CROP.get(self.dataset, 4), flip=self.dataset not in (*_SMALL, "own"))


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the network is trained: SGD with Nesterov momentum, on cross entropy."""

    network: Network = "resnet8"
    """Which network; those with a small number or name are for a CPU."""
    width: int | None = None
    """Channels of the first stage of resnet8, resnet20 and vgg-small. By default 16."""
    epochs: int = 60
    """How often every training image is seen."""
    batch: int = 128
    """Images a step."""
    momentum: float = 0.9
    """Of Nesterov's method."""
    weight_decay: float | None = None
    """On all parameters. By default that of the network's family: 1e-4 for a ResNet, 5e-4 for WideResNet and VGG."""
    schedule: Literal["cosine", "step"] = "cosine"
    """The learning rate after its warm-up: a cosine to 0, or divided by the factor at each milestone."""
    warmup_epochs: float | None = None
    """Epochs in which the learning rate rises to its peak. By default a fortieth of the run: 5 of 200."""
    milestones: tuple[float, ...] = (0.3, 0.6, 0.8)
    """Shares of the run at which the rate falls, for the step schedule: 60, 120 and 160 of 200 epochs."""
    factor: float = 5.0
    """By how much it falls there."""
    bootstrap: str | None = None
    """An average, such as ema-7.1%, to copy into the live weights after each epoch; not with SWA. By default none."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.network != "own":
            network_info(self.network).check_width(self.width)
        check_from("epochs", self.epochs, 1)
        check_from("batch", self.batch, 2)
        check_from("width", self.width, 1)
        check_from("weight_decay", self.weight_decay, 0)
        check_from("warmup_epochs", self.warmup_epochs, 0)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; give a number from 0 to below 1, such as 0.9")
        if not 1 < self.factor < math.inf:
            raise ValueError(f"factor is {self.factor}; the rate is divided by it, so give more than 1, such as 5")
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup_epochs is {self.warmup}; give less than the {self.epochs} epochs of the run")
        rising = all(earlier < later for earlier, later in pairwise((0, *self.milestones, 1)))
        # The warm-up of a cosine may be longer: it has no milestones.
        if not rising or (self.schedule == "step" and any(s * self.epochs <= self.warmup for s in self.milestones)):
            raise ValueError(
                f"milestones are {listed(self.milestones)}; give rising shares of the run, after the warm-up, below 1"
            )

    @property
    def warmup(self) -> float:
        """The epochs of the warm-up, given or left out.

        >>> TrainingConfig(epochs=200).warmup
        5.0
        """
        return self.epochs / 40 if self.warmup_epochs is None else self.warmup_epochs

    def completed(self) -> "TrainingConfig":
        """The same with what was left out filled in.

        >>> TrainingConfig(network="vgg16", epochs=200).completed().warmup_epochs
        5.0
        """
        if self.network == "own":
            return _filled(self, weight_decay=1e-4, warmup_epochs=self.warmup)
        known = network_info(self.network)
        return _filled(self, weight_decay=known.weight_decay, width=known.default_width, warmup_epochs=self.warmup)


@dataclass(frozen=True, kw_only=True)
class AveragesConfig:
    """Which averages are kept beside the training."""

    decays: tuple[float, ...] = ()
    """Decays per update, in place of half-lives: the paper's are 0.968 0.984 0.992 0.996 0.998, with every 16."""
    half_lives: tuple[float, ...] = (0.44, 0.88, 1.8, 3.5, 7.1)
    """Half-lives in percent of the run: the paper's five horizons in a run of any length. Decays take their place."""
    every: int = 1
    """Optimizer steps from one update to the next: 16 in the paper, 1 for runs of a few hundred steps."""
    decay_warmup: Literal["steps", "updates", "none"] = "none"
    """Whether the decay is held down at first, as in the paper; a run of a few hundred steps never leaves that."""

    def __post_init__(self) -> None:
        check_choices(self)
        for decay in self.decays:
            if not 0 <= decay <= 1:
                raise ValueError(f"decays has {decay}; give the weight of the past, from 0 to 1, such as 0.998")
        for share in self.half_lives:
            if not 0 < share <= 100:
                raise ValueError(f"half_lives has {share}; give percentages of the run, above 0 and up to 100")
        if not (self.decays or self.half_lives):
            raise ValueError("decays and half_lives are both empty; give at least one average")
        for name, given in (("decays", self.decays), ("half_lives", self.half_lives)):
            if len({f"{each:g}" for each in given}) < len(given):  # as `names` has them
                raise ValueError(f"{name} are {listed(given)}; give each once, different in their first six digits")
        check_from("every", self.every, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, the one with the longest memory last."""
        if self.decays:
            return tuple(f"ema-{decay:g}" for decay in sorted(self.decays))
        return tuple(f"ema-{share:g}%" for share in sorted(self.half_lives))


@dataclass(frozen=True, kw_only=True)
class MeasuringConfig:
    """What is measured while it trains. Every epoch: the live weights and every average on the validation images.

    The rest is for figures and for runs on all training images, where nothing is chosen.
    """

    recompute: Literal["chosen", "each-epoch"] = "chosen"
    """When batch-norm statistics are recomputed: for the weights that were chosen, or for every average each epoch."""
    on_train: bool = False
    """Whether all are measured on the training images each epoch: how much wrong labels are memorised."""
    test_curves: bool = False
    """Whether all are measured on the test images each epoch."""

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """What is computed where; part of a run's identity, because the last digits depend on it."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto: a GPU where there is one."""
    threads: int = 1
    """CPU threads of one run. With 1, as many runs as there are cores may go on at once."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """Of the forward and backward pass; weights and averages are float32."""
    channels_last: bool | None = None
    """Memory order of images and convolutions. By default the faster one: this on a CPU, and on a GPU below float32."""
    fused: bool | None = None
    """Whether an optimizer step is one pass over all parameters. By default so on a CPU or cuda, but not with fp16."""
    compile: bool = False
    """Whether torch.compile is used for the training steps; on a CPU it takes a minute and a C++ compiler first."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_from("threads", self.threads, 1)
        if self.fused and self.precision == "fp16":
            # torch's fused SGD leaves its momentum unset where the loss scaler has it skip its very first step.
            raise ValueError("fused is True and precision is fp16, which go wrong together in torch; leave fused out")

    def completed(self) -> "HardwareConfig":
        """The same with what was left out filled in, where the device is known, by what was fastest (docs/log.md).

        >>> HardwareConfig(device="cpu").completed().channels_last, HardwareConfig().completed().channels_last
        (True, None)
        """
        if self.device == "auto":
            return self
        return _filled(
            self,
            channels_last=self.device == "cpu" or self.precision != "float32",
            fused=self.device in ("cpu", "cuda") and self.precision != "fp16",
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that the runs of one protocol have in common."""

    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    averages: AveragesConfig = field(default_factory=AveragesConfig)
    measuring: MeasuringConfig = field(default_factory=MeasuringConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)

    def __post_init__(self) -> None:
        known = self.averages.names
        if self.training.bootstrap is not None and self.training.bootstrap not in known:
            raise ValueError(f"bootstrap is {self.training.bootstrap!r}; the averages are {', '.join(known)}")

    def completed(self: R) -> R:
        """The same with what was left out filled in.

        >>> recipe = Recipe(data=DataConfig(dataset="tiny-imagenet")).completed()
        >>> recipe.data.crop, recipe.training.width, recipe == recipe.completed()
        (8, 16, True)
        """
        data, training, hardware = self.data.completed(), self.training.completed(), self.hardware.completed()
        return replace(self, data=data, training=training, hardware=hardware)


def _filled(config: C, **defaults: object) -> C:
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})
