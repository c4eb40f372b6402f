"""How long a study takes with one job and with two: `emabank run` in fresh processes and fresh folders, in turns.

Run `python benchmarks/study_time.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import emabank
from emabank.bench.cases import Verdict
from emabank.bench.interleave import Spread, paired_ratio, spread
from emabank.bench.kept import Ratio, keep_result, write_json
from emabank.bench.machine import QUIET_SHARE, Bystanders, conditions
from emabank.bench.tables import facts, number, table, with_spread
from emabank.bench.update import progress
from emabank.study.runs.folder import RunFolder
from emabank.study.studies.catalogue import STUDIES

JOBS = (1, 2)
AT_LEAST = 1.5  # times as fast with two jobs: a goal of ours, the issue asks for the number alone
PATIENCE = 30.0  # seconds that a process has to end after the command that started it


# Processes and what they take -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Took:
    """What one command took.

    Args:
        seconds: from its start to its end.
        processor_seconds: of it and of every process that came of it.
        bystanders: share of the machine that others took meanwhile; None where the system does not say.
    """

    seconds: float
    processor_seconds: float
    bystanders: float | None


class AllButOurs:
    """What others take of the machine, where processes that this one started, and has waited for, are no others."""

    def __init__(
        self,
        neighbour: int | None = None,
        *,
        watch: Callable[[int | None], Bystanders] = Bystanders,
        clock: Callable[[], float] = time.perf_counter,
        ours: Callable[[], float] | None = None,
    ) -> None:
        self._watched, self._clock, self._ours = watch(neighbour), clock, ours or waited_for_seconds
        self._begin = clock(), self._ours()

    def share(self) -> float | None:
        """Their share of all cores, from 0 to 1; None where the system does not say."""
        everyone = self._watched.share()
        seconds, ours = self._clock() - self._begin[0], self._ours() - self._begin[1]
        if everyone is None or seconds <= 0:
            return None
        return max(0.0, everyone - ours / seconds / (os.cpu_count() or 1))


def waited_for_seconds() -> float:
    """Processor time of all children that have ended and were waited for, and of theirs."""
    now = os.times()
    return now.children_user + now.children_system


@contextmanager
def adopting() -> Generator[None]:
    """Orphans of the processes started inside come to this one, which waits for them; so their time is counted.

    The workers of a study are forked from a process that nobody waits for. Only Linux knows such adoption (prctl(2));
    elsewhere the time of those workers is not seen.
    """
    adopt = 36  # PR_SET_CHILD_SUBREAPER
    before = _children()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(adopt, 1, 0, 0, 0)
    try:
        yield
    finally:
        until = time.monotonic() + PATIENCE
        while (left := _children() - before) and time.monotonic() < until:
            for child in left:
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
            time.sleep(0.005)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(adopt, 0, 0, 0, 0)


def _children() -> set[int]:
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()  # after the name in brackets, which may hold anything
            if int(fields[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def run_command(command: Sequence[str], log: Path, *, tell: Callable[[], object] | None = None) -> Took:
    """Run a command to its end; what it prints goes to the log, and `tell` is called every few seconds meanwhile."""
    ended = threading.Event()

    def telling() -> None:
        while tell is not None and not ended.wait(5):
            tell()

    watched, ours = AllButOurs(), waited_for_seconds()
    teller = threading.Thread(target=telling, daemon=True)
    with adopting(), open(log, "wb") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        teller.start()
        try:
            code = process.wait()
            seconds = time.perf_counter() - begin
        except BaseException:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            process.wait()
            raise
        finally:
            ended.set()
            teller.join()
    if code:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
        raise RuntimeError(f"{' '.join(command[1:])} ended with exit code {code}: {''.join(last)} (all of it: {log})")
    return Took(seconds, waited_for_seconds() - ours, watched.share())


# One measurement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """One study from nothing to its end.

    Args:
        turn: in which pair of measurements it stood.
        runs: the ids of the runs that it trained.
        date: when it was measured.
    """

    jobs: int
    turn: int
    took: Took
    runs: Sequence[str]
    date: str

    @property
    def is_disturbed(self) -> bool:
        """Whether others took so much of the machine that it decides nothing."""
        return (self.took.bystanders or 0.0) > QUIET_SHARE


def in_turns(repeats: int) -> list[tuple[int, int]]:
    """Which turn is measured with how many jobs, in order: A B B A, so that a machine that slows down hits both."""
    return [(turn, jobs) for turn in range(repeats) for jobs in (JOBS if turn % 2 == 0 else JOBS[::-1])]


def fingerprint(*of: object, package: Path = Path(emabank.__file__).parent) -> str:
    """Of the code that is measured and of whatever else decides what a measurement means."""
    known = hashlib.sha256(repr(of).encode())
    for file in sorted(package.rglob("*.py")):
        known.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    return known.hexdigest()[:12]


class Measured:
    """The work folder: what was measured there before is not measured again.

    Args:
        mark: a fingerprint; what was measured under another one stays there and is not looked at.
    """

    def __init__(self, folder: Path, study: str, seeds: int | None, mark: str) -> None:
        self._folder, self._study, self._seeds, self._mark = folder, study, seeds, mark

    def __call__(self, turn: int, jobs: int, *, again: bool = False) -> Measurement:
        """The measurement of this turn, made now unless it is there; with `again`, also if that one was disturbed."""
        name = f"{self._study}-{self._mark}-turn{turn + 1}-jobs{jobs}"
        kept = self._read(self._folder / f"{name}.json")
        if kept is not None and not (again and kept.is_disturbed):
            return kept
        runs = self._folder / f"{name}.runs"
        shutil.rmtree(runs, ignore_errors=True)  # of a measurement that was cut short
        runs.mkdir(parents=True)
        found = self._measure(turn, jobs, runs, self._folder / f"{name}.log")
        write_json(self._folder / f"{name}.json", asdict(found))
        shutil.rmtree(runs)
        return found

    def _measure(self, turn: int, jobs: int, runs: Path, log: Path) -> Measurement:
        command = [sys.executable, "-m", "emabank", "run", self._study, "--scale", "demo", "--jobs", str(jobs)]
        command += ["--runs", str(runs)] + ([] if self._seeds is None else ["--seeds", str(self._seeds)])
        show, begin = progress(f"{self._study}, jobs {jobs}, turn {turn + 1}"), time.monotonic()
        show("starting")
        took = run_command(
            command, log, tell=lambda: show(f"{len(trained(runs))} runs done, {time.monotonic() - begin:.0f} s")
        )
        return Measurement(jobs, turn, took, trained(runs), time.strftime("%Y-%m-%d %H:%M:%S %z"))

    @staticmethod
    def _read(path: Path) -> Measurement | None:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return Measurement(**{**kept, "took": Took(**kept["took"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def trained(runs: Path) -> list[str]:
    """The ids of all runs in a folder that are done."""
    return sorted(folder.name for folder in runs.iterdir() if RunFolder(folder).is_done())


# From measurements to numbers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a study takes.

    Args:
        runs: how many were trained.
        seconds, processor_seconds, cores_busy: by number of jobs.
        speed_up: wall time with one job over that with two, turn by turn.
        dearer: processor time with two jobs over that with one, turn by turn: what two at a time take from each other.
        bystanders: the most that others took during a measurement.
    """

    study: str
    runs: int
    turns: int
    seconds: Mapping[int, Spread]
    processor_seconds: Mapping[int, Spread]
    cores_busy: Mapping[int, Spread]
    speed_up: Spread
    dearer: Spread
    bystanders: float | None


