"""Made-up printed values, and the paper's own with a few things changed."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from emabank.study.report.paper.numbers import Printed, everything


def made(text: str, **fields: Any) -> Printed:
    """A value whose numbers are those of its text: "78.55 ± 0.28", "0.84" or "[143, 139, 156]"."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    if text.startswith("["):
        numbers, fields = [], {"by_seed": tuple(numbers), **fields}
    given = {"item": "Table 1", "label": "", "place": "table", "row": "", "metric": "accuracy", **fields}
    return Printed(text=text, mean=next(iter(numbers), None), std=next(iter(numbers[1:]), None), **given)


def changed(which: Callable[[Printed], bool], **fields: Any) -> list[Printed]:
    """All values of the paper, with some fields of some of them changed; at least one must be."""
    assert any(which(each) for each in everything()), "nothing to change"
    return [replace(each, **fields) if which(each) else each for each in everything()]


def without(which: Callable[[Printed], bool]) -> list[Printed]:
    """All values of the paper but some."""
    assert any(which(each) for each in everything()), "nothing to leave out"
    return [each for each in everything() if not which(each)]
