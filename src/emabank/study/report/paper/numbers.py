"""Every number that the paper prints, with where it stands, and how to ask for it.

Reads numbers.json, which a person can hold against the paper line by line. Imports nothing of ours.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

FULL = MappingProxyType(
    {
        (pair, trained_on): f"Table {7 + 2 * place + (trained_on == '100%')}"
        for place, pair in enumerate(
            (
                "cifar100-resnet18",
                "cifar100-wrn-28-10",
                "cifar100-vgg16",
                "cifar10-resnet18",
                "tiny-imagenet-resnet18",
                "cifar100n-resnet34",
                "cifar10n-resnet34",
            )
        )
        for trained_on in ("80%", "100%")
    }
)
"""The fourteen full tables of the appendix, by pair and by the share of the data that was trained on."""


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
    is what the paper says without a number, shortened to a word or two of ours."""
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
    """What is counted, where the paper says it in several places: values of one quantity must agree."""

    @property
    def where(self) -> str:
        """The place in words.

        >>> value(item="Figure 2", metric="gain").where, value(item="Appendix C", ours="SGD").where
        ('caption of Figure 2', 'Appendix C')
        """
        return f"caption of {self.item}" if self.place == "caption" else self.item


@cache
def everything() -> tuple[Printed, ...]:
    """All values, in the order of the paper.

    >>> everything()[0].text, len({each.item for each in everything() if each.place == "table"})
    ('T = 16', 24)
    """
    held = json.loads((files("emabank.study.report.paper") / "numbers.json").read_text(encoding="utf-8"))
    return tuple(_made(item, value) for item in held["items"] for value in item["values"])


def _made(item: Mapping[str, Any], value: Mapping[str, Any]) -> Printed:
    """A value with what its item says for all of its values."""
    shared = {key: item[key] for key in item if key != "values"}
    lists = {key: tuple(value[key]) for key in ("by_seed", "series") if key in value}
    fields: dict[str, Any] = {"place": "table", **shared, **value, **lists}
    return Printed(**fields)


def among(values: Iterable[Printed], **wanted: str) -> list[Printed]:
    """Those of the values whose fields are as wanted, such as item="Table 5", metric="ece".

    >>> [each.text for each in among(everything(), item="Table 23", column="T=1")]
    ['0.999875', '0.99975', '0.9995', '0.999', '0.998']
    """
    return [each for each in values if all(getattr(each, field) == want for field, want in wanted.items())]


def printed(**wanted: str) -> list[Printed]:
    """What the paper prints, by any fields of `Printed`.

    >>> [each.text for each in printed(item="Table 1", pair="cifar100-resnet18", metric="loss")]
    ['1.02', '0.84', '0.82']
    """
    return among(everything(), **wanted)


def value(**wanted: str) -> Printed:
    """The one value that fits; a ValueError if there is none or more than one.

    >>> value(item="Appendix E.1", column="EMA", metric="memorised").mean
    28.8
    """
    found = printed(**wanted)
    if len(found) != 1:
        raise ValueError(f"{len(found)} printed values have {wanted}; name fields of Printed that fit exactly one")
    return found[0]


def beside(item: str, pair: str, column: str, metric: str) -> str:
    """What a table of the paper prints for one of our columns, by its title; empty where it prints nothing.

    The paper's "EMA (acc.) (BN)", and its "EMA (acc.)" outside the full tables, are our "slowest (acc.)".

    >>> beside("Table 1", "cifar100-resnet18", "slowest (acc.)", "accuracy")
    '78.55 ± 0.28'
    >>> beside("Table 1", "cifar100-resnet18", "EMA (acc.)", "accuracy")
    ''
    """
    found = printed(item=item, place="table", pair=pair, ours=column, metric=metric)
    return found[0].text if len(found) == 1 else ""


def refit(pair: str, column: str, metric: str) -> str:
    """What the paper prints for a column of our refit tables (trained on 100%, measured on test); or nothing.

    SWA stands in Table 1 alone. The SGD column of CIFAR-10N has epochs 111 to 118 and is our "SGD (best)".

    >>> refit("cifar100-resnet18", "slowest (acc.)", "accuracy"), refit("cifar100-resnet18", "SWA", "accuracy")
    ('78.54 ± 0.28', '78.69 ± 0.25')
    >>> refit("cifar10n-resnet34", "SGD", "accuracy"), refit("cifar10n-resnet34", "SGD (best)", "accuracy")
    ('', '78.09 ± 0.23')
    """
    item = "Table 1" if column == "SWA" else FULL.get((pair, "100%"), "")
    return beside(item, pair, column, metric)


def tuning(pair: str, column: str, metric: str) -> str:
    """What the paper prints for a column of our tuning tables (trained on 80%, measured on the other 20%); or nothing.

    VGG-16 has three columns there. The SGD column of CIFAR-10N has epoch 200 and is our "SGD (last)".

    >>> tuning("cifar100-vgg16", "EMA (loss)", "decay"), tuning("cifar100-vgg16", "slowest (loss)", "decay")
    ('[0.996, 0.984, 0.998]', '')
    """
    return beside(FULL.get((pair, "80%"), ""), pair, column, metric)
