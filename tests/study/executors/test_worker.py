"""A worker stops with its executor, also when it is busy or deaf; without an executor nothing happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from emabank.study.executors import worker

SOURCE = str(Path(worker.__file__).parents[3])
HEAD = """
import os, signal, sys, time
from emabank.study.executors.worker import PARENT, stop_with_executor
"""


def run(code: str, *, executor: int | None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    environment.pop(worker.PARENT, None)
    if executor is not None:
        environment[worker.PARENT] = str(executor)
    command = [sys.executable, "-c", HEAD + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_as_long_as_the_executor_is_there_nothing_happens():
    finished = run("stop_with_executor(every=0.01); time.sleep(0.3); print(PARENT in os.environ)", executor=os.getpid())
    assert (finished.returncode, finished.stdout) == (0, "False\n"), finished.stderr


def test_started_by_hand_nothing_happens():
    finished = run("stop_with_executor(every=0.01, grace=0); time.sleep(0.3); print('whole')", executor=None)
    assert (finished.returncode, finished.stdout) == (0, "whole\n")


def test_an_executor_that_was_gone_before_interrupts_as_ctrl_c_would():
    code = "try: stop_with_executor(); time.sleep(60)\nexcept KeyboardInterrupt: print('checkpoint written')"
    finished = run(code, executor=1 if os.getpid() != 1 else 2)
    assert (finished.returncode, finished.stdout) == (0, "checkpoint written\n"), finished.stderr
    assert "the executor that started this process is gone" in finished.stderr


def test_a_deaf_worker_is_killed():
    code = "signal.signal(signal.SIGINT, lambda *_: None); stop_with_executor(grace=0.1)\nwhile True: time.sleep(60)"
    assert run(code, executor=1 if os.getpid() != 1 else 2).returncode == -signal.SIGKILL


def test_an_ignored_interrupt_is_heard_again():
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN); stop_with_executor(grace=60)\ntime.sleep(60)"
    assert run(code, executor=1 if os.getpid() != 1 else 2).returncode == -signal.SIGINT
