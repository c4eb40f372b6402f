"""What the paper has for each part of a claim, as text with its place; the leaderboard.

Every number is taken from the paper's printed ones. Where the paper draws a curve and prints no number, the text says
so. May import the paper's numbers and what they give.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from emabank.study.report.pairs import CLEAN, NOISY, PAIRS
from emabank.study.report.paper.derived import (
    Text,
    at,
    at_the_others_best,
    change,
    difference,
    epochs_between,
    full,
    number,
    share_of_budget,
    slope,
    slope_of_budget,
)
from emabank.study.report.paper.numbers import Printed, printed

_R18, _VGG, _WRN = "cifar100-resnet18", "cifar100-vgg16", "cifar100-wrn-28-10"
_N100, _N10, _N100_18 = "cifar100n-resnet34", "cifar10n-resnet34", "cifar100n-resnet18"

_LIVE, _ACC, _LOSS = "SGD", "slowest (acc.)", "slowest (loss)"
_ALL = (*CLEAN, *NOISY)
_WITH_BATCHNORM = tuple(pair for pair in _ALL if pair != _VGG)


# The leaderboard ------------------------------------------------------------------------------------------------------


class Published(NamedTuple):
    """A column of the paper's Table 2: test accuracies in percent."""

    others: tuple[float, ...]
    """All printed methods but EMA (acc.), in the order of the table."""
    next_below: float
    """The best of those that EMA (acc.) is ahead of."""
    place: int
    """Of EMA (acc.) by this column."""


_IN_TABLE_2 = {"item": "Table 2", "metric": "accuracy"}
_average_in_table_2 = at(**_IN_TABLE_2, ours=_ACC)


@cache
def _other_methods(pair: str) -> list[Printed]:
    return [each for each in printed(**_IN_TABLE_2, pair=pair) if each.ours != _ACC]


def _next_below(pair: str) -> Printed:
    average = number(_average_in_table_2(pair))
    return max((each for each in _other_methods(pair) if number(each) < average), key=number)


def _published(pair: str) -> Published:
    others = tuple(map(number, _other_methods(pair)))
    place = 1 + sum(other > number(_average_in_table_2(pair)) for other in others)
    return Published(others, next_below=number(_next_below(pair)), place=place)


LEADERBOARD = {pair: _published(pair) for pair in NOISY}


# The claims -----------------------------------------------------------------------------------------------------------


def _headline(column: str, other: str, metric: str = "accuracy") -> Mapping[str, Text]:
    """One column of the headline table to another."""
    text = difference(at("Table 1", ours=column, metric=metric), at("Table 1", ours=other, metric=metric))
    return dict.fromkeys(CLEAN, text)


def _refit(column: str, other: str, metric: str, *, pairs: Iterable[str], note: Text | None = None) -> dict[str, Text]:
    """One column of the full tables to another, trained on everything."""
    before, after = (full("100%", ours=ours, metric=metric) for ours in (column, other))
    return dict.fromkeys(pairs, difference(before, after, note=note))


def _calibrated(column: str, metric: str, other: str, other_metric: str) -> Mapping[str, Text]:
    before = at("Table 5", ours=column, metric=metric)
    return dict.fromkeys(CLEAN, difference(before, at("Table 5", ours=other, metric=other_metric)))


_TRANSFERS = [(each.pair, each.metric) for each in printed(item="Table 4", row="Baseline")]


def _transfer(column: str, other: str) -> Mapping[str, Text]:
    """By pair and by the data set that is transferred to."""
    return {
        f"{pair} {metric.removeprefix('transfer:')}": difference(
            at("Table 4", ours=column, metric=metric), at("Table 4", ours=other, metric=metric)
        )
        for pair, metric in _TRANSFERS
    }


def _recomputed(pair: str) -> str:
    """What the two columns of claim 5 are, since both have the choice by accuracy in their heading."""
    return f"EMA (acc.) → α = {full('100%', ours=_ACC, metric='decay')(pair).text} recomputed"


_CHURN, _JS = ([at("Table 3", ours=ours, metric=metric) for ours in (_LIVE, _LOSS)] for metric in ("churn", "js"))
_EPOCHS, _EPOCHS_BY_LOSS = (full("80%", ours=ours, metric="epochs") for ours in ("EMA (acc.)", "EMA (loss)"))
_PEAK, _END = (at("Section 4.3", metric=metric) for metric in ("accuracy", "final_accuracy"))
_SGD_ON_NOISE = full("100%", column="SGD", metric="accuracy")  # at its best epoch on CIFAR-10N, else at the last
_AVERAGE_ON_NOISE = full("100%", ours=_ACC, metric="accuracy")
_FIGURE_4 = dict.fromkeys([pair for pair in _ALL if pair not in (_R18, _N100)], "no number (Figure 4)")

