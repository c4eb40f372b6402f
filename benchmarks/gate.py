"""The regression gate: compares result files with those in benchmarks/results and reports what became slower.

Run `python benchmarks/gate.py --help`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/gate.py`

from benchmarks.harness import HERE, RESULTS, Case, Row, read_case, read_json, text_table
from emabank.study.bench import Spread

SLOWER_BY = 1.10
STANDARD_ERRORS = 2.0

# What --measure runs: a quick version of the suite, about four minutes on an idle machine.
SUITE: Mapping[str, Sequence[str]] = {
    "update": ("--models", "resnet20", "resnet18", "small1000", "--averages", "5", "--seconds", "15"),
    "overhead": ("--cases", "resnet20:5", "--only", "AveragedModel", "--seconds", "20"),
    "evaluation": ("--sources", "memory", "--seconds", "20"),
}


class Finding(NamedTuple):
    """How one ratio changed.

    `verdict` is slower, faster, same, disturbed or new. `factor` is the change, above 1 if the ratio became worse.
    """

    benchmark: str
    name: str
    verdict: str
    factor: float | None
    before: Spread | None
    now: Spread


def standard_error(ratio: Spread, rounds: int) -> float:
    """The standard error of a median, from the 10 % and 90 % points and the number of rounds.

    A normal distribution has 2.563 standard deviations between these points, and the standard error of its median is
    sqrt(pi / 2) standard deviations over the root of the rounds.
    """
    return math.sqrt(math.pi / 2) * (ratio.high - ratio.low) / 2.563 / math.sqrt(rounds)


def compare(benchmark: str, case: Case, row: Row, old: tuple[Case, Row] | None) -> Finding:
    """Compare the first ratio of a row with the kept one. Slower means worse by over 10 %, and by more than chance."""
    reference, now = next(iter(row.over.items()))
    name = f"{case.name}: {row.name} over {reference}"
    before = old[1].over.get(reference) if old else None
    if old is None or before is None:
        return Finding(benchmark, name, "new", None, None, now)
    change = now.median / before.median
    factor = change if row.better == "lower" else 1 / change
    chance = STANDARD_ERRORS * math.hypot(standard_error(before, old[0].rounds), standard_error(now, case.rounds))
    verdict = "slower" if factor > SLOWER_BY else "faster" if factor < 1 / SLOWER_BY else "same"
    if abs(now.median - before.median) <= chance:
        verdict = "same"
    return Finding(benchmark, name, "disturbed" if case.disturbed else verdict, factor, before, now)


def compare_files(path: Path, kept: Path) -> list[Finding]:
    """Compare a result file with the file of the same benchmark in the folder `kept`."""
    result = read_json(path)
    benchmark = result["benchmark"]
    kept_file = kept / f"{benchmark}.json"
    old: dict[tuple[str, str], tuple[Case, Row]] = {}
    if kept_file.exists():
        previous = read_json(kept_file)
        for key in ("cpu", "threads", "torch"):
            if previous["conditions"].get(key) != result["conditions"].get(key):
                words = f"{previous['conditions'].get(key)} before, {result['conditions'].get(key)} now"
                print(f"{benchmark}: {key} differs ({words}); ratios depend on it", file=sys.stderr)
        cases = [read_case(entry) for entry in previous["cases"]]
        old = {(case.name, row.name): (case, row) for case in cases for row in case.rows}
    return [
        compare(benchmark, case, row, old.get((case.name, row.name)))
        for case in map(read_case, result["cases"])
        for row in case.rows
        if row.better is not None
    ]


def measure_and_compare(benchmarks: Sequence[str], kept: Path) -> list[Finding]:
    """Run these benchmarks of the suite, and compare their results."""
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        for benchmark in benchmarks:
            path = Path(folder, f"{benchmark}.json")
            command = [sys.executable, str(HERE / f"{benchmark}.py"), *SUITE[benchmark], "--json", str(path)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            findings += compare_files(path, kept)
    return findings


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compare results with those kept in benchmarks/results, and say what became slower: worse by more "
        "than 10 %, and by more than chance (two standard errors of the medians).",
        epilog="Exit code: 0 if nothing became slower, 1 if something did, 2 if nothing could be compared.",
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT.json", help="written with --json")
    parser.add_argument("--measure", action="store_true", help=f"measure a quick suite ({', '.join(SUITE)}) first")
    parser.add_argument("--kept", type=Path, default=RESULTS, metavar="DIR", help="(default: benchmarks/results)")
    arguments = parser.parse_args(words)
    if arguments.measure == bool(arguments.results):
        parser.error("give result files, or --measure")
    try:
        if arguments.measure:
            findings = measure_and_compare(list(SUITE), arguments.kept)
            doubtful = sorted({finding.benchmark for finding in findings if finding.verdict == "slower"})
            sure = [finding for finding in findings if finding.benchmark not in doubtful]
            findings = sure + measure_and_compare(doubtful, arguments.kept)  # the second run decides
        else:
            findings = [finding for path in arguments.results for finding in compare_files(path, arguments.kept)]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"gate.py: {error}", file=sys.stderr)
        return 2
    findings.sort(key=lambda finding: ("slower", "faster", "disturbed", "same", "new").index(finding.verdict))
    rows = (
        [f.name, f.verdict, f"{f.factor:.2f} ×" if f.factor else "", str(f.before or ""), str(f.now)] for f in findings
    )
    print(text_table(["ratio", "", "time", "before (10–90 %)", "now"], rows))
    verdicts = {finding.verdict for finding in findings}
    return 1 if "slower" in verdicts else 0 if verdicts & {"same", "faster"} else 2


if __name__ == "__main__":
    sys.exit(main())
