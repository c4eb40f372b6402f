"""Numbers of the paper against numbers of the paper: what is printed twice, carried over, averaged or marked.

Every rule takes values and gives conflicts, so that it can be shown made-up values. May import numbers and conflict.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from emabank.study.report.paper.conflict import Conflict
from emabank.study.report.paper.numbers import FULL, Printed, among

AVERAGES = ("EMA (acc.)", "EMA (loss)", "slowest (acc.)", "slowest (loss)")
LOWER_IS_BETTER = ("loss", "churn", "js", "ece", "ece_ts")


# When two values are the same number ----------------------------------------------------------------------------------


def agree(one: Printed, other: Printed) -> bool:
    """Whether one number can be behind both values, each rounded to the digits it is printed with.

    >>> from emabank.study.report.paper.numbers import value
    >>> wanted = dict(pair="tiny-imagenet-resnet18", ours="slowest (loss)", metric="churn")
    >>> agree(value(item="Table 3", **wanted), value(item="Table 16", **wanted))
    False
    """
    if (one.by_seed or one.series) and (other.by_seed or other.series):
        return (one.by_seed, one.series) == (other.by_seed, other.series)
    if one.mean is None or other.mean is None:
        return one.text == other.text
    if not _near(one.mean, other.mean, _decimals(one, 0), _decimals(other, 0)):
        return False
    if one.std is None or other.std is None:
        return True
    return _near(one.std, other.std, _decimals(one, 1), _decimals(other, 1))


def _near(one: float, other: float, decimals: int, others: int) -> bool:
    """Whether the two intervals that round to these numbers overlap."""
    return abs(one - other) < 0.5 * (10.0**-decimals + 10.0**-others) - 1e-9


def _decimals(printed: Printed, which: int) -> int:
    """Digits behind the point, of the mean (0) or of the standard deviation (1)."""
    if (
        printed.item in FULL.values()
    ):  # they drop zeros at the end: 0.9 is 0.90 there, and a divergence has three digits
        return 3 if printed.metric == "js" else 2
    numbers = re.findall(r"\d+(?:\.(\d+))?", printed.text)
    return len(numbers[which]) if which < len(numbers) else 0


# What is printed more than once ---------------------------------------------------------------------------------------


def printed_twice(values: Sequence[Printed]) -> Iterator[Conflict]:
    """One quantity with two values: one column of one pair in two tables, or one thing said in two places.

    >>> list(printed_twice([]))
    []
    """
    groups: dict[tuple[str, ...], list[Printed]] = {}
    for each in values:
        key = (each.quantity,) if each.quantity else (each.pair, each.trained_on, each.split, each.ours, each.metric)
        if all(key):
            groups.setdefault(key, []).append(each)
    for key, group in groups.items():
        if all(agree(one, other) for one, other in combinations(group, 2)):
            continue
        about = key[0] if len(key) == 1 else f"{key[0]}, {key[3]}, {key[4]}, trained on {key[1]}"
        yield Conflict(kind="number", about=about, printed=tuple(group), sentence=_how(group, values))


def _how(group: Sequence[Printed], values: Sequence[Printed]) -> str:
    """In what the values differ, and whether one of them stands in the full tables under another heading."""
    if all(each.mean is None for each in group):
        return "One thing is called by two names."
    gaps: list[str] = []
    for words, which in (("means", 0), ("standard deviations", 1)):
        numbers = [(each.mean, each.std)[which] for each in group]
        there = [
            (number, _decimals(each, which)) for number, each in zip(numbers, group, strict=True) if number is not None
        ]
        if any(
            not _near(one, other, *digits) for (one, a), (other, b) in combinations(there, 2) for digits in [(a, b)]
        ):
            spread = max(number for number, _ in there) - min(number for number, _ in there)
            gaps.append(f"the {words} differ by {spread:.3g}")
    twins = [
        f"{each.text} is what {twin.item} has under {twin.column}"
        for each in group
        if each.ours and not any(agree(each, other) for other in group if other.item in FULL.values())
        for twin in values
        if twin.item in FULL.values() and (twin.pair, twin.metric) == (each.pair, each.metric) and agree(each, twin)
    ]
    return f"By their headings these are one number, but {' and '.join([*gaps, *twins])}."


def mixed_columns(values: Sequence[Printed]) -> Iterator[Conflict]:
    """Headings of Table 1 whose accuracy is that of one column of the full table and whose loss is that of another.

    >>> list(mixed_columns([]))
    []
    """
    for accuracy in among(values, item="Table 1", place="table", metric="accuracy"):
        table = among(values, item=FULL.get((accuracy.pair, "100%"), ""))
        for loss in among(values, item="Table 1", pair=accuracy.pair, ours=accuracy.ours, metric="loss"):
            right = [each for each in among(table, metric="accuracy") if agree(each, accuracy)]
            other = [each for each in among(table, metric="loss") if agree(each, loss)]
            if right and other and not {each.ours for each in right} & {each.ours for each in other}:
                yield Conflict(
                    kind="number",
                    about=f"{accuracy.pair}, {accuracy.column} and {loss.column}",
                    printed=(accuracy, loss, *right, *other),
                    sentence=f"The accuracy is that of {right[0].column} in {right[0].item}, the loss that of "
                    f"{' and '.join(each.column for each in other)}.",
                )


# What was chosen, and what was then used ------------------------------------------------------------------------------


def carried_over(values: Sequence[Printed]) -> Iterator[Conflict]:
    """Epochs, decays and rates of the refits that are not those chosen on validation for the same seed.

    >>> list(carried_over([]))
    []
    """
    metrics = ("epochs", "decay", "rate")
    for tuned in values:
        if tuned.trained_on != "80%" or tuned.metric not in metrics or tuned.ours not in ("SGD", *AVERAGES[:2]):
            continue
        if (tuned.ours, tuned.metric) == ("SGD", "epochs"):  # the best epoch, then the last: `sgd_epochs` looks at it
            continue
        wanted = {"pair": tuned.pair, "ours": tuned.ours, "metric": tuned.metric, "trained_on": "100%"}
        for used in among(values, **wanted):
            if used.by_seed != tuned.by_seed:
                yield Conflict(
                    kind="choice",
                    about=f"{tuned.pair}, {tuned.ours}, {tuned.metric}",
                    printed=(tuned, used),
                    sentence=f"The refit does not have what validation chose: {_by_seed(tuned, used)}.",
                )


def _by_seed(tuned: Printed, used: Printed) -> str:
    pairs = enumerate(zip(tuned.by_seed, used.by_seed, strict=True), start=1)
    return "; ".join(f"seed {seed} {before:g}, then {after:g}" for seed, (before, after) in pairs if before != after)


def sgd_epochs(values: Sequence[Printed]) -> Iterator[Conflict]:
    """SGD stands at its best epoch in tuning tables and at the last one in refit tables; what stands there otherwise.

    >>> list(sgd_epochs([]))
    []
    """
    lists = [each for each in among(values, metric="epochs") if each.column == "SGD"]
    for tuned in among(lists, trained_on="80%"):
        for used in among(lists, trained_on="100%", pair=tuned.pair):
            if max(used.by_seed) < max(tuned.by_seed):
                yield Conflict(
                    kind="choice",
                    about=f"{tuned.pair}, SGD, epochs",
                    printed=(tuned, used),
                    sentence="The tuning table has the last epoch of the budget and the refit table earlier ones, the "
                    "other way round than for every other pair; the two SGD columns are not comparable.",
                )


# Means and marks ------------------------------------------------------------------------------------------------------


def mean_epochs(values: Sequence[Printed]) -> Iterator[Conflict]:
    """Mean epochs to which the lists of epochs do not round.

    >>> list(mean_epochs([]))
    []
    """
    for short in among(values, item="Table 6", metric="epoch"):
        whole = among(values, pair=short.pair, trained_on="80%", split="val", metric="epochs")
        column = short.ours.replace("slowest", "EMA")
        for each in among(whole, ours=column):
            mean = statistics.fmean(each.by_seed)
            if short.mean is not None and abs(mean - short.mean) > 0.5 * 10.0 ** -_decimals(short, 0):
                cut = 0 < mean - short.mean < 10.0 ** -_decimals(short, 0)
                why = ": its digits were cut off, not rounded" if cut else ""
                yield Conflict(
                    kind="rounding",
                    about=f"{short.pair}, {column}, mean epoch",
                    printed=(short, each),
                    sentence=f"The mean of the list is {mean:.2f}{why}.",
                )


def misplaced_marks(values: Sequence[Printed]) -> Iterator[Conflict]:
    """Bold that is not on the best value of its row, and underlines that are not where the caption puts them.

    >>> list(misplaced_marks([]))
    []
    """
    for about, group, marks in _ranked(values):
        best_first = sorted(group, key=lambda each: each.mean or 0.0, reverse=group[0].metric not in LOWER_IS_BETTER)
        for rank, mark in enumerate(marks):
            deserved = best_first[rank].mean
            for each in group:
                if mark and each.mark == mark and each.mean != deserved:
                    place = ("best", "second-best")[rank]
                    yield Conflict(
                        kind="mark",
                        about=about,
                        printed=(each, best_first[rank]),
                        sentence=f"{each.text} is set as the {place} of its group ({mark}); that is "
                        f"{best_first[rank].text}.",
                    )


def _ranked(values: Sequence[Printed]) -> Iterator[tuple[str, list[Printed], tuple[str, ...]]]:
    """Groups of values that are compared by marks: what they are, the values, the mark of each rank."""
    rules: Iterable[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = (
        ("Table 1", "accuracy", ("pair",), ("bold", "underline")),
        ("Table 3", "accuracy", ("row",), ("bold",)),
        ("Table 3", "churn", ("row",), ("bold",)),
        ("Table 3", "js", ("row",), ("bold",)),
        ("Table 4", "transfer:cifar10", ("column",), ("bold",)),
        ("Table 4", "transfer:cifar100", ("column",), ("bold",)),
        ("Table 5", "ece_ts", ("pair",), ("bold",)),
        ("Table 6", "accuracy", ("pair",), ("bold",)),
        ("Table 6", "loss", ("pair",), ("underline",)),
        ("Table 21", "accuracy", ("pair", "column"), ("bold",)),
    )
    for item, metric, by, marks in rules:
        groups: dict[tuple[str, ...], list[Printed]] = {}
        for each in among(values, item=item, place="table", metric=metric):
            groups.setdefault(tuple(getattr(each, field) for field in by), []).append(each)
        for key, group in groups.items():
            if len(group) >= len(marks):
                yield f"{item}, {', '.join(key)}, {metric}", group, marks
