"""Progress of runs: bars on a terminal, a few plain lines elsewhere, and a report of failures."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study.executors import Outcome, Task
from emabank.study.executors.progress import counting, display, duration, is_due, progress
from emabank.study.runs.reader import Progress

TASK = Task(id="a", title="resnet8 [rate 0.1]", folder=Path("runs/a"), command=("train",))
OTHER = Task(id="b", title="resnet8 [rate 0.8]", folder=Path("runs/b"), command=("train",))


def make_console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def output_of(screen: Console) -> str:
    return screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("epochs", [1, 2, 11, 12, 13, 25, 60, 200, 1000])
def test_the_number_of_lines_is_limited_for_any_number_of_epochs(epochs: int):
    due = [epoch for epoch in range(1, epochs + 1) if is_due(epoch, epochs, last=epoch - 1)]
    assert due[0] == 1 and due[-1] == epochs
    assert len(due) <= 25 and (len(due) == epochs or len(due) >= 12)


def test_a_line_is_due_after_several_epochs_and_never_twice():
    assert is_due(17, 60, last=3) and not is_due(4, 60, last=3)
    assert is_due(5, 60, last=0), "always due the first time"
    assert not is_due(60, 60, last=60), "never twice"
    assert not is_due(0, 60, last=0), "no epoch has passed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119.4, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"), (1e7, "116 days")],
)
def test_durations_are_rounded_to_a_readable_unit(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize("terminal", [False, True])
def test_one_run_has_a_bar_or_a_few_lines(terminal: bool):
    screen = make_console(terminal=terminal)
    with progress(screen, 60) as show:
        for epoch in range(1, 61):
            show(epoch, f"live [{epoch}.5%]")
    lines = output_of(screen).splitlines()
    if terminal:
        assert "━" in lines[-2] and "60/60" in lines[-2] and "live [60.5%]" in lines[-2]
    else:
        assert len(lines) <= 15 and lines[0].startswith("epoch 1/60, ")
        assert lines[-1] == "epoch 60/60, 0 s left: live [60.5%]"


@pytest.mark.parametrize("terminal", [False, True])
def test_counting_prints_a_bar_or_a_few_lines_after_the_first_call(terminal: bool):
    screen = make_console(terminal=terminal)
    with counting(screen, "images decoded"):
        pass
    assert "images decoded" not in output_of(screen)
    with pytest.raises(OSError, match="full"), counting(screen, "images decoded") as show:
        for done in range(0, 100_001, 100):
            show(done, 100_000)
        raise OSError("full")
    lines = output_of(screen).splitlines()
    if terminal:
        assert "images decoded 100000/100000 ━" in output_of(screen)
    else:
        assert lines[0] == "images decoded: 100 of 100,000" and lines[-1] == "images decoded: 100,000 of 100,000"
        assert len(lines) <= 15


@pytest.mark.parametrize("terminal", [False, True])
def test_many_runs_print_a_line_each_at_their_end_and_progress_before(terminal: bool):
    screen = make_console(terminal=terminal)
    with display(screen, 0, 3) as view:
        view.ended(Outcome(task=OTHER, state="already done"))
        view.started(TASK)
        for epoch in range(1, 61):
            report = Progress(epoch=epoch, epochs=60, words=f"live [{epoch}%]", seconds_left=660.0 - epoch, time="now")
            view.progressed(TASK, report)
        during = output_of(screen)
        view.ended(Outcome(task=TASK, state="done", seconds=61.4))
        view.ended(Outcome(task=OTHER, state="failed", reason="exit code 3"))
    text, lines = output_of(screen), output_of(screen).splitlines()
    for line in (
        "already done: resnet8 [rate 0.8] [1 of 3]",
        "done in 61 s: resnet8 [rate 0.1] [2 of 3]",
        "failed: resnet8 [rate 0.8] (exit code 3) [3 of 3]",
    ):
        assert line in text
    if terminal:
        assert "all runs" in lines[-2] and "3/3" in lines[-2]
    else:
        assert during.splitlines()[1] == "started: resnet8 [rate 0.1]"
        assert during.splitlines()[2] == "resnet8 [rate 0.1]: epoch 1/60, 11 min left: live [1%]"
        assert during.splitlines()[-1] == "resnet8 [rate 0.1]: epoch 60/60, 10 min left: live [60%]"
        assert len(lines) <= 20
