"""Helpers that parse command lines, and return their help or errors."""

import re
from typing import Any

import pytest

from emabank.study.commands.parsing import parse


def parsed(*words: str) -> Any:
    return parse(list(words), description="What it is.")


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    """The output of a command line that exits with this code, without boxes, and with single spaces."""
    with pytest.raises(SystemExit) as caught:
        parsed(*words)
    assert caught.value.code == code
    output = capsys.readouterr()
    return re.sub(r"([\s│─╭╮╰╯]|-{3,})+", " ", output.out if code == 0 else output.err)


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error message of tyro or of the configuration."""
    try:
        message = output_of(capsys, *words, code=2)
    except ValueError as error:
        return str(error)
    assert "Traceback" not in message
    assert f"emabank {words[0]} --help" in message
    return message
