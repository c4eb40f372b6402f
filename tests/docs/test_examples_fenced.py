"""Examples of docstrings on the site: each a block of code."""

import pytest
from examples_fenced import fenced


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("Twice.\n\n>>> 2 * 2\n4", "Twice.\n\n```pycon\n>>> 2 * 2\n4\n```"),
        (">>> 1\n1\n\nMore.", "```pycon\n>>> 1\n1\n```\n\nMore."),
        ("A.\n\n>>> 1\n1\n\nB.\n\n>>> 2\n2", "A.\n\n```pycon\n>>> 1\n1\n```\n\nB.\n\n```pycon\n>>> 2\n2\n```"),
        ("Is `a >>> b` allowed? No.", "Is `a >>> b` allowed? No."),
    ],
)
def test_an_example_becomes_a_block(docstring: str, shown: str):
    assert fenced(docstring) == shown
