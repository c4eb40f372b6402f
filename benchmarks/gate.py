"""The regression gate: the ratios that matter are kept in ratios.json, and this says what became slower by over 10 %.

Run `python benchmarks/gate.py --help`. Results are read through `emabank.bench.kept` and known by their form alone.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emabank.bench.interleave import Spread
from emabank.bench.kept import FORMAT, Ratio, read_result, write_json
from emabank.bench.machine import QUIET_SHARE
from emabank.bench.tables import table, with_spread

HERE = Path(__file__).parent
RATIOS = HERE / "ratios.json"
SLOWER_BY = 1.10
STANDARD_ERRORS = 2.0

# The quick version of the suite, about six minutes on a quiet machine. A script's result is named after it.
SUITE: Mapping[str, Sequence[str]] = {
    "update": ("--models", "resnet20", "resnet18", "small1000", "--averages", "5", "--seconds", "12"),
    "overhead": ("--cases", "resnet20:5", "--only", "AveragedModel", "--seconds", "15"),
    "training": ("--networks", "resnet8", "--seconds", "30"),
    "evaluation": ("--networks", "resnet8", "--sources", "memory", "--images", "256", "--seconds", "15"),
    "startup": ("--seconds", "20"),
}

SLOWER, FASTER, SAME, DISTURBED, NEW, NOT_MEASURED = "slower", "faster", "same", "disturbed", "new", "not measured"
COMPARED = (SLOWER, FASTER, SAME)


@dataclass(frozen=True)
class Measured:
    """A ratio with where it comes from: the result's file, and what of its conditions a ratio depends on."""

    ratio: Ratio
    source: str
    date: str
    cpu: str
    threads: str
    disturbed: bool = False


@dataclass(frozen=True)
class Finding:
    """What became of one ratio.

    Args:
        factor: how much longer it takes than it did, above 1 when it became slower; None where nothing was compared.
        chance: what two measurements of the same thing may differ by, as a share of the kept ratio.
    """

    name: str
    status: str
    kept: Measured | None
    now: Measured | None
    factor: float | None = None
    chance: float | None = None


# Comparing: pure functions of ratios ----------------------------------------------------------------------------------


def standard_error(value: Spread, rounds: int) -> float:
    """The standard error of a median, from the 10 % and 90 % points and the number of rounds.

    Between these points lie 2.563 standard deviations of a normal distribution, whose median has a standard error of
    sqrt(pi / 2) = 1.253 standard deviations over the root of the rounds. Times have longer tails than that at the same
    middle, so this is rather too large than too small. What differs from process to process is not in it: that is
    what the 10 % are for.
    """
    return math.sqrt(math.pi / 2) * (value.high - value.low) / 2.563 / math.sqrt(max(1, rounds))


def compare(name: str, kept: Measured | None, now: Measured | None) -> Finding:
    """Hold one ratio against the kept one."""
    if now is None:
        return Finding(name, NOT_MEASURED, kept, now)
    if kept is None or kept.ratio.better != now.ratio.better:
        return Finding(name, NEW, kept, now)
    if now.disturbed:
        return Finding(name, DISTURBED, kept, now)
    before, after = kept.ratio, now.ratio
    factor = after.value.median / before.value.median
    if before.better == "higher":
        factor = 1 / factor
    errors = (standard_error(each.value, each.rounds) for each in (before, after))
    chance = STANDARD_ERRORS * math.hypot(*errors) / before.value.median
    beyond = abs(after.value.median / before.value.median - 1) > chance
    status = SLOWER if factor > SLOWER_BY else FASTER if factor < 1 / SLOWER_BY else SAME
    return Finding(name, status if beyond else SAME, kept, now, factor, chance)


def compare_all(kept: Mapping[str, Measured], now: Mapping[str, Measured]) -> list[Finding]:
    """Every ratio that is kept or was measured; what needs a look first."""
    order = (SLOWER, FASTER, DISTURBED, SAME, NEW, NOT_MEASURED)
    found = [compare(name, kept.get(name), now.get(name)) for name in {**kept, **now}]
    return sorted(found, key=lambda finding: (order.index(finding.status), finding.name))


def is_disturbed(result: Mapping[str, Any]) -> bool:
    """Whether other processes were at work: a goal was left open for that, or somebody counted what they took."""
    return any(verdict["passed"] is None for verdict in result.get("verdicts", ())) or any(
        share > QUIET_SHARE for share in _bystanders(result)
    )


