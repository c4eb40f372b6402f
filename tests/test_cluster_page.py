"""The page "From a laptop to a cluster": its table follows from its formulas, and its commands are understood."""

import re
import shlex
from pathlib import Path

import pytest

from emabank.study.arguments import RunArguments, parse

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


def commands() -> list[list[str]]:
    shown = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in shown for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"^\| [^|]+ \| `(emabank .+)` \|$", PAGE, re.MULTILINE)
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[words.index("emabank") + 1 :] for words in found if "emabank" in words]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_its_commands_are_understood(words: list[str]):
    assert isinstance(parse(words, description=""), RunArguments)


def test_it_has_commands():
    assert len(commands()) >= 7
