"""The command line in tests: parsed, and refused."""

import re
from typing import Any

import pytest

from emabank.study.commands.parsing import parse


def parsed(*words: str) -> Any:
    return parse(list(words), description="What it is.")


def ended(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    """What is printed at the end of the process, without the lines of boxes, with each space and line end one space."""
    with pytest.raises(SystemExit) as stopped:
        parsed(*words)
    assert stopped.value.code == code
    printed = capsys.readouterr()
    return re.sub(r"([\s│─╭╮╰╯]|-{3,})+", " ", printed.out if code == 0 else printed.err)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said of values that are refused: by tyro, or by the configuration itself."""
    try:
        printed = ended(capsys, *words, code=2)
    except ValueError as error:
        return str(error)
    assert "Traceback" not in printed
    assert f"emabank {words[0]} --help" in printed
    return printed
