"""The loop that executors share, with real processes: tasks once, so many at a time, failures reported at the end."""

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study.executors import Outcome, Task, TasksFailedError, raise_if_failed
from emabank.study.executors.local import LocalExecutor
from emabank.study.executors.worker import LOCKED
from emabank.study.runs.locks import locked
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.writer import open_run
from tests.support.processes import task, wait_until

DONE = "progress(2, 2); done()"


def run_all(tasks: list[Task], *, jobs: int = 2, patience: float = 30) -> tuple[dict[str, Outcome], str]:
    """The outcomes by id, and what was printed."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    outcomes = LocalExecutor(jobs=jobs, poll=0.02, patience=patience).run_all(tasks, console=console)
    return {outcome.task.id: outcome for outcome in outcomes}, console.file.getvalue()  # type: ignore[attr-defined]


def test_so_many_run_at_a_time_in_their_order_and_none_that_is_done(tmp_path: Path):
    code = """
(folder.parent / f"here {folder.name}").touch()
until = time.monotonic() + 60
while folder.name in "ab" and len(list(folder.parent.glob("here [ab]"))) < 2:
    if time.monotonic() > until: sys.exit("the other does not run at the same time")
    time.sleep(0.01)
(folder / "begun").touch()
time.sleep(0.1)
running = [path for path in folder.parent.glob("*/begun") if not (path.parent / "ended").exists()]
(folder / "seen").write_text(str(len(running)))
(folder / "ended").touch()
done()
"""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "done.json").write_text('{"files": {}}')
    tasks = [task(tmp_path, name, code) for name in "bacde"] + [task(tmp_path, "old", "raise SystemExit(1)")]
    outcomes, printed = run_all(tasks)
    states = {name: outcome.state for name, outcome in outcomes.items()}
    assert states == {**dict.fromkeys("bacde", "done"), "old": "already done"}
    assert list(states) == [*"bacde", "old"]
    assert all(1 <= int((tmp_path / name / "seen").read_text()) <= 2 for name in "bacde")
    assert "already done: run old [1 of 6]\n" in printed and "[6 of 6]" in printed and "failed" not in printed
    assert not (tmp_path / "old" / "log.txt").exists()


def test_no_jobs_are_refused():
    with pytest.raises(ValueError, match="jobs is 0; give the number of runs at a time"):
        LocalExecutor(jobs=0)


def test_failures_are_reported_at_the_end_and_the_others_finish(tmp_path: Path):
    (tmp_path / "missing").mkdir()
    tasks = [
        task(tmp_path, "raises", "print('\\x1b[31mbefore'); raise ValueError('the rate is [too] high')"),
        task(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        task(tmp_path, "forgets", "print('that was all')"),
        Task(id="missing", title="run missing", folder=tmp_path / "missing", command=("/no/such/program",)),
        task(tmp_path, "fine", DONE),
    ]
    outcomes, printed = run_all(tasks, jobs=1)
    assert [outcome.state for outcome in outcomes.values()] == ["failed"] * 4 + ["done"]
    assert outcomes["raises"].reason == "exit code 1"
    assert outcomes["raises"].log[0] == "[31mbefore"
    assert outcomes["raises"].log[-1] == "ValueError: the rate is [too] high"
    assert outcomes["killed"].reason == "killed by SIGKILL (possibly out of memory)"
    assert outcomes["forgets"].reason == "ended without finishing the run"
    assert "could not be started: [Errno 2]" in (outcomes["missing"].reason or "")
    report = printed[printed.index("4 of 5 runs failed:") :]
    assert report.index("- run raises: exit code 1") < report.index("    ValueError: the rate is [too] high")
    assert f"  log: {tmp_path / 'raises' / 'log.txt'}" in report
    assert printed.index("done in") < printed.index("4 of 5 runs failed:")
    for name in ("raises", "killed", "forgets"):
        assert RunFolder(tmp_path / name).state() == "failed"
        assert RunFolder(tmp_path / name).failure() == outcomes[name].reason
    with pytest.raises(TasksFailedError, match=r"^4 of 5 runs failed, the first with exit code 1: run raises, run kil"):
        raise_if_failed(list(outcomes.values()))
    raise_if_failed([outcomes["fine"]])


def test_a_failed_run_starts_again_and_its_log_continues(tmp_path: Path):
    code = "(print('first'), (folder / 'tried').touch(), sys.exit(3)) if not (folder / 'tried').exists() else done()"
    outcomes, _ = run_all([task(tmp_path, "a", code)])
    assert (outcomes["a"].state, outcomes["a"].log) == ("failed", ("first",))
    outcomes, _ = run_all([task(tmp_path, "a", code)])
    assert outcomes["a"].state == "done"
    assert (tmp_path / "a" / "log.txt").read_text().count("--- 2") == 2


def test_the_reason_is_what_the_run_itself_says_and_never_an_old_one(tmp_path: Path):
    fail = '(folder / "failed.json").write_text(json.dumps(dict(message="ValueError: no space")))'
    outcomes, _ = run_all([task(tmp_path, "a", f"{fail}; sys.exit(1)")])
    assert outcomes["a"].reason == "exit code 1: ValueError: no space"
    outcomes, _ = run_all([task(tmp_path, "a", "sys.exit(4)")])
    assert outcomes["a"].reason == "exit code 4"
    assert RunFolder(tmp_path / "a").failure() == "exit code 4"


def test_a_run_in_use_elsewhere_fails_here_and_is_left_alone(tmp_path: Path):
    refused = "from emabank.study.runs.locks import locked\nwith locked(folder / 'lock', what='run x'): done()"
    with open_run(tmp_path, {"epochs": 1}, threads=1) as run:
        outcomes, _ = run_all([task(tmp_path, run.id, refused)])
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


def test_a_run_that_is_let_go_of_in_time_is_trained(tmp_path: Path):
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
    outcomes, _ = run_all([task(tmp_path, "a", TAKES)])
    holder.join()
    assert outcomes["a"].state == "done"


def test_a_run_that_is_not_let_go_of_fails_with_the_reason(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a" / "lock", what="run a"):
        outcomes, _ = run_all([task(tmp_path, "a", TAKES)], patience=0)
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
def test_progress_is_shown_while_the_run_is_trained(tmp_path: Path, terminal: bool):
    wait = "while not (folder.parent / 'seen').exists(): time.sleep(0.02)"
    console = Console(file=Noticing("at 2", tmp_path / "seen"), force_terminal=terminal, width=120, color_system=None)
    tasks = [task(tmp_path, "a", f"progress(2, 3)\n{wait}\ndone()")]
    assert LocalExecutor(poll=0.02).run_all(tasks, console=console)[0].state == "done"
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/3" in printed
    assert ("━" in printed) is terminal


def test_a_folder_that_cannot_be_made_fails_alone_also_in_a_thread(tmp_path: Path):
    (tmp_path / "file").touch()
    tasks = [task(tmp_path / "file", "a", DONE), task(tmp_path, "b", DONE)]
    with ThreadPoolExecutor(1) as pool:
        outcomes, _ = pool.submit(run_all, tasks).result()
    assert {name: outcome.state for name, outcome in outcomes.items()} == {"a": "failed", "b": "done"}
    assert "Not a directory" in (outcomes["a"].reason or "")
