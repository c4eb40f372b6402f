"""The command `emabank`: parses its arguments, runs one command, and turns failures into one clear line.

Each command is a class: its fields are the arguments, `run` imports and calls the implementation. So commands that need
no torch (`--help`, `list`, `decay`) start at once.
"""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from emabank import __version__

_DESCRIPTION = f"""\
emabank {__version__}: keep a bank of weight averages while you train; know which one to ship.
`emabank COMMAND --help` explains a command, `emabank --version` prints the version."""


_PLAIN = "emabank.plain"
_SIGNS = {"±": "~", "–": "-", "−": "-", "×": "x", "…": ".", "≤": "<", "≥": ">"}  # as wide, for tables


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Plain signs in place of those that a terminal cannot show."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(_PLAIN, _in_ascii)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage or missing package, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAIN)
    if words == ["--version"]:
        print(f"emabank {__version__}")
        return 0
    return _exit_code(lambda: _run(words), resumable=words[:1] in (["protocol"], ["run"]))


def _run(words: list[str]) -> int:
    from emabank.study.commands.parsing import parse

    try:
        command: Any = parse(words or ["--help"], description=_DESCRIPTION)
    except ValueError as error:  # arguments that a command refuses; on unknown options tyro itself ends the process
        sys.exit(_failed(str(error), 2))
    return command.run(words) or 0


def _exit_code(command: Callable[[], int], *, resumable: bool) -> int:
    """Failures that are not bugs print one line; bugs keep their traceback."""
    try:
        return command()
    except KeyboardInterrupt:
        return _failed("interrupted" + ("; the same command resumes" if resumable else ""), 130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "emabank"):
            raise
        extra = "in the clone of emabank, pip install '.[study]'"
        return _failed(f"the commands need the package {missing}, which is not installed; {extra}", 2)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes at exit
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        is_file = error.strerror == os.strerror(errno.EEXIST)  # a folder was to be made, and a file has its name
        return _failed(f"{place}{'A file, not a folder' if is_file else error.strerror or error}", 1)
    except ValueError as error:  # refused by the command; the message is for the user
        return _failed(str(error), 1)


def _failed(sentence: str, code: int) -> int:
    print(f"emabank: {sentence}", file=sys.stderr)
    return code
