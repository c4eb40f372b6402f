"""What a protocol's summary.json has to hold before the report is made of it: all of it is checked, at the door.

May import config, plain and the run's folder.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emabank.study.config import ProtocolConfig
from emabank.study.report.evidence import LIVE
from emabank.study.runs.storage import read_checked
from emabank.study.serialize import from_dict

SUMMARY = "summary.json"


def read_summary(folder: Path) -> tuple[dict[str, Any], ProtocolConfig]:
    """What a protocol left, and its configuration; `ValueError` in a sentence where the file holds something else.

    >>> read_summary(Path("protocol-d8cb8c03b3709a2a"))
    Traceback (most recent call last):
    ...
    ValueError: protocol-d8cb8c03b3709a2a/summary.json is not there; run the study again
    """
    where = f"{folder.name}/{SUMMARY}"
    if not (folder / SUMMARY).is_file():
        raise ValueError(f"{where} is not there; run the study again")
    try:
        summary = read_checked(folder / SUMMARY)
        config = from_dict(ProtocolConfig, summary["config"], where="config")
        for name, fits in _PARTS.items():
            if not fits(summary[name], config):
                raise ValueError(f"see {name} there")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{where} is damaged or of another emabank ({wrong}); run the study again") from error
    return summary, config


# What values may be ---------------------------------------------------------------------------------------------------


def is_text(value: object) -> bool:
    """Whether it is a text that a file can hold: JSON can have half a character.

    >>> is_text("digits"), is_text(3), is_text(chr(0xD800))
    (True, False, False)
    """
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_count(value: object) -> bool:
    """Whether it is a whole number, 0 or more.

    >>> is_count(3), is_count(True), is_count(-1), is_count(3.0)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    """Whether it is a finite number.

    >>> is_number(-3), is_number(0.5), is_number(math.nan), is_number(10**400), is_number("3")
    (True, True, False, False, False)
    """
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**300  # a float can hold no more
    return whole or (isinstance(value, float) and math.isfinite(value))


# The parts of a summary -----------------------------------------------------------------------------------------------


def _are_choices(choices: Any, config: ProtocolConfig) -> bool:
    return [choice["seed"] for choice in choices] == list(range(config.seeds)) and all(
        choice["rate"] in config.rates
        and is_text(choice["run"])
        and _is_epoch(choice["live_epoch"], config)
        and set(choice["averages"]) == {"accuracy", "loss"}
        and all(
            name in config.averages.names and _is_epoch(epoch, config) for name, epoch in choice["averages"].values()
        )
        for choice in choices
    )


def _are_runs(runs: Any, config: ProtocolConfig) -> bool:
    """Those of a later stage may be missing."""
    counts = {"tuning": {config.seeds * len(config.rates)}, "refit": {0, config.seeds}, "swa": {0, config.seeds}}
    return all(
        isinstance(runs[stage], list) and len(runs[stage]) in allowed and all(map(is_text, runs[stage]))
        for stage, allowed in counts.items()
    )


def _are_tables(tables: Any, config: ProtocolConfig) -> bool:
    return isinstance(tables, list) and all(
        table["trained_on"] in ("80%", "100%")
        and table["split"] in ("val", "test")
        and is_text(table["column"])
        and len(table["weights"]) == len(table["epochs"]) == config.seeds
        and all(weights in (LIVE, "swa", *config.averages.names) for weights in table["weights"])
        and all(_is_epoch(epoch, config) for epoch in table["epochs"])
        and all(_are_values(metric, values, config) for metric, values in table["values"].items())
        and all(is_number(value) for part in ("mean", "std") for value in table[part].values())
        for table in tables
    )


def _are_values(metric: str, values: Any, config: ProtocolConfig) -> bool:
    """One for each seed, or for each pair of seeds; None where it is not defined."""
    count = math.comb(config.seeds, 2) if metric in ("churn", "js") else config.seeds
    return is_text(metric) and len(values) == count and all(value is None or is_number(value) for value in values)


def _is_epoch(value: object, config: ProtocolConfig) -> bool:
    return is_count(value) and value in range(1, config.training.epochs + 1)


_PARTS: Mapping[str, Callable[[Any, ProtocolConfig], bool]] = {
    "choices": _are_choices,
    "runs": _are_runs,
    "tables": _are_tables,
    "has_batchnorm": lambda found, _: isinstance(found, bool),
}
