"""What the paper prints in the place of one of our numbers: the one door from the tables to the paper's numbers."""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache

from emabank.study.report.paper.numbers import FULL, Printed, among, printed, refit

OF_MEANS = (
    "Where ours is a difference or a ratio, the paper's is that of two means it prints: not paired, without spread."
)


def text(item: str, **wanted: str) -> str:
    """What an item of the paper prints, by fields of `Printed`; empty where that is nothing, or no single value.

    >>> text("Table 1", pair="cifar100-resnet18", ours="SGD", metric="loss"), text("Table 1", metric="loss"), text("")
    ('1.02', '', '')
    """
    found = among(_values(item), **wanted) if item else []
    return found[0].text if len(found) == 1 else ""


def full(pair: str, column: str, metric: str, *, trained_on: str) -> str:
    """What the full table of a pair prints; of SWA, what the headline table does.

    >>> full("cifar100-resnet18", "slowest (acc.)", "accuracy", trained_on="100%")
    '78.54 ± 0.28'
    """
    if column == "SWA" and trained_on == "100%":
        return refit(pair, column, metric)
    return text(full_table(pair, trained_on), place="table", ours=column, metric=metric)


def full_table(pair: str, trained_on: str) -> str:
    """The paper's name for the full table of a pair.

    >>> full_table("cifar100-resnet18", "80%"), full_table("own", "80%")
    ('Table 7', '')
    """
    return FULL.get((pair, trained_on), "")


@cache
def rows(item: str) -> Mapping[str, Sequence[Printed]]:
    """The values of a table of the paper by row, in its order.

    >>> [each.text for each in rows("Table 2")["DivideMix"]]
    ['92.56 ± 0.42', '71.13 ± 0.48']
    """
    made: dict[str, list[Printed]] = {}
    for each in among(_values(item), place="table"):
        made.setdefault(each.row, []).append(each)
    return made


def difference(ours: str, theirs: str) -> str:
    """The difference of two printed means, with the digits they are printed with; empty where one is missing.

    >>> difference("78.55 ± 0.28", "77.63 ± 0.14"), difference("", "77.63")
    ('0.92', '')
    """
    one, other = _mean(ours), _mean(theirs)
    return "" if one is None or other is None else str(one - other)


def ratio(ours: str, theirs: str) -> str:
    """The ratio of two printed means; empty where one is missing or zero.

    >>> ratio("0.09 ± 0.01", "0.32 ± 0.01"), ratio("1", "0.0")
    ('0.28', '')
    """
    one, other = _mean(ours), _mean(theirs)
    return f"{one / other:.2f}" if one is not None and other else ""


@cache
def _values(item: str) -> list[Printed]:
    """The values of one item: a few dozen to look through, in place of all for each cell."""
    return printed(item=item)


def _mean(text: str) -> Decimal | None:
    try:
        return Decimal(text.split("±")[0].strip().rstrip("%"))
    except InvalidOperation:
        return None
