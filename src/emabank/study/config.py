"""Configurations of runs, protocols and launches: frozen dataclasses that check their values when built.

The command line is generated from these classes, so every default and help text is written once, here. `completed`
replaces None with defaults; a `RunConfig` always does so, because a run's id is the hash of its configuration.
Imports neither torch nor numpy.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from emabank.study.models import network_info
from emabank.study.runs.rows import BatchNorm, SelectedBy, TrainedOn
from emabank.study.serialize import IF_USED

PublishedName = Literal["digits", "cifar10", "cifar100", "cifar10n", "cifar100n", "tiny-imagenet"]
LearntName = Literal[PublishedName, "digits-0-4", "digits-5-9"]
DatasetName = Literal[LearntName, "own"]
HumanLabels = Literal["aggregate", "worse", "random1", "random2", "random3", "noisy"]
Network = Literal[
    "resnet8", "resnet20", "resnet18", "resnet34", "wrn-28-10", "vgg16", "vgg-small", "whitened-cnn", "own"
]

Seeds = int | tuple[int, ...]
"""A number of seeds, counted from 0, or the seeds themselves."""
_MOST_SEEDS = 100

C = TypeVar("C", "DataConfig", "TrainingConfig", "HardwareConfig")
R = TypeVar("R", bound="Recipe")

_HUMAN_LABELS = {"cifar10n": ("worse", "aggregate", "random1", "random2", "random3"), "cifar100n": ("noisy",)}
_SMALL = ("digits", "digits-0-4", "digits-5-9")
_TARGETS: tuple[str, ...] = get_args(LearntName)
_DATASETS = {
    "digits": "digits",
    "digits-0-4": "digits 0–4",
    "digits-5-9": "digits 5–9",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar10n": "CIFAR-10N",
    "cifar100n": "CIFAR-100N",
    "tiny-imagenet": "Tiny-ImageNet",
    "own": "own data",
}
_CROP = {"tiny-imagenet": 8, "own": 0, **dict.fromkeys(_SMALL, 0)}  # pixels; 4 elsewhere (method.md, Training)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The training, validation and test images."""

    dataset: DatasetName = "digits"
    """Which data set. The digits come with the package; their halves are for transfer."""
    labels: HumanLabels | None = None
    """Human labels of CIFAR-10N (worse, the default; aggregate; random1 to random3) or CIFAR-100N (noisy)."""
    noise: float = 0.0
    """Share of the training images that get a random wrong label, from 0 to 1."""
    noise_seed: int = 0
    """Decides which images get which wrong labels."""
    subset: int | None = None
    """Use only this many training images, with the same shares of classes; a fifth of them validate. By default all."""
    test_subset: int | None = None
    """Use only this many test images. By default all."""
    size: int | None = field(default=None, metadata=IF_USED)
    """Shrink images to this many pixels square, a divisor of their size: 16 or 8 for 32. By default unchanged."""
    split_seed: int = 0
    """Decides which fifth of the training images is held out for validation, and which images a subset has."""
    validation_labels: Literal["clean", "noisy"] = "clean"
    """With wrong labels: which labels of the held-out images choose the rate. Both choose epochs and averages."""
    crop: int | None = None
    """Pixels of reflected padding for random crops. By default 4; Tiny-ImageNet 8; digits and own data 0 (no crops)."""
    flip: bool | None = None
    """Mirror images at random. By default yes, except for digits and own data."""

    def __post_init__(self) -> None:
        check(self, noise_seed=0, split_seed=0, crop=0, subset=10, test_subset=10, size=2)
        allowed = _HUMAN_LABELS.get(self.dataset, ())
        if self.labels is not None and self.labels not in allowed:
            raise ValueError(
                f"labels is {self.labels}; {self.dataset} has "
                + (", ".join(allowed) if allowed else "its own labels only: leave labels out")
            )
        check_share("noise", self.noise)
        if self.noise and allowed:
            raise ValueError(f"noise is {self.noise}; {self.dataset} has wrong labels of its own: use noise 0")

    @property
    def has_wrong_labels(self) -> bool:
        """Whether some training images are known to have a wrong label."""
        return self.noise > 0 or self.dataset in _HUMAN_LABELS

    def completed(self) -> "DataConfig":
        """A copy with defaults in place of None."""
        labels = next(iter(_HUMAN_LABELS.get(self.dataset, ())), None)
        return _filled(self, labels=labels, crop=_CROP.get(self.dataset, 4), flip=self.dataset not in (*_SMALL, "own"))


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the network is trained: SGD with Nesterov momentum, on cross entropy."""

    network: Network = "resnet8"
    """Which network. For a CPU: resnet8, resnet20, vgg-small, whitened-cnn."""
    width: int | None = None
    """Channels of the first stage. By default 16 for resnet8, resnet20 and vgg-small, 32 for whitened-cnn."""
    epochs: int = 60
    """Passes over the training images."""
    batch: int = 128
    """Images per step."""
    momentum: float = 0.9
    """Nesterov momentum."""
    weight_decay: float | None = None
    """Weight decay of all parameters. By default 5e-4 for WideResNet and VGG, 1e-4 for the others."""
    schedule: Literal["cosine", "step"] = "cosine"
    """The learning rate after its warm-up: a cosine to 0, or divided by the factor at each milestone."""
    warmup_epochs: float | None = None
    """Epochs until the learning rate reaches its peak. By default a fortieth of the run: 5 of 200."""
    milestones: tuple[float, ...] = (0.3, 0.6, 0.8)
    """Shares of the run at which the rate falls, for the step schedule: 60, 120 and 160 of 200 epochs."""
    factor: float = 5.0
    """The step schedule divides the rate by this at each milestone."""
    bootstrap: str | None = None
    """Copy this average, such as ema-7.1%, into the live weights after each epoch; not with SWA. By default none."""
    bootstrap_every: int | None = field(default=None, metadata=IF_USED)
    """Optimizer steps between these copies; the average is updated just before each. By default one epoch."""

    def __post_init__(self) -> None:
        check(self, epochs=1, batch=2, width=1, weight_decay=0, warmup_epochs=0, bootstrap_every=1)
        if self.network != "own":
            network_info(self.network).check_width(self.width)
        if self.bootstrap_every is not None and self.bootstrap is None:
            raise ValueError(f"bootstrap_every is {self.bootstrap_every} and bootstrap is None; name an average there")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; give a number from 0 to below 1, such as 0.9")
        if not 1 < self.factor < math.inf:
            raise ValueError(f"factor is {self.factor}; the rate is divided by it, so give more than 1, such as 5")
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup_epochs is {self.warmup}; give less than the {self.epochs} epochs of the run")
        rising = all(earlier < later for earlier, later in pairwise((0, *self.milestones, 1)))
        # A cosine has no milestones, so its warm-up may be longer.
        if not rising or (self.schedule == "step" and any(s * self.epochs <= self.warmup for s in self.milestones)):
            raise ValueError(
                f"milestones are {listed(self.milestones)}; give rising shares of the run, after the warm-up, below 1"
            )

    @property
    def warmup(self) -> float:
        """The epochs of the warm-up, with its default in place of None."""
        return self.epochs / 40 if self.warmup_epochs is None else self.warmup_epochs

    def completed(self) -> "TrainingConfig":
        """A copy with defaults in place of None."""
        if self.network == "own":
            return _filled(self, weight_decay=1e-4, warmup_epochs=self.warmup)
        network = network_info(self.network)
        return _filled(self, weight_decay=network.weight_decay, width=network.default_width, warmup_epochs=self.warmup)


@dataclass(frozen=True, kw_only=True)
class AveragesConfig:
    """Which averages to keep during training."""

    decays: tuple[float, ...] = ()
    """Decays per update instead of half-lives; the paper uses 0.968 0.984 0.992 0.996 0.998 with --every 16."""
    half_lives: tuple[float, ...] = (0.44, 0.88, 1.8, 3.5, 7.1)
    """Half-lives in percent of the run: by default the paper's five horizons. --decays replaces them."""
    every: int = 1
    """Optimizer steps between updates: 16 in the paper, 1 for runs of a few hundred steps."""
    decay_warmup: Literal["steps", "updates", "none"] = "none"
    """Keep the decay low at the start, as in the paper; too long for a run of a few hundred steps."""

    def __post_init__(self) -> None:
        check(self, every=1)
        for decay in self.decays:
            if not 0 <= decay <= 1:
                raise ValueError(f"decays has {decay}; give the weight of the past, from 0 to 1, such as 0.998")
        for share in self.half_lives:
            if not 0 < share <= 100:
                raise ValueError(f"half_lives has {share}; give percentages of the run, above 0 and up to 100")
        if not (self.decays or self.half_lives):
            raise ValueError("decays and half_lives are both empty; give at least one average")
        for name, values in (("decays", self.decays), ("half_lives", self.half_lives)):
            if len({f"{value:g}" for value in values}) < len(values):  # as written in `names`
                raise ValueError(f"{name} are {listed(values)}; give each once, different in their first six digits")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, from the shortest memory to the longest."""
        if self.decays:
            return tuple(f"ema-{decay:g}" for decay in sorted(self.decays))
        return tuple(f"ema-{share:g}%" for share in sorted(self.half_lives))


@dataclass(frozen=True, kw_only=True)
class MeasuringConfig:
    """What to measure besides the validation accuracy of the live weights and every average after each epoch."""

    recompute: Literal["chosen", "each-epoch"] = "chosen"
    """Recompute batch-norm statistics for the chosen weights only, or for every average after each epoch."""
    on_train: bool = False
    """Also measure on the training images: how many wrong labels are memorised."""
    train_every: int = field(default=1, metadata=IF_USED)
    """Epochs between measurements on the training images; the last epoch is always measured."""
    test_curves: bool = False
    """Also measure on the test images after each epoch."""
    curve_images: int | None = field(default=None, metadata=IF_USED)
    """Use only this many images for training metrics, test curves and recomputing after each epoch. By default all."""

    def __post_init__(self) -> None:
        check(self, curve_images=10, train_every=1)


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """The device and its arithmetic; part of a run's identity, because the last digits depend on it."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto: on a GPU if there is one."""
    threads: int = 1
    """CPU threads per run. With 1, one run per core can train at once."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """Precision of the forward and backward pass; weights and averages stay float32."""
    channels_last: bool | None = None
    """Store images channels-last. By default where that is faster: on a CPU, and on a GPU below float32."""
    fused: bool | None = None
    """Use the fused optimizer. By default on a CPU or cuda, except with fp16."""
    compile: bool = False
    """Use torch.compile for training steps; on a CPU this needs a C++ compiler and a minute to start."""

    def __post_init__(self) -> None:
        check(self, threads=1)
        if self.fused and self.precision == "fp16":
            # torch's fused SGD leaves its momentum uninitialised if the loss scaler skips the very first step.
            raise ValueError("fused is True and precision is fp16, which go wrong together in torch; leave fused out")

    def completed(self) -> "HardwareConfig":
        """A copy with the options that were fastest (docs/log.md) in place of None; unchanged if the device is auto."""
        if self.device == "auto":
            return self
        return _filled(
            self,
            channels_last=self.device == "cpu" or self.precision != "float32",
            fused=self.device in ("cpu", "cuda") and self.precision != "fp16",
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The part of a configuration that all runs of a protocol share."""

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
        """A copy with defaults in place of None."""
        data, training, hardware = self.data.completed(), self.training.completed(), self.hardware.completed()
        return replace(self, data=data, training=training, hardware=hardware)

    @property
    def title(self) -> str:
        """A title that names the data and the network.

        >>> Recipe(data=DataConfig(noise=0.4, subset=600)).title
        'digits, 40% of 600 with wrong labels, ResNet-8'
        """
        data, training = self.data, self.training
        words = [_DATASETS[data.dataset]]
        if data.noise:
            of = "" if data.subset is None else f" of {data.subset:,}"
            words.append(f"{100 * data.noise:g}%{of} with wrong labels")
        elif data.subset is not None:
            words.append(f"{data.subset:,} images")
        if data.size is not None:
            words.append(f"at {data.size} × {data.size}")
        if training.network == "own":
            return ", ".join([*words, "own network"])
        network = network_info(training.network)
        width = "" if training.width in (None, 8, network.default_width) else f" of width {training.width}"
        return ", ".join([*words, network.title + width])


