"""Claims about predictions and features: 8 consistency, 9 calibration, 10 transfer, 18 lowest loss or best accuracy."""

from collections.abc import Callable, Sequence

from emabank.study.report.claims.interval import above, below
from emabank.study.report.claims.paired import TRANSFER, of_columns
from emabank.study.report.claims.question import Measured, Question, Statistic
from emabank.study.report.evidence import Setting
from emabank.study.report.pairs import CLEAN

_BASE, _ACCURACY, _LOSS = "SGD", "slowest (acc.)", "slowest (loss)"
_REFIT, _TUNED = "100%", "80%"
_PAIRS = "values are of pairs of seeds, which are not independent: no more of them are counted than there are seeds"


def _difference(
    one: str, other: str, metric: str, *, trained_on: str = _REFIT
) -> Callable[[Setting], Sequence[Measured]]:
    return lambda setting: of_columns(setting, (one, metric), (other, metric), trained_on=trained_on)


def _relative(one: str, other: str, metric: str) -> Callable[[Setting], Sequence[Measured]]:
    def change(a: float, b: float) -> float | None:
        return 100.0 * (a / b - 1.0) if b > 0 else None

    return lambda setting: of_columns(setting, (one, metric), (other, metric), trained_on=_REFIT, make=change)


def _scaled(setting: Setting) -> Sequence[Measured]:
    return of_columns(setting, (_LOSS, "ece_ts"), (_LOSS, "ece"), trained_on=_TUNED)


def _transfer(one: str, other: str) -> Callable[[Setting], Sequence[Measured]]:
    """One part for every data set that was transferred to."""

    def measure(setting: Setting) -> Sequence[Measured]:
        column = setting.column(one, trained_on=_REFIT, split="test")
        targets = [] if column is None else [metric for metric in column["values"] if metric.startswith(TRANSFER)]
        return [
            found._replace(target=metric.removeprefix(TRANSFER))
            for metric in targets
            for found in of_columns(setting, (one, metric), (other, metric), trained_on=_REFIT)
        ]

    return measure


CONSISTENCY = Question(
    number=8,
    title="Predictions of independent runs agree better: lower churn and JS divergence",
    statistics=(
        Statistic(
            key="churn", words="slowest (loss) minus SGD, churn on test, points",
            rule=below(), measure=_difference(_LOSS, _BASE, "churn"), study="consistency", pairs=CLEAN, note=_PAIRS,
        ),
        Statistic(
            key="js", words="slowest (loss) against SGD, JS divergence on test, change in %",
            rule=below(), measure=_relative(_LOSS, _BASE, "js"), study="consistency", pairs=CLEAN, note=_PAIRS,
        ),
    ),
    note="the paper's JS divergence has another scale than ours (natural logarithm, at most 0.693), so it is compared "
    "as a ratio",
)  # fmt: skip

CALIBRATION = Question(
    number=9,
    title="The averages are better calibrated, and temperature scaling adds to it",
    statistics=(
        Statistic(
            key="ece", words="trained on 80%: slowest (loss) minus SGD, ECE on test, points",
            rule=below(), measure=_difference(_LOSS, _BASE, "ece", trained_on=_TUNED), study="calibration", pairs=CLEAN,
        ),
        Statistic(
            key="ece_ts",
            words="trained on 80%: slowest (loss) minus SGD, ECE on test after temperature scaling, points",
            rule=below(), measure=_difference(_LOSS, _BASE, "ece_ts", trained_on=_TUNED), study="calibration",
            pairs=CLEAN,
        ),
        Statistic(
            key="scaled", words="trained on 80%: slowest (loss), ECE on test with minus without temperature scaling, "
            "points",
            rule=below(), measure=_scaled, study="calibration", pairs=CLEAN,
        ),
    ),
    note="a perfectly calibrated model has an ECE above 0 too, the more so the fewer images are tested on; the paper's "
    "calibration table has the numbers of its validation tables",
)  # fmt: skip

FEATURES = Question(
    number=10,
    title="The features transfer better to other data sets under a linear head",
    statistics=(
        Statistic(
            key="acc", words="slowest (acc.) minus SGD, accuracy of a linear head, points",
            rule=above(), measure=_transfer(_ACCURACY, _BASE), study="transfer", pairs=CLEAN,
        ),
        Statistic(
            key="loss", words="slowest (loss) minus SGD, accuracy of a linear head, points",
            rule=above(), measure=_transfer(_LOSS, _BASE), study="transfer", pairs=CLEAN,
        ),
    ),
)  # fmt: skip

CRITERION = Question(
    number=18,
    title="EMA (loss) is better than EMA (acc.) in calibration, consistency and transfer",
    statistics=(
        Statistic(
            key="ece", words="slowest (loss) minus slowest (acc.), ECE on test, points",
            rule=below(), measure=_difference(_LOSS, _ACCURACY, "ece"), study="generalization", pairs=CLEAN,
        ),
        Statistic(
            key="churn", words="slowest (loss) minus slowest (acc.), churn on test, points",
            rule=below(), measure=_difference(_LOSS, _ACCURACY, "churn"), study="consistency", pairs=CLEAN, note=_PAIRS,
        ),
        Statistic(
            key="transfer", words="slowest (loss) minus slowest (acc.), accuracy of a linear head, points",
            rule=above(), measure=_transfer(_LOSS, _ACCURACY), study="transfer", pairs=CLEAN,
        ),
    ),
    note="of the refits on all training images; the paper itself has one exception, CIFAR-10 to CIFAR-100",
)  # fmt: skip

QUESTIONS = (CONSISTENCY, CALIBRATION, FEATURES, CRITERION)
