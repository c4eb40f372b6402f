"""What the paper prints: every number with its place, and the values that its numbers give for each claim.

Reads assets/numbers.json and assets/claim_values.json, which a person can check against the paper line by line.
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
"""The pairs of the fourteen full tables of the appendix, from Table 7 on: trained on 80%, then on 100%."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One value of the paper. Numbers are as printed: accuracies, churn and calibration errors in percent."""

    item: str
    """"Table 5", "Figure 2", "Section 3.1", "Appendix C"."""
    label: str
    """LaTeX's name for the item; empty where it has none."""
    place: str
    """"table", "caption" or "text"."""
    row: str
    """As printed in tables; in captions and text our words for what the number is."""
    metric: str
    """"accuracy", "loss", "churn", "js", "ece", "ece_ts", "epochs", "decay", "rate", "transfer:<target>", ...; "claim"
    is a statement without a number, shortened to a word or two of ours."""
    text: str
    """As printed, with ± and without emphasis; a trailing zero is there or not as in the paper."""
    mean: float | None
    std: float | None
    by_seed: tuple[float, ...] = ()
    """Epochs, decays or learning rates of the three seeds."""
    series: tuple[float, ...] = ()
    """Other lists: the five decays, the epochs of the steps."""
    column: str = ""
    """The heading as printed."""
    ours: str = ""
    """The column of our tables that means the same by the paper's own words; empty where we have none."""
    pair: str = ""
    """Data set and network, such as "cifar100-resnet18"."""
    trained_on: str = ""
    """"80%" or "100%"."""
    split: str = ""
    """"val" or "test", as the paper says."""
    mark: str = ""
    """"bold" or "underline"."""
    quantity: str = ""
    """What is counted, where the paper says it in several places."""


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
    """What the paper prints, by item (all, without) and by any fields of `Printed`."""
    every = _everything()
    values = every.get(item, ()) if item else (value for values in every.values() for value in values)
    return [value for value in values if all(getattr(value, name) == wanted for name, wanted in fields.items())]


def lookup(item: str, **fields: str) -> str:
    """What an item prints, as text; empty where that is nothing, or no single value."""
    values = printed(item, **fields) if item else []
    return values[0].text if len(values) == 1 else ""


def full_table(pair: str, trained_on: str) -> str:
    """The paper's name for the full table of a pair; empty where it has none."""
    return f"Table {7 + 2 * _FULL.index(pair) + (trained_on == '100%')}" if pair in _FULL else ""


def lookup_full(pair: str, column: str, metric: str, *, trained_on: str) -> str:
    """What the full table of a pair prints; of SWA, what the headline table does."""
    item = "Table 1" if column == "SWA" and trained_on == "100%" else full_table(pair, trained_on)
    return lookup(item, place="table", pair=pair, ours=column, metric=metric)


def rows_of(item: str) -> Mapping[str, Sequence[Printed]]:
    """The values of a table of the paper by row, in its order."""
    rows: dict[str, list[Printed]] = {}
    for value in printed(item, place="table"):
        rows.setdefault(value.row, []).append(value)
    return rows


def difference(ours: str, theirs: str) -> str:
    """The difference of two printed means, with the digits they are printed with; empty where one is missing."""
    one, other = _mean(ours), _mean(theirs)
    return "" if one is None or other is None else str(one - other)


def ratio(ours: str, theirs: str) -> str:
    """The ratio of two printed means; empty where one is missing or zero."""
    one, other = _mean(ours), _mean(theirs)
    return f"{one / other:.2f}" if one is not None and other else ""


def _mean(text: str) -> Decimal | None:
    try:
        return Decimal(text.split("±")[0].strip().rstrip("%"))
    except InvalidOperation:
        return None


def claim_value(number: str, key: str, pair: str, target: str = "") -> str:
    """What the paper has for a statistic of a claim in one of its pairs; empty where it has nothing.

    A transfer to a data set that the paper does not transfer to has its value to those that it does.
    """
    values: Mapping[str, str] = _asset("claim_values.json").get(number, {}).get(key, {})
    exact = values.get(f"{pair} {target}" if target else pair)
    texts = [exact] if exact else [text for place, text in values.items() if target and place.startswith(f"{pair} ")]
    return ", ".join([*texts, *([PAIRS[pair]] if texts and pair in PAIRS else [])])
