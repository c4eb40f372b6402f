"""One start of a task's command on a cluster's worker: its exit code, its log, and how it is stopped."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emabank.study.executors.remote import RemoteCommand
from emabank.study.executors.worker import LOCKED, PARENT
from tests.support.processes import SOURCE, wait_until

LONG = "import time; print('begun', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + LONG
WORKER = """
import signal, sys
from emabank.study.executors.remote import RemoteCommand
command = RemoteCommand((sys.executable, "-c", sys.argv[2]), log=sys.argv[1], grace=0.5)
def interrupted(number, frame):
    command.stop()
    print("stopped", flush=True)
    raise SystemExit(7)
signal.signal(signal.SIGUSR2, interrupted)
command()
"""


def test_it_gives_the_exit_code_and_keeps_what_was_printed(tmp_path: Path):
    log = tmp_path / "log.txt"
    code = "import os; print(os.environ['COLOUR'], os.environ['" + PARENT + "']); raise SystemExit(3)"
    command = RemoteCommand((sys.executable, "-c", code), log=str(log), environment={"COLOUR": "green"})
    assert command() == 3
    assert f"green {os.getpid()}" in log.read_text()


@pytest.mark.parametrize(("command", "by"), [(LONG, "SIGINT"), (STUBBORN, "SIGTERM")])
def test_a_signal_handler_can_stop_it_while_it_is_waited_for(tmp_path: Path, command: str, by: str):
    """As Slurm's preemption does: the handler runs in the thread that waits for the process."""
    log = tmp_path / "log.txt"
    words = [sys.executable, "-c", WORKER, str(log), command]
    worker = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: log.exists() and "begun" in log.read_text(), seconds=60)
    started = time.monotonic()
    worker.send_signal(signal.SIGUSR2)
    said, _ = worker.communicate(timeout=60)
    assert (said, worker.returncode) == ("stopped\n", 7)
    assert time.monotonic() - started < 30, "a stubborn one is ended after its grace of half a second"
    assert ("KeyboardInterrupt" in log.read_text()) == (by == "SIGINT")


def test_a_folder_in_use_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.executors.remote._BETWEEN_TRIES", 0.1)
    mark = tmp_path / "mark"
    code = f"import pathlib; mark = pathlib.Path({str(mark)!r}); was = mark.exists(); mark.touch(); "
    code += f"raise SystemExit(0 if was else {LOCKED})"
    command = (sys.executable, "-c", code)
    assert RemoteCommand(command, log=str(tmp_path / "log.txt"))() == 0
    mark.unlink()
    assert RemoteCommand(command, log=str(tmp_path / "log.txt"), patience=0)() == LOCKED


def test_it_travels():
    command = pickle.loads(pickle.dumps(RemoteCommand((sys.executable, "-c", "pass"), log="/dev/null")))
    assert command() == 0
