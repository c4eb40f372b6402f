"""A bar on a terminal, a few plain lines elsewhere."""

import io

import pytest
from rich.console import Console

from emabank.study.executors.progress import counting, duration, is_due, plain_line, progress


def made(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(*, terminal: bool, epochs: int) -> str:
    console = made(terminal=terminal)
    with progress(console, epochs) as tell:
        for epoch in range(1, epochs + 1):
            tell(epoch, f"live {epoch}.5%")
    return written(console)


def test_plain_lines_are_few_and_hold_the_first_and_the_last_epoch():
    lines = shown(terminal=False, epochs=60).splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("epoch 1/60, ")
    assert lines[0].endswith(" s left: live 1.5%")
    assert lines[-1] == "epoch 60/60, 0 s left: live 60.5%"


def test_a_short_run_tells_of_every_epoch():
    assert len(shown(terminal=False, epochs=3).splitlines()) == 3


def test_a_terminal_gets_a_bar_with_what_was_told():
    output = shown(terminal=True, epochs=3)
    assert "3/3" in output
    assert "live 3.5%" in output
    assert "━" in output


# When a line is due, and what it says --------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2, 11, 12, 13, 25, 60, 200, 1000])
def test_lines_are_due_now_and_then_whatever_the_length(epochs: int):
    due = [epoch for epoch in range(1, epochs + 1) if is_due(epoch, epochs, last=epoch - 1)]
    assert due[0] == 1 and due[-1] == epochs
    assert len(due) <= 25 and (len(due) == epochs or len(due) >= 12)


def test_of_those_told_of_late_one_line_is_enough():
    # Looked at only every few seconds: of several epochs that have passed, the last is told.
    assert is_due(17, 60, last=3) and not is_due(4, 60, last=3)
    assert is_due(5, 60, last=0), "the first look is told whatever it sees"
    assert not is_due(60, 60, last=60), "nothing twice"
    assert not is_due(0, 60, last=0), "nothing has happened yet"


def test_what_a_line_says():
    assert plain_line(3, 60, None, "live 81.0%") == "epoch 3/60: live 81.0%"
    assert plain_line(3, 60, 0.4, "live 81.0%") == "epoch 3/60, 0 s left: live 81.0%"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (86_400, "24.0 h"),
        (1e7, "116 days"),
    ],
)
def test_times_to_wait_are_as_exact_as_one_wants_to_know(seconds: float, words: str):
    assert duration(seconds) == words


# Counting ------------------------------------------------------------------------------------------------------------


def counted(*, terminal: bool, calls: list[int], total: int = 100_000) -> str:
    console = made(terminal=terminal)
    with counting(console, "images decoded") as tell:
        for done in calls:
            tell(done, total)
    return written(console)


def test_counting_prints_a_few_plain_lines():
    lines = counted(terminal=False, calls=list(range(0, 100_001, 100))).splitlines()
    assert lines[0] == "images decoded: 100 of 100,000" and lines[-1] == "images decoded: 100,000 of 100,000"
    assert len(lines) <= 15


def test_counting_to_nothing_or_not_at_all_prints_nothing():
    assert counted(terminal=False, calls=[]) == ""
    assert counted(terminal=False, calls=[0], total=0) == ""


def test_counting_on_a_terminal_is_a_bar():
    output = counted(terminal=True, calls=[0, 50_000, 100_000])
    assert "images decoded" in output and "100000/100000" in output and "━" in output


def test_without_anything_to_count_a_terminal_gets_no_bar():
    assert "images decoded" not in counted(terminal=True, calls=[])


def test_an_error_while_counting_is_not_kept():
    with pytest.raises(OSError, match="full"), counting(made(terminal=True), "bytes") as tell:
        tell(1, 2)
        raise OSError("full")
