"""The table says what the rows say, and fits a terminal of 80 columns."""

import io
from dataclasses import replace

from rich.console import Console

from emabank.study.report.demo.table import closing_line, comparison_table


def printed(table) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue().splitlines()


def test_every_line_holds_its_numbers(record):
    lines = {line.split()[0]: line.split()[1:] for line in printed(comparison_table(record)) if line.strip()}
    assert lines["live"] == ["2", "75.0", "20.0", "62.5", "30.0"]
    assert lines["fast"] == ["2.0", "2", "80.0", "86.2", "20.0", "62.5", "30.0"]
    assert lines["slow"] == ["8.0", "2", "87.5", "93.8", "20.0", "75.0", "30.0"]


def test_no_heading_is_cut_at_80_columns(record):
    lines = printed(comparison_table(record))
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in "".join(lines)
    assert sum("recomputed" in line for line in lines) == 1


def test_the_closing_line_compares_with_the_live_weights(record):
    assert closing_line(record) == (
        "Ship slow of epoch 2: 87.5% on the test images; "
        "the live weights 75.0% at their own best epoch 2 and 62.5% at the end."
    )


def test_the_closing_line_is_honest_when_the_live_weights_win(record):
    assert closing_line(replace(record, best="live")) == (
        "Validation chose the live weights in this run: 75.0% on the test images at epoch 2, 62.5% at the end."
    )


def test_without_wrong_labels_nothing_is_memorised(record):
    chosen = [replace(c, at_choice=replace(c.at_choice, memorised=None)) for c in record.chosen]
    lines = printed(comparison_table(replace(record, chosen=chosen)))
    assert next(line for line in lines if line.startswith("live")).split() == ["live", "2", "75.0", "62.5", "30.0"]
