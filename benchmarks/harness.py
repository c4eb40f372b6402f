"""Shared by all benchmarks: interleaved runs without disturbed windows, cases, tables, result files, arguments.

`emabank.study.bench` plays the rounds and measures the load of other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from emabank.study.bench import (
    BANK,
    LIMIT,
    MIN_ROUNDS,
    QUIET,
    BackgroundLoad,
    Contestant,
    Rounds,
    Spread,
    conditions,
    paired_ratio,
    spread,
    write_json,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FORMAT = 2
MAX_ROUNDS = 400
PATIENCE = 4  # a run may take this many times the requested seconds, to replace disturbed rounds
WINDOW = 0.5  # seconds; the system counts processor time in ticks of 10 ms, so it cannot be much shorter
Result = TypeVar("Result")
SAME = ("cpu", "cores", "threads", "torch", "python", "versions")  # conditions that all cases of a file share


# Timing ---------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One interleaved run.

    Args:
        times: seconds per contestant, one entry per round, rounds aligned.
        dropped: number of rounds dropped because other processes were busy.
        background: share of the machine that other processes used in the counted rounds; None if unknown.
    """

    times: Mapping[str, list[float]]
    dropped: int
    background: float | None


def run_interleaved(
    contestants: Sequence[Contestant],
    *,
    seconds: float,
    title: str = "",
    window: float = WINDOW,
    background: Callable[[], Any] = BackgroundLoad,
) -> Run:
    """Time all contestants in turns, after checking that each of them averages.

    A window in which other processes used more than 5 % of the machine is dropped, and the run continues for up to four
    times `seconds` to replace it. If fewer than 15 undisturbed rounds remain, all rounds count.
    """
    rounds = Rounds(contestants)
    for contestant in contestants:
        check_averages(contestant, rounds.prepare)
    quiet: list[tuple[dict[str, float], float | None]] = []  # rounds, each with the load during its window
    noisy: list[tuple[dict[str, float], float | None]] = []
    start = time.perf_counter()
    while True:
        load = background()
        played, share = rounds.play(window), load.share()
        (noisy if (share or 0.0) > QUIET else quiet).extend((times, share) for times in played)
        spent, good, bad = time.perf_counter() - start, len(quiet), len(noisy)
        show_progress(f"{title}: {good} rounds, {spent:.0f} s" + (f", {bad} disturbed" if bad else ""))
        calm = spent * good / (good + bad)
        if good >= MAX_ROUNDS or (calm >= seconds and good >= MIN_ROUNDS):
            break
        if spent >= PATIENCE * seconds and good + bad >= MIN_ROUNDS:
            break
    show_progress("")
    counted = quiet if good >= MIN_ROUNDS else quiet + noisy
    shares = [share for _, share in counted if share is not None]
    return Run(
        {one.name: [times[one.name] for times, _ in counted] for one in contestants},
        bad if counted is quiet else 0,
        fmean(shares) if len(shares) == len(counted) else None,
    )


def show_progress(line: str) -> None:
    """Update a progress line, on terminals only."""
    if sys.stderr.isatty():
        print("\r\033[K" + line, end="", file=sys.stderr, flush=True)


def check_averages(contestant: Contestant, prepare: Callable[[Contestant], object]) -> None:
    """Raise unless updates move every average without making it a copy of the live weights."""
    prepare(contestant)
    contestant.update()  # an average that only ever saw these weights equals them
    moved: set[int] = set()
    # Twice, because the live weights alternate: one of the two moves may be too small for float32.
    for _ in range(2):
        prepare(contestant)
        before = [tensor.detach().clone() for tensor in contestant.read()]
        contestant.update()
        *averages, live = contestant.read() or [torch.empty(0)]
        for index, average in enumerate(averages):
            narrow = torch.finfo(average.dtype).bits < 32  # rounding may hide every move; timed all the same
            if not narrow and torch.equal(average, live.to(average.dtype)):
                raise RuntimeError(f"{contestant.name} copied the live weights instead of averaging them")
            if narrow or not torch.equal(before[index], average):
                moved.add(index)
        if len(moved) == len(averages):
            return
    raise RuntimeError(f"{contestant.name} did not move its averages")


# The process ----------------------------------------------------------------------------------------------------------


def system_bytes(file: str, field: str) -> int | None:
    """A field of a file in /proc in bytes, such as `MemAvailable`; None where the system lacks it."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def free_memory() -> int | None:
    """Bytes of main memory that can still be allocated without swapping; None if unknown."""
    return system_bytes("meminfo", "MemAvailable")


def in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in a new process that uses as many threads as this one, and return its result."""
    fresh = get_context("spawn")
    threads = (torch.get_num_threads(),)
    with ProcessPoolExecutor(1, mp_context=fresh, initializer=torch.set_num_threads, initargs=threads) as pool:
        return pool.submit(function, *arguments).result()


# Cases ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One contestant of a case.

    Args:
        ms: milliseconds per call.
        over: ratios of its time to the times of other contestants, by their names, paired by round.
        better: whether a lower or a higher first ratio is better; None for rows that the gate ignores.
    """

    name: str
    ms: Spread
    over: Mapping[str, Spread]
    better: Literal["lower", "higher"] | None = None


@dataclass(frozen=True)
class Case:
    """The results of one or more interleaved runs.

    Args:
        name: unique within a result file.
        background: share of the machine that other processes used; None if unknown.
        about: further facts, such as the model and the number of averages.
        missing: contestants that could not take part, with the reasons.
    """

    name: str
    rounds: int
    dropped: int
    background: float | None
    rows: Sequence[Row]
    about: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much of the machine that the times are inconclusive."""
        return (self.background or 0.0) > QUIET


