"""For mkdocstrings: examples in docstrings (lines after >>>) become blocks of code; to Markdown they are quotations."""

import re
from typing import Any

import griffe

# From ">>>" to the next empty line or the end, at any indentation that the docstring has left.
_EXAMPLE = re.compile(r"(?:(?<=\n\n)|\A)(>>> .*?)(?=\n\n|\Z)", re.DOTALL)


def fenced(text: str) -> str:
    """A docstring with each of its examples in a fence."""
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[1].rstrip()}\n```", text)


class FencedExamples(griffe.Extension):
    """Fence the examples of everything that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
