"""The command `data`: what is missing and where it comes from, and fetching it. Prints; the work is in data/."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from emabank.study.data.catalogue import find_dataset
from emabank.study.data.download import Finding, check, fetch, is_complete, origin
from emabank.study.executors.progress import counting


def check_files(name: str, folder: Path, *, console: Console | None = None) -> bool:
    """Print how each file of a data set stands; whether all is there and as published.

    >>> check_files("digits", Path("data"), console=Console(quiet=True))
    True
    """
    return _show(name, folder, check(name, folder), console or Console())


def fetch_files(name: str, folder: Path, *, console: Console | None = None) -> bool:
    """Download what is missing, and print how each file stands.

    >>> fetch_files("digits", Path("data"), console=Console(quiet=True))
    True
    """
    console = console or Console()
    with counting(console, "bytes") as tell:
        findings = fetch(name, folder, tell=tell)
    return _show(name, folder, findings, console)


def _show(name: str, folder: Path, findings: Sequence[Finding], console: Console) -> bool:
    complete = is_complete(findings)
    advice = f"; `emabank data fetch {name} --data {folder}` downloads what is missing or wrong"
    lines = [f"{finding.state:15} {finding.sentence}" for finding in findings]
    closing = f"{name}: complete" if complete else f"{name}: not complete{advice}"
    for line in (origin(find_dataset(name)), *lines, closing):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return complete
