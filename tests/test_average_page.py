"""The page "One checkpoint out of many": its commands are understood, its Python runs, its numbers are the code's."""

import re
import shlex
from pathlib import Path

import pytest
from averaging.made import read, state, write

from emabank.averaging.tensors import pieces
from emabank.study.arguments import parse
from emabank.study.own_arguments import AverageArguments, DecayArguments

PAGE = (Path(__file__).parents[1] / "docs" / "average.md").read_text()


def commands() -> list[list[str]]:
    shown = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found = [shlex.split(line, comments=True) for block in shown for line in block.splitlines()]
    return [words[1:] for words in found if words and words[0] == "emabank"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_its_commands_are_understood(words: list[str]):
    assert isinstance(parse(words, description=""), AverageArguments | DecayArguments)


def test_it_has_commands_of_both_kinds():
    assert {words[0] for words in commands()} == {"average", "decay"} and len(commands()) >= 10


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for step in (1, 2, 3):
        write(Path(f"checkpoints/{step}.safetensors"), state(step))
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert read(Path("average.safetensors"))["norm.num_batches_tracked"] == 30


def test_its_numbers_are_those_of_the_code():
    largest = max(piece.stop for piece in pieces((2**24,)) if piece.start == 0)
    assert f"{largest:,} elements" in PAGE