def result_of(study: str, measurements: Sequence[Measurement]) -> Result:
    """Times and their ratios; all measurements must have trained the same runs."""
    different = {tuple(each.runs) for each in measurements}
    if len(different) > 1 or not measurements[0].runs:
        raise RuntimeError(f"not every measurement of {study} trained the same runs; their times cannot be compared")
    by_jobs = {
        jobs: sorted((each for each in measurements if each.jobs == jobs), key=lambda each: each.turn) for jobs in JOBS
    }
    seconds = {jobs: [each.took.seconds for each in own] for jobs, own in by_jobs.items()}
    busy = {jobs: [each.took.processor_seconds for each in own] for jobs, own in by_jobs.items()}
    shares = [each.took.bystanders for each in measurements if each.took.bystanders is not None]
    return Result(
        study=study,
        runs=len(measurements[0].runs),
        turns=len(seconds[1]),
        seconds={jobs: spread(own) for jobs, own in seconds.items()},
        processor_seconds={jobs: spread(own) for jobs, own in busy.items()},
        cores_busy={jobs: paired_ratio(busy[jobs], seconds[jobs]) for jobs in JOBS},
        speed_up=paired_ratio(seconds[1], seconds[2]),
        dearer=paired_ratio(busy[2], busy[1]),
        bystanders=max(shares, default=None),
    )


