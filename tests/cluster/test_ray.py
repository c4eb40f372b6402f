"""Runs on a real local Ray: finished, moved to another worker when theirs dies, stopped by Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study.runs.reader import RunFolder
from tests.cluster.work import BackgroundRun, parent_of, process_of, tasks_in, undisturbed_files, wait_for_epoch
from tests.study.small_runs import files_in
from tests.study.small_runs import one_thread as one_thread
from tests.support.processes import SOURCE, is_alive, wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
from emabank.study.executors.ray import RayExecutor

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch):
    """Ray's workers can import what this process can."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, *sys.path]))


def test_parallel_runs_write_the_files_of_sequential_runs(tmp_path: Path):
    tasks = tasks_in(tmp_path / "runs", 3, epochs=6)
    outcomes = RayExecutor(jobs=2).run_all(tasks, console=Console(file=io.StringIO()))
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    assert [files_in(RunFolder(task.folder)) for task in tasks] == undisturbed_files(tmp_path / "alone", 3, epochs=6)
    again = RayExecutor().run_all(tasks, console=Console(file=io.StringIO()))
    assert [outcome.state for outcome in again] == ["already done"] * 3


def test_a_run_whose_worker_is_killed_is_finished_by_another_bit_for_bit(tmp_path: Path):
    tasks = tasks_in(tmp_path / "runs", 2)
    started = BackgroundRun(RayExecutor(jobs=2), tasks)
    wait_for_epoch(tasks[0], 10)
    first = process_of(tasks[0])
    worker = parent_of(first)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))
    outcomes = started.wait()
    assert [outcome.state for outcome in outcomes] == ["done", "done"]
    assert "its worker died" in started.output
    assert len(RunFolder(tasks[0].folder).environment()) == 2, "it was started twice"
    assert [files_in(RunFolder(task.folder)) for task in tasks] == undisturbed_files(tmp_path / "alone", 2)


def test_a_run_whose_workers_all_die_fails_after_its_retries(tmp_path: Path):
    (task,) = tasks_in(tmp_path / "runs", 1)
    started = BackgroundRun(RayExecutor(retries=1), [task])
    for _ in range(2):
        wait_until(lambda: (task.folder / "lock").exists() and RunFolder(task.folder).state() == "running")
        process = process_of(task)
        os.kill(parent_of(process), signal.SIGKILL)
        wait_until(lambda process=process: not is_alive(process))
    (outcome,) = started.wait()
    assert outcome.state == "failed"
    assert "its worker died, 2 times" in (outcome.reason or "")


def test_a_failed_run_is_reported_with_its_last_lines_and_the_other_runs_finish(tmp_path: Path):
    good, bad = tasks_in(tmp_path / "runs", 2, epochs=4)
    broken = replace(bad, command=(sys.executable, "-c", "print('no such luck'); raise SystemExit(3)"))
    outcomes = RayExecutor(jobs=2).run_all([good, broken], console=Console(file=io.StringIO()))
    assert [outcome.state for outcome in outcomes] == ["done", "failed"]
    assert outcomes[1].reason == "exit code 3"
    assert "no such luck" in outcomes[1].log


def test_ctrl_c_stops_a_study_and_the_same_command_resumes_it(tmp_path: Path):
    runs = tmp_path / "runs"
    settings = ["epochs=400", "subset=60", "test_subset=30", "width=4", "batch=32", "rates=[0.1]"]
    words = ["run", "lr-search", "--seeds", "1", "--executor", "ray", "--jobs", "2", "--runs", str(runs), "--set"]
    command = [sys.executable, "-m", "emabank.study", *words, *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: len(list(runs.glob("*/progress.json"))) >= 1, seconds=120)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "the same command" in output
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
