"""What all executors have in common: tasks, each once, and what is said when some failed."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study.executors import Executor, Outcome, Task, TasksFailedError, in_order, raise_if_failed
from emabank.study.executors.local import LocalExecutor


def task(name: str, command: str = "train") -> Task:
    return Task(id=name, title=f"run {name}", folder=Path("runs", name), command=(command,))


def test_the_same_run_asked_for_twice_is_one_task_and_the_order_stays():
    assert [each.id for each in in_order([task("b"), task("a"), task("b")])] == ["b", "a"]


def test_two_different_tasks_with_one_id_are_refused():
    with pytest.raises(ValueError, match="two tasks have the id a and differ"):
        in_order([task("a"), task("a", "test")])


def test_nothing_is_raised_when_nothing_failed():
    raise_if_failed([])
    raise_if_failed([Outcome(task=task("a"), state="done"), Outcome(task=task("b"), state="already done")])


def test_failures_are_one_sentence_that_an_oserror_carries():
    outcomes = [Outcome(task=task(str(i)), state="failed", reason="exit code 1") for i in range(7)]
    with pytest.raises(TasksFailedError) as caught:
        raise_if_failed([*outcomes, Outcome(task=task("a"), state="done")])
    assert isinstance(caught.value, OSError)
    assert str(caught.value) == (
        "7 of 8 runs failed, the first with exit code 1: run 0, run 1, run 2, run 3, run 4, ...; see runs/0/log.txt, "
        "then start it again"
    )


def test_the_local_executor_is_an_executor():
    executor: Executor = LocalExecutor(jobs=1)
    assert executor.run_all([], console=Console(file=io.StringIO())) == []
