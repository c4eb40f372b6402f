"""The page "One checkpoint out of many": its Python does what it says, and its numbers are the code's."""

import re
from pathlib import Path

import pytest
from averaging.made import read, state, write

from emabank.averaging.formats import pieces

PAGE = (Path(__file__).parents[1] / "docs" / "average.md").read_text()


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