def _filled(config: C, **defaults: object) -> C:
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})


# Runs and protocols --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Weights that a run keeps: which, at the end of which epoch, with which batch-norm statistics."""

    weights: str
    epoch: int
    batchnorm: BatchNorm
    selected_by: SelectedBy

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """The name of the files with these weights."""
        statistics = "" if self.batchnorm in ("own", "averaged") else f"-{self.batchnorm}"
        return f"{self.weights}{statistics}-{self.selected_by}"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The complete configuration of one training run; its hash is the run's id."""

    recipe: Recipe
    rate: float
    """The peak learning rate."""
    seed: int
    """Seeds the initial weights, the order of the images and their augmentation."""
    trained_on: TrainedOn
    """All training images, or four fifths of them with the remaining fifth for validation."""
    keep: tuple[Keep, ...] = ()
    """Weights to keep from a run on all images, which has no validation; the last live weights are always kept."""
    constant_from: int | None = None
    """The epoch after which the learning rate stays constant."""
    swa: bool = False
    """Whether to keep a uniform average (SWA) from then on, with one sample per epoch."""
    transfer: tuple[LearntName, ...] = ()
    """Data sets for training a linear head on the frozen features of kept weights."""
    fingerprint: str = ""
    """The fingerprint of the data that was found on disk."""
    transfer_fingerprints: tuple[str, ...] = ()
    """The fingerprints of the data sets in `transfer`."""
    model_fingerprint: str = ""
    """The fingerprint of a user's own model."""
    posthoc: int = field(default=0, metadata=IF_USED)
    """How many snapshots of two power-function averages to keep, so that window and stopping epoch can be chosen on
    validation images after training; 0 for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe.completed())  # frozen, but still being built
        check(self, seed=0, posthoc=0)
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate is {self.rate}; give a learning rate above 0, such as 0.8")
        if self.posthoc and self.trained_on != "80%":
            raise ValueError(f"posthoc is {self.posthoc} and trained_on is {self.trained_on}; choosing needs the 80%")
        _check_targets(self.transfer)
        epochs = self.recipe.training.epochs
        first = max(1, math.ceil(self.recipe.training.warmup))
        if self.constant_from is not None and not first <= self.constant_from < epochs:
            raise ValueError(f"constant_from is {self.constant_from}; give an epoch from {first} to {epochs - 1}")
        if self.swa and self.constant_from is None:
            raise ValueError("swa needs constant_from, the epoch after which samples are taken")
        for keep in self.keep:
            if not 1 <= keep.epoch <= epochs:
                raise ValueError(f"keep has epoch {keep.epoch}; the run has epochs 1 to {epochs}")

    @property
    def title(self) -> str:
        """A title that distinguishes this run from the others of its recipe."""
        return f"{self._kind()}, rate {self.rate:g}, seed {self.seed}"

    def _kind(self) -> str:
        training = self.recipe.training
        if self.swa:
            return "SWA"
        if self.constant_from is not None:
            return f"rate held from epoch {self.constant_from}"
        kind = "tune" if self.trained_on == "80%" else "refit"
        if training.bootstrap is not None:
            kind += f", bootstrap from {training.bootstrap}"
            kind += "" if training.bootstrap_every is None else f" every {training.bootstrap_every} steps"
        if self.posthoc:
            kind += ", with snapshots"
        if training.schedule == "step":
            kind += ", step decay"
        elif self.trained_on == "100%" and not self.keep:  # refits keep chosen weights; this is a variant
            kind += f", averages every {self.recipe.averages.every}"
        return kind


@dataclass(frozen=True, kw_only=True)
class ProtocolConfig(Recipe):
    """Tune on 80% of the training images, choose on the rest, refit on all, and measure on the test images.

    Every run is trained once: the same command resumes an interrupted protocol, and does nothing if it is done.
    """

    rates: tuple[float, ...] = (0.4, 0.8)
    """Learning rates to try. Per seed, the validation accuracy of the live weights chooses one."""
    seeds: Seeds = 3
    """A number of seeds, counted from 0; or the seeds themselves, such as 10-19 or 10,12,15."""
    swa: bool = True
    """By default a run with SWA forks from each refit at three quarters of its epochs."""
    transfer: tuple[LearntName, ...] = ()
    """Data sets for linear evaluation of the frozen features. By default none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)
        fit = all(0 < rate < math.inf for rate in self.rates) and len(set(self.rates)) == len(self.rates)
        if not (self.rates and fit):
            raise ValueError(f"rates are {listed(self.rates)}; give one or more learning rates above 0, each once")
        object.__setattr__(self, "seeds", _checked_seeds(self.seeds))
        _check_targets(self.transfer)
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
    def seed_numbers(self) -> tuple[int, ...]:
        """Every seed, in the order given."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def swa_epoch(self) -> int:
        """The epoch after which SWA begins: at three quarters of the budget, as in the paper."""
        return round(0.75 * self.training.epochs)

    @property
    def recipe(self) -> Recipe:
        """The part that all runs share."""
        return Recipe(**{field.name: getattr(self, field.name) for field in fields(Recipe)})


def parse_seeds(text: str) -> Seeds:
    """Parse seeds from the command line.

    >>> parse_seeds("3"), parse_seeds("10-12"), parse_seeds("10,12,15")
    (3, (10, 11, 12), (10, 12, 15))
    """
    if text.isdecimal():
        return _checked_seeds(int(text))
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        bounds = (first, last if dash else first)
        if not all(bound.isdecimal() for bound in bounds) or int(bounds[0]) > int(bounds[1]):
            raise ValueError(f"seeds is {text!r}; give a count, such as 3, or seeds, such as 10-19 or 10,12,15")
        seeds += range(int(bounds[0]), int(bounds[1]) + 1)
    return _checked_seeds(tuple(seeds))


def _checked_seeds(seeds: Seeds) -> Seeds:
    """Check seeds, and give equal seeds one form: 0, 1, ..., n - 1 become the number n."""
    if isinstance(seeds, int):
        check_at_least("seeds", seeds, 1)
        if seeds > _MOST_SEEDS:
            raise ValueError(
                f"seeds is {seeds}, a count of at most {_MOST_SEEDS}; for seed {seeds} give {seeds}-{seeds}"
            )
        return seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds are {listed(seeds)}; give one or more, 0 or above, each once")
    return len(seeds) if seeds == tuple(range(len(seeds))) else seeds


def _check_targets(names: tuple[str, ...]) -> None:
    wrong = names if isinstance(names, str) else next((name for name in names if name not in _TARGETS), None)
    if wrong is not None or len(set(names)) < len(names):
        value = f"{wrong!r}" if wrong is not None else ", ".join(names)
        raise ValueError(f"transfer is {value}; give a tuple, each once, of {', '.join(_TARGETS)}")


# Where and how runs are trained: no effect on results ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where files are and how runs are started; results do not depend on it."""

    data: Path = Path("data")
    """Folder with the data sets; the digits need none."""
    cache: Path | None = None
    """Folder for decoded images; by default .emabank-cache in the data folder."""
    runs: Path = Path("runs")
    """Folder for the runs; created if missing."""
    jobs: int | None = None
    """Runs at a time. By default one per core (with --threads 1), one on a GPU, as many as fit on a cluster."""
    executor: Literal["local", "slurm", "ray"] = "local"
    """Train runs as processes on this machine, as Slurm jobs, or as Ray tasks."""
    address: str | None = None
    """Address of a Ray cluster, such as auto or ray://head:10001. By default Ray on this machine alone."""
    slurm: tuple[str, ...] = ()
    """Settings for Slurm jobs, such as partition=gpu time=120 (minutes) mem=16GB. By default 60 minutes."""
    retries: int = 2
    """How often to restart a cluster run from its checkpoint after its worker died."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints of a run."""
    tensorboard: bool = False
    """Also write curves for TensorBoard into each run's folder."""
    wandb: str | None = None
    """Also log runs to this Weights & Biases project. By default none."""

    def __post_init__(self) -> None:
        check(self, jobs=1, checkpoint_seconds=0, retries=0)
        self.slurm_settings()
        for name, value in (("address", self.address), ("slurm", self.slurm)):
            wanted = "ray" if name == "address" else "slurm"
            if value and self.executor != wanted:
                raise ValueError(
                    f"{name} is {value!r}, which needs --executor {wanted}; the executor is {self.executor}"
                )

    def slurm_settings(self) -> dict[str, int | str]:
        """The Slurm settings by name, with whole numbers as int.

        >>> Place(executor="slurm", slurm=("partition=gpu", "time=120")).slurm_settings()
        {'partition': 'gpu', 'time': 120}
        """
        settings: dict[str, int | str] = {}
        for setting in self.slurm:
            name, equals, value = setting.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(f"slurm has {setting!r}; give settings such as partition=gpu or time=120")
            settings[name] = int(value) if value.isdecimal() else value
        return settings

    def absolute(self) -> "Place":
        """A copy with absolute paths, for processes that may start in another folder."""
        cache = None if self.cache is None else self.cache.absolute()
        return replace(self, data=self.data.absolute(), runs=self.runs.absolute(), cache=cache)

    def check_trackers(self) -> None:
        """Raise `ValueError` if a requested logger needs a package that is not installed."""
        for name, asked in (("tensorboard", self.tensorboard), ("wandb", self.wandb is not None)):
            spec = find_spec(name) if asked else None
            # A spec without an origin is only a folder of that name, such as the one that wandb creates where it runs.
            if asked and (spec is None or spec.origin is None):
                raise ValueError(f"--{name} needs the package {name}: pip install {name}")


