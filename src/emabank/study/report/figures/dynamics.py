"""Live weights and the best average through training, with the learning rate: the paper's Figures 1a and 4."""

from collections.abc import Sequence

from emabank.study.report.curves import first_quarter
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import BEST_ON_TEST, CUT, ORACLE, figure_of, how, pairs_of, statistics
from emabank.study.report.figures.lines import best_of, chosen_mark, curves_of, focus, line, rate_line
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure, Line, Panel

ITEMS = {
    "cifar100-resnet18": "Figure 1a",
    "cifar10n-resnet34": "Figure 4a",
    "cifar10-resnet18": "Figure 4b",
    "cifar100-vgg16": "Figure 4c",
    "cifar100-wrn-28-10": "Figure 4d",
    "tiny-imagenet-resnet18": "Figure 4e",
}


def dynamics(evidence: Evidence, scale: Scale) -> list[Figure]:
    """A figure for each pair that has test curves.

    >>> dynamics(Evidence(), "demo")
    []
    """
    made: list[Figure] = []
    for pair in pairs_of(evidence, scale):
        settings = evidence.of(pair, scale=scale)
        panels = [panel for setting in settings for panel in _whole(setting)]
        made += figure_of(
            f"dynamics/{pair}",
            settings,
            panels,
            scale=scale,
            title="Live weights and the best average through training",
            caption=f"Cosine schedule. {ORACLE} The point marks what validation chose instead. "
            f"{statistics(settings)}{how(panels)} {CUT}",
            item=ITEMS.get(pair, ""),
        )
    return made


def early(evidence: Evidence, scale: Scale) -> list[Figure]:
    """The first quarter of every pair's training enlarged, in one figure.

    >>> early(Evidence(), "demo")
    []
    """
    settings = [setting for pair in pairs_of(evidence, scale) for setting in evidence.of(pair, scale=scale)]
    panels = [panel for setting in settings for panel in _beginning(setting)]
    return figure_of(
        "dynamics/early",
        settings,
        panels,
        scale=scale,
        title="Early training: the first quarter enlarged",
        caption=f"{ORACLE} {statistics(settings)}{how(panels)}",
        columns=min(2, len(panels)),
    )


def _whole(setting: Setting) -> list[Panel]:
    lines = live_and_best(setting, "refit")
    if not lines:
        return []
    rate = rate_line(setting.arms["refit"])
    marks = chosen_mark(setting, "EMA (acc.)")
    return [Panel(title=setting.title, lines=lines, rate=rate, marks=marks, y_limits=focus(lines, marks))]


def _beginning(setting: Setting) -> list[Panel]:
    runs = setting.arms.get("refit", ())
    until = first_quarter(runs[0].epochs) if runs else None
    lines = live_and_best(setting, "refit", until=until)
    return [Panel(title=setting.title, lines=lines)] if lines else []


def live_and_best(setting: Setting, arm: str, *, until: int | None = None, dashed: bool = False) -> Sequence[Line]:
    """The two lines of the paper's Figure 1a for an arm with test curves; none where one of them is missing."""
    live, best = curves_of(setting, arm, LIVE, "test"), best_of(setting, arm, "test")
    if live is None or best is None:
        return ()
    return (
        line(live, "live weights", kind="live", until=until, dashed=dashed),
        line(best, BEST_ON_TEST, kind="best", until=until, dashed=dashed),
    )
