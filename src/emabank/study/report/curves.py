"""What tables, figures and claims all read off the curves, so that one sentence has one number.

May import numpy and the evidence.
"""

from typing import NamedTuple

import numpy as np

from emabank.study.report.evidence import LIVE, Curve, Setting

REACHED = 0.9
"""The accuracy on training images with right labels at which the paper compares what is memorised."""


class OnTrain(NamedTuple):
    """The refits' curves on training images with right and with wrong labels, each [seeds, epochs]."""

    clean: np.ndarray
    """Accuracy on the images with a right label."""
    memorised: np.ndarray
    """Share of the images with a wrong label that are predicted as that label."""
    batchnorm: str
    """"own", "recomputed" or "averaged"."""


class Reached(NamedTuple):
    """One run at the first epoch, counted from 1, at which its clean accuracy is high enough."""

    epoch: int
    clean: float
    memorised: float


def on_train(setting: Setting, weights: str) -> OnTrain | None:
    """The curves of the live weights or an average, recomputed statistics where these were measured every epoch.

    >>> on_train(Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                  has_batchnorm=True, tables=[], arms={}), "live")
    """
    for batchnorm in ("own",) if weights == LIVE else ("recomputed", "averaged"):
        clean, memorised = (
            setting.curves("refit", Curve(weights, batchnorm, "train", metric))
            for metric in ("clean_accuracy", "memorised")
        )
        if clean is not None and memorised is not None:
            return OnTrain(clean, memorised, batchnorm)
    return None


def when_reached(clean: np.ndarray, memorised: np.ndarray, level: float = REACHED) -> Reached | None:
    """One run at the first measured epoch whose clean accuracy is at least `level`, as in the paper; None if never.

    Nothing is made up between two epochs: the clean accuracy there may be well above the level.

    >>> when_reached(np.array([0.8, 0.94, 0.7]), np.array([0.2, 0.5, 0.9]))
    Reached(epoch=2, clean=0.94, memorised=0.5)
    """
    places = np.flatnonzero((clean >= level) & np.isfinite(memorised))
    if not len(places):
        return None
    first = int(places[0])
    return Reached(first + 1, float(clean[first]), float(memorised[first]))


def copied_back(setting: Setting) -> str | None:
    """The average that the runs of the bootstrap arm copied back into training; None where there are none.

    >>> copied_back(Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(),
    ...                     choices=[], has_batchnorm=True, tables=[], arms={}))
    """
    names = {run.copied_back for run in setting.arms.get("bootstrap", ())}
    return names.pop() if len(names) == 1 else None


def first_quarter(epochs: int) -> int:
    """How many epochs the first quarter of a run has.

    >>> first_quarter(40), first_quarter(30), first_quarter(3)
    (10, 7, 1)
    """
    return max(1, epochs // 4)
