"""The demo's figure, table and page: everything named, numbers as measured, the same bytes for the same record."""

from dataclasses import replace

import pytest

from emabank.study.report.demo import Measured, Record, Selected, closing_line, demo_figure, demo_table


def row(epoch: int, average: str, statistics, accuracy: float) -> Measured:
    return Measured(
        epoch=epoch,
        average=average,
        statistics=statistics,
        validation_accuracy=accuracy - 0.05,
        test_accuracy=accuracy,
        memorised=epoch / 10,
    )


@pytest.fixture
def record() -> Record:
    """Three epochs; the slow average is best, at epoch 2."""
    live = [row(epoch, "live", "live", accuracy) for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625))]
    rows, chosen = list(live), [
        Selected(average="live", half_life=None, epoch=2, at_choice=live[1], at_choice_recomputed=None, at_end=live[2])
    ]  # fmt: skip
    for name, half_life, accuracies in (("fast", 2.0, (0.5, 0.8, 0.625)), ("slow", 8.0, (0.25, 0.875, 0.75))):
        averaged = [row(epoch, name, "averaged", accuracy) for epoch, accuracy in enumerate(accuracies, 1)]
        recomputed = [row(epoch, name, "recomputed", accuracy + 0.0625) for epoch, accuracy in enumerate(accuracies, 1)]
        rows += averaged + recomputed
        chosen.append(
            Selected(
                average=name,
                half_life=half_life,
                epoch=2,
                at_choice=averaged[1],
                at_choice_recomputed=recomputed[1],
                at_end=averaged[2],
            )
        )
    return Record(conditions={"noise": 0.4}, learning_rate=[0.4, 0.8, 0.0], best="slow", chosen=chosen, rows=rows)


def test_the_point_is_what_validation_chose(record):
    chosen = next(each for each in record.chosen if each.average == record.best)
    averaged, recomputed = (panel.marks for panel in demo_figure(record).panels)
    assert averaged[0][:2] == (chosen.epoch, pytest.approx(100 * chosen.at_choice.test_accuracy))
    assert chosen.at_choice_recomputed is not None
    assert recomputed[0][1] == pytest.approx(100 * chosen.at_choice_recomputed.test_accuracy)


def test_the_table_has_what_was_measured_and_a_dash_for_what_was_not(record):
    rows = {row.label: [cell.text for cell in row.cells] for row in demo_table(record).rows}
    assert rows == {
        "live": ["2", "70.0", "75.0", "–", "20.0", "62.5", "30.0"],
        "fast": ["2", "75.0", "80.0", "86.2", "20.0", "62.5", "30.0"],
        "slow": ["2", "82.5", "87.5", "93.8", "20.0", "75.0", "30.0"],
    }
    best = [row.label for row in demo_table(record).rows if row.cells[2].best]
    assert best == [record.best]


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
    chosen = [replace(each, at_choice=replace(each.at_choice, memorised=None)) for each in record.chosen]
    assert {row.cells[4].text for row in demo_table(replace(record, chosen=chosen)).rows} == {"–"}
