"""Validation accuracy through training for each learning rate tried: the paper's Figure 6."""

from collections.abc import Sequence

from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import CUT, figure_of, how, statistics
from emabank.study.report.figures.lines import best_of, curves_of, focus, line
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure, Line, Panel

PAIRS = ("cifar100-resnet18", "cifar100-wrn-28-10")
_ARM = "tune at "
_SHADES = 5  # there are as many as averages


def lr_search(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Live weights in one panel, the best average in another, a curve for each rate.

    >>> lr_search(Evidence(), "demo")
    []
    """
    settings = [setting for pair in PAIRS for setting in evidence.of(pair, scale=scale)]
    tried = sorted({rate for setting in settings for rate in _arms(setting)})
    panels = [panel for setting in settings for panel in _panels(setting, tried)]
    return figure_of(
        "lr-search/curves",
        settings,
        panels,
        scale=scale,
        title="Initial learning rates, on validation",
        caption="Trained on 80% of the training images, measured on the rest; the rate is the peak of the cosine. The "
        "best of the averages is taken anew at each epoch, on this very curve. A rate with which a seed diverged is "
        f"left out. {statistics(settings)}{how(panels)} {CUT}",
        columns=2,
        item="Figure 6",
    )


def _arms(setting: Setting) -> dict[float, str]:
    """The arms of tuning by learning rate, the lowest first."""
    found = {runs[0].rate: arm for arm, runs in setting.arms.items() if arm.startswith(_ARM) and runs}
    return dict(sorted(found.items()))


def _panels(setting: Setting, tried: Sequence[float]) -> list[Panel]:
    live: list[Line] = []
    best: list[Line] = []
    # A rate has one shade in all panels; where these are too few for all rates, each setting has a legend of its own.
    shared = len(tried) <= _SHADES
    of, words = (tried, "") if shared else (list(_arms(setting)), f"{setting.title}: ")
    for rate, arm in _arms(setting).items():
        of_live, of_best = curves_of(setting, arm, LIVE, "val"), best_of(setting, arm, "val")
        if of_live is not None and of_best is not None:
            label, order = f"{words}rate {rate:g}", of.index(rate)
            live.append(line(of_live, label, kind="average", order=order))
            best.append(line(of_best, label, kind="average", order=order))
    if len(live) < 2:  # one rate is no search
        return []
    limits = focus([*live, *best])
    return [
        Panel(title=f"{setting.title}: {words}", y_label="validation accuracy, %", lines=lines, y_limits=limits)
        for words, lines in (("live weights", live), ("best average at each epoch", best))
    ]
