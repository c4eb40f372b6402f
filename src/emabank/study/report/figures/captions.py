"""What is said beside a figure: how its lines were made, what is an oracle's choice, what it stands for."""

from collections.abc import Sequence

from emabank.study.report.evidence import Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import PAIRS, Scale
from emabank.study.report.panel import Figure, Panel

BEST_ON_TEST = "best average at each epoch, chosen on test"
ORACLE = (
    "The best of the averages is taken anew at each epoch, on the test curve itself, as in the paper: an oracle's "
    "choice, which nobody could make without the test images."
)
CUT = "The vertical axis leaves out the first steep rise, in the first tenth of the epochs."


def pairs_of(evidence: Evidence, scale: Scale) -> list[str]:
    """The pairs that there are settings for, the paper's first.

    >>> pairs_of(Evidence(), "demo")
    []
    """
    there = dict.fromkeys(setting.pair for setting in evidence.of(scale=scale))
    return [*(pair for pair in PAIRS if pair in there), *(pair for pair in there if pair not in PAIRS)]


def seeds_of(panels: Sequence[Panel]) -> str:
    """Of how many seeds the lines are the mean, such as "3", or "2 to 3"; nothing without lines.

    >>> seeds_of([])
    ''
    """
    counts = sorted({line.n for panel in panels for line in panel.lines if line.kind != "ideal"})
    return " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))


def how(panels: Sequence[Panel]) -> str:
    """How the lines were made of the seeds' curves.

    >>> how([])
    'Each epoch as it was measured, not smoothed.'
    """
    many = seeds_of(panels)
    seeds = f"Bold: the mean of {many} seeds; thin: each seed. " if many else ""
    if many == "1":
        seeds = "One seed. "
    return f"{seeds}Each epoch as it was measured, not smoothed."


def statistics(settings: Sequence[Setting]) -> str:
    """Which batch-norm statistics the averages have where nothing else is said, as in the paper.

    >>> statistics([])
    ''
    """
    return "Batch-norm statistics are averaged with the weights. " if any(s.has_batchnorm for s in settings) else ""


def named(averages: Sequence[str]) -> str:
    """What the names of the averages mean.

    >>> named(["ema-3.5%", "ema-7.1%"])
    'ema-7.1% is the average whose half-life is 7.1% of the run.'
    >>> named(["ema-0.998"])
    'ema-0.998 is the average with a decay of 0.998 per update.'
    """
    slowest = averages[-1]
    value = slowest.removeprefix("ema-")
    if value.endswith("%"):
        return f"{slowest} is the average whose half-life is {value} of the run."
    return f"{slowest} is the average with a decay of {value} per update."


def figure_of(
    name: str,
    settings: Sequence[Setting],
    panels: Sequence[Panel],
    *,
    scale: Scale,
    title: str,
    caption: str,
    columns: int = 1,
    item: str = "",
    notes: Sequence[str] = (),
) -> list[Figure]:
    """The figure with these panels in a list, or none without panels; a study's name begins that of its figures.

    >>> figure_of("dynamics/early", [], [], scale="demo", title="Early training", caption="")
    []
    """
    if not panels:
        return []
    stand_ins = [_stands_for(setting) for setting in settings if scale != "paper" and setting.pair in PAIRS]
    return [
        Figure(
            name=f"{scale}/{name}",
            title=title,
            panels=panels,
            columns=columns,
            caption=caption + all_chosen_on(settings),
            item=item,
            study=name.partition("/")[0],
            scale=scale,
            notes=(*dict.fromkeys(stand_ins), *notes),
        )
    ]


def _stands_for(setting: Setting) -> str:
    paper = PAIRS[setting.pair].replace(",", " with")
    return f"{setting.title} stands for the paper's {paper}: shapes compare, numbers do not."
