"""Which run a configuration means: its hash, the same in every process, on every machine. Standard library only."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, cast

FORMAT = 1  # raised when the same configuration comes to mean another training
DIGITS = 16


def run_id(config: Mapping[str, Any]) -> str:
    """The name of the run that a complete configuration describes: 16 hexadecimal digits.

    The order of the keys, a list or a tuple, and 1 or 1.0 make no difference, since a training cannot tell them
    apart; True and 1, or a key that is missing and one that is None, do.

    >>> run_id({"network": "resnet8", "epochs": 60})
    'd8cb8c03b3709a2a'
    >>> run_id({"epochs": 60.0, "network": "resnet8"})
    'd8cb8c03b3709a2a'
    """
    text = f"emabank run {FORMAT}\n{canonical(config)}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def canonical(config: Mapping[str, Any]) -> str:
    r"""The one JSON text of a configuration: keys sorted, no spaces, ASCII, whole numbers without a point.

    >>> canonical({"rates": (0.1, 1.0), "name": "é", "decay": None})
    '{"decay":null,"name":"\\u00e9","rates":[0.1,1]}'
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"the configuration of a run is a {type(config).__name__}; give a dict of plain values")
    return json.dumps(_plain(config, ""), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def first_difference(one: Any, other: Any, place: str = "") -> str | None:
    """Where two configurations differ first, in words; None when they are the same.

    >>> first_difference({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}})
    'a.b.1 is 2 and not 3'
    """
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        one = {str(i): item for i, item in enumerate(cast("list[Any]", one))}
        other = {str(i): item for i, item in enumerate(cast("list[Any]", other))}
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        ones, others = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        for key in sorted({*ones, *others}):
            here = f"{place}.{key}" if place else key
            if key not in ones or key not in others:
                return f"{here} is {'missing' if key not in ones else 'there and should not be'}"
            found = first_difference(ones[key], others[key], here)
            if found is not None:
                return found
        return None
    same = one == other and isinstance(one, bool) == isinstance(other, bool)
    return None if same else f"{place or 'it'} is {one!r} and not {other!r}"


def _plain(value: Any, place: str) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}; a run is known by its configuration, so give a finite number")
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_key(key, place): _plain(item, f"{place}.{key}" if place else str(key)) for key, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}.{i}") for i, item in enumerate(cast("list[Any]", value))]
    raise ValueError(
        f"{place} is a {type(value).__name__}; a run is known by plain values alone, so give numbers, strings, "
        "booleans, None, lists and dicts"
    )


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} in {place or 'the configuration'} is not a string; give string keys")
    return key
