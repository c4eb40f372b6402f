"""A bar on a terminal, a few plain lines elsewhere."""

import io

from rich.console import Console

from emabank.study.progress import progress


def shown(*, terminal: bool, epochs: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress(console, epochs) as tell:
        for epoch in range(1, epochs + 1):
            tell(epoch, f"live {epoch}.5%")
    return console.file.getvalue()


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
