"""Numbers that the paper's printed ones give: differences, changes, shares, slopes, as text with their place.

Nothing is looked up before a text is asked for. May import numbers and the rule for what is printed twice.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from emabank.study.report.paper.conflict import Conflict
from emabank.study.report.paper.disagreements import agree, printed_twice
from emabank.study.report.paper.numbers import FULL, Printed, among, printed

Find = Callable[[str], Printed]
"""From a pair, such as "cifar100-resnet18", to a value that the paper prints for it."""
Text = Callable[[str], str]
"""From a pair to what its printed values give."""


# Which value ----------------------------------------------------------------------------------------------------------


def at(item: str, **wanted: str) -> Find:
    """The one value that an item prints for a pair, by fields of `Printed`; a ValueError if it prints none or several.

    >>> at("Table 1", ours="SGD", metric="loss")("cifar100-resnet18").text
    '1.02'
    """
    return lambda pair: _only(item, pair=pair, **wanted)


def full(trained_on: str, **wanted: str) -> Find:
    """The same in the full table of a pair, by the share of the data that was trained on.

    >>> full("100%", ours="slowest (acc.)", metric="accuracy")("cifar100-resnet18").where
    'Table 8'
    """
    return lambda pair: _only(FULL.get((pair, trained_on), ""), pair=pair, **wanted)


def _only(item: str, **wanted: str) -> Printed:
    found = among(_of_item(item), **wanted)
    if len(found) != 1:
        where = item or "the full tables"
        raise ValueError(f"{len(found)} values of {where} have {wanted}; name fields of Printed that fit exactly one")
    return found[0]


def _column(item: str, **wanted: str) -> list[Printed]:
    found = among(_of_item(item), **wanted)
    if len(found) < 2:
        raise ValueError(f"{len(found)} values of {item} have {wanted}; name fields of Printed that fit a column")
    return found


@cache
def _of_item(item: str) -> list[Printed]:
    """A few dozen values to look through, in place of all for each text."""
    return printed(item=item)


def budget(pair: str) -> float:
    """The epochs that the paper trains a pair for.

    >>> budget("cifar100n-resnet34"), budget("tiny-imagenet-resnet18")
    (200.0, 150.0)
    """
    column = "Tiny-ImageNet" if pair.startswith("tiny-imagenet") else "CIFAR-10/100"
    return number(_only("Table 22", metric="budget", column=column))


def number(value: Printed) -> float:
    """The mean of a value that has one; a ValueError if it is a list or words.

    >>> number(at("Appendix C", metric="bootstrapped_accuracy")("cifar100-resnet18"))
    74.47
    """
    if value.mean is None:
        raise ValueError(f"{value.text!r} of {value.item} is no single number; take a value with a mean")
    return float(value.mean)


# What two values give -------------------------------------------------------------------------------------------------


def difference(before: Find, after: Find, *, said: Find | None = None, note: Text | None = None) -> Text:
    """The second value minus the first, with the digits of the longer, and what the paper prints in place of either.

    `said` is where it prints the difference itself, shown if that is another; `note` follows the place.

    >>> difference(at("Table 1", ours="SGD", metric="accuracy"),
    ...            at("Table 1", ours="slowest (acc.)", metric="accuracy"))("cifar100-resnet18")
    '+0.92 (77.63 → 78.55, Table 1; 78.54 in Table 8)'
    """

    def text(pair: str) -> str:
        two = before(pair), after(pair)
        digits = max(map(_digits, two))
        gap = f"{number(two[1]) - number(two[0]):+.{digits}f}"
        places = [_places(two), *([note(pair)] if note else [])]
        others = [*_others(two[0], digits), *_others(two[1], digits)]
        if said and float(gap) != number(said(pair)):
            others.append(f"{_shown(said(pair), digits)} in {said(pair).item}")
        values = " → ".join(_shown(each, digits) for each in two)
        return f"{_signed(gap)} ({'; '.join([', '.join([values, *places]), *others])})"

    return text


def change(before: Find, after: Find) -> Text:
    """By which share of the first value the second is higher or lower: for measures whose scale is not ours.

    >>> change(at("Table 3", ours="SGD", metric="js"),
    ...        at("Table 3", ours="slowest (loss)", metric="js"))("cifar100-vgg16")
    '−81% (0.67 → 0.13, Table 3; 0.676 in Table 12)'
    """

    def text(pair: str) -> str:
        two = before(pair), after(pair)
        share = f"{number(two[1]) / number(two[0]) - 1:+.0%}"
        values = " → ".join(_shown(each) for each in two)
        others = [other for each in two for other in _others(each, _digits(each))]
        return f"{_signed(share)} ({'; '.join([f'{values}, {_places(two)}', *others])})"

    return text


def _others(value: Printed, digits: int) -> list[str]:
    """What the paper prints elsewhere for the same quantity with another mean, by the rule of `printed_twice`.

    The decay tells which is meant where the other table has the first value too, in a column with another decay.
    """
    mean = replace(value, std=None)
    conflicts = [conflict.printed for conflict in _printed_twice(value.pair) if value in conflict.printed]
    texts: list[str] = []
    for other in (each for group in conflicts for each in group if not agree(mean, each)):
        same = [each for each in among(_of_item(other.item), metric=value.metric) if agree(mean, each)]
        decay = f" at α = {_decay(other)}" if {_decay(each) for each in same} - {_decay(other)} else ""
        texts.append(f"{_shown(other, digits)}{decay} in {other.item}")
    return texts


@cache
def _printed_twice(pair: str) -> list[Conflict]:
    """Of one pair alone: all conflicts of the paper would take too long here."""
    return list(printed_twice(printed(pair=pair)))


def _decay(value: Printed) -> str:
    """As printed in the column of a value; empty where the item has no decays."""
    found = among(_of_item(value.item), pair=value.pair, column=value.column, metric="decay")
    return found[0].text if found else ""


# What lists give ------------------------------------------------------------------------------------------------------


def share_of_budget(epochs: Find) -> Text:
    """The mean of the seeds' epochs as a share of the epochs trained.

    >>> share_of_budget(full("80%", ours="EMA (acc.)", metric="epochs"))("cifar100-resnet18")
    '73.0% (143, 139, 156 of 200, Table 7)'
    """

    def text(pair: str) -> str:
        found = epochs(pair)
        whole = budget(pair)
        share = statistics.fmean(found.by_seed) / whole
        return f"{share:.1%} ({_listed(found.by_seed)} of {whole:g}, {found.item})"

    return text


def epochs_between(before: Find, after: Find) -> Text:
    """The mean over the seeds of the second epoch minus the first.

    >>> epochs_between(full("80%", ours="EMA (acc.)", metric="epochs"),
    ...                full("80%", ours="EMA (loss)", metric="epochs"))("tiny-imagenet-resnet18")
    '−9.7 of 150 (−11, −9, −9, Table 15)'
    """

    def text(pair: str) -> str:
        two = before(pair), after(pair)
        gaps = [later - earlier for earlier, later in zip(two[0].by_seed, two[1].by_seed, strict=True)]
        each = ", ".join(_signed(f"{gap:+g}") for gap in gaps)
        return f"{_signed(f'{statistics.fmean(gaps):+.1f}')} of {budget(pair):g} ({each}, {_places(two)})"

    return text


def slope(item: str, metric: str) -> Text:
    """By how much a column rises from one row to the next: a straight line by least squares, one digit more.

    >>> slope("Table 24", "peak_accuracy")("cifar100-resnet18")
    '+0.264 (78.04, 78.42, 78.81, 79.02, 79.06, Table 24)'
    """

    def text(pair: str) -> str:
        found = _column(item, pair=pair, metric=metric)
        rise = f"{_slope(found):+.{_digits(found[0]) + 1}f}"
        return f"{_signed(rise)} ({', '.join(map(_shown, found))}, {item})"

    return text


def slope_of_budget(item: str, metric: str) -> Text:
    """The same for a column of epochs, as a share of the epochs trained.

    >>> slope_of_budget("Table 24", "peak_epoch")("cifar100-resnet18")
    '+3.7% (epochs 137, 140, 152, 156, 166 of 200, Table 24)'
    """

    def text(pair: str) -> str:
        found = _column(item, pair=pair, metric=metric)
        rise = f"{_slope(found) / budget(pair):+.1%}"
        return f"{_signed(rise)} (epochs {', '.join(map(_shown, found))} of {budget(pair):g}, {item})"

    return text


def _slope(values: Sequence[Printed]) -> float:
    return statistics.linear_regression(range(len(values)), [number(each) for each in values]).slope


def at_the_others_best(item: str, *, one: str, other: str, by: str) -> Text:
    """Of a column of accuracies, the best minus that in the row where another column is best; of equals the first.

    The rows are told apart by the metric `by`.

    >>> at_the_others_best("Table 21", one="EMA Acc.", other="SGD Acc.", by="rate")("cifar100-resnet18")
    '0.0 (76.1 at 1.2, best for SGD; 76.1 at 0.8 and 76.1 at 1.2, best for EMA; Table 21)'
    """

    def text(pair: str) -> str:
        names, ones, others = (
            _column(item, pair=pair, **wanted) for wanted in ({"metric": by}, {"column": one}, {"column": other})
        )
        rows = [f"{_shown(each)} at {_shown(name)}" for each, name in zip(ones, names, strict=True)]
        for_one, for_other = _best(ones), _best(others)
        gap = number(ones[for_one[0]]) - number(ones[for_other[0]])
        best = [
            f"{' and '.join(rows[row] for row in places)}, best for {column.removesuffix(' Acc.')}"
            for places, column in ((for_other, other), (for_one, one))
        ]
        return f"{gap:.{_digits(ones[0])}f} ({'; '.join([*best, item])})"

    return text


def _best(column: Sequence[Printed]) -> list[int]:
    """The rows of the highest value."""
    highest = max(map(number, column))
    return [row for row, each in enumerate(column) if number(each) == highest]


# Their form -----------------------------------------------------------------------------------------------------------


def _digits(value: Printed) -> int:
    """How many are printed behind the point of a mean."""
    return len(value.text.partition(" ")[0].rstrip("%").partition(".")[2])


def _shown(value: Printed, digits: int = 0) -> str:
    """A mean as printed, with zeros up to so many digits: the paper drops those at the end in some tables."""
    return f"{number(value):.{max(digits, _digits(value))}f}"


def _signed(text: str) -> str:
    return text.replace("-", "−")


def _places(values: Iterable[Printed]) -> str:
    return " and ".join(dict.fromkeys(each.item for each in values))


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{each:g}" for each in values)
