"""Bars for many runs on a terminal, few plain lines elsewhere, and a report of what failed."""

import io
from pathlib import Path

from rich.console import Console

from emabank.study.executors import Outcome, Task
from emabank.study.executors.progress import display, failures
from emabank.study.runs.reader import Progress

TASK = Task(id="a", title="resnet8 [rate 0.1]", folder=Path("runs/a"), command=("train",))
OTHER = Task(id="b", title="resnet8 [rate 0.8]", folder=Path("runs/b"), command=("train",))


def shown(*, terminal: bool, looks: range = range(1, 61)) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with display(console, 3) as screen:
        screen.ended(Outcome(task=OTHER, state="already done"))
        screen.started(TASK)
        for epoch in looks:
            left = 60.0 - epoch
            screen.progressed(
                TASK, Progress(epoch=epoch, epochs=60, words=f"live [{epoch}%]", seconds_left=left, time="now")
            )
        screen.ended(Outcome(task=TASK, state="done", seconds=61.4))
        screen.ended(Outcome(task=OTHER, state="failed", reason="exit code 3"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_plain_lines_are_few_and_tell_the_whole_story():
    lines = shown(terminal=False).splitlines()
    assert lines[:3] == [
        "already done: resnet8 [rate 0.8] [1 of 3]",
        "started: resnet8 [rate 0.1]",
        "resnet8 [rate 0.1]: epoch 1/60, 59 s left: live [1%]",
    ]
    assert lines[-3:] == [
        "resnet8 [rate 0.1]: epoch 60/60, 0 s left: live [60%]",
        "done in 61 s: resnet8 [rate 0.1] [2 of 3]",
        "failed: resnet8 [rate 0.8] (exit code 3) [3 of 3]",
    ]
    assert len(lines) <= 20


def test_a_run_that_is_looked_at_seldom_is_told_of_all_the_same():
    lines = [line for line in shown(terminal=False, looks=range(3, 61, 7)).splitlines() if "epoch" in line]
    assert len(lines) == 9


def test_a_terminal_has_a_bar_for_the_run_and_one_for_all():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with display(console, 3) as screen:
        screen.ended(Outcome(task=OTHER, state="already done"))
        screen.started(TASK)
        screen.progressed(TASK, Progress(epoch=7, epochs=60, words="live [7%]", seconds_left=600.0, time="now"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    for_all, for_run = (line for line in lines[-3:] if "━" in line)
    assert "all runs" in for_all
    assert "1/3" in for_all
    for part in ("resnet8 [rate 0.1]", "━", "7/60", "10 min", "live [7%]"):
        assert part in for_run


def test_a_terminal_keeps_a_line_for_each_run_that_ended():
    output = shown(terminal=True)
    assert "done in 61 s: resnet8 [rate 0.1] [2 of 3]" in output
    assert "failed: resnet8 [rate 0.8] (exit code 3) [3 of 3]" in output
    assert "3/3" in output.splitlines()[-2] + output.splitlines()[-1]


def test_the_report_has_every_failure_with_its_reason_its_last_lines_and_its_log():
    outcomes = [
        Outcome(task=TASK, state="failed", reason="exit code 1", log=("Traceback", "ValueError: no [such] layer")),
        Outcome(task=OTHER, state="done"),
    ]
    assert failures(outcomes) == [
        "1 of 2 runs failed:",
        "- resnet8 [rate 0.1]: exit code 1",
        "    Traceback",
        "    ValueError: no [such] layer",
        f"  log: {Path('runs/a/log.txt')}",
    ]
    assert failures(outcomes[1:]) == []
