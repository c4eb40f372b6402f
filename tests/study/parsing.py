"""The command line in tests: parsed, refused in a sentence, and every field of what was parsed by its place."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from emabank.study.arguments import parse


def parsed(*words: str) -> Any:
    return parse(list(words), description="What it is.")


def refused(*words: str) -> str:
    with pytest.raises(ValueError, match="--help` explains") as caught:
        parsed(*words)
    return str(caught.value)


def values(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from values(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", value