def _bystanders(part: object) -> Iterator[float]:
    if isinstance(part, Mapping):
        if isinstance(share := part.get("bystanders"), int | float):
            yield share
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _bystanders(each)


# Files ----------------------------------------------------------------------------------------------------------------


def ratios_in(paths: Sequence[Path]) -> dict[str, Measured]:
    """The ratios of result files, by name."""
    found: dict[str, Measured] = {}
    for path in paths:
        result = read_result(path)
        known, disturbed = result["conditions"], is_disturbed(result)
        facts = [str(known.get(key, "unknown")) for key in ("date", "cpu", "threads")]
        for name, ratio in result["ratios"].items():
            if name in found:
                raise ValueError(f"{name} is in {found[name].source} and in {path.name}: give one of them")
            if not ratio.value.median > 0:
                raise ValueError(f"{name} in {path} is {ratio.value.median}; a ratio of two times is above 0")
            found[name] = Measured(ratio, path.name, *facts, disturbed)
    return found


def read_kept(path: Path) -> dict[str, Measured]:
    """The kept ratios, by name; none where the file is not there yet."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept.get("format") != FORMAT:
        raise ValueError(f"{path} holds no ratios of format {FORMAT}: take it from git, or accept results anew")
    return {
        name: Measured(
            Ratio(name, Spread(**each["value"]), each["rounds"], each["better"]),
            *(each[key] for key in ("from", "date", "cpu", "threads")),
        )
        for name, each in kept["ratios"].items()
    }


def write_kept(path: Path, kept: Mapping[str, Measured]) -> None:
    """Write all kept ratios, in the order of their names."""
    lines = {
        name: {
            "value": asdict(each.ratio.value),
            "rounds": each.ratio.rounds,
            "better": each.ratio.better,
            "from": each.source,
            "date": each.date,
            "cpu": each.cpu,
            "threads": each.threads,
        }
        for name, each in sorted(kept.items())
    }
    write_json(path, {"format": FORMAT, "ratios": lines})


def accept(path: Path, kept: Mapping[str, Measured], now: Mapping[str, Measured]) -> list[str]:
    """Take measured ratios over as the kept ones; the others stay. Returns a line for each."""
    calm = {name: each for name, each in now.items() if not each.disturbed}
    write_kept(path, {**kept, **calm})
    changed: list[str] = []
    for name, each in sorted(now.items()):
        before = with_spread(kept[name].ratio.value) if name in kept else "new"
        if each.disturbed:
            changed.append(f"{name}: not accepted, other processes disturbed {each.source}")
        else:
            changed.append(f"{name}: {before} → {with_spread(each.ratio.value)}")
    return changed


# Measuring ------------------------------------------------------------------------------------------------------------

Runner = Callable[[Sequence[str]], int]


def run_script(command: Sequence[str]) -> int:
    """Run a script of the suite; its progress and errors are seen, its tables are not."""
    return subprocess.run(command, stdout=subprocess.DEVNULL).returncode


def measure(
    scripts: Collection[str], folder: Path, *, run: Runner = run_script, say: Callable[[str], None] = print
) -> tuple[dict[str, Measured], list[str]]:
    """Run scripts of the suite one after the other; returns what they measured, and the scripts that failed."""
    results: list[Path] = []
    failed: list[str] = []
    for number, script in enumerate(scripts, 1):
        say(f"{script}.py ({number} of {len(scripts)}) ...")
        kept = folder / f"{script}.json"
        kept.unlink(missing_ok=True)
        code = run([sys.executable, str(HERE / f"{script}.py"), *SUITE[script], "--json", str(kept)])
        if kept.exists():
            results.append(kept)
        else:
            failed.append(script)
            say(f"{script}.py left no result (exit code {code})")
    return ratios_in(results), failed


def measure_and_confirm(
    kept: Mapping[str, Measured], scripts: Collection[str], *, run: Runner = run_script
) -> tuple[dict[str, Measured], list[str]]:
    """Run scripts of the suite; one with a ratio that looks slower is run once more, and the second run decides.

    Machines are noisy. Where the second run was disturbed or failed, the first one stands.
    """

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        found, failed = measure(scripts, Path(folder), run=run, say=say)
        doubtful = {each.now.source for each in compare_all(kept, found) if each.status == SLOWER and each.now}
        if doubtful:
            say("what looks slower is measured once again")
            again, _ = measure([name for name in scripts if f"{name}.json" in doubtful], Path(folder), run=run, say=say)
            found |= {name: each for name, each in again.items() if not each.disturbed}
    return found, failed


def scripts_for(text: str, kept: Mapping[str, Measured]) -> list[str]:
    """The scripts that measure ratios whose name contains the text, as far as one can know beforehand."""
    sources = {each.source for each in _named(text, kept).values()}
    return [script for script in SUITE if text in script or script in text or f"{script}.json" in sources]


# Showing --------------------------------------------------------------------------------------------------------------


def report(findings: Sequence[Finding]) -> str:
    """One line a ratio, then what else a reader must know."""
    shown = [each for each in findings if each.status != NOT_MEASURED]
    rows = [
        [
            each.name,
            each.status,
            "" if each.factor is None else f"{each.factor:.2f} ×",
            "" if each.chance is None else f"±{each.chance:.0%}",
            with_spread(each.kept.ratio.value if each.kept else None),
            with_spread(each.now.ratio.value if each.now else None),
        ]
        for each in shown
    ]
    parts = [table(["ratio", "", "time", "chance", "kept (10–90 %)", "now"], rows)] if rows else []
    missing = [each.name for each in findings if each.status == NOT_MEASURED]
    if missing:
        parts.append(f"not measured: {', '.join(missing)}")
    return "\n\n".join([*parts, *filter(None, ["\n".join(remarks(findings))])])


def remarks(findings: Sequence[Finding]) -> list[str]:
    """What makes the comparison less than it looks: disturbed results, another machine, a better number to keep."""
    found: list[str] = []
    for source in sorted({each.now.source for each in findings if each.now and each.now.disturbed}):
        found.append(f"{source}: other processes were at work; it decides nothing")
    pairs = [(each.kept, each.now) for each in findings if each.kept and each.now]
    for what in ("cpu", "threads"):
        others = {(getattr(old, what), getattr(new, what)) for old, new in pairs}
        found += [
            f"{what} differ: kept ratios are from {old}, these are from {new}; ratios depend on the machine"
            for old, new in sorted(others)
            if old != new
        ]
    if any(each.status == FASTER for each in findings):
        found.append("what is faster is worth keeping: measure it in full, then --accept")
    return found


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Hold measured ratios against those kept in benchmarks/ratios.json, and say what became slower: "
        "worse by more than 10 %, and by more than chance (two standard errors of the medians).",
        epilog="Exit code: 1 when something is slower, 2 when nothing could be compared or a script left no result. "
        "Results that other processes disturbed decide nothing and are not accepted.",
    )
    add = parser.add_argument
    add("results", nargs="*", type=Path, metavar="RESULT.json", help="what a script of the suite kept with --json")
    add("--measure", action="store_true",
        help=f"run the quick suite ({', '.join(SUITE)}; about six minutes) in place of reading results")  # fmt: skip
    add("--accept", action="store_true", help="keep these ratios from now on; those not measured stay as they are")
    add("--only", metavar="TEXT", default="", help="only ratios whose name contains it, such as update/resnet18")
    add("--kept", type=Path, default=RATIOS, metavar="FILE", help="where ratios are kept (benchmarks/ratios.json)")
    asked = parser.parse_args(argv)
    if asked.measure == bool(asked.results):
        parser.error("give result files, or --measure to make them")
    return asked


def _named(text: str, ratios: Mapping[str, Measured]) -> dict[str, Measured]:
    return {name: each for name, each in ratios.items() if text in name}


def main(argv: Sequence[str] | None = None, *, run: Runner = run_script) -> int:
    asked = arguments(argv)
    failed: list[str] = []
    try:
        everything = read_kept(asked.kept)
        kept = _named(asked.only, everything)
        if asked.measure:
            now, failed = measure_and_confirm(kept, scripts_for(asked.only, kept), run=run)
        else:
            now = ratios_in(asked.results)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"gate.py: {error}", file=sys.stderr)
        return 2
    now = _named(asked.only, now)
    findings = compare_all(kept, now)
    print(report(findings) or "nothing was measured")
    if failed:
        print(f"\nno result: {', '.join(f'{script}.py' for script in failed)}")
    if asked.accept:
        print("", *accept(asked.kept, everything, now), sep="\n")
        return 0 if any(not each.disturbed for each in now.values()) else 2
    statuses = {finding.status for finding in findings}
    if SLOWER in statuses:
        return 1
    return 2 if failed or statuses.isdisjoint(COMPARED) else 0


if __name__ == "__main__":
    sys.exit(main())
