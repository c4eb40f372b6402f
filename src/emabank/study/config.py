"""What a run of the study is told: frozen, checked when built, complete. Imports neither torch nor numpy.

The command line is made from these classes, so that each default and each explanation stands here alone. What may be
left out (None) is filled in by `completed`, and always in a run, so that what is written down is complete. May import
what is known of networks.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeVar

from emabank.study.models.known import known_network
from emabank.study.rows import BatchNorm, SelectedBy, TrainedOn
from emabank.study.values import check_choices, check_from, check_share, listed

PublishedName = Literal["digits", "cifar10", "cifar100", "cifar10n", "cifar100n", "tiny-imagenet"]
DatasetName = Literal[PublishedName, "own"]
HumanLabels = Literal["aggregate", "worse", "random1", "random2", "random3", "noisy"]
Network = Literal["resnet8", "resnet20", "resnet18", "resnet34", "wrn-28-10", "vgg16", "vgg-small", "own"]

C = TypeVar("C", "DataConfig", "TrainingConfig")
R = TypeVar("R", bound="Recipe")

_HUMAN_LABELS = {"cifar10n": ("worse", "aggregate", "random1", "random2", "random3"), "cifar100n": ("noisy",)}
_CROP = {"tiny-imagenet": 8, "digits": 0, "own": 0}  # pixels; 4 elsewhere (method.md, Training)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learned from."""

    dataset: DatasetName = "digits"
    """Which data set; `digits` comes with the package."""
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

    def completed(self) -> "DataConfig":
        """The same with what was left out filled in.

        >>> DataConfig(dataset="cifar10n").completed().labels
        'worse'
        """
        labels = next(iter(_HUMAN_LABELS.get(self.dataset, ())), None)
        return _filled(self, labels=labels, crop=_CROP.get(self.dataset, 4), flip=self.dataset not in ("digits", "own"))


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
            known_network(self.network).checked_width(self.width)
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
        known = known_network(self.network)
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
    """What is measured while it trains. Every epoch: the live weights and every average on the validation images."""

    recompute: Literal["chosen", "each-epoch"] = "chosen"
    """When batch-norm statistics are recomputed: for the weights that were chosen, or for every average each epoch."""
    on_train: bool = False
    """Whether all are measured on the training images as well each epoch: how much wrong labels are memorised."""
    test_curves: bool = False
    """Whether runs on all training images are measured on the test images each epoch, for figures only."""

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
    channels_last: bool = False
    """Memory order of images and convolutions."""
    compile: bool = False
    """Whether torch.compile is used for the training steps."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_from("threads", self.threads, 1)


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
        return replace(self, data=self.data.completed(), training=self.training.completed())


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Weights to be kept from a run: which, at the end of which epoch, with which batch-norm statistics."""

    weights: str
    epoch: int
    batchnorm: BatchNorm
    selected_by: SelectedBy

    def __post_init__(self) -> None:
        check_choices(self)

    @property
    def name(self) -> str:
        """A name for its files.

        >>> Keep(weights="ema-7.1%", epoch=12, batchnorm="recomputed", selected_by="loss").name
        'ema-7.1%-recomputed-loss'
        """
        statistics = "" if self.batchnorm in ("own", "averaged") else f"-{self.batchnorm}"
        return f"{self.weights}{statistics}-{self.selected_by}"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run, complete: its identity is the hash of this."""

    recipe: Recipe
    rate: float
    """The peak of the learning rate."""
    seed: int
    """Of the initial weights, the order of the images and their augmentation."""
    trained_on: TrainedOn
    """All training images, or four fifths of them, with the last fifth for validation."""
    keep: tuple[Keep, ...] = ()
    """What is kept of a run on all training images, where validation has no say; the last live weights always are."""
    constant_from: int | None = None
    """The epoch after which the learning rate stays as it is."""
    swa: bool = False
    """Whether from there on a uniform average of one sample an epoch is kept."""
    transfer: PublishedName | None = None
    """The data set on which a linear head is trained on the frozen features of all that is kept."""
    fingerprint: str = ""
    """Of the data that was found on disk."""
    transfer_fingerprint: str = ""
    """Of the data that features are evaluated on."""
    model_fingerprint: str = ""
    """Of a model of one's own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe.completed())  # a frozen instance may, while it is being built
        check_choices(self)
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate is {self.rate}; give a learning rate above 0, such as 0.8")
        check_from("seed", self.seed, 0)
        epochs = self.recipe.training.epochs
        if self.constant_from is not None and not 0 < self.constant_from < epochs:
            raise ValueError(f"constant_from is {self.constant_from}; give an epoch between 1 and {epochs - 1}")
        if self.swa and self.constant_from is None:
            raise ValueError("swa needs constant_from, the epoch after which samples are taken")
        for each in self.keep:
            if not 1 <= each.epoch <= epochs:
                raise ValueError(f"keep has epoch {each.epoch}; the run has epochs 1 to {epochs}")


