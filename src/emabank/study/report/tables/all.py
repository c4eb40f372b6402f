"""All tables of the report, in the order of the studies."""

from dataclasses import replace

from emabank.study.report.evidence import Evidence
from emabank.study.report.sheet import Sheet
from emabank.study.report.tables.batchnorm import sensitivity
from emabank.study.report.tables.calibration import ece
from emabank.study.report.tables.consistency import agreement
from emabank.study.report.tables.generalization import full, headline, summary
from emabank.study.report.tables.label_noise import leaderboard, memorisation
from emabank.study.report.tables.lr_search import rates
from emabank.study.report.tables.posthoc import windows
from emabank.study.report.tables.sampling_period import accuracy, equivalence, overhead
from emabank.study.report.tables.setup import hyperparameters
from emabank.study.report.tables.training import bootstrap, constant_rate, step_decay
from emabank.study.report.tables.transfer import linear

MADE = (
    headline, summary, full, sensitivity, leaderboard, memorisation, constant_rate, agreement, ece, linear, step_decay,
    bootstrap, rates, accuracy, windows, hyperparameters,
)  # fmt: skip
"""What makes the tables of one scale."""


def sheets(evidence: Evidence) -> list[Sheet]:
    """Every table that the evidence allows, the largest scale first; last, what belongs to no scale.

    The name of a sheet begins with its scale, as that of a figure does.

    >>> [sheet.name for sheet in sheets(Evidence())]
    ['sampling-period/equivalence']
    """
    made = [sheet for scale in evidence.scales for make in MADE for sheet in make(evidence, scale)]
    made = [replace(sheet, name=f"{sheet.scale}/{sheet.name}") for sheet in made]
    return [*made, *equivalence(), *overhead(evidence)]
