"""The command `emabank`: arguments in, one stage called, its failures told in one sentence; no logic.

It imports torch only once a stage runs, so that `--help` is quick.
"""

import os
import sys
from collections.abc import Callable, Sequence

from emabank import __version__

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
    return _told_in_a_sentence(lambda: _run(given), resumable=given[:1] == ["protocol"])


def _run(given: list[str]) -> int:
    from emabank.study.arguments import DataArguments, ProtocolArguments, parse
    from emabank.study.config import DemoConfig

    try:
        parsed = parse(given or ["--help"], description=_DESCRIPTION)
    except ValueError as error:  # what a configuration refuses; tyro itself ends the process
        sys.exit(_failed(str(error), 2))
    match parsed:
        case DemoConfig():
            from emabank.study.demo import run_demo

            run_demo(parsed)
        case ProtocolArguments():
            from emabank.study.launch import launch_protocol, show_plan

            if parsed.dry_run:
                show_plan(parsed.protocol, parsed.place)
            else:
                launch_protocol(parsed.protocol, parsed.place)
        case DataArguments():
            from emabank.study.datafiles import check_files, fetch_files

            act = check_files if parsed.action == "check" else fetch_files
            return 0 if act(parsed.name, parsed.data) else 1
    return 0


def _told_in_a_sentence(command: Callable[[], int], *, resumable: bool) -> int:
    """Failures that are no fault of the program end in one sentence; any other keeps its traceback."""
    try:
        return command()
    except KeyboardInterrupt:
        return _failed("interrupted" + ("; the same command goes on from where it was" if resumable else ""), 130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "emabank"):
            raise
        return _failed(f'the commands need the package {missing}, which is missing: pip install "emabank[study]"', 2)
    except BrokenPipeError:  # whoever reads the output, `head` say, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{error.strerror or error}", 1)
    except ValueError as error:  # what a stage refuses: its messages are sentences for the user
        return _failed(str(error), 1)


def _failed(sentence: str, code: int) -> int:
    print(f"emabank: {sentence}", file=sys.stderr)
    return code