@dataclass(frozen=True, kw_only=True)
class ProtocolConfig(Recipe):
    """Tune on 80% of the training images, choose on the rest, refit on all, and measure on the test images.

    Everything is trained once: the same command goes on where it was interrupted, and does nothing where all is done.
    """

    rates: tuple[float, ...] = (0.4, 0.8)
    """Learning rates to try; one is chosen for each seed by the validation accuracy of the live weights."""
    seeds: int = 3
    """How many seeds, from 0 on."""
    swa: bool = True
    """Whether a run with SWA is forked from each refit at three quarters of it."""
    transfer: PublishedName | None = None
    """A data set on whose images the frozen features are evaluated with a linear head. By default none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        fit = all(0 < rate < math.inf for rate in self.rates) and len(set(self.rates)) == len(self.rates)
        if not (self.rates and fit):
            raise ValueError(f"rates are {listed(self.rates)}; give one or more learning rates above 0, each once")
        check_from("seeds", self.seeds, 1)
        if self.swa and not self.training.warmup <= self.swa_epoch < self.training.epochs:
            raise ValueError(
                f"epochs is {self.training.epochs} and swa is on, which would begin after epoch {self.swa_epoch}; give "
                "3 epochs or more and a warm-up that is over by then, or --no-swa (in a file: swa = false)"
            )
        if self.training.bootstrap is not None and self.swa:
            raise ValueError(
                f"bootstrap is {self.training.bootstrap} and swa is on, which are two studies; leave bootstrap out, or "
                "give --no-swa (in a file: swa = false)"
            )

    @property
    def swa_epoch(self) -> int:
        """The epoch after which SWA begins: at three quarters of the budget, as in the paper.

        >>> ProtocolConfig(training=TrainingConfig(epochs=200)).swa_epoch
        150
        """
        return round(0.75 * self.training.epochs)

    @property
    def recipe(self) -> Recipe:
        """What the runs have in common."""
        return Recipe(
            data=self.data,
            training=self.training,
            averages=self.averages,
            measuring=self.measuring,
            hardware=self.hardware,
        )


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Train a small network on digits with wrong labels, and compare weight averages with the live weights.

    It takes under a minute on two CPU cores, needs no download, and writes curves.svg, curves.png and rows.json.
    """

    epochs: int = 60
    """How often the network sees the 1297 training images."""
    noise: float = 0.4
    """Share of the training images that get a wrong label, from 0 to 1."""
    seed: int = 0
    """The same seed gives the same numbers, on the same machine with the same number of threads."""
    out: Path = Path("emabank-demo")
    """Folder for the figure and the numbers; made if it is not there."""
    threads: int = 1
    """CPU threads. So small a network gains little from more, and one gives the same numbers whatever else runs."""

    def __post_init__(self) -> None:
        check_from("epochs", self.epochs, 1)
        check_share("noise", self.noise)
        check_from("seed", self.seed, 0)
        check_from("threads", self.threads, 1)


def _filled(config: C, **defaults: object) -> C:
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})
