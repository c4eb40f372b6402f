"""What was measured, as the report sees it: settings with their runs, curves and tables, and what was left out.

Arrays in, arrays out; `load.py` fills it from a folder of runs. May import numpy, pairs and wrong labels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from emabank.study.report.pairs import Scale
from emabank.study.report.wrong_labels import LABELS, chosen_on, validation_labels

LIVE = "live"


class Curve(NamedTuple):
    """Which curve of a run: of which weights, with which batch-norm statistics, measured on what, and how."""

    weights: str
    """"live", or the name of an average."""
    batchnorm: str
    """"own" for the live weights; for averages "averaged", or "recomputed" where that was measured each epoch."""
    split: str
    """"train", "val" or "test"."""
    metric: str
    """"accuracy", "loss"; on "train" also "clean_accuracy" and "memorised" where labels are wrong."""


Predictions = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Logits and labels by split."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run: what is known of each epoch, and a way to its predictions."""

    id: str
    seed: int
    rate: float
    """The peak of the learning rate."""
    rates: np.ndarray
    """The learning rate at the end of each epoch."""
    curves: Mapping[Curve, np.ndarray]
    """A value for each epoch from the first on; NaN where nothing was measured."""
    posthoc: Mapping[Curve, np.ndarray] = field(default_factory=dict)
    """The same of averages that were put together after the training, where the run has snapshots for that; their
    metrics have "profile_error" among them, and for the last epoch "weight_distance"."""
    copied_back: str | None = None
    """The average that was copied into the live weights after each epoch, by the run's configuration."""
    constant_from: int | None = None
    """The epoch after which its learning rate was held, by the run's configuration."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Versions and hardware of its last session."""
    predictions: Callable[[str], Predictions] = lambda name: {}
    """The predictions of kept weights, by the name under which the run keeps them."""

    @property
    def epochs(self) -> int:
        return len(self.rates)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One data set and network at one scale, with the protocol over it and the runs beside it.

    Shares are fractions of 1 everywhere here; whoever shows them makes percentages of them.
    """

    scale: Scale
    pair: str
    """The paper's data set and network that it stands for, such as "cifar100-resnet18"."""
    title: str
    """What was really trained, for people, such as "digits, ResNet-8"."""
    dataset: str
    network: str
    protocol: str
    """The name of the protocol's folder."""
    averages: tuple[str, ...]
    """Their names, the one with the longest memory last."""
    has_batchnorm: bool
    choices: Sequence[Mapping[str, Any]]
    """What each seed chose on validation: seed, rate, live_epoch, averages (criterion -> (average, epoch))."""
    tables: Sequence[Mapping[str, Any]]
    """The columns of the protocol's tables, as `emabank.study.comparisons.tables` makes them."""
    arms: Mapping[str, tuple[Run, ...]]
    """Runs in the order of the seeds: "tune" and "refit" with what was chosen, "swa", "tune at 0.4" for each rate
    tried, and what a study adds: "constant", "step", "bootstrap", "posthoc", "every 1"."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The protocol's configuration."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(choice["seed"] for choice in self.choices)

    @property
    def validation_labels(self) -> str:
        """The labels of the validation images where some training labels are wrong: "clean" or "noisy"; else empty."""
        return validation_labels(self.config)

    @property
    def slowest(self) -> str:
        return self.averages[-1]

    def values(self, column: str, metric: str, *, trained_on: str, split: str) -> list[float | None] | None:
        """One value a seed (a pair of seeds, for churn and js); None where the table has no such column or measure."""
        for table in self.tables:
            if (table["trained_on"], table["split"], table["column"]) == (trained_on, split, column):
                return table["values"].get(metric)
        return None

    def column(self, column: str, *, trained_on: str, split: str) -> Mapping[str, Any] | None:
        """A column of the protocol's tables."""
        for table in self.tables:
            if (table["trained_on"], table["split"], table["column"]) == (trained_on, split, column):
                return table
        return None

    def curves(self, arm: str, curve: Curve) -> np.ndarray | None:
        """A curve of every seed, [seeds, epochs]; None unless every run of the arm has it, over as many epochs."""
        runs = self.arms.get(arm, ())
        found = [run.curves.get(curve) for run in runs]
        there = [each for each in found if each is not None]
        if not there or len(there) < len(found) or len({len(each) for each in there}) > 1:  # one may have diverged
            return None
        return np.stack(there)

    def best_average(
        self, arm: str, split: str, metric: str = "accuracy", *, batchnorm: str = "averaged"
    ) -> np.ndarray | None:
        """The best of all averages at every epoch, [seeds, epochs]: an oracle's choice, as the paper's figures have it.

        Of an average's loss the lowest is best.
        """
        found = [self.curves(arm, Curve(name, batchnorm, split, metric)) for name in self.averages]
        there = [each for each in found if each is not None]
        if not there or len(there) < len(found):
            return None
        stacked = np.stack(there)
        return np.fmin.reduce(stacked) if metric == "loss" else np.fmax.reduce(stacked)

    def afterwards(self, metric: str = "accuracy") -> dict[str, np.ndarray]:
        """What each window that was tried after the training gave on validation, [seeds, epochs], the shortest first.

        An epoch that was not tried has NaN; a window that not every run has is not there.
        """
        runs = self.arms.get("posthoc", ())
        statistics = "recomputed" if self.has_batchnorm and metric != "weight_distance" else "averaged"
        curves = [curve for run in runs[:1] for curve in run.posthoc]
        names = [curve.weights for curve in curves if curve[1:] == (statistics, "val", metric)]
        made: dict[str, np.ndarray] = {}
        for name in names:
            found = [run.posthoc.get(Curve(name, statistics, "val", metric)) for run in runs]
            there = [each for each in found if each is not None and np.isfinite(each).any()]
            if len(there) == len(runs) and len({len(each) for each in there}) == 1:
                made[name] = np.stack(there)
        return made


