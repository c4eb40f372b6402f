"""Learning from wrong labels: accuracy (the paper's Figure 2) and what is memorised of them (its Figure 7)."""

import numpy as np

from emabank.study.metrics.classification import Floats
from emabank.study.report.curves import REACHED, OnTrain, on_train, when_reached
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import CUT, figure_of, how, named
from emabank.study.report.figures.lines import (
    Mark,
    curves_of,
    epochs_of,
    focus,
    line,
    mark_at,
    percent_of,
    rate_line,
    slowest_of,
)
from emabank.study.report.pairs import NOISY, Scale
from emabank.study.report.panel import Figure, Panel


def accuracy(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Live weights and the slowest average on clean test images.

    >>> accuracy(Evidence(), "demo")
    []
    """
    settings = _settings(evidence, scale)
    panels = [panel for setting in settings for panel in _accuracy(setting)]
    return figure_of(
        "label-noise/accuracy",
        settings,
        panels,
        scale=scale,
        title="Trained on wrong labels: the live weights and the slowest average",
        caption=f"Accuracy on test images, whose labels are clean. {_names(settings)}The points mark the epochs that "
        "validation chose for the live weights and for the average, each read off its own curves: the mean of the "
        f"seeds. {how(panels)} {CUT}",
        columns=min(2, len(panels)),
        item="Figure 2",
    )


def memorisation(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Share of wrong labels predicted as given, beside the accuracy on training images with right labels.

    >>> memorisation(Evidence(), "demo")
    []
    """
    settings = _settings(evidence, scale)
    panels = [panel for setting in settings for panel in _memorisation(setting)]
    return figure_of(
        "label-noise/memorisation",
        settings,
        panels,
        scale=scale,
        title="Wrong labels memorised, beside clean training images learnt",
        caption="On the training images: the share of wrongly labelled ones predicted as that label (memorised), and "
        f"the accuracy on those with a right label (clean). {_names(settings)}The points mark what is memorised when "
        f"the clean accuracy first reaches {REACHED:.0%}, found in each seed's own curve; weights "
        f"without a point did not reach it with every seed. {how(panels)}",
        columns=min(2, len(panels)),
        item="Figure 7",
    )


def _settings(evidence: Evidence, scale: Scale) -> list[Setting]:
    return [setting for pair in NOISY for setting in evidence.of(pair, scale=scale)]


def _names(settings: list[Setting]) -> str:
    return f"{named(settings[0].averages)} " if settings else ""


def _accuracy(setting: Setting) -> list[Panel]:
    live, slowest = curves_of(setting, "refit", LIVE, "test"), slowest_of(setting, "refit", "test")
    if live is None or slowest is None:
        return []
    curves, batchnorm = slowest
    statistics = f", {batchnorm} statistics" if setting.has_batchnorm else ""
    lines = (
        line(live, "live weights", kind="live"),
        line(curves, f"{setting.slowest}{statistics}", kind="average", order=len(setting.averages) - 1),
    )
    rate, marks = rate_line(setting.arms["refit"]), _chosen(setting, live, curves)
    return [Panel(title=setting.title, lines=lines, rate=rate, marks=marks, y_limits=focus(lines, marks))]


def _chosen(setting: Setting, live: Floats, slowest: Floats) -> list[Mark]:
    """Live weights and average, each at the epoch that validation accuracy chose for it, on the curves as drawn."""
    choices = {choice["seed"]: choice for choice in setting.choices}
    own = [choices[run.seed] for run in setting.arms["refit"] if run.seed in choices]
    return [
        *mark_at(live, [choice["live_epoch"] for choice in own], "live weights, chosen on validation"),
        *mark_at(
            slowest, [choice["averages"]["accuracy"][1] for choice in own], f"{setting.slowest}, chosen on validation"
        ),
    ]


def _memorisation(setting: Setting) -> list[Panel]:
    lines, marks = [], []
    for weights, words in ((LIVE, "live weights"), (setting.slowest, setting.slowest)):
        curves = on_train(setting, weights)
        if curves is None:
            return []
        kind, order = ("live", 0) if weights == LIVE else ("average", len(setting.averages) - 1)
        if weights != LIVE and setting.has_batchnorm:
            words = f"{words}, {curves.batchnorm} statistics"
        lines += [
            line(curves.memorised, f"{words}: memorised", kind=kind, order=order),
            line(curves.clean, f"{words}: clean", kind=kind, order=order, dashed=True),
        ]
        marks += reached_mark(curves, words)
    return [
        Panel(
            title=setting.title,
            y_label="training images, %",
            lines=lines,
            rate=rate_line(setting.arms["refit"]),
            marks=marks,
            y_limits=(-2, 102),
        )
    ]


def reached_mark(curves: OnTrain, words: str) -> list[Mark]:
    """What is memorised at the epoch at which the clean accuracy first reaches 90%, mean of the seeds, as a mark.

    None unless every seed reaches it.

    >>> curves = OnTrain(np.array([[0.5, 0.95, 0.8]]), np.array([[0.1, 0.25, 0.5]]), "own")
    >>> reached_mark(curves, "live weights")
    [(2.0, 25.0, 'live weights: 25.0% (n = 1) memorised when clean reaches 90% (epoch 2)')]
    """
    seeds = [when_reached(*both) for both in zip(curves.clean, curves.memorised, strict=True)]
    reached = [seed for seed in seeds if seed is not None]
    if not reached or len(reached) < len(seeds):
        return []
    epochs, shares = [seed.epoch for seed in reached], [seed.memorised for seed in reached]
    label = f"{words}: {percent_of(shares)} memorised when clean reaches {REACHED:.0%} ({epochs_of(epochs)})"
    return [(float(np.mean(epochs)), 100 * float(np.mean(shares)), label)]
