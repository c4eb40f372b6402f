"""The commands `emabank report` and `emabank claims`: print results, and write the report. Never imports torch.

May import the report, status and progress.
"""

from pathlib import Path

from rich.console import Console

from emabank.study.executors.progress import counting, say
from emabank.study.report.claim_specs import make_claims
from emabank.study.report.render import terminal
from emabank.study.report.render_claims import claims_summary, claims_terminal
from emabank.study.report.results import read_results
from emabank.study.report.write import Report, build_report, try_next
from emabank.study.runs.archive import ARCHIVE
from emabank.study.status import print_skipped

SHOWN = ("generalization/headline", "label-noise/leaderboard", "label-noise/test-accuracy")
"""The tables that are printed by default."""


def make_report(runs: Path, out: Path | None, *, tables: str = "", console: Console | None = None) -> Report:
    """Write the report of a folder of runs; print some of its tables, and what was skipped.

    `tables` chooses the printed ones: those with this text in their name, or "all". By default those in `SHOWN`.
    """
    console = console or Console()
    results = read_results(runs)
    out = out or runs / "report"
    with counting(Console(stderr=True), "files of the report") as progress:
        report = build_report(results, out, progress=progress)
    _show_tables(report, tables, console)
    say(console, claims_summary(report.claims))
    print_skipped(results.skipped, console)
    # Archived runs have no weights to resume from: `run` would train all of them again.
    following = "" if any(runs.glob(f"*/{ARCHIVE}")) else f"; next: `{try_next(results, runs=runs)}`"
    if results.settings:
        place = out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out
        say(console, f"{len(report.tables)} tables and {len(report.figures)} figures are in {place}.")
    else:
        say(console, f"There is nothing to report in {runs} yet.")
    say(console, f"Open {report.page.resolve().as_uri()} in a browser{following}.")
    return report


def _show_tables(report: Report, asked: str, console: Console) -> None:
    names = [table.name for table in report.tables]
    shown = [name for name in names if asked == "all" or (asked in name if asked else name.endswith(SHOWN))]
    for table in report.tables:
        if table.name in shown:
            console.print(terminal(table, width=console.width))
            console.print()
    if asked and not shown:
        say(console, f"No table has {asked!r} in its name; there are {', '.join(names)}.")


def show_claims(runs: Path, *, secondary: bool = False, console: Console | None = None) -> None:
    """Print every claim with the findings of these runs; `secondary` adds the secondary findings."""
    console = console or Console()
    results = read_results(runs)
    console.print(claims_terminal(make_claims(results), secondary=secondary))
    if not results.settings:
        say(console, f"There is nothing to check in {runs} yet.")
    print_skipped(results.skipped, console)
