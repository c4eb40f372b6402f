"""Claim 5: slow averages need their batch-norm statistics recomputed, and then they are the best."""

from collections.abc import Callable, Sequence

import numpy as np

from emabank.study.report.claims.interval import above
from emabank.study.report.claims.paired import POINTS, at, average, chosen, gap, mean, of_runs, peak
from emabank.study.report.claims.question import Measured, Question, Statistic
from emabank.study.report.curves import first_quarter
from emabank.study.report.evidence import Run, Setting
from emabank.study.report.pairs import CLEAN, NOISY

_ALL = (*CLEAN, *NOISY)


def _early(setting: Setting) -> Sequence[Measured]:
    def recovered(run: Run) -> float | None:
        found = _gain(setting, run)
        return None if found is None else mean(found[: first_quarter(len(found))])

    return _of_refits(setting, recovered)


def _at_choice(setting: Setting) -> Sequence[Measured]:
    """The mean over both chosen epochs, because the claim makes no difference between them."""

    def gain(run: Run) -> float | None:
        choices = [chosen(setting, run.seed, criterion) for criterion in ("accuracy", "loss")]
        gains = [None if choice is None else at(_gain(setting, run), choice[1]) for choice in choices]
        there = [each for each in gains if each is not None]
        return mean(np.array(there)) if len(there) == len(gains) else None

    return _of_refits(setting, gain)


def _later(setting: Setting) -> Sequence[Measured]:
    return _of_refits(setting, lambda run: _slope([100.0 * epoch / run.epochs for _, epoch in _peaks(setting, run)]))


def _higher(setting: Setting) -> Sequence[Measured]:
    return _of_refits(setting, lambda run: _slope([POINTS * high for high, _ in _peaks(setting, run)]))


def _of_refits(setting: Setting, make: Callable[[Run], float | None]) -> Sequence[Measured]:
    return of_runs(setting, "refit", make) if setting.has_batchnorm else []


def _gain(setting: Setting, run: Run) -> np.ndarray | None:
    """Recomputed minus averaged statistics of the slowest average at every epoch, in points."""
    return gap(_recomputed(run, setting.slowest), average(run, setting.slowest, "test"))


def _recomputed(run: Run, name: str) -> np.ndarray | None:
    return average(run, name, "test", batchnorm="recomputed")


def _peaks(setting: Setting, run: Run) -> list[tuple[float, int]]:
    """The peak of every average, the fastest first; nothing unless all have one."""
    found = [peak(_recomputed(run, name)) for name in setting.averages]
    there = [each for each in found if each is not None]
    return there if len(there) == len(found) else []


def _slope(values: Sequence[float]) -> float | None:
    """By how much a straight line through the values rises from one to the next, by least squares.

    >>> _slope([1.0, 3.0, 5.0])
    2.0
    """
    if len(values) < 2:
        return None
    places = np.arange(len(values)) - (len(values) - 1) / 2
    return float(places @ np.array(values) / (places @ places))


QUESTIONS = (
    Question(
        number=5,
        title="Slow averages fail with averaged batch-norm statistics and recover with recomputed ones; recomputing "
        "improves generalisation; slower averages then peak later and higher",
        statistics=(
            Statistic(
                key="early",
                words="slowest average, recomputed minus averaged statistics, test accuracy, mean over the first "
                "quarter, points",
                rule=above(), measure=_early, study="batchnorm", pairs=_ALL,
            ),
            Statistic(
                key="choice",
                words="slowest average, recomputed minus averaged statistics, test accuracy, mean over the two epochs "
                "that validation chose, points",
                rule=above(), measure=_at_choice, study="batchnorm", pairs=_ALL,
            ),
            Statistic(
                key="later",
                words="slope of the peak's epoch over the averages, recomputed, from one to the next slower, % of the "
                "run",
                rule=above(), measure=_later, study="batchnorm", pairs=_ALL,
            ),
            Statistic(
                key="higher",
                words="slope of the peak's test accuracy over the averages, recomputed, from one to the next slower, "
                "points",
                rule=above(), measure=_higher, study="batchnorm", pairs=_ALL,
            ),
        ),
        note="the first quarter is a window that was fixed beforehand; peaks on test are an oracle's, as in the "
        "paper's Table 24; each average has about twice the half-life of the one before",
    ),
)  # fmt: skip
