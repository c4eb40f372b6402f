"""The demo's results: its record, table, figure and page. Never imports torch."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from emabank.study.report.figures import Figure, Line, Panel, average_note
from emabank.study.report.page import page
from emabank.study.report.results import Results
from emabank.study.report.tables import MISSING, Cell, Row, Table
from emabank.study.runs.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The live weights or one average, measured at the end of one epoch. Accuracies are fractions of 1."""

    epoch: int
    average: str
    """The name of the average; "live" for the live weights."""
    statistics: Literal["live", "averaged", "recomputed"]
    """The batch-norm statistics that the weights were measured with."""
    validation_accuracy: float
    test_accuracy: float
    memorised: float | None
    """Share of the wrongly labelled training images that are predicted as that wrong label. None if no label is wrong,
    or if not measured, as with recomputed statistics."""


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The epoch that validation chose for the live weights or one average, with its metrics there and at the end."""

    average: str
    half_life: float | None
    """In optimizer steps; None for the live weights."""
    epoch: int
    at_choice: Measured
    at_choice_recomputed: Measured | None
    """The same weights with recomputed batch-norm statistics; the choice is not made again."""
    at_end: Measured


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that a run of the demo measured: the content of rows.json."""

    conditions: dict[str, Any]
    """Settings, versions, threads and duration."""
    learning_rate: list[float]
    """The rate at the last step of each epoch."""
    best: str
    """The name that validation chose among all averages and the live weights."""
    chosen: list[Selected]
    rows: list[Measured]


def demo_table(record: Record) -> Table:
    """The live weights and each average: the epoch that validation chose, with the metrics there and at the end."""
    return Table(
        name="demo/comparison",
        title="At the epoch that validation chose, and at the end",
        columns=["weights", "epoch", "validation", "test", "recomputed", "memorised", "test", "memorised"],
        groups=[("", 1), ("chosen", 5), ("at end", 2)],
        rows=[
            Row(selected.average, _cells(selected, best=selected.average == record.best)) for selected in record.chosen
        ],
        caption="ema-7.1%: an average with a half-life of 7.1% of the run. chosen: at the best epoch on 250 validation "
        "images with clean labels. validation, test: accuracy on those and on 250 other images, in %; near 90% its "
        "standard error is about 2 points. recomputed: test accuracy with recomputed batch-norm statistics. memorised: "
        "wrongly labelled training images predicted as that wrong label, in %. One run. Bold: chosen on validation.",
        study="demo",
    )


def _cells(selected: Selected, *, best: bool) -> list[Cell]:
    chosen, again, end = selected.at_choice, selected.at_choice_recomputed, selected.at_end
    shares = (
        chosen.validation_accuracy, chosen.test_accuracy, again and again.test_accuracy, chosen.memorised,
        end.test_accuracy, end.memorised,
    )  # fmt: skip
    cells = [MISSING if share is None else Cell(text=_percent(share), best=best) for share in shares]
    return [Cell(text=str(selected.epoch)), *cells]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def closing_line(record: Record) -> str:
    """The chosen weights, and how they compare with the live weights at their best epoch and at the end."""
    return ": ".join(_answer(record))


def _answer(record: Record) -> tuple[str, str]:
    by_name = {selected.average: selected for selected in record.chosen}
    best, live = by_name[record.best], by_name["live"]
    at_best, at_end = _percent(live.at_choice.test_accuracy), _percent(live.at_end.test_accuracy)
    if best is live:
        compared = f"{at_best}% on the test images at epoch {live.epoch}, {at_end}% at the end."
        return "Validation chose the live weights in this run", compared
    compared = (
        f"{_percent(best.at_choice.test_accuracy)}% on the test images; the live weights {at_best}% at their own "
    )
    return f"Ship {record.best} of epoch {best.epoch}", f"{compared}best epoch {live.epoch} and {at_end}% at the end."


def demo_figure(record: Record) -> Figure:
    """Test accuracy of all weights, a panel per kind of batch-norm statistics; a point marks validation's choice."""
    titles = {
        "averaged": "Batch-norm statistics averaged with the weights",
        "recomputed": "Statistics recomputed on the training images",
    }
    rates = np.array(record.learning_rate)
    rate = Line(label="learning rate", x=np.arange(1, len(rates) + 1), y=rates, kind="rate")
    panels: list[Panel] = []
    for kind, title in titles.items():
        measured = {
            selected.average: [
                row for row in record.rows if row.average == selected.average and row.statistics in ("live", kind)
            ]
            for selected in record.chosen
        }
        lines = [_line(selected, measured[selected.average], order) for order, selected in enumerate(record.chosen)]
        epoch = next(selected.epoch for selected in record.chosen if selected.average == record.best)
        best = next(row for row in measured[record.best] if row.epoch == epoch)
        label = f"{record.best} of epoch {epoch}, chosen on validation"
        panels.append(Panel(title=title, lines=lines, rate=rate, marks=[(epoch, 100 * best.test_accuracy, label)]))
    noise = 100 * record.conditions["noise"]
    return Figure(
        name="demo/curves",
        title=f"ResNet-8 on handwritten digits, {noise:g}% of the training labels wrong",
        caption="One run. The point marks the weights that validation images with clean labels chose. Below: the rate.",
        columns=2,
        study="demo",
        panels=panels,
    )


def _line(selected: Selected, measured: list[Measured], order: int) -> Line:
    live = selected.half_life is None
    return Line(
        label="live weights" if live else f"{selected.average}: half-life {selected.half_life:.1f} steps",
        x=np.array([row.epoch for row in measured]),
        y=100 * np.array([row.test_accuracy for row in measured]),
        kind="live" if live else "average",
        order=max(0, order - 1),
    )


def demo_page(record: Record) -> str:
    """The demo as an HTML page: the answer, the figure and the table."""
    chosen, compared = _answer(record)
    return page(
        Results(studies=[Manifest(study="demo", scale="demo", command="emabank demo", state="done")]),
        [demo_table(record)],
        [demo_figure(record)],
        [],
        title=chosen,
        lead=f"{compared} {'' if record.best == 'live' else average_note(record.best)}".strip(),
        command="emabank demo",
        facts={name: str(value) for name, value in record.conditions.items()},
    )