def compares(setting: Setting) -> bool:
    """Whether it is the paper's own data set, whole, and its own network: then the paper's numbers compare with it.

    >>> made = Setting(scale="demo", pair="cifar10-resnet18", title="digits, ResNet-8", dataset="digits",
    ...                network="resnet8", protocol="", averages=(), has_batchnorm=True, choices=[], tables=[], arms={})
    >>> compares(made)
    False
    """
    data: Any = setting.config.get("data") or {}
    whole = not (data.get("subset") or data.get("test_subset") or data.get("noise"))
    published = data.get("labels") in (None, "worse", "noisy")  # of CIFAR-10N, the worse labels alone
    return whole and published and f"{setting.dataset}-{setting.network}" == setting.pair


def all_chosen_on(settings: Iterable[Setting]) -> str:
    """What a caption says of the validation labels of its settings; where it is true of some alone, these are named.

    >>> all_chosen_on([])
    ''
    """
    settings = list(settings)
    titles = {labels: dict.fromkeys(s.title for s in settings if s.validation_labels == labels) for labels in LABELS}
    return "".join(
        chosen_on(labels, "" if all(s.validation_labels == labels for s in settings) else f" ({'; '.join(own)})")
        for labels, own in titles.items()
        if own
    )


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What averages cost beside the training step of one network, measured on one machine in one interleaved run."""

    network: str
    parameters: int
    averages: int
    every: int
    step_seconds: tuple[float, ...]
    """A training step without averages, once a repetition."""
    update_seconds: tuple[float, ...]
    """One update of all averages, once a repetition."""
    bytes: int
    """Memory of all averages."""
    conditions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A named study as it was asked for."""

    name: str
    scale: Scale
    command: str
    state: str
    """"done", "running" or "failed"."""
    reason: str = ""
    """Why it failed."""


class LeftOut(NamedTuple):
    """Something in the folder that the report does not use, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that a folder of runs has to tell."""

    settings: Sequence[Setting] = ()
    studies: Sequence[Study] = ()
    overheads: Sequence[Overhead] = ()
    left_out: Sequence[LeftOut] = ()

    def of(self, *pairs: str, scale: str | None = None) -> list[Setting]:
        """The settings that stand for these pairs of the paper (for any, without), at one scale or at all.

        >>> Evidence().of("cifar100-resnet18", scale="demo")
        []
        """
        return [each for each in self.settings if (not pairs or each.pair in pairs) and scale in (None, each.scale)]

    @property
    def scales(self) -> list[Scale]:
        """The scales there are, the largest first.

        >>> Evidence().scales
        []
        """
        order: Iterable[Scale] = ("paper", "small", "demo")
        return [scale for scale in order if any(each.scale == scale for each in self.settings)]
