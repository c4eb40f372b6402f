"""How long `emabank --help`, `emabank list` and `import emabank` take, in fresh processes: interleaved, beside torch's.

Run `python benchmarks/startup.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from recipes import Stopwatch

from emabank.bench.cases import Case, Verdict
from emabank.bench.interleave import Contestant, Run, Spread, paired_ratio, run_interleaved, spread
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import Bystanders, conditions
from emabank.bench.tables import facts, surroundings, table, with_spread
from emabank.bench.update import progress

MOST_SECONDS, MOST_ADDED = 0.5, 0.050  # issue 5, point 6
HEAVY = ("torch", "numpy", "pandas", "matplotlib")
EMPTY, TORCH = "empty interpreter", "import torch"
IMPORTS = {
    "import torch, emabank": "import emabank",
    "from emabank import EMABank, ...": "from emabank import EMABank, BestTracker, recalibrate_batchnorm",
}
TIMED = "import torch, time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"
INSIDE = "{}, timed inside"
LIST = {f"emabank list, {scale}": ["list", "--scale", scale] for scale in ("demo", "small", "paper")}
QUICK = {"emabank --help": ["--help"], **LIST}
NO_GOAL = {"emabank --version": ["--version"], "emabank run --help": ["run", "--help"], "emabank lst": ["lst"]}

# The command as a function, so that what it left loaded can be looked at.
LOOK = """
import contextlib, io, json, sys
from emabank.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({words})
print(json.dumps(sorted(sys.modules)))
"""


@dataclass(frozen=True)
class Process:
    """A process to be timed from its start to its end: what follows `python`, and the exit code it ends with."""

    name: str
    arguments: Sequence[str]
    code: int = 0


@dataclass(frozen=True)
class Row:
    """One process.

    Args:
        seconds: from its start to its end.
        of_empty, over_empty: its time over that of an empty interpreter, and its seconds beyond it, round by round.
        of_torch, over_torch: the same beside `import torch`; None for what imports no torch.
        inside: seconds of the import after torch's, as the process itself timed it.
    """

    name: str
    seconds: Spread
    of_empty: Spread
    over_empty: Spread
    of_torch: Spread | None = None
    over_torch: Spread | None = None
    inside: Spread | None = None


@dataclass(frozen=True)
class Result:
    """What was measured.

    Args:
        case: the rounds, and what else the machine did meanwhile.
        loaded: by command, what of `HEAVY` it was seen to load.
    """

    case: Case
    rows: Sequence[Row]
    loaded: Mapping[str, Sequence[str]]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


# Measuring ------------------------------------------------------------------------------------------------------------


def processes(*, everything: bool, runs: Path) -> list[Process]:
    """Who takes part; `runs`: a folder that has no runs in it."""
    commands = QUICK | (NO_GOAL | {"emabank status": ["status", str(runs)]} if everything else {})
    return [
        Process(EMPTY, ["-c", "pass"]),
        *(Process(name, ["-m", "emabank", *words], 2 * (words == ["lst"])) for name, words in commands.items()),
        Process(TORCH, ["-c", "import torch"]),
        *(Process(name, ["-c", TIMED.format(statement)]) for name, statement in IMPORTS.items()),
    ]


def with_bytecode(folder: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which Python keeps its bytecode in a folder, whatever this one's says.

    An installed package has been compiled; sources that are run for the first time, or may not be, have not.
    """
    kept = {name: value for name, value in given.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder)}


def run_process(process: Process, environment: Mapping[str, str]) -> str:
    """Start it and wait for its end; what it printed."""
    command = [sys.executable, *process.arguments]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != process.code:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"{process.name} ended with {done.returncode} and not {process.code}; it said: {said[-1]}")
    return done.stdout


