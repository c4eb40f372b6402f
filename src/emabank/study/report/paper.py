"""The paper's numbers: every printed value with its place, and the paper's values for each claim's statistics.

Reads assets/numbers.json and assets/claim_values.json, which can be checked against the paper line by line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from typing import Any

from emabank.study.studies.scales import PAIRS

OF_MEANS = (
    "Where ours is a difference or a ratio, the paper's is that of two means it prints: not paired, without spread."
)
_FULL = (
    "cifar100-resnet18", "cifar100-wrn-28-10", "cifar100-vgg16", "cifar10-resnet18", "tiny-imagenet-resnet18",
    "cifar100n-resnet34", "cifar10n-resnet34",
)  # fmt: skip
"""The pairs of the appendix's fourteen full tables, from Table 7 on: for each pair trained on 80%, then on 100%."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One value of the paper, as printed: accuracies, churn and calibration errors are in percent."""

    item: str
    """"Table 5", "Figure 2", "Section 3.1", "Appendix C"."""
    label: str
    """The item's LaTeX label; empty if it has none."""
    place: str
    """"table", "caption" or "text"."""
    row: str
    """The row title as printed; for captions and text, our description of the number."""
    metric: str
    """"accuracy", "loss", "churn", "js", "ece", "ece_ts", "epochs", "decay", "rate", "transfer:<target>", ...; "claim"
    for a statement without a number, whose text is a word or two of ours."""
    text: str
    """The value as printed, with ±, without emphasis, and with trailing zeros only if the paper prints them."""
    mean: float | None
    std: float | None
    by_seed: tuple[float, ...] = ()
    """Epochs, decays or learning rates of the three seeds."""
    series: tuple[float, ...] = ()
    """Other lists, such as the five decays or the epochs of the steps."""
    column: str = ""
    """The column title as printed."""
    ours: str = ""
    """The column of our tables that means the same, by the paper's own words; empty if we have none."""
    pair: str = ""
    """Data set and network, such as "cifar100-resnet18"."""
    trained_on: str = ""
    """"80%" or "100%"."""
    split: str = ""
    """"val" or "test", as the paper states it."""
    mark: str = ""
    """"bold" or "underline"."""
    quantity: str = ""
    """A common name for a quantity that the paper states in several places."""


@cache
def _everything() -> Mapping[str, Sequence[Printed]]:
    """All values in the order of the paper, by item."""
    by_item: dict[str, list[Printed]] = {}
    for item in _asset("numbers.json")["items"]:
        shared = {key: item[key] for key in item if key != "values"}
        for value in item["values"]:
            lists = {key: tuple(value[key]) for key in ("by_seed", "series") if key in value}
            fields: dict[str, Any] = {"place": "table", **shared, **value, **lists}
            by_item.setdefault(item["item"], []).append(Printed(**fields))
    return by_item


@cache
def _asset(name: str) -> Any:
    return json.loads((files("emabank.study.report") / "assets" / name).read_text(encoding="utf-8"))


def printed(item: str = "", **fields: str) -> list[Printed]:
    """The paper's values with this item (any item, if empty) and these fields of `Printed`."""
    every = _everything()
    values = every.get(item, ()) if item else (value for values in every.values() for value in values)
    return [value for value in values if all(getattr(value, name) == wanted for name, wanted in fields.items())]


def lookup(item: str, **fields: str) -> str:
    """The one value of an item with these fields, as text; empty if there is none or more than one."""
    values = printed(item, **fields) if item else []
    return values[0].text if len(values) == 1 else ""


def full_table(pair: str, trained_on: str) -> str:
    """The paper's name for the full table of a pair, such as "Table 7"; empty if the pair has none."""
    return f"Table {7 + 2 * _FULL.index(pair) + (trained_on == '100%')}" if pair in _FULL else ""


def lookup_full(pair: str, column: str, metric: str, *, trained_on: str) -> str:
    """A value from the full table of a pair; for SWA, from the headline table."""
    item = "Table 1" if column == "SWA" and trained_on == "100%" else full_table(pair, trained_on)
    return lookup(item, place="table", pair=pair, ours=column, metric=metric)


def rows_of(item: str) -> Mapping[str, Sequence[Printed]]:
    """The values of a table of the paper by row title, in the table's order."""
    rows: dict[str, list[Printed]] = {}
    for value in printed(item, place="table"):
        rows.setdefault(value.row, []).append(value)
    return rows


def difference(ours: str, theirs: str) -> str:
    """The difference of two printed means, with as many decimals as printed; empty if either is missing."""
    one, other = _mean(ours), _mean(theirs)
    return "" if one is None or other is None else str(one - other)


def ratio(ours: str, theirs: str) -> str:
    """The ratio of two printed means; empty if either is missing or the second is zero."""
    one, other = _mean(ours), _mean(theirs)
    return f"{one / other:.2f}" if one is not None and other else ""


def _mean(text: str) -> Decimal | None:
    try:
        return Decimal(text.split("±")[0].strip().rstrip("%"))
    except InvalidOperation:
        return None


def claim_value(number: str, key: str, pair: str, target: str = "") -> str:
    """The paper's value for a claim's statistic and one of its pairs, as text; empty if it has none.

    For a transfer target that the paper does not use, these are its values for the targets that it does use.
    """
    values: Mapping[str, str] = _asset("claim_values.json").get(number, {}).get(key, {})
    exact = values.get(f"{pair} {target}" if target else pair)
    texts = [exact] if exact else [text for place, text in values.items() if target and place.startswith(f"{pair} ")]
    return ", ".join([*texts, *([PAIRS[pair]] if texts and pair in PAIRS else [])])
