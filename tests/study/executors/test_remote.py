"""A command started by a worker of a cluster: its exit code, its log, and how it is stopped."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emabank.study.executors.worker import LOCKED, PARENT, RemoteCommand
from tests.support.processes import SOURCE, wait_until

LONG = "import time; print('begun', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + LONG
WORKER = """
import signal, sys
from emabank.study.executors.worker import RemoteCommand
command = RemoteCommand((sys.executable, "-c", sys.argv[2]), log=sys.argv[1], grace=0.5)
def interrupted(number, frame):
    command.stop()
    print("stopped", flush=True)
    raise SystemExit(7)
signal.signal(signal.SIGUSR2, interrupted)
command()
"""


def test_a_remote_command_returns_the_exit_code_and_logs_the_output(tmp_path: Path):
    log = tmp_path / "log.txt"
    code = "import os; print(os.environ['COLOUR'], os.environ['" + PARENT + "']); raise SystemExit(3)"
    command = RemoteCommand((sys.executable, "-c", code), log=str(log), environment={"COLOUR": "green"})
    assert command() == 3
    assert f"green {os.getpid()}" in log.read_text()


@pytest.mark.parametrize(("code", "stopped_by"), [(LONG, "SIGINT"), (STUBBORN, "SIGTERM")])
def test_a_signal_handler_can_stop_a_running_command(tmp_path: Path, code: str, stopped_by: str):
    """As Slurm's preemption does: the handler runs in the thread that waits for the process."""
    log = tmp_path / "log.txt"
    command = [sys.executable, "-c", WORKER, str(log), code]
    worker = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: log.exists() and "begun" in log.read_text(), seconds=60)
    started = time.monotonic()
    worker.send_signal(signal.SIGUSR2)
    output, _ = worker.communicate(timeout=60)
    assert (output, worker.returncode) == ("stopped\n", 7)
    assert time.monotonic() - started < 30, "a stubborn command is ended after half a second"
    assert ("KeyboardInterrupt" in log.read_text()) == (stopped_by == "SIGINT")


def test_a_remote_command_waits_for_a_locked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.executors.worker._BETWEEN_TRIES", 0.1)
    mark = tmp_path / "mark"
    code = f"import pathlib; mark = pathlib.Path({str(mark)!r}); was = mark.exists(); mark.touch(); "
    code += f"raise SystemExit(0 if was else {LOCKED})"
    command = (sys.executable, "-c", code)
    assert RemoteCommand(command, log=str(tmp_path / "log.txt"))() == 0
    mark.unlink()
    assert RemoteCommand(command, log=str(tmp_path / "log.txt"), patience=0)() == LOCKED


def test_a_remote_command_can_be_pickled():
    command = pickle.loads(pickle.dumps(RemoteCommand((sys.executable, "-c", "pass"), log="/dev/null")))
    assert command() == 0
