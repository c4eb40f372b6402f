"""Runs on a real local Slurm: job arrays, limited jobs, preemption, and lost jobs."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study.runs.reader import RunFolder
from tests.cluster.real_slurm import SlurmUnavailableError, cluster
from tests.cluster.work import BackgroundRun, parent_of, process_of, tasks_in, undisturbed_files, wait_for_epoch
from tests.study.small_runs import files_in
from tests.study.small_runs import one_thread as one_thread
from tests.support.processes import SOURCE, wait_until

pytest.importorskip("submitit", reason="submitit is not installed: pip install '.[slurm]'")
from emabank.study.executors.slurm import SlurmExecutor

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Slurm for the tests of this file, in the environment of this process."""
    before = dict(os.environ)
    try:
        with cluster(tmp_path_factory.mktemp("slurm")) as variables:
            os.environ.update({**variables, "PYTHONPATH": SOURCE})
            yield
    except SlurmUnavailableError as error:
        pytest.skip(str(error))
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_executor(folder: Path, **options: object) -> SlurmExecutor:
    return SlurmExecutor(folder=folder / "slurm", grace=20, **{"settings": {"time": 5}, **options})  # type: ignore[arg-type]


def queued_jobs() -> list[str]:
    listing = subprocess.run(["squeue", "-h", "-r", "-o", "%i %T"], capture_output=True, text=True, check=True)
    return listing.stdout.split("\n")[:-1]


def job_of(process: int) -> str:
    """The Slurm job that a process belongs to."""
    variables = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    environment = {name: value for name, _, value in (line.partition("=") for line in variables)}
    array, number = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{number}" if array else environment["SLURM_JOB_ID"]


def test_a_job_array_runs_at_most_the_given_number_of_jobs(tmp_path: Path):
    tasks = tasks_in(tmp_path / "runs", 3, epochs=12)
    started = BackgroundRun(make_executor(tmp_path, jobs=1), tasks)
    most = 0
    while any(not RunFolder(task.folder).is_done() for task in tasks):
        most = max(most, sum(RunFolder(task.folder).state() == "running" for task in tasks))
        time.sleep(0.05)
    assert [outcome.state for outcome in started.wait()] == ["done"] * 3
    assert most == 1
    assert [files_in(RunFolder(task.folder)) for task in tasks] == undisturbed_files(tmp_path / "alone", 3, epochs=12)


def test_a_preempted_job_writes_a_checkpoint_is_queued_again_and_resumes(tmp_path: Path):
    (task,) = tasks_in(tmp_path / "runs", 1)
    started = BackgroundRun(make_executor(tmp_path), [task])
    wait_for_epoch(task, 8)
    job = job_of(process_of(task))
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    wait_until(lambda: RunFolder(task.folder).state() == "waiting", seconds=60)
    assert any(line.startswith(f"{job} ") for line in queued_jobs()), "the same job waits in the queue"
    assert [outcome.state for outcome in started.wait()] == ["done"]
    assert len(RunFolder(task.folder).environment()) == 2
    assert "was lost" not in started.output
    assert [files_in(RunFolder(task.folder))] == undisturbed_files(tmp_path / "alone", 1)


def test_a_lost_job_is_submitted_again_and_finished_bit_for_bit(tmp_path: Path):
    tasks = tasks_in(tmp_path / "runs", 2)
    started = BackgroundRun(make_executor(tmp_path, jobs=2), tasks)
    wait_for_epoch(tasks[0], 10)
    process = process_of(tasks[0])
    for killed in (parent_of(process), process):
        os.kill(killed, signal.SIGKILL)
    assert [outcome.state for outcome in started.wait()] == ["done", "done"]
    assert "was lost; it resumes from its checkpoint" in started.output
    assert [files_in(RunFolder(task.folder)) for task in tasks] == undisturbed_files(tmp_path / "alone", 2)


def test_a_failed_job_is_reported_with_its_reason(tmp_path: Path):
    (task,) = tasks_in(tmp_path / "runs", 1, epochs=4)
    broken = replace(task, command=(sys.executable, "-c", "print('oh no'); raise SystemExit(4)"))
    (outcome,) = make_executor(tmp_path).run_all([broken], console=Console(file=io.StringIO()))
    assert (outcome.state, outcome.reason) == ("failed", "exit code 4")
    assert "oh no" in outcome.log


def test_the_jobs_of_an_interrupted_study_write_checkpoints_and_leave_the_queue(tmp_path: Path):
    runs = tmp_path / "runs"
    settings = ["epochs=400", "subset=60", "test_subset=30", "width=4", "batch=32", "rates=[0.1]"]
    words = ["run", "lr-search", "--seeds", "1", "--executor", "slurm", "--slurm", "time=5", "--runs", str(runs)]
    command = [sys.executable, "-m", "emabank.study", *words, "--set", *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: len(list(runs.glob("*/progress.json"))) >= 1, seconds=120)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert list(runs.glob("*/checkpoint*"))
    wait_until(lambda: not queued_jobs(), seconds=60)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
