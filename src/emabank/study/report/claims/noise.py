"""Claims under label noise: 6 ahead and less memorised, 7 a constant rate does not overfit, 19 the leaderboard."""

from collections.abc import Sequence

import numpy as np

from emabank.study.report.claims.interval import EQUAL, above, below
from emabank.study.report.claims.paired import (
    POINTS,
    at,
    average,
    chosen,
    measured,
    minus,
    of_both,
    of_columns,
)
from emabank.study.report.claims.paper_values import LEADERBOARD
from emabank.study.report.claims.question import Measured, Question, Statistic, sentences
from emabank.study.report.curves import on_train, when_reached
from emabank.study.report.evidence import LIVE, Run, Setting, compares
from emabank.study.report.pairs import NOISY

_REFIT = "100%"


# Ahead, and less memorised --------------------------------------------------------------------------------------------


def _ahead(setting: Setting) -> Sequence[Measured]:
    return of_columns(setting, ("slowest (acc.)", "accuracy"), ("SGD (best)", "accuracy"), trained_on=_REFIT)


def _memorised(setting: Setting) -> Sequence[Measured]:
    """The slowest average minus the live weights, each when it first reaches 90% on the clean training images."""
    curves = {"the average": on_train(setting, setting.slowest), "SGD": on_train(setting, LIVE)}
    values: dict[str, float | None] = {}
    never: list[str] = []
    for place, run in enumerate(setting.arms.get("refit", ())):
        shares: dict[str, float | None] = {}
        for who, both in curves.items():
            if both is None:
                return []
            reached = when_reached(both.clean[place], both.memorised[place])
            shares[who] = reached and reached.memorised
        never += [f"{who} of seed {run.seed}" for who, share in shares.items() if share is None]
        values[f"seed {run.seed}"] = minus(shares["the average"], shares["SGD"])
    if not values:
        return []
    if never:
        there = [value for value in values.values() if value is not None]
        return [Measured(there, whole=False, note=f"{', '.join(never)} never reaches 90% on the clean images")]
    return [measured(values)]


# A constant rate ------------------------------------------------------------------------------------------------------


def _constant(setting: Setting) -> Sequence[Measured]:
    return of_both(setting, "constant", "refit", lambda constant, refit: _fall(setting, constant, refit))


def _cosine(setting: Setting) -> Sequence[Measured]:
    return of_both(setting, "constant", "refit", lambda constant, refit: _fall(setting, refit, refit))


def _constant_minus_cosine(setting: Setting) -> Sequence[Measured]:
    def difference(constant: Run, refit: Run) -> float | None:
        one, other = _fall(setting, constant, refit), _fall(setting, refit, refit)
        return None if one is None or other is None else one - other

    return of_both(setting, "constant", "refit", difference)


def _fall(setting: Setting, run: Run, trunk: Run) -> float | None:
    """The chosen average at the end minus at the chosen epoch, where both branches leave their common trunk."""
    choice = chosen(setting, run.seed, "accuracy")
    if choice is None:
        return None
    name, epoch = choice
    start = at(average(run, name, "test"), epoch)
    return minus(
        at(average(run, name, "test"), -1), at(average(trunk, name, "test"), epoch) if start is None else start
    )


# The leaderboard ------------------------------------------------------------------------------------------------------


def _leaderboard(setting: Setting) -> Sequence[Measured]:
    found = setting.values("slowest (acc.)", "accuracy", trained_on=_REFIT, split="test")
    if found is None or not compares(setting):
        return []
    published = LEADERBOARD[setting.pair]
    accuracies = measured(
        {f"seed {place}": None if share is None else POINTS * share for place, share in enumerate(found)}
    )
    if not accuracies.values:
        return [accuracies]
    mean = float(np.mean(accuracies.values))
    place = 1 + sum(accuracy > mean for accuracy in published.others)
    note = f"place {place} of {len(published.others) + 1} printed methods; the paper has place {published.place}"
    ahead = [value - published.next_below for value in accuracies.values]
    return [Measured(ahead, note=sentences(accuracies.note, note))]


NOISE = Question(
    number=6,
    title="Under label noise the averages beat the best SGD by far, and memorise less",
    statistics=(
        Statistic(
            key="ahead", words="slowest (acc.) minus SGD (best), test accuracy, points",
            rule=above(), measure=_ahead, study="label-noise", pairs=NOISY,
        ),
        Statistic(
            key="memorised",
            words="slowest average minus SGD: share of wrong labels memorised when the accuracy on the clean ones "
            "first reaches 90%, points",
            rule=below(), measure=_memorised, study="label-noise", pairs=NOISY,
        ),
    ),
    note="SGD (best): the live weights of their best validation epoch; how far is far is left to the reader; "
    "memorised by the average with recomputed statistics where these were measured each epoch, else with averaged "
    "ones; at the first epoch that reaches 90%, as in the paper",
)  # fmt: skip

CONSTANT = Question(
    number=7,
    title="Under label noise going on at a constant rate does not overfit, decaying the rate does",
    statistics=(
        Statistic(
            key="constant", words="constant rate: chosen average at the end minus at the chosen epoch, test accuracy, "
            "points",
            rule=above(-EQUAL), measure=_constant, study="constant-lr", pairs=(*NOISY, "cifar100n-resnet18"),
        ),
        Statistic(
            key="cosine", words="cosine: chosen average at the end minus at the chosen epoch, test accuracy, points",
            rule=below(), measure=_cosine, study="constant-lr", pairs=(*NOISY, "cifar100n-resnet18"),
        ),
        Statistic(
            key="difference", words="constant minus cosine of these two, points",
            rule=above(), measure=_constant_minus_cosine, study="constant-lr", pairs=(*NOISY, "cifar100n-resnet18"),
        ),
    ),
    note="the peak is the epoch that validation chose, from which the rate is held: the highest epoch on test would "
    "lie above the end in any noisy curve; a rise at a constant rate is no overfitting",
)  # fmt: skip

PLACE = Question(
    number=19,
    title="It keeps its place in the label-noise leaderboard",
    statistics=(
        Statistic(
            key="place",
            words="slowest (acc.), test accuracy, minus the best method that the paper has below it, points",
            rule=above(), measure=_leaderboard, study="label-noise", pairs=NOISY, scales=("paper",),
        ),
    ),
    note="only CIFAR-10N and CIFAR-100N with ResNet-34 compare with the published numbers, which are taken as they "
    "stand, without their spread; the paper prints a selection of the leaderboard's methods",
)  # fmt: skip

QUESTIONS = (NOISE, CONSTANT, PLACE)
