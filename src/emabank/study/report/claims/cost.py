"""Claim 15: what five averages cost beside the training step. Taken of the overheads, which belong to no setting."""

import math
from dataclasses import replace

from emabank.study.report.claims.interval import below
from emabank.study.report.claims.paper_values import paper_value
from emabank.study.report.claims.question import Measured, Question, Statistic, not_run, overall, part_of
from emabank.study.report.evidence import Evidence, Overhead
from emabank.study.report.verdict import Claim

_TINY = 1.0
"""Percent of the step that still count as a tiny share (ours)."""
_AVERAGES, _EVERY = 5, 16

OVERHEAD = Question(
    number=15,
    title="Five averages sampled every 16 steps cost a tiny share of the training step",
    statistics=(
        Statistic(
            key="share", words="time of an update of five averages over that of the 16 steps between two, %",
            rule=below(_TINY), measure=lambda setting: [], study="sampling-period", pairs=(),
        ),
    ),
    note="that 1% is a tiny share is ours; one value a repetition on one machine, not a seed",
)  # fmt: skip


def overhead_claim(evidence: Evidence) -> Claim:
    """The claim, with a part for every network whose step was timed beside five averages at T = 16.

    >>> overhead_claim(Evidence()).verdict
    'not run'
    """
    (statistic,) = OVERHEAD.statistics
    paper = paper_value(OVERHEAD.number, statistic.key, "", "")
    timed = [each for each in evidence.overheads if each.averages == _AVERAGES and each.every == _EVERY]
    parts = [
        part_of(_share(each), words=statistic.words, rule=statistic.rule, setting=each.network, scale="")
        for each in timed
    ]
    parts = [replace(part, paper=paper) for part in parts] or [not_run(statistic, "", evidence)]
    return Claim(
        number=OVERHEAD.number, title=OVERHEAD.title, studies=(statistic.study,), verdict=overall(parts),
        parts=tuple(parts), note=OVERHEAD.note,
    )  # fmt: skip


def _share(overhead: Overhead) -> Measured:
    shares = [
        100.0 * update / (overhead.every * step)
        for step, update in zip(overhead.step_seconds, overhead.update_seconds, strict=False)
        if step > 0 and math.isfinite(update / step)
    ]
    return Measured(shares)
