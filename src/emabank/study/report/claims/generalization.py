"""Claims about the test set after the whole protocol: 14 on a par with SWA, 16 better than SGD."""

from collections.abc import Sequence

from emabank.study.report.claims.interval import above, below, within
from emabank.study.report.claims.paired import of_columns
from emabank.study.report.claims.question import Measured, Question, Statistic
from emabank.study.report.evidence import Setting
from emabank.study.report.pairs import CLEAN

_REFIT = "100%"


def _beside_swa(setting: Setting) -> Sequence[Measured]:
    return of_columns(setting, ("slowest (acc.)", "accuracy"), ("SWA", "accuracy"), trained_on=_REFIT)


def _accuracy(setting: Setting) -> Sequence[Measured]:
    return of_columns(setting, ("slowest (acc.)", "accuracy"), ("SGD", "accuracy"), trained_on=_REFIT)


def _loss(setting: Setting) -> Sequence[Measured]:
    columns = ("slowest (acc.)", "loss"), ("SGD", "loss")
    return of_columns(setting, *columns, trained_on=_REFIT, make=lambda one, other: one - other)


def _swa(setting: Setting) -> Sequence[Measured]:
    return of_columns(setting, ("SWA", "accuracy"), ("SGD", "accuracy"), trained_on=_REFIT)


BESIDE_SWA = Question(
    number=14,
    title="EMA and SWA are on a par",
    statistics=(
        Statistic(
            key="swa", words="slowest (acc.) minus SWA, test accuracy, points",
            rule=within(), measure=_beside_swa, study="generalization", pairs=CLEAN,
        ),
    ),
)  # fmt: skip

TEST = Question(
    number=16,
    title="On the test set EMA beats SGD in accuracy and in loss, and so does SWA in accuracy",
    statistics=(
        Statistic(
            key="accuracy", words="slowest (acc.) minus SGD, test accuracy, points",
            rule=above(), measure=_accuracy, study="generalization", pairs=CLEAN,
        ),
        Statistic(
            key="loss", words="slowest (acc.) minus SGD, test loss",
            rule=below(), measure=_loss, study="generalization", pairs=CLEAN,
        ),
        Statistic(
            key="swa", words="SWA minus SGD, test accuracy, points",
            rule=above(), measure=_swa, study="generalization", pairs=CLEAN,
        ),
    ),
)  # fmt: skip

QUESTIONS = (BESIDE_SWA, TEST)
