"""Claims about other ways to train: 4 the sampling period, 11 bootstrapping, 12 the learning rate, 13 step decay."""

from collections.abc import Callable, Sequence

import numpy as np

from emabank.study.report.claims.interval import no_gain, within
from emabank.study.report.claims.paired import at, average, best, gap, live, mean, minus, of_both, of_runs, peak
from emabank.study.report.claims.question import Measured, Question, Statistic, sentences
from emabank.study.report.evidence import Run, Setting
from emabank.study.report.pairs import CLEAN

_EVERY = "every "
_TUNE_AT = "tune at "


# The sampling period --------------------------------------------------------------------------------------------------


def _sixteen(setting: Setting) -> str | None:
    """The arm that stands for T = 16: that one itself, or the third of those that were run."""
    periods = sorted(int(arm.removeprefix(_EVERY)) for arm in setting.arms if arm.startswith(_EVERY))
    if 1 not in periods or (len(periods) < 3 and 16 not in periods):
        return None
    return f"{_EVERY}{16 if 16 in periods else periods[2]}"


def _peaks_by_period(setting: Setting) -> Sequence[Measured]:
    def difference(sampled: Run, every_step: Run) -> float | None:
        high = [peak(best(run, setting.averages, "test")) for run in (sampled, every_step)]
        return minus(*(None if each is None else each[0] for each in high))

    return _by_period(setting, difference)


def _curves_by_period(setting: Setting) -> Sequence[Measured]:
    def difference(sampled: Run, every_step: Run) -> float | None:
        gaps = [
            mean(gap(average(sampled, name, "test"), average(every_step, name, "test"))) for name in setting.averages
        ]
        there = [each for each in gaps if each is not None]
        return mean(np.array(there)) if there and len(there) == len(gaps) else None

    return _by_period(setting, difference)


def _by_period(setting: Setting, make: Callable[[Run, Run], float | None]) -> Sequence[Measured]:
    sixteen = _sixteen(setting)
    if sixteen is None:
        return []
    note = "" if sixteen == f"{_EVERY}16" else f"T = {sixteen.removeprefix(_EVERY)} stands for 16 in this shorter run"
    return [found._replace(note=sentences(found.note, note)) for found in of_both(setting, sixteen, f"{_EVERY}1", make)]


# Bootstrapping --------------------------------------------------------------------------------------------------------


def _bootstrapped_live(setting: Setting) -> Sequence[Measured]:
    return of_both(setting, "bootstrap", "tune", lambda one, other: _peak_minus(live(one, "val"), live(other, "val")))


def _bootstrapped_average(setting: Setting) -> Sequence[Measured]:
    def difference(bootstrap: Run, tune: Run) -> float | None:
        both = [
            name for name in setting.averages if all(average(run, name, "val") is not None for run in (bootstrap, tune))
        ]
        return _peak_minus(best(bootstrap, both, "val"), best(tune, both, "val"))

    return of_both(setting, "bootstrap", "tune", difference)


def _peak_minus(one: np.ndarray | None, other: np.ndarray | None) -> float | None:
    high, other_high = peak(one), peak(other)
    return None if high is None or other_high is None else minus(high[0], other_high[0])


# The learning rate ----------------------------------------------------------------------------------------------------


def _own_rate(setting: Setting) -> Sequence[Measured]:
    """By how much the averages would gain from a rate of their own, and how many seeds have the same for both."""
    values: dict[str, float | None] = {}
    agreeing = 0
    arms = {float(arm.removeprefix(_TUNE_AT)): runs for arm, runs in setting.arms.items() if arm.startswith(_TUNE_AT)}
    for seed in sorted({run.seed for runs in arms.values() for run in runs}):
        by_rate = _peaks_by_rate(setting, seed, arms)
        if len(by_rate) < 2:
            values[f"seed {seed}"] = None
            continue
        of_live = max(by_rate, key=lambda rate: by_rate[rate][0])  # of equals the first, the lower rate
        highest = max(high for _, high in by_rate.values())
        values[f"seed {seed}"] = minus(highest, by_rate[of_live][1])
        agreeing += by_rate[of_live][1] == highest
    there = [value for value in values.values() if value is not None]
    if not there:
        return []
    absent = [name for name, value in values.items() if value is None]
    note = sentences(
        f"the same rate is best for both in {agreeing} of {len(there)} seeds",
        f"no value for {', '.join(absent)}" if absent else "",
    )
    return [Measured(there, note=note)]


