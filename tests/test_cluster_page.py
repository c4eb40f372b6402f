"""The page "From a laptop to a cluster": its table follows from its formulas, and its commands are understood."""

import re
from pathlib import Path

import pytest
from pages import arguments_of

from emabank.study.commands.parsing import parse
from emabank.study.commands.studies import RunArguments

PAGE = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text()
BYTES = {"MB": 1e6, "GB": 1e9}
PARAMETERS = {"M": 1e6, "B": 1e9}


def sized(cell: str) -> float:
    number, unit = cell.split()
    return float(number) * {**BYTES, **PARAMETERS}[unit]


def test_the_sizing_table_is_computed_right():
    rows = re.findall(r"^\| (\d+ [MB]) \| (.+) \| (.+) \| (.+) \| 0 \| (.+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for parameters, *cells in rows:
        whole = 4 * sized(parameters)
        assert [sized(cell) for cell in cells] == pytest.approx([whole, whole / 8, whole / 64, whole], rel=0.03)
    assert "Computed, not measured" in PAGE


def test_the_commands_of_its_table_are_understood():
    commands = re.findall(r"^\| [^|]+ \| `(emabank .+)` \|$", PAGE, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        assert isinstance(parse(arguments_of(command) or [], description=""), RunArguments)
