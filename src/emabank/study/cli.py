"""The command `emabank`: arguments in, one stage called, its failures told in one sentence; no logic.

It imports a stage only when that is called for, so that what needs no torch (`--help`, `list`, `decay`) starts at once.
"""

import os
import shlex
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
    return _told_in_a_sentence(lambda: _run(given), resumable=given[:1] in (["protocol"], ["run"]))


def _run(given: list[str]) -> int:
    from emabank.study import arguments as told

    try:
        parsed = told.parse(given or ["--help"], description=_DESCRIPTION)
    except ValueError as error:  # what a configuration refuses; tyro itself ends the process
        sys.exit(_failed(str(error), 2))
    match parsed:
        case told.DemoConfig():
            from emabank.study.demo import run_demo

            run_demo(parsed)
        case told.ListArguments():
            from emabank.study.studies.listing import list_studies

            list_studies(parsed.scale)
        case told.RunArguments():
            from emabank.study.launch_studies import launch_studies, show_studies_plan
            from emabank.study.studies.catalogue import studies_named

            studies = studies_named(parsed.study)
            if parsed.dry_run:
                show_studies_plan(studies, parsed.scale, parsed.place, change=parsed.change)
            else:
                command = shlex.join(["emabank", *given])
                done = launch_studies(studies, parsed.scale, parsed.place, command=command, change=parsed.change)
                return 0 if done else 1
        case told.StatusArguments():
            from emabank.study.status import show_status

            show_status(parsed.runs)
        case told.ReportArguments():
            from emabank.study.reporting import make_report

            make_report(parsed.runs, parsed.out, tables=parsed.tables)
        case told.ClaimsArguments():
            from emabank.study.reporting import show_claims

            show_claims(parsed.runs, short=parsed.short)
        case told.AdviseArguments():
            from emabank.study.advise import show_advice

            show_advice(parsed.run, parsed.criterion)
        case told.ProtocolArguments():
            from emabank.study.launch import launch_protocol, show_plan

            if parsed.dry_run:
                show_plan(parsed.protocol, parsed.place)
            else:
                launch_protocol(parsed.protocol, parsed.place)
        case told.DataArguments():
            from emabank.study.datafiles import check_files, fetch_files

            act = check_files if parsed.action == "check" else fetch_files
            return 0 if act(parsed.name, parsed.data) else 1
        case told.AverageArguments():
            from emabank.study.average_files import average_files

            average_files(parsed)
        case told.DecayArguments():
            from emabank.study.decay import show_decay

            show_decay(parsed)
        case told.BenchArguments():
            from emabank.study.bench import run_bench

            run_bench(parsed)
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
