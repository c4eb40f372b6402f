"""`emabank run` in a process of its own, killed and started again: it goes on, and ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emabank.study.config import Place
from tests.study.studies.small_studies import manifests, runs_in
from tests.support.processes import SOURCE

SETTINGS = ["epochs=6", "warmup_epochs=0.5", "subset=60", "test_subset=30", "width=4", "batch=32", "rates=[0.1]"]
WORDS = ["run", "constant-lr", "--seeds", "2", "--device", "cpu", "--jobs", "2"]


class Command:
    """`emabank run constant-lr` at the smallest size, in a process of its own."""

    def __init__(self, runs: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emabank.study", *WORDS, "--runs", str(runs), "--set", *SETTINGS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"},
        )
        self.said: list[str] = []

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if words in line:
                return
        raise AssertionError(f"{words!r} was not said, but: {self.said}")

    def end(self) -> int:
        assert self.process.stdout is not None
        self.said += [line.rstrip("\n") for line in self.process.stdout]
        return self.process.wait(timeout=120)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
def test_killed_in_the_middle_and_started_again_it_goes_on_and_ends_as_if_nothing_had_happened(tmp_path: Path):
    place = Place(runs=tmp_path / "runs")
    with Command(place.runs) as first:
        first.until("started: refit, rate 0.1, seed 1")
        first.process.send_signal(signal.SIGKILL)
        first.end()
    assert manifests(place)["constant-lr"].state == "running"
    done = {run: (place.runs / run / "done.json").stat().st_mtime_ns for run in runs_in(place)}
    assert len(done) >= 2, "tuning is over"

    with Command(place.runs) as second:
        assert second.end() == 0, second.said
    said = "\n".join(second.said)
    assert "tuning: 2 runs" in said and said.count("already done: tune") == 2
    assert second.said[-2] == "done: constant-lr"
    assert f"`emabank report {os.path.relpath(place.runs)}`" in second.said[-1]
    manifest = manifests(place)["constant-lr"]
    assert manifest.state == "done" and len(runs_in(place)) == 6
    now = {run: (place.runs / run / "done.json").stat().st_mtime_ns for run in done}
    assert now == done, "what was done is not trained again"

    elsewhere = in_this_process(tmp_path / "undisturbed")
    [ran] = manifest.pairs
    for name in ("summary.json", "rows.jsonl"):
        mine, other = (where.runs / str(ran.protocol) / name for where in (place, elsewhere))
        assert mine.read_bytes() == other.read_bytes()
    assert runs_in(place) == runs_in(elsewhere)
    for run in ran.arms["constant"]:
        mine, other = (where.runs / run / "rows.jsonl" for where in (place, elsewhere))
        assert mine.read_bytes() == other.read_bytes()

    with Command(place.runs) as third:
        assert third.end() == 0
    assert "started: " not in "\n".join(third.said)


def in_this_process(runs: Path) -> Place:
    """The same study without a command, workers or interruptions."""
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
from emabank.study.commands.parsing import parse
from emabank.study.config import Place
from emabank.study.studies.catalogue import STUDIES
from emabank.study.studies.scheduler import run_studies, settings_of
from tests.study.studies.small_studies import DIGITS, Counting
given = parse({[*WORDS, "--runs", str(runs), "--set", *SETTINGS]!r}, description="")
studies, place = [STUDIES["constant-lr"]], given.place
settings = settings_of(studies, "demo", given.change)
run_studies(
    studies, "demo", settings, place, command="", load=lambda config: DIGITS, run_jobs=Counting(place)
)
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return Place(runs=runs)
