"""Extends mkdocstrings: puts examples in docstrings (>>>) into code fences; Markdown would take them for quotations.

The documented fields of a configuration class become a table of its arguments.
"""

import re
from typing import Any

import griffe

# From ">>>", at the start of a paragraph, to the next empty line or the end.
_EXAMPLE = re.compile(r"(?:(?<=\n\n)|\A)(>>> .*?)(?=\n\n|\Z)", re.DOTALL)


def fenced(text: str) -> str:
    """A docstring with each of its examples in a code fence."""
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[1].rstrip()}\n```", text)


class FencedExamples(griffe.Extension):
    """Fences all examples, and lists the documented fields of configurations as arguments."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called once per module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called once per class, when its members are known."""
        fields = [member for member in cls.attributes.values() if member.docstring and member.annotation]
        if cls.name.endswith("Config") and cls.docstring is not None and fields:
            fields = [field for field in fields if "property" not in field.labels]
            lines = [f"    {field.name}: {' '.join(field.docstring.value.split())}" for field in fields]
            cls.docstring.value += "\n\nArgs:\n" + "\n".join(lines)
