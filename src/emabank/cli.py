"""The command `emabank`: arguments in, one stage called, its failures told in one sentence; no logic.

It imports torch only once a stage runs, so that `--help` is quick.
"""

import sys
from collections.abc import Callable, Sequence

from emabank import __version__
from emabank.study.config import DemoConfig

COMMANDS = {"demo": DemoConfig}
_DESCRIPTION = (
    f"emabank {__version__}: keep a bank of weight averages while you train; know which one to ship. "
    "`emabank COMMAND --help` explains a command, `emabank --version` prints the version."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 1 failed, 2 cannot be run like this, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"emabank {__version__}")
        return 0
    return _told_in_a_sentence(lambda: _run(given))


def _run(given: list[str]) -> None:
    match _parsed(given):
        case DemoConfig() as config:
            from emabank.study.demo import run_demo

            run_demo(config)


def _parsed(given: list[str]) -> DemoConfig:
    import tyro

    arguments = given or ["--help"]
    try:
        return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="emabank", description=_DESCRIPTION, args=arguments)
    except ValueError as error:  # before 1.0.16 tyro leaves it to its caller when a configuration refuses its values
        sys.exit(_failed(str(error), 2))


def _told_in_a_sentence(command: Callable[[], None]) -> int:
    """Failures that are no fault of the program end in one sentence; any other keeps its traceback."""
    try:
        command()
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "emabank"):
            raise
        return _failed(f'the commands need the package {missing}, which is missing: pip install "emabank[study]"', 2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{error.strerror or error}", 1)
    return 0


def _failed(sentence: str, code: int) -> int:
    print(f"emabank: {sentence}", file=sys.stderr)
    return code
