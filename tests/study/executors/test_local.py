"""The local executor with real processes: all are carried out, failures are told, and no process is left behind."""

import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from emabank.study.executors import Task
from emabank.study.executors.local import LocalExecutor
from emabank.study.executors.worker import LOCKED
from emabank.study.runs.locks import locked
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.writer import open_run
from tests.support.processes import task, wait_until

DONE = "tell(2, 2); done()"


def carried_out(
    tasks: list[Task], *, jobs: int = 2, terminal: bool = False, patience: float = 30
) -> tuple[dict[str, Any], str]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
    outcomes = LocalExecutor(jobs=jobs, poll=0.02, patience=patience).run_all(tasks, console=console)
    assert [outcome.task for outcome in outcomes] == tasks
    return {outcome.task.id: outcome for outcome in outcomes}, console.file.getvalue()  # type: ignore[attr-defined]


def test_all_are_carried_out_and_what_they_print_is_in_their_logs(tmp_path: Path):
    tasks = [task(tmp_path, name, f"print('hello from', {name!r}); {DONE}") for name in "abc"]
    outcomes, said = carried_out(tasks)
    assert {outcome.state for outcome in outcomes.values()} == {"done"}
    for name in "abc":
        lines = (tmp_path / name / "log.txt").read_text().splitlines()
        assert lines[0].startswith("--- 2")
        assert lines[0].endswith(f" run {name}")
        assert lines[1:] == [f"hello from {name}"]
        assert f"started: run {name}\n" in said
    assert "[3 of 3]" in said
    assert "failed" not in said


def test_never_more_than_so_many_at_a_time_and_as_many_when_there_is_work(tmp_path: Path):
    code = """
others = folder.parent / "running"
others.mkdir(exist_ok=True)
(others / folder.name).touch()
time.sleep(0.15)
(folder / "seen").write_text(str(len(list(others.iterdir()))))
(others / folder.name).unlink()
done()
"""
    outcomes, _ = carried_out([task(tmp_path, str(i), code) for i in range(6)], jobs=2)
    assert {outcome.state for outcome in outcomes.values()} == {"done"}
    assert all(int((tmp_path / str(i) / "seen").read_text()) <= 2 for i in range(6))


def test_two_jobs_do_run_at_the_same_time(tmp_path: Path):
    meet = """
(folder.parent / f"here {folder.name}").touch()
until = time.monotonic() + 60
while len(list(folder.parent.glob("here *"))) < 2 and time.monotonic() < until: time.sleep(0.01)
if time.monotonic() < until: done()
"""
    outcomes, _ = carried_out([task(tmp_path, name, meet) for name in "ab"], jobs=2)
    assert {outcome.state for outcome in outcomes.values()} == {"done"}


def test_what_is_done_is_not_started_again(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "done.json").write_text('{"files": {}}')
    outcomes, said = carried_out([task(tmp_path, "a", "raise SystemExit(1)"), task(tmp_path, "b", DONE)])
    assert {name: outcome.state for name, outcome in outcomes.items()} == {"a": "already done", "b": "done"}
    assert "already done: run a [1 of 2]\n" in said
    assert not (tmp_path / "a" / "log.txt").exists()