def seen_loaded(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What of `HEAVY` is there after a command, seen in a process of its own."""
    looked = run_process(Process(f"a look at {' '.join(words)}", ["-c", LOOK.format(words=list(words))]), environment)
    there = json.loads(looked.splitlines()[-1])
    return [name for name in HEAVY if name in there]


class ApartFromChildren:
    """What others take of the machine, where the processes that are timed, which are children, are no others."""

    def __init__(
        self,
        neighbour: int | None = None,
        *,
        watch: Callable[[int | None], Bystanders] = Bystanders,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = lambda: os.times().children_user + os.times().children_system,
        cores: int | None = os.cpu_count(),
    ) -> None:
        self._everyone, self._clock, self._spent, self._cores = watch(neighbour), clock, spent, cores or 1
        self._began, self._before = clock(), spent()

    def share(self) -> float | None:
        """Their share of all cores; what children took that have ended by now is left out."""
        everyone, seconds = self._everyone.share(), self._clock() - self._began
        if everyone is None or seconds <= 0:
            return everyone
        return max(0.0, everyone - (self._spent() - self._before) / (seconds * self._cores))


@contextmanager
def a_place() -> Generator[tuple[Path, dict[str, str]]]:
    """An empty folder, and an environment whose bytecode is kept beside it; both are gone afterwards."""
    with tempfile.TemporaryDirectory() as name:
        for folder in ("runs", "bytecode"):
            (Path(name) / folder).mkdir()
        yield Path(name) / "runs", with_bytecode(Path(name) / "bytecode")


def contestants(chosen: Sequence[Process], environment: Mapping[str, str], clock: Stopwatch) -> list[Contestant]:
    """The processes, and what the imports among them said of themselves in their latest turn."""
    inside = dict.fromkeys(IMPORTS, 0.0)

    def run(process: Process) -> None:
        printed = run_process(process, environment)
        if process.name in inside:
            inside[process.name] = float(printed)

    turns: dict[str, Callable[[], object]] = {each.name: partial(run, each) for each in chosen}
    turns |= {INSIDE.format(name): partial(lambda name: clock.add(inside[name]), name) for name in inside}
    return [Contestant(name, turn, [torch.ones(1)], before=lambda: None) for name, turn in turns.items()]


def measure(*, seconds: float, everything: bool) -> Result:
    """Time all processes side by side, and look once at what the commands load."""
    clock = Stopwatch()
    with a_place() as (runs, environment):
        print("everything once, for bytecode and the page cache ...", file=sys.stderr, flush=True)
        loaded = {name: seen_loaded(words, environment) for name, words in QUICK.items()}
        field = contestants(processes(everything=everything, runs=runs), environment, clock)
        show = progress("start-up")
        run = run_interleaved(field, seconds=seconds, clock=clock, watch=ApartFromChildren, progress=show)
    return result_of(run, loaded)


# From seconds to differences and ratios -------------------------------------------------------------------------------


def result_of(run: Run, loaded: Mapping[str, Sequence[str]]) -> Result:
    """Everything beside the empty interpreter, and what imports torch beside `import torch`."""
    case = Case(
        model="start-up",
        averages=0,
        elements=0,
        tensors=0,
        rounds=len(run.times[EMPTY]),
        neighbour=None,
        dropped=run.dropped,
        bystanders=run.bystanders,
        rows=(),
    )
    hidden = [INSIDE.format(name) for name in IMPORTS]
    return Result(case, [_row(name, run.times) for name in run.times if name not in hidden], loaded)


def _row(name: str, times: Mapping[str, list[float]]) -> Row:
    own, empty, bare = times[name], times[EMPTY], times[TORCH]
    beside_torch = (
        (paired_ratio(own, bare), _difference(own, bare), spread(times[INSIDE.format(name)])) if name in IMPORTS else ()
    )
    return Row(name, spread(own), paired_ratio(own, empty), _difference(own, empty), *beside_torch)


def _difference(above: Sequence[float], below: Sequence[float]) -> Spread:
    return spread([a - b for a, b in zip(above, below, strict=True)])


def judge(result: Result) -> list[Verdict]:
    """Commands that only say something are quick and load nothing heavy; an import adds next to nothing to torch's."""

    def verdict(goal: str, passed: bool, found: str) -> Verdict:
        return Verdict(goal, None if result.case.disturbed else passed, found)

    judged: list[Verdict] = []
    for name in QUICK:
        took = result.row(name).seconds.median
        judged.append(verdict(f"{name}: under {MOST_SECONDS} s", took < MOST_SECONDS, f"{took:.3f} s"))
    for name in IMPORTS:
        added, inside = result.row(name).over_torch, result.row(name).inside
        if added is not None and inside is not None:
            goal = f"{name}: under {1e3 * MOST_ADDED:.0f} ms beyond import torch"
            found = f"{1e3 * added.median:.1f} ms; timed inside, {1e3 * inside.median:.1f} ms"
            judged.append(verdict(goal, max(added.median, inside.median) < MOST_ADDED, found))
    for name, heavy in result.loaded.items():  # no other process can change what was seen
        goal = f"{name}: loads none of {', '.join(HEAVY)}"
        judged.append(Verdict(goal, not heavy, f"{', '.join(heavy) or 'none'} in sys.modules"))
    return judged


def ratios_of(result: Result) -> list[Ratio]:
    """What a later measurement is held against."""
    rounds = result.case.rounds
    names = {"emabank --help": "help", "emabank list, demo": "list"}
    found = [Ratio(f"startup/{short}/of-empty", result.row(name).of_empty, rounds) for name, short in names.items()]
    for name, short in zip(IMPORTS, ("import", "names"), strict=True):
        if (value := result.row(name).of_torch) is not None:
            found.append(Ratio(f"startup/{short}/of-import-torch", value, rounds))
    return found


# Showing --------------------------------------------------------------------------------------------------------------


def _milliseconds(value: Spread | None) -> str:
    if value is None:
        return ""
    return f"{1e3 * value.median:.0f} ({1e3 * value.low:.0f} to {1e3 * value.high:.0f})"


def result_text(result: Result) -> str:
    """The table, with what it was taken in."""
    beyond = ["× empty", "ms beyond empty", "× import torch", "ms beyond it", "timed inside"]
    header = ["fresh process", "seconds: median (10–90 %)", *beyond]
    rows = [
        [
            row.name,
            with_spread(row.seconds),
            with_spread(row.of_empty),
            _milliseconds(row.over_empty),
            with_spread(row.of_torch),
            _milliseconds(row.over_torch),
            _milliseconds(row.inside),
        ]
        for row in result.rows
    ]
    heading = f"start-up: {result.case.rounds} rounds; {surroundings(result.case)}"
    return "\n".join([heading, table(header, rows)])


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time the start of the command and of the library, each in fresh processes, beside an empty "
        "interpreter and `import torch`. Files are in the page cache and compiled: the first rounds, which see to "
        "that, are not counted.",
        epilog="Default: about two minutes. Rounds that other processes disturb are not counted, so on a busy machine "
        "it takes up to four times as long.",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=60, help="about; at least 15 rounds are made (60)")
    add(
        "--all", action="store_true", help="also commands that have no goal: --version, run --help, status, a wrong one"
    )
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/startup.json")
    add("--check", action="store_true", help="exit with 1 when a goal is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    known = conditions() | {"files": "compiled, in the page cache"}
    print(facts(known), end="\n\n", flush=True)
    try:
        result = measure(seconds=asked.seconds, everything=asked.all)
    except RuntimeError as error:
        print(f"startup.py: {error}", file=sys.stderr)
        return 1
    judged = judge(result)
    print(result_text(result), "\n".join(map(str, judged)), sep="\n\n")
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/startup.py",
            known,
            ratios=ratios_of(result),
            verdicts=judged,
            results=[asdict(result)],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
