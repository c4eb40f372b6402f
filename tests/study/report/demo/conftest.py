"""A made-up record of a run, small enough to know by heart."""

import pytest

from emabank.study.report.demo.record import Chosen, Record, Row


def row(epoch: int, average: str, statistics, accuracy: float) -> Row:
    return Row(
        epoch=epoch,
        average=average,
        statistics=statistics,
        validation_accuracy=accuracy,
        test_accuracy=accuracy,
        memorised=epoch / 10,
    )


@pytest.fixture
def record() -> Record:
    """Three epochs; the slow average is best, at epoch 2."""
    live = [row(epoch, "live", "live", accuracy) for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625))]
    rows, chosen = list(live), [
        Chosen(average="live", half_life=None, epoch=2, at_choice=live[1], at_choice_recomputed=None, at_end=live[2])
    ]  # fmt: skip
    for name, half_life, accuracies in (("fast", 2.0, (0.5, 0.8, 0.625)), ("slow", 8.0, (0.25, 0.875, 0.75))):
        averaged = [row(epoch, name, "averaged", accuracy) for epoch, accuracy in enumerate(accuracies, 1)]
        recomputed = [row(epoch, name, "recomputed", accuracy + 0.0625) for epoch, accuracy in enumerate(accuracies, 1)]
        rows += averaged + recomputed
        chosen.append(
            Chosen(
                average=name,
                half_life=half_life,
                epoch=2,
                at_choice=averaged[1],
                at_choice_recomputed=recomputed[1],
                at_end=averaged[2],
            )
        )
    return Record(conditions={"noise": 0.4}, learning_rate=[0.4, 0.8, 0.0], best="slow", chosen=chosen, rows=rows)