def make_case(
    name: str,
    runs: Sequence[Run],
    *,
    over: Sequence[str],
    better: Mapping[str, Literal["lower", "higher"]],
    about: Mapping[str, Any],
    missing: Mapping[str, str] | None = None,
) -> Case:
    """Rows of all contestants, with ratios over those named in `over`.

    If the contestants do not fit into memory together, there are several runs. Each run includes the contestants in
    `over`, so every ratio still compares times of the same round.
    """
    rows: list[Row] = []
    for contestant in dict.fromkeys(name for run in runs for name in run.times):
        joined = [run.times for run in runs if contestant in run.times]
        times = {name: [second for run in joined for second in run.get(name, ())] for name in (contestant, *over)}
        own = times[contestant]
        ratios = {other: paired_ratio(own, times[other]) for other in over if times[other]}
        rows.append(Row(contestant, spread(1e3 * second for second in own), ratios, better.get(contestant)))
    shares = [run.background for run in runs if run.background is not None]
    rounds = sum(len(next(iter(run.times.values()))) for run in runs)
    dropped = sum(run.dropped for run in runs)
    return Case(name, rounds, dropped, max(shares, default=None), rows, about, missing or {})


def is_peer(row: Row) -> bool:
    """Whether a row is another library, rather than a bank or the memory limit."""
    return row.name != LIMIT and not row.name.startswith(BANK)


def count_of(number: int, noun: str) -> str:
    """A number with its noun: `1 average`, `5 averages`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


# Tables ---------------------------------------------------------------------------------------------------------------


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain-text table: the first column aligned left, the others right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    aligned = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def case_text(case: Case) -> str:
    """A case as a table, under a line with rounds and load."""
    others = "an unknown share" if case.background is None else f"{case.background:.1%}"
    dropped = f" ({case.dropped} rounds dropped)" if case.dropped else ""
    disturbed = ": DISTURBED" if case.disturbed else ""
    heading = f"{case.name}: {case.rounds} rounds; other processes used {others} of the machine{dropped}{disturbed}"
    names = list(dict.fromkeys(name for row in case.rows for name in row.over))
    header = ["", "ms: median (10–90 %)", *(f"× {name}" for name in names)]
    rows = ([row.name, str(row.ms), *(str(row.over.get(name, "")) for name in names)] for row in case.rows)
    missing = [f"  {name}: {reason}" for name, reason in case.missing.items()]
    return "\n".join([heading, text_table(header, rows), *missing])


def show_cases(cases: Iterable[Case], text: Callable[[Case], str] = case_text) -> list[Case]:
    """Print each case as soon as it is measured, and return all."""
    shown: list[Case] = []
    for case in cases:
        print(text(case), end="\n\n", flush=True)
        shown.append(case)
    return shown


# Result files ---------------------------------------------------------------------------------------------------------


def write_result(
    arguments: argparse.Namespace, known: Mapping[str, Any], cases: Sequence[Case] = (), **more: Any
) -> None:
    """Write the result file if --json names one. With --add, the file keeps cases that were not measured again."""
    path: Path | None = arguments.json
    if path is None:
        return
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_without_path(sys.argv[1:])])
    entries = [asdict(case) for case in cases]
    if arguments.add and path.exists():
        old = read_json(path)
        differing = [key for key in SAME if old["conditions"].get(key) != known.get(key)]
        if differing:
            raise ValueError(
                f"--add needs a FILE measured under the same conditions; got other {', '.join(differing)} in {path}"
            )
        names = {entry["name"] for entry in entries}
        entries = [entry for entry in old["cases"] if entry["name"] not in names] + entries
        command = f"{old['command']}; {command}"
    result = {"format": FORMAT, "benchmark": path.stem, "command": command, "conditions": dict(known), "cases": entries}
    write_json(path, {**result, **more})
    print(f"wrote {path}")


def _without_path(words: Sequence[str]) -> list[str]:
    """The command as others would type it: without --json, and without paths of this machine."""
    skipped = {at + step for at, word in enumerate(words) if word == "--json" for step in (0, 1)}
    return ["DIR" if os.path.isabs(word) else word for at, word in enumerate(words) if at not in skipped]


def read_json(path: Path) -> dict[str, Any]:
    """The contents of a result file; `ValueError` if its format is another one."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if result.get("format") != FORMAT:
        raise ValueError(f"{path} must be a result of format {FORMAT}; got {result.get('format')}. Measure it again.")
    return result


def read_case(entry: Mapping[str, Any]) -> Case:
    """A case from its JSON."""
    rows = [
        Row(
            row["name"],
            Spread(**row["ms"]),
            {name: Spread(**ratio) for name, ratio in row["over"].items()},
            row["better"],
        )
        for row in entry["rows"]
    ]
    return Case(**{**entry, "rows": rows})


# Arguments ------------------------------------------------------------------------------------------------------------


def make_parser(description: str, epilog: str, *, seconds: float | None, result: str) -> argparse.ArgumentParser:
    """A parser with the arguments that the benchmarks share."""
    parser = argparse.ArgumentParser(description=description, epilog=epilog)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="approximate time per case (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's choice)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write the result, e.g. benchmarks/results/{result}")
    parser.add_argument("--add", action="store_true", help="keep the other cases in FILE")
    return parser


def start(arguments: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Set the threads, and print and return the conditions."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    known = conditions() | more
    width = max(map(len, known))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in known.items()), end="\n\n", flush=True)
    return known
