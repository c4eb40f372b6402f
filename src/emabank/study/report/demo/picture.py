"""The demo's figure and page: the live weights and every average, epoch by epoch. May import the report's parts."""

import numpy as np

from emabank.study.report.demo.record import Chosen, Record, Row
from emabank.study.report.demo.table import closing_line
from emabank.study.report.evidence import Evidence, Study
from emabank.study.report.page.page import Provenance, page
from emabank.study.report.panel import Figure, Line, Panel
from emabank.study.report.sheet import Cell, Sheet

_TITLES = {
    "averaged": "Batch-norm statistics averaged with the weights",
    "recomputed": "Statistics recomputed on the training images",
}


def demo_figure(record: Record) -> Figure:
    """Test accuracy of everything with both kinds of batch-norm statistics; a point where validation chose."""
    noise = 100 * record.conditions["noise"]
    rates = np.array(record.learning_rate)
    epochs = np.arange(1, len(rates) + 1)
    return Figure(
        name="demo/curves",
        title=f"ResNet-8 on handwritten digits, {noise:g}% of the training labels wrong",
        caption="One run. The point: what was chosen on validation images with clean labels. Beneath: the rate.",
        columns=2,
        study="demo",
        panels=[
            Panel(
                title=title,
                lines=[_line(record, chosen, order, kind) for order, chosen in enumerate(record.chosen)],
                rate=Line(label="learning rate", x=epochs, y=rates, kind="rate"),
                marks=[_mark(record, record.best, kind)],
            )
            for kind, title in _TITLES.items()
        ],
    )


def _rows(record: Record, average: str, kind: str) -> list[Row]:
    return [row for row in record.rows if row.average == average and row.statistics in ("live", kind)]


def _line(record: Record, chosen: Chosen, order: int, kind: str) -> Line:
    rows = _rows(record, chosen.average, kind)
    live = chosen.half_life is None
    label = "live weights" if live else f"{chosen.average}: half-life {chosen.half_life:.1f} steps"
    return Line(
        label=label,
        x=np.array([row.epoch for row in rows]),
        y=100 * np.array([row.test_accuracy for row in rows]),
        kind="live" if live else "average",
        order=max(0, order - 1),
    )


def _mark(record: Record, average: str, kind: str) -> tuple[float, float, str]:
    epoch = next(chosen.epoch for chosen in record.chosen if chosen.average == average)
    row = next(row for row in _rows(record, average, kind) if row.epoch == epoch)
    return epoch, 100 * row.test_accuracy, f"{average} of epoch {epoch}, chosen on validation"


def demo_sheet(record: Record) -> Sheet:
    """The demo's table: what was chosen for each, and what became of it at the end."""
    columns = ["", "epoch chosen", "test there, %", "recomputed, %", "memorised there, %", "test at end, %"]
    return Sheet(
        name="demo/comparison",
        title="At the epoch that validation chose, and at the end",
        columns=[*columns, "memorised at end, %"],
        rows=[(chosen.average, _cells(chosen, best=chosen.average == record.best)) for chosen in record.chosen],
        caption="One run; chance alone moves a test accuracy near 90% by about 2 points. memorised: wrongly labelled "
        "training images predicted as that wrong label. recomputed: with batch-norm statistics measured anew. Bold: "
        "what validation chose, on images with clean labels.",
        study="demo",
    )


def _cells(chosen: Chosen, *, best: bool) -> list[Cell]:
    there, again, end = chosen.at_choice, chosen.at_choice_recomputed, chosen.at_end
    shares = (there.test_accuracy, again and again.test_accuracy, there.memorised, end.test_accuracy, end.memorised)
    cells = [Cell(text="–") if share is None else Cell(mean=100 * share, n=1, digits=1, best=best) for share in shares]
    return [Cell(text=str(chosen.epoch)), *cells]


def demo_page(record: Record) -> str:
    """The demo as a page to look at."""
    studies = [Study(name="demo", scale="demo", command="emabank demo", state="done")]
    facts = {name: str(value) for name, value in record.conditions.items()}
    return page(
        Evidence(studies=studies),
        [demo_sheet(record)],
        [demo_figure(record)],
        [],
        title="emabank demo: " + closing_line(record).partition(":")[0],
        provenance=Provenance(command="emabank demo", facts=facts),
    )
