"""Other ways to train: a constant rate (the paper's Figure 8), step decay (Figure 3), bootstrapping (Figure 5)."""

from dataclasses import replace

import numpy as np

from emabank.study.report.curves import copied_back
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import CUT, ORACLE, figure_of, how, named, statistics
from emabank.study.report.figures.dynamics import live_and_best
from emabank.study.report.figures.lines import Mark, curves_of, epochs_of, focus, line, rate_line
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure, Line, Panel


def constant_rate(evidence: Evidence, scale: Scale) -> list[Figure]:
    """The learning rate held from the chosen epoch on, against the cosine.

    >>> constant_rate(Evidence(), "demo")
    []
    """
    settings = evidence.of("cifar100n-resnet18", scale=scale)
    panels = [panel for setting in settings for panel in _constant(setting)]
    return figure_of(
        "constant-lr/accuracy",
        settings,
        panels,
        scale=scale,
        title="Wrong labels: the learning rate held constant, against the cosine",
        caption="The rate is held from the epoch on that validation chose for EMA (acc.); up to there both are one "
        f"run. {ORACLE} {statistics(settings)}{how(panels)} {CUT}",
        item="Figure 8",
    )


def step_decay(evidence: Evidence, scale: Scale) -> list[Figure]:
    """The learning rate divided by 5 at three milestones.

    >>> step_decay(Evidence(), "demo")
    []
    """
    settings = evidence.of("cifar100-resnet18", scale=scale)
    panels = [panel for setting in settings for panel in _step(setting)]
    return figure_of(
        "step-decay/accuracy",
        settings,
        panels,
        scale=scale,
        title="Step decay of the learning rate",
        caption=f"The rate falls at three milestones in place of a cosine. {ORACLE} "
        f"{statistics(settings)}{how(panels)} {CUT}",
        item="Figure 3",
    )


def bootstrap(evidence: Evidence, scale: Scale) -> list[Figure]:
    """The average copied into the live weights after each epoch, against plain training.

    >>> bootstrap(Evidence(), "demo")
    []
    """
    averages = [(each, name) for each in evidence.of("cifar100-resnet18", scale=scale) if (name := copied_back(each))]
    settings = [setting for setting, _ in averages]
    panels = [panel for setting, name in averages for panel in _bootstrap(setting, name)]
    names = "".join(f"{named([name])} " for name in dict.fromkeys(name for _, name in averages))
    return figure_of(
        "bootstrap/accuracy",
        settings,
        panels,
        scale=scale,
        title="The average copied back into training once an epoch",
        caption="Trained on 80% of the training images, measured on the rest. Bootstrapped: after each epoch the "
        f"average becomes the live weights. {names}{statistics(settings)}{how(panels)} {CUT}",
        item="Figure 5",
    )


def _constant(setting: Setting) -> list[Panel]:
    cosine, constant = live_and_best(setting, "refit"), live_and_best(setting, "constant", dashed=True)
    if not cosine or not constant:
        return []
    lines = [
        replace(each, label=f"{words}: {each.label}")
        for words, two in (("cosine", cosine), ("constant", constant))
        for each in two
    ]
    rate = rate_line(setting.arms["constant"], "constant rate")
    return [Panel(title=setting.title, lines=lines, rate=rate, marks=_fork(setting, cosine[1]), y_limits=focus(lines))]


def _fork(setting: Setting, best: Line) -> list[Mark]:
    """Where the two part: on the line of the best average, which they share up to there."""
    epochs = [run.constant_from for run in setting.arms["constant"] if run.constant_from is not None]
    if not epochs or not all(1 <= epoch <= len(best.y) for epoch in epochs):
        return []
    mean = float(np.mean(epochs))
    return [(mean, float(np.interp(mean, best.x, best.y)), f"the rate is held from here on ({epochs_of(epochs)})")]


def _step(setting: Setting) -> list[Panel]:
    lines = live_and_best(setting, "step")
    if not lines:
        return []
    return [Panel(title=setting.title, lines=lines, rate=rate_line(setting.arms["step"]), y_limits=focus(lines))]


def _bootstrap(setting: Setting, average: str) -> list[Panel]:
    lines: list[Line] = []
    for arm, words in (("tune", "plain"), ("bootstrap", "bootstrapped")):
        live, averaged = (curves_of(setting, arm, weights, "val") for weights in (LIVE, average))
        if live is None or averaged is None:
            return []
        dashed = arm == "bootstrap"
        lines += [
            line(live, f"{words}: live weights", kind="live", dashed=dashed),
            # Not in the shade it has among the five, which is as light as the live weights' grey.
            line(averaged, f"{words}: {average}", kind="best", dashed=dashed),
        ]
    rate = rate_line(setting.arms["tune"])
    return [Panel(title=setting.title, y_label="validation accuracy, %", lines=lines, rate=rate, y_limits=focus(lines))]