# Checks --------------------------------------------------------------------------------------------------------------


def check(config: object, **least: float) -> None:
    """Raise `ValueError` for a choice that the annotation does not allow, or a number below its minimum."""
    for name, number in least.items():
        check_at_least(name, getattr(config, name), number)
    for name, kind in _hints(type(config)).items():
        value, kinds = getattr(config, name), get_args(kind)
        # The class checks the items of a tuple itself.
        if (value is None and NoneType in kinds) or get_origin(kind) is tuple:
            continue
        for choices in (kind, *kinds):
            if get_origin(choices) is Literal and value not in get_args(choices):
                raise ValueError(f"{name} is {value!r}; give one of {', '.join(get_args(choices))}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def check_share(name: str, value: float) -> None:
    """Raise `ValueError` for a share outside 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; give a share from 0 to 1, such as 0.4")


def check_at_least(name: str, value: float | None, least: float) -> None:
    """Raise `ValueError` for a number that is below the minimum or not finite; None passes."""
    if value is not None and not least <= value < math.inf:
        raise ValueError(f"{name} is {value}; give {'a finite number' if value == math.inf else f'{least} or more'}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion for an error message, or an empty string.

    >>> did_you_mean("stauts", ["run", "status"])
    ' (did you mean status?)'
    """
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def listed(values: tuple[float, ...]) -> str:
    """Numbers as written on the command line."""
    return " ".join(map(str, values)) or "empty"
