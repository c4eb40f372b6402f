"""`emabank run` under a real torchrun with two processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emabank.study.config import Place
from emabank.study.runs.reader import RunFolder
from tests.study.studies.small_studies import run_arguments, runs_in
from tests.support.processes import SOURCE, wait_until

SETTINGS = ["epochs=20", "warmup_epochs=0.5", "subset=60", "test_subset=30", "width=4", "batch=16", "rates=[0.01]"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "emabank.study"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}

pytestmark = pytest.mark.slow


def arguments(runs: Path) -> list[str]:
    return ["run", "lr-search", "--seeds", "1", "--device", "cpu", "--runs", str(runs), "--set", *SETTINGS]


def run_study(runs: Path) -> str:
    command = [sys.executable, *TORCHRUN, *arguments(runs)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The runs of two processes, and their output."""
    runs = tmp_path_factory.mktemp("two") / "runs"
    return runs, run_study(runs)


def test_two_processes_get_the_results_of_one_and_print_once(undisturbed: tuple[Path, str], tmp_path: Path):
    runs, output = undisturbed
    run_arguments(arguments(tmp_path / "one"))
    assert output.count("done: lr-search") == 1
    together, alone = finished(runs), finished(tmp_path / "one")
    assert [run.id for run in together] == [run.id for run in alone]
    for run, single in zip(together, alone, strict=True):
        assert run.environment()[0]["processes"] == 2
        rows, expected = run.rows(), single.rows()
        assert len(rows) == len(expected) > 0
        for a, b in zip(rows, expected, strict=True):
            assert (a.weights, a.epoch, a.split, a.metric) == (b.weights, b.epoch, b.split, b.metric)
            if a.metric == "loss":
                assert a.value == pytest.approx(b.value, rel=1e-3)


def test_a_killed_process_is_reported_and_the_same_command_resumes(undisturbed: tuple[Path, str], tmp_path: Path):
    runs = tmp_path / "runs"
    command = [sys.executable, *TORCHRUN, *arguments(runs), "--checkpoint-seconds", "0.2"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: any(_epoch(path.parent) >= 3 for path in runs.glob("*/progress.json")), seconds=120)
    ranks = [pid for pid in _children(process.pid) if b"emabank" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(ranks) == 2
    os.kill(next(pid for pid in ranks if b"RANK=1\0" in _variables(pid)), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "the same command resumes from the last checkpoint" in output or "interrupted" in output, output
    (folder,) = [path.parent for path in runs.glob("*/progress.json")]
    assert not RunFolder(folder).is_done()
    assert not list(folder.glob("*.tmp"))
    run_study(runs)
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
            return [int(pid) for pid in found]
        time.sleep(0.1)
    raise AssertionError("torchrun has fewer than two children")
