"""`emabank run` under a real torchrun: two processes come to what one comes to, and a killed one is told of."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emabank.study.config import Place
from emabank.study.runs.reader import RunFolder
from tests.study.studies.small_studies import run_words, runs_in
from tests.support.processes import SOURCE, wait_until

SETTINGS = ["epochs=20", "warmup_epochs=0.5", "subset=60", "test_subset=30", "width=4", "batch=16", "rates=[0.01]"]
WORDS = ["run", "lr-search", "--seeds", "1", "--device", "cpu"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "emabank.study"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}

pytestmark = pytest.mark.slow


def words(runs: Path) -> list[str]:
    return [*WORDS, "--runs", str(runs), "--set", *SETTINGS]


def carried_out(runs: Path) -> str:
    command = [sys.executable, *TORCHRUN, *words(runs)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The runs of two processes, and what they printed."""
    runs = tmp_path_factory.mktemp("two") / "runs"
    return runs, carried_out(runs)


def test_two_processes_come_to_what_one_comes_to_and_one_of_them_speaks(undisturbed: tuple[Path, str], tmp_path: Path):
    runs, said = undisturbed
    run_words(words(tmp_path / "one"))
    assert said.count("done: lr-search") == 1
    together, alone = finished(runs), finished(tmp_path / "one")
    assert [run.id for run in together] == [run.id for run in alone]
    for mine, other in zip(together, alone, strict=True):
        assert mine.environment()[0]["processes"] == 2
        rows, expected = mine.rows(), other.rows()
        assert len(rows) == len(expected) > 0
        for row, like in zip(rows, expected, strict=True):
            assert (row.weights, row.epoch, row.split, row.metric) == (
                like.weights,
                like.epoch,
                like.split,
                like.metric,
            )
            if row.metric == "loss":
                assert row.value == pytest.approx(like.value, rel=1e-3)


def test_a_killed_process_is_told_of_and_the_same_command_goes_on(undisturbed: tuple[Path, str], tmp_path: Path):
    runs = tmp_path / "runs"
    command = [sys.executable, *TORCHRUN, *words(runs), "--checkpoint-seconds", "0.2"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: any(_epoch(path.parent) >= 3 for path in runs.glob("*/progress.json")), seconds=120)
    ranks = [pid for pid in _children(process.pid) if b"emabank" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(ranks) == 2
    os.kill(next(pid for pid in ranks if b"RANK=1\0" in _variables(pid)), signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "the same command resumes from the last checkpoint" in said or "interrupted" in said, said
    (left,) = [path.parent for path in runs.glob("*/progress.json")]
    assert not RunFolder(left).is_done()
    assert not list(left.glob("*.tmp"))
    said = carried_out(runs)
    found, expected = finished(runs), finished(undisturbed[0])
    assert [run.rows() for run in found] == [run.rows() for run in expected]
    assert max(len(run.environment()) for run in found) == 2


def finished(runs: Path) -> list[RunFolder]:
    return [RunFolder(runs / id) for id in sorted(runs_in(Place(runs=runs)))]


def _epoch(folder: Path) -> int:
    progress = RunFolder(folder).progress()
    return 0 if progress is None else progress.epoch


def _variables(process: int) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes() + b"\0"


def _children(process: int) -> list[int]:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        if len(found) >= 2:
            return [int(each) for each in found]
        time.sleep(0.1)
    raise AssertionError("torchrun has no two children")
