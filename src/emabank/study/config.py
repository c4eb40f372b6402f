"""What a run, a protocol and the demo are told: frozen, checked when built, complete. Imports neither torch nor numpy.

The command line is made from these classes and those of recipe, so that each default and each explanation stands once.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from emabank.study.plain import IF_USED
from emabank.study.recipe import LearntName, Recipe
from emabank.study.rows import BatchNorm, SelectedBy, TrainedOn
from emabank.study.values import check_choices, check_from, check_share, listed

_TARGETS: tuple[str, ...] = get_args(LearntName)


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
    transfer: tuple[LearntName, ...] = ()
    """The data sets on which a linear head is trained on the frozen features of all that is kept."""
    fingerprint: str = ""
    """Of the data that was found on disk."""
    transfer_fingerprints: tuple[str, ...] = ()
    """Of the data that features are evaluated on."""
    model_fingerprint: str = ""
    """Of a model of one's own."""
    posthoc: int = field(default=0, metadata=IF_USED)
    """How many snapshots of two power-function averages are kept, from which window and stopping epoch are chosen after
    the training, on validation images; 0: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe.completed())  # a frozen instance may, while it is being built
        check_choices(self)
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate is {self.rate}; give a learning rate above 0, such as 0.8")
        check_from("seed", self.seed, 0)
        check_from("posthoc", self.posthoc, 0)
        if self.posthoc and self.trained_on != "80%":
            raise ValueError(f"posthoc is {self.posthoc} and trained_on is {self.trained_on}; choosing needs the 80%")
        _check_targets(self.transfer)
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
    transfer: tuple[LearntName, ...] = ()
    """Data sets on whose images the frozen features are evaluated with a linear head. By default none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        fit = all(0 < rate < math.inf for rate in self.rates) and len(set(self.rates)) == len(self.rates)
        if not (self.rates and fit):
            raise ValueError(f"rates are {listed(self.rates)}; give one or more learning rates above 0, each once")
        check_from("seeds", self.seeds, 1)
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
    def swa_epoch(self) -> int:
        """The epoch after which SWA begins: at three quarters of the budget, as in the paper.

        >>> from emabank.study.recipe import TrainingConfig
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

    It takes about a minute on two CPU cores, needs no download, and writes a page to look at, its figure and rows.json.
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


def _check_targets(names: tuple[str, ...]) -> None:
    wrong = names if isinstance(names, str) else next((name for name in names if name not in _TARGETS), None)
    if wrong is not None or len(set(names)) < len(names):
        given = f"{wrong!r}" if wrong is not None else ", ".join(names)
        raise ValueError(f"transfer is {given}; give a tuple, each once, of {', '.join(_TARGETS)}")
