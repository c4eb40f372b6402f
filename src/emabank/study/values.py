"""What values a configuration may have, and the sentences that refuse others. Standard library only."""

import math
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_choices(config: object) -> None:
    """Refuse a text that is not among those allowed: annotations alone keep no one from giving another.

    >>> from emabank.study.recipe import HardwareConfig
    >>> check_choices(HardwareConfig())
    """
    for name, kind in _hints(type(config)).items():
        value, kinds = getattr(config, name), get_args(kind)
        # What a tuple may hold, its class says itself.
        if (value is None and NoneType in kinds) or get_origin(kind) is tuple:
            continue
        for each in (kind, *kinds):
            if get_origin(each) is Literal and value not in get_args(each):
                raise ValueError(f"{name} is {value!r}; give one of {', '.join(get_args(each))}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def check_share(name: str, value: float) -> None:
    """Refuse what is no share of a whole.

    >>> check_share("noise", 0.4)
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; give a share from 0 to 1, such as 0.4")


def check_from(name: str, value: float | None, least: float) -> None:
    """Refuse what is below the least that makes sense, or not finite; None is what was left out.

    >>> check_from("epochs", 0, 1)
    Traceback (most recent call last):
    ValueError: epochs is 0; give 1 or more
    """
    if value is not None and not least <= value < math.inf:
        raise ValueError(f"{name} is {value}; give {'a finite number' if value == math.inf else f'{least} or more'}")


def listed(values: tuple[float, ...]) -> str:
    """Numbers as they stand on a command line.

    >>> listed((0.3, 0.6))
    '0.3 0.6'
    """
    return " ".join(map(str, values)) or "empty"