def _peaks_by_rate(setting: Setting, seed: int, arms: dict[float, tuple[Run, ...]]) -> dict[float, tuple[float, float]]:
    """The best validation accuracy of the live weights and of the averages by rate, the lowest rate first."""
    found: dict[float, tuple[float, float]] = {}
    for rate, runs in sorted(arms.items()):
        for run in runs:
            of_live, of_average = peak(live(run, "val")), peak(best(run, setting.averages, "val"))
            if run.seed == seed and of_live is not None and of_average is not None:
                found[rate] = of_live[0], of_average[0]
    return found


# Step decay -----------------------------------------------------------------------------------------------------------


def _step_peaks(setting: Setting) -> Sequence[Measured]:
    return of_runs(setting, "step", lambda run: _peak_minus(best(run, setting.averages, "test"), live(run, "test")))


def _step_ends(setting: Setting) -> Sequence[Measured]:
    return of_runs(
        setting, "step", lambda run: minus(at(best(run, setting.averages, "test"), -1), at(live(run, "test"), -1))
    )


PERIOD = Question(
    number=4,
    title="Sampling every 16 steps gives what sampling every step gives",
    statistics=(
        Statistic(
            key="peak", words="T = 16 minus T = 1: best average at its best epoch, test accuracy, points",
            rule=within(), measure=_peaks_by_period, study="sampling-period", pairs=CLEAN,
        ),
        Statistic(
            key="curves", words="T = 16 minus T = 1: test accuracy, mean over all averages and epochs, points",
            rule=within(), measure=_curves_by_period, study="sampling-period", pairs=CLEAN,
        ),
    ),
    note="at equal horizon, and without a warm-up of the decay, which would not be the same for both",
)  # fmt: skip

BOOTSTRAP = Question(
    number=11,
    title="Copying the average back into training once an epoch (bootstrapping) does not help",
    statistics=(
        Statistic(
            key="live", words="bootstrapped minus plain: best validation accuracy of the live weights, points",
            rule=no_gain(), measure=_bootstrapped_live, study="bootstrap", pairs=CLEAN,
        ),
        Statistic(
            key="average", words="bootstrapped minus plain: best validation accuracy of the averages, points",
            rule=no_gain(), measure=_bootstrapped_average, study="bootstrap", pairs=CLEAN,
        ),
    ),
    note="less than 1 point is no help, but a gain beyond doubt refutes the claim, however small it is",
)  # fmt: skip

RATE = Question(
    number=12,
    title="The same initial learning rate is best for SGD and for its averages",
    statistics=(
        Statistic(
            key="rate", words="best average at its own best rate minus at SGD's best rate, validation accuracy, points",
            rule=within(), measure=_own_rate, study="lr-search", pairs=CLEAN,
        ),
    ),
    note="it cannot be below 0, so only the upper end of the interval matters; both are best values on validation",
)  # fmt: skip

STEP = Question(
    number=13,
    title="With step decay of the learning rate the averages only match SGD",
    statistics=(
        Statistic(
            key="peak", words="step decay: best average minus SGD, each at its best epoch, test accuracy, points",
            rule=within(), measure=_step_peaks, study="step-decay", pairs=CLEAN,
        ),
        Statistic(
            key="end", words="step decay: best average minus SGD at the last epoch, test accuracy, points",
            rule=within(), measure=_step_ends, study="step-decay", pairs=CLEAN,
        ),
    ),
    note="the best of all averages on test is an oracle's choice: it favours the averages, here against the claim",
)  # fmt: skip

QUESTIONS = (PERIOD, BOOTSTRAP, RATE, STEP)