# By claim and statistic, then by pair; a data set that is transferred to stands behind the pair.
_VALUES: Mapping[tuple[int, str], Mapping[str, Text | str]] = {
    (1, "share"): {
        _R18: "throughout, no number (Figure 1a)",
        _N100: "throughout, no number (Figure 2)",
        **_FIGURE_4,
    },
    (1, "early"): {_R18: "large, no number (Figure 1a)", _N100: "large, no number (Figure 2)", **_FIGURE_4},
    (1, "most"): {_R18: "no number (Figure 1a)", _N100: "no number (Figure 2)", **_FIGURE_4},
    (2, "when"): dict.fromkeys(_ALL, share_of_budget(_EPOCHS)),
    (2, "afterwards"): {_R18: "worse, no number (Figure 1a)", _N100: difference(_PEAK, _END), **_FIGURE_4},
    (3, "end"): {_R18: "equal, no number (Figure 1a)", _N100: difference(_SGD_ON_NOISE, _END), **_FIGURE_4},
    (4, "peak"): {_R18: "no difference, no number (Section 3.1)"},
    (4, "curves"): {_R18: "no difference, no number (Section 3.1)"},
    (5, "early"): {_R18: "large, no number (Figure 1b)"},
    (5, "choice"): _refit("EMA (acc.)", _ACC, "accuracy", pairs=_WITH_BATCHNORM, note=_recomputed),
    (5, "later"): {_R18: slope_of_budget("Table 24", "peak_epoch")},
    (5, "higher"): {_R18: slope("Table 24", "peak_accuracy")},
    (6, "ahead"): {
        _N100: difference(_SGD_ON_NOISE, _AVERAGE_ON_NOISE, said=at("Figure 2", metric="gain")),
        _N10: difference(_SGD_ON_NOISE, _AVERAGE_ON_NOISE),
    },
    (6, "memorised"): {
        _N100: difference(*(at("Appendix E.1", column=column, metric="memorised") for column in ("SGD", "EMA")))
    },
    (7, "constant"): {_N100_18: "no fall, no number (Figure 8)"},
    (7, "cosine"): {_N100_18: "falls, no number (Figure 8)"},
    (7, "difference"): {_N100_18: "no number (Figure 8)"},
    (8, "churn"): dict.fromkeys(CLEAN, difference(*_CHURN)),
    (8, "js"): dict.fromkeys(CLEAN, change(*_JS)),
    (9, "ece"): _calibrated(_LIVE, "ece", _LOSS, "ece"),
    (9, "ece_ts"): _calibrated(_LIVE, "ece_ts", _LOSS, "ece_ts"),
    (9, "scaled"): _calibrated(_LOSS, "ece", _LOSS, "ece_ts"),
    (10, "acc"): _transfer(_LIVE, _ACC),
    (10, "loss"): _transfer(_LIVE, _LOSS),
    (11, "live"): {
        _R18: difference(*(at("Appendix C", metric=metric) for metric in ("accuracy", "bootstrapped_accuracy")))
    },
    (11, "average"): {_R18: "worse, no number (Figure 5)"},
    (12, "rate"): dict.fromkeys(
        (_R18, _WRN), at_the_others_best("Table 21", one="EMA Acc.", other="SGD Acc.", by="rate")
    ),
    (13, "peak"): {_R18: "not ahead, no number (Figure 3)"},
    (13, "end"): {_R18: "equal, no number (Figure 3)"},
    (14, "swa"): _headline("SWA", _ACC),
    (15, "share"): {"": "much less than the step, no number (Section 3.1)"},
    (16, "accuracy"): _headline(_LIVE, _ACC),
    (16, "loss"): _headline(_LIVE, _ACC, "loss"),
    (16, "swa"): _headline(_LIVE, "SWA"),
    (17, "epochs"): dict.fromkeys(_ALL, epochs_between(_EPOCHS, _EPOCHS_BY_LOSS)),
    (18, "ece"): _refit(_ACC, _LOSS, "ece", pairs=CLEAN),
    (18, "churn"): _refit(_ACC, _LOSS, "churn", pairs=CLEAN),
    (18, "transfer"): _transfer(_ACC, _LOSS),
    (19, "place"): dict.fromkeys(NOISY, difference(_next_below, _average_in_table_2)),
}


def paper_value(number: int, key: str, pair: str, target: str = "") -> str:
    """What the paper has for a statistic of a claim in one of its pairs; empty where it has nothing.

    A transfer to a data set that the paper does not transfer to has its value to those that it does.

    >>> paper_value(16, "accuracy", "cifar100-resnet18")
    '+0.92 (77.63 → 78.55, Table 1; 78.54 in Table 8), CIFAR-100, ResNet-18'
    >>> paper_value(10, "acc", "cifar100-resnet18", "digits-5-9")
    '+1.93 (82.10 → 84.03, Table 4), CIFAR-100, ResNet-18'
    """
    values = _VALUES.get((number, key), {})
    exact = values.get(f"{pair} {target}" if target else pair)
    found = [exact] if exact else [value for where, value in values.items() if target and where.startswith(f"{pair} ")]
    if not found:
        return ""
    texts = [value if isinstance(value, str) else value(pair) for value in found]
    return ", ".join([*texts, *([PAIRS[pair]] if pair in PAIRS else [])])
