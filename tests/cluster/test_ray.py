"""Runs on a real Ray of this machine: carried out, finished elsewhere when a worker dies, stopped by Ctrl-C."""

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
from tests.cluster.work import Started, parent_of, process_of, tasks_in, undisturbed, until_epoch
from tests.study.small_runs import left
from tests.study.small_runs import one_thread as one_thread
from tests.support.processes import SOURCE, is_alive, wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
from emabank.study.executors.ray import RayExecutor

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch):
    """Ray's workers find what this process finds."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, *sys.path]))


def test_two_runs_at_a_time_leave_what_one_process_leaves(tmp_path: Path):
    tasks = tasks_in(tmp_path / "runs", 3, epochs=6)
    outcomes = RayExecutor(jobs=2).run_all(tasks, console=Console(file=io.StringIO()))
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    assert [left(RunFolder(task.folder)) for task in tasks] == undisturbed(tmp_path / "alone", 3, epochs=6)
    again = RayExecutor().run_all(tasks, console=Console(file=io.StringIO()))
    assert [outcome.state for outcome in again] == ["already done"] * 3


def test_a_run_whose_worker_was_killed_is_finished_elsewhere_bit_for_bit(tmp_path: Path):
    tasks = tasks_in(tmp_path / "runs", 2)
    started = Started(RayExecutor(jobs=2), tasks)
    until_epoch(tasks[0], 10)
    first = process_of(tasks[0])
    worker = parent_of(first)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))
    outcomes = started.end()
    assert [outcome.state for outcome in outcomes] == ["done", "done"]
    assert "its worker died" in started.said
    assert len(RunFolder(tasks[0].folder).environment()) == 2, "it was started twice"
    assert [left(RunFolder(task.folder)) for task in tasks] == undisturbed(tmp_path / "alone", 2)


def test_what_dies_every_time_is_given_up(tmp_path: Path):
    (task,) = tasks_in(tmp_path / "runs", 1)
    started = Started(RayExecutor(retries=1), [task])
    for _ in range(2):
        wait_until(lambda: (task.folder / "lock").exists() and RunFolder(task.folder).state() == "running")
        process = process_of(task)
        os.kill(parent_of(process), signal.SIGKILL)
        wait_until(lambda process=process: not is_alive(process))
    (outcome,) = started.end()
    assert outcome.state == "failed"
    assert "its worker died, 2 times" in (outcome.reason or "")


def test_a_run_that_fails_is_told_with_its_last_lines_and_the_others_go_on(tmp_path: Path):
    good, bad = tasks_in(tmp_path / "runs", 2, epochs=4)
    broken = replace(bad, command=(sys.executable, "-c", "print('no such luck'); raise SystemExit(3)"))
    outcomes = RayExecutor(jobs=2).run_all([good, broken], console=Console(file=io.StringIO()))
    assert [outcome.state for outcome in outcomes] == ["done", "failed"]
    assert outcomes[1].reason == "exit code 3"
    assert "no such luck" in outcomes[1].log


def test_ctrl_c_lets_runs_write_their_checkpoints_and_the_same_command_goes_on(tmp_path: Path):
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
