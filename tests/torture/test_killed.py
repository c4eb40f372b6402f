"""Processes killed at random moments several times in a row end, once resumed, with the files of an undisturbed one.

Processes and signals are real: SIGKILL, SIGTERM and SIGINT.
"""

import signal
import time
from pathlib import Path

import pytest

from emabank import checkpoint
from tests.torture import averages
from tests.torture.faults import (
    LONG,
    STEPS,
    SUBJECTS,
    Child,
    Faults,
    difference,
    faults,
    files_in,
    undisturbed,
    wait_for_workers,
)

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def torture(name: str, folder: Path, count: Faults, *, rounds: int, in_a_row: int) -> None:
    """Rounds of kills in a row, each round in its own folder."""
    wanted = files_in(undisturbed(name))
    took = duration(name, folder / "timed")
    for number in range(rounds):
        place = folder / f"{name}-{number}"
        SUBJECTS[name].prepare(place)
        for _ in range(in_a_row):
            child = Child(name, place)
            time.sleep(count.random.uniform(0, took))
            sent = count.random.choice(SIGNALS)
            hit = child.fault(sent)
            code = child.wait()
            wait_for_workers(place)
            assert code in (0, 1, 75, 130, -sent), f"{sent.name}, exit code {code}: {child.output.read_text()}"
            count.count(faults=hit, **{sent.name: int(hit)})
            check_nothing_reported_is_lost(name, place)
            if code == 0 and not hit:
                break
        child = Child(name, place)
        assert child.wait() == 0, f"seed {count.seed}, round {number}: {child.output.read_text()}"
        assert difference(files_in(place), wanted) == [], f"seed {count.seed}, round {number}"
        count.count(rounds=1)
    count.count(lost=0)


def duration(name: str, folder: Path) -> float:
    """Seconds that it takes undisturbed."""
    SUBJECTS[name].prepare(folder)
    started = time.monotonic()
    assert Child(name, folder).wait() == 0
    return time.monotonic() - started


def check_nothing_reported_is_lost(name: str, place: Path) -> None:
    """Check that everything reported as saved exists and is whole."""
    if name == "library" and (place / "log.txt").exists():
        steps = [int(line) for line in (place / "log.txt").read_text().split("\n")[:-1]]
        state = checkpoint.read_state(place / "all.pt", kind="loop")
        assert max(steps, default=0) <= state["bank"]["num_steps"] <= STEPS
    if name == "average":
        averages.check_whole(place, undisturbed(name))


SHORT = {"training": (1, 3), "library": (2, 3), "average": (2, 3)}
MANY = {
    "training": (40, 3),
    "library": (50, 3),
    "average": (60, 3),
    "study": (25, 3),
    "study from nothing": (4, 2),
    "report": (15, 2),
}


@pytest.mark.parametrize(
    ("name", "rounds", "in_a_row"),
    [
        *(pytest.param(name, *amounts, id=f"{name}, short") for name, amounts in SHORT.items()),
        *(pytest.param(name, *amounts, id=name, marks=LONG) for name, amounts in MANY.items()),
    ],
)
def test_a_repeatedly_killed_process_resumes_and_writes_the_same_files(
    name: str, rounds: int, in_a_row: int, tmp_path: Path
) -> None:
    with faults(f"killed: {name}") as count:
        torture(name, tmp_path, count, rounds=rounds, in_a_row=in_a_row)
