"""The loop that executors share, with real processes: each task once, limited jobs, failures reported at the end."""

import io
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
from tests.support.processes import task, wait_until

DONE = "progress(2, 2); done()"


def run_all(tasks: list[Task], *, jobs: int = 2, patience: float = 30) -> tuple[dict[str, Outcome], str]:
    """The outcomes by id, and the printed output."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    outcomes = LocalExecutor(jobs=jobs, poll=0.02, patience=patience).run_all(tasks, console=console)
    return {outcome.task.id: outcome for outcome in outcomes}, console.file.getvalue()  # type: ignore[attr-defined]


def test_tasks_run_in_order_with_limited_jobs_and_done_ones_are_skipped(tmp_path: Path):
    code = """
(folder.parent / f"here {folder.name}").touch()
until = time.monotonic() + 60
while folder.name in "ab" and len(list(folder.parent.glob("here [ab]"))) < 2:
    if time.monotonic() > until: sys.exit("the other task does not run at the same time")
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
    outcomes, output = run_all(tasks)
    states = {name: outcome.state for name, outcome in outcomes.items()}
    assert states == {**dict.fromkeys("bacde", "done"), "old": "already done"}
    assert list(states) == [*"bacde", "old"]
    assert all(1 <= int((tmp_path / name / "seen").read_text()) <= 2 for name in "bacde")
    assert "already done: run old [1 of 6]\n" in output and "[6 of 6]" in output and "failed" not in output
    assert not (tmp_path / "old" / "log.txt").exists()


def test_zero_jobs_are_refused():
    with pytest.raises(ValueError, match="jobs is 0; give the number of runs at a time"):
        LocalExecutor(jobs=0)


def test_failures_are_reported_at_the_end_and_the_other_tasks_finish(tmp_path: Path):
    (tmp_path / "missing").mkdir()
    tasks = [
        task(tmp_path, "raises", "print('\\x1b[31mbefore'); raise ValueError('the rate is [too] high')"),
        task(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        task(tmp_path, "forgets", "print('that was all')"),
        Task(id="missing", title="run missing", folder=tmp_path / "missing", command=("/no/such/program",)),
        task(tmp_path, "fine", DONE),
    ]
    outcomes, output = run_all(tasks, jobs=1)
    assert [outcome.state for outcome in outcomes.values()] == ["failed"] * 4 + ["done"]
    assert outcomes["raises"].reason == "exit code 1"
    assert outcomes["raises"].log[0] == "[31mbefore"
    assert outcomes["raises"].log[-1] == "ValueError: the rate is [too] high"
    assert outcomes["killed"].reason == "killed by SIGKILL (possibly out of memory)"
    assert outcomes["forgets"].reason == "ended without finishing the run"
    assert "could not be started: [Errno 2]" in (outcomes["missing"].reason or "")
    report = output[output.index("4 of 5 runs failed:") :]
    assert report.index("- run raises: exit code 1") < report.index("    ValueError: the rate is [too] high")
    assert f"  log: {tmp_path / 'raises' / 'log.txt'}" in report
    assert output.index("done in") < output.index("4 of 5 runs failed:")
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


def test_the_reason_is_the_message_of_this_start_not_of_an_earlier_one(tmp_path: Path):
    fail = '(folder / "failed.json").write_text(json.dumps(dict(message="ValueError: no space")))'
    outcomes, _ = run_all([task(tmp_path, "a", f"{fail}; sys.exit(1)")])
    assert outcomes["a"].reason == "exit code 1: ValueError: no space"
    outcomes, _ = run_all([task(tmp_path, "a", "sys.exit(4)")])
    assert outcomes["a"].reason == "exit code 4"
    assert RunFolder(tmp_path / "a").failure() == "exit code 4"


TAKE_LOCK = f"""
from emabank.study.runs.locks import LockedError, locked
try:
    with locked(folder / "lock", what="run x"):
        done()
except LockedError:
    (folder / "tried").touch()
    sys.exit({LOCKED})
"""


def test_a_run_whose_lock_is_freed_in_time_is_trained(tmp_path: Path):
    """The workers of a study that was just killed still write their checkpoints."""
    (tmp_path / "a").mkdir()
    is_held = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "a" / "lock", what="run a"):
            is_held.set()
            wait_until((tmp_path / "a" / "tried").exists)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    outcomes, _ = run_all([task(tmp_path, "a", TAKE_LOCK)])
    holder.join()
    assert outcomes["a"].state == "done"


def test_a_run_that_stays_locked_fails_with_the_reason(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a" / "lock", what="run a"):
        outcomes, _ = run_all([task(tmp_path, "a", TAKE_LOCK)], patience=0)
    assert (outcomes["a"].state, outcomes["a"].reason) == ("failed", "exit code 75, another process is at work on it")


class Watcher(io.StringIO):
    """Creates a file when certain words are printed, for a worker to wait for."""

    def __init__(self, words: str, path: Path) -> None:
        super().__init__()
        self._words, self._path = words, path

    def write(self, text: str) -> int:
        if self._words in text:
            self._path.touch()
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_printed_while_a_run_trains(tmp_path: Path, terminal: bool):
    wait = "while not (folder.parent / 'seen').exists(): time.sleep(0.02)"
    console = Console(file=Watcher("at 2", tmp_path / "seen"), force_terminal=terminal, width=120, color_system=None)
    tasks = [task(tmp_path, "a", f"progress(2, 3)\n{wait}\ndone()")]
    assert LocalExecutor(poll=0.02).run_all(tasks, console=console)[0].state == "done"
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/3" in output
    assert ("━" in output) is terminal


def test_a_folder_that_cannot_be_created_fails_only_its_task_even_in_a_thread(tmp_path: Path):
    (tmp_path / "file").touch()
    tasks = [task(tmp_path / "file", "a", DONE), task(tmp_path, "b", DONE)]
    with ThreadPoolExecutor(1) as pool:
        outcomes, _ = pool.submit(run_all, tasks).result()
    assert {name: outcome.state for name, outcome in outcomes.items()} == {"a": "failed", "b": "done"}
    assert "Not a directory" in (outcomes["a"].reason or "")