def judge(result: Result) -> list[Verdict]:
    """Two jobs are worth having."""
    value = result.speed_up.median
    disturbed = (result.bystanders or 0.0) > QUIET_SHARE
    goal = f"{result.study} at scale demo: two jobs at least {AT_LEAST} × as fast as one"
    return [Verdict(goal, None if disturbed else value >= AT_LEAST, f"{value:.2f} ×")]


def ratios_of(result: Result) -> list[Ratio]:
    """What a later measurement is held against."""
    name = f"study/{result.study}"
    return [
        Ratio(f"{name}/two-jobs-speed-up", result.speed_up, result.turns, "higher"),
        Ratio(f"{name}/two-jobs-processor-time", result.dearer, result.turns),
    ]


def result_text(result: Result) -> str:
    """The table, and what it comes to."""
    rows = [
        [
            f"{jobs} job{'s' if jobs > 1 else ''}",
            with_spread(result.seconds[jobs]),
            number(result.seconds[jobs].median / result.runs),
            number(result.processor_seconds[jobs].median / result.runs),
            with_spread(result.cores_busy[jobs]),
        ]
        for jobs in JOBS
    ]
    header = ["", "seconds: median (10–90 %)", "seconds a run", "processor seconds a run", "cores busy"]
    others = "an unknown share" if result.bystanders is None else f"at most {result.bystanders:.1%}"
    return "\n".join(
        [
            f"emabank run {result.study} --scale demo: {result.runs} runs trained, each number of jobs {result.turns} "
            f"times; other processes took {others} of the machine during a measurement",
            table(header, rows),
            f"two jobs are {with_spread(result.speed_up)} × as fast as one, and take {with_spread(result.dearer)} × "
            "its processor time",
        ]
    )


def default_folder() -> Path:
    """Where measurements are kept until all are made."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emabank" / "study"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time `emabank run STUDY --scale demo` with 1 job and with 2, each in fresh processes and a fresh "
        "folder, in the order 1 2 2 1.",
        epilog="Default: all studies, about 25 minutes on two cores. It can be interrupted: what was measured is kept "
        "in the work folder and not measured again, unless the code, torch or the processor is another.",
    )
    add = parser.add_argument
    add("--study", default="all", choices=["all", *STUDIES], metavar="NAME",
        help=f"all, or one of {', '.join(STUDIES)} (all)")  # fmt: skip
    add("--repeats", type=int, default=2, metavar="N", help="turns, each with 1 and with 2 jobs (2)")
    add("--seeds", type=int, metavar="N", help="seeds of the study (default: its own, 3)")
    add("--work", type=Path, default=default_folder(), metavar="DIR",
        help="keeps what was measured; the runs are removed again (%(default)s)")  # fmt: skip
    add("--redo-disturbed", action="store_true", help="measure again what other processes disturbed")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/study.json")
    add("--check", action="store_true", help="exit with 1 when the goal is missed")
    asked = parser.parse_args(argv)
    if asked.repeats < 1:
        parser.error(f"argument --repeats: {asked.repeats} turns measure nothing; give 1 or more")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    known = conditions()
    print(facts(known), end="\n\n", flush=True)
    mark = fingerprint(asked.seeds, known["cpu"], known["cores"], known["torch"], known["python"])
    measured = Measured(asked.work.absolute(), asked.study, asked.seeds, mark)
    found: list[Measurement] = []
    try:
        for turn, jobs in in_turns(asked.repeats):
            found.append(one := measured(turn, jobs, again=asked.redo_disturbed))
            print(
                f"turn {turn + 1}, jobs {jobs}: {one.took.seconds:.1f} s, {len(one.runs)} runs, others took "
                f"{one.took.bystanders or 0:.1%} of the machine; measured {one.date}",
                flush=True,
            )
        result = result_of(asked.study, found)
    except (OSError, RuntimeError) as error:
        print(f"study_time.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("study_time.py: interrupted; the same command goes on after what was measured", file=sys.stderr)
        return 130
    judged = judge(result)
    print("", result_text(result), "", *judged, sep="\n")
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/study_time.py",
            known,
            ratios=ratios_of(result),
            verdicts=judged,
            result=asdict(result),
            measurements=[{**asdict(each), "runs": len(each.runs)} for each in found],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not all(verdict.passed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