def test_failures_are_told_at_the_end_and_the_others_finish(tmp_path: Path):
    (tmp_path / "missing").mkdir()
    tasks = [
        task(tmp_path, "raises", "print('\\x1b[31mbefore'); raise ValueError('the rate is [too] high')"),
        task(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        task(tmp_path, "forgets", "print('that was all')"),
        Task(id="missing", title="run missing", folder=tmp_path / "missing", command=("/no/such/program",)),
        task(tmp_path, "fine", DONE),
    ]
    outcomes, said = carried_out(tasks, jobs=1)
    assert [outcome.state for outcome in outcomes.values()] == ["failed"] * 4 + ["done"]
    assert outcomes["raises"].reason == "exit code 1"
    assert outcomes["raises"].log[0] == "[31mbefore"
    assert outcomes["raises"].log[-1] == "ValueError: the rate is [too] high"
    assert outcomes["killed"].reason == "killed by SIGKILL (possibly out of memory)"
    assert outcomes["forgets"].reason == "ended without finishing the run"
    assert "could not be started: [Errno 2]" in outcomes["missing"].reason
    report = said[said.index("4 of 5 runs failed:") :]
    assert report.index("- run raises: exit code 1") < report.index("    ValueError: the rate is [too] high")
    assert f"  log: {tmp_path / 'raises' / 'log.txt'}" in report
    assert said.index("done in") < said.index("4 of 5 runs failed:")
    for name in ("raises", "killed", "forgets"):
        assert RunFolder(tmp_path / name).state() == "failed"
        assert RunFolder(tmp_path / name).failure() == outcomes[name].reason


def test_a_failed_run_starts_again_and_its_log_goes_on(tmp_path: Path):
    code = "(print('first'), (folder / 'tried').touch(), sys.exit(3)) if not (folder / 'tried').exists() else done()"
    outcomes, _ = carried_out([task(tmp_path, "a", code)])
    assert (outcomes["a"].state, outcomes["a"].log) == ("failed", ("first",))
    outcomes, _ = carried_out([task(tmp_path, "a", code)])
    assert outcomes["a"].state == "done"
    assert (tmp_path / "a" / "log.txt").read_text().count("--- 2") == 2


def test_why_the_run_itself_says_that_it_failed_is_told_and_an_old_reason_is_not(tmp_path: Path):
    said = '(folder / "failed.json").write_text(json.dumps(dict(message="ValueError: no space")))'
    outcomes, _ = carried_out([task(tmp_path, "a", f"{said}; sys.exit(1)")])
    assert outcomes["a"].reason == "exit code 1: ValueError: no space"
    outcomes, _ = carried_out([task(tmp_path, "a", "sys.exit(4)")])
    assert outcomes["a"].reason == "exit code 4"
    assert RunFolder(tmp_path / "a").failure() == "exit code 4"


def test_a_run_in_use_elsewhere_fails_here_and_is_left_alone(tmp_path: Path):
    refused = "from emabank.study.runs.locks import locked\nwith locked(folder / 'lock', what='run x'): done()"
    with open_run(tmp_path, {"epochs": 1}, threads=1) as run:
        outcomes, _ = carried_out([task(tmp_path, run.id, refused)])
        assert outcomes[run.id].state == "failed"
        assert f"in use by process {os.getpid()}" in outcomes[run.id].log[-1]
        assert run.state() == "running"
    assert run.failure() is None


TAKES = f"""
from emabank.study.runs.locks import LockedError, locked
try:
    with locked(folder / "lock", what="run x"):
        done()
except LockedError:
    (folder / "tried").touch()
    sys.exit({LOCKED})
"""


def test_a_run_that_is_let_go_of_in_time_is_carried_out(tmp_path: Path):
    """The workers of a study that was killed a moment ago still write their checkpoints."""
    (tmp_path / "a").mkdir()
    held = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "a" / "lock", what="run a"):
            held.set()
            wait_until((tmp_path / "a" / "tried").exists)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    outcomes, _ = carried_out([task(tmp_path, "a", TAKES)])
    holder.join()
    assert outcomes["a"].state == "done"


def test_a_run_that_is_not_let_go_of_fails_and_it_is_said_why(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a" / "lock", what="run a"):
        outcomes, _ = carried_out([task(tmp_path, "a", TAKES)], patience=0)
    assert (outcomes["a"].state, outcomes["a"].reason) == ("failed", "exit code 75, another process is at work on it")


class Noticing(io.StringIO):
    """Makes a file when certain words are printed, for a worker to wait for."""

    def __init__(self, words: str, then: Path) -> None:
        super().__init__()
        self._words, self._then = words, then

    def write(self, text: str) -> int:
        if self._words in text:
            self._then.touch()
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_while_the_run_goes_on(tmp_path: Path, terminal: bool):
    wait = "while not (folder.parent / 'seen').exists(): time.sleep(0.02)"
    console = Console(file=Noticing("at 2", tmp_path / "seen"), force_terminal=terminal, width=120, color_system=None)
    tasks = [task(tmp_path, "a", f"tell(2, 3)\n{wait}\ndone()")]
    assert LocalExecutor(poll=0.02).run_all(tasks, console=console)[0].state == "done"
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/3" in said
    assert ("━" in said) is terminal


def test_variables_are_passed_on(tmp_path: Path):
    code = "(folder / 'threads').write_text(os.environ['OMP_NUM_THREADS'] + os.environ['HOME']); done()"
    carried_out([task(tmp_path, "a", code, environment={"OMP_NUM_THREADS": "7"})])
    assert (tmp_path / "a" / "threads").read_text() == "7" + os.environ["HOME"]


def test_it_works_in_a_thread(tmp_path: Path):
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(carried_out([task(tmp_path, "a", DONE)])))
    thread.start()
    thread.join()
    assert found[0][0]["a"].state == "done"


def test_a_folder_that_cannot_be_made_fails_alone(tmp_path: Path):
    (tmp_path / "file").touch()
    outcomes, _ = carried_out([task(tmp_path / "file", "a", DONE), task(tmp_path, "b", DONE)])
    assert {name: outcome.state for name, outcome in outcomes.items()} == {"a": "failed", "b": "done"}
    assert "Not a directory" in outcomes["a"].reason


def test_jobs_must_be_one_or_more():
    with pytest.raises(ValueError, match="jobs is 0; give the number of runs at a time"):
        LocalExecutor(jobs=0)
