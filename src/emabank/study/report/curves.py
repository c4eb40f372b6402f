"""The figure of the demo: accuracy of the live weights and of every average, epoch by epoch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from emabank.study.report.rows import Chosen, Record

# From fast to slow: light to dark as well as by hue, so that the order can be seen without telling colours apart.
_COLOURS = ("#f0a93b", "#e0703c", "#c23b75", "#7b2f9a", "#2b1b6b")
_LIVE = "#7f7f7f"
Statistics = Literal["averaged", "recomputed"]
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "svg.hashsalt": "emabank",  # without it the ids in the file are random, and the same run gives another file
    "svg.fonttype": "none",
}


def draw_curves(record: Record, path: Path, *, file_format: Literal["svg", "png"]) -> None:
    """Draw the accuracies with both kinds of batch-norm statistics, and the learning rate beneath, into a file."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(5, 1))
        kinds: tuple[Statistics, ...] = ("averaged", "recomputed")
        titles = ("Batch-norm statistics averaged with the weights", "Statistics recomputed on the training images")
        for column, (kind, title) in enumerate(zip(kinds, titles, strict=True)):
            _accuracies(panels[0, column], record, kind)
            panels[0, column].set_title(title, loc="left")
            _learning_rate(panels[1, column], record.learning_rate)
        panels[0, 0].set_ylabel("test accuracy")
        panels[1, 0].set_ylabel("learning\nrate")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        noise = 100 * record.conditions["noise"]
        title = f"ResNet-8 on handwritten digits, {noise:g}% of the training labels wrong; dots: chosen on validation"
        figure.suptitle(title, x=0.01, ha="left")
        # Fixed metadata: matplotlib would put the time of day into the file.
        metadata = {"Date": None} if file_format == "svg" else {}
        figure.savefig(path, format=file_format, dpi=150, metadata=metadata)


def _accuracies(panel: Axes, record: Record, kind: Statistics) -> None:
    """One line for the live weights and one for each average; on top of all lines, a dot where validation chose."""
    colours = dict(zip((chosen.average for chosen in record.chosen), _colours(len(record.chosen)), strict=True))
    for chosen in record.chosen:
        rows = [row for row in record.rows if row.average == chosen.average and row.statistics in ("live", kind)]
        panel.plot(
            [row.epoch for row in rows],
            [row.test_accuracy for row in rows],
            color=colours[chosen.average],
            linewidth=1.2 if chosen.half_life is None else 1.8,
            label=_label(chosen),
        )
        row = next(row for row in rows if row.epoch == chosen.epoch)
        panel.scatter(row.epoch, row.test_accuracy, s=50, color=colours[chosen.average], edgecolors="white", zorder=5)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panel.set_ylim(0, 1)
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)


def _label(chosen: Chosen) -> str:
    if chosen.half_life is None:
        return "live weights"
    return f"{chosen.average}: half-life {chosen.half_life:.1f} steps"


def _learning_rate(panel: Axes, rates: Sequence[float]) -> None:
    epochs = range(1, len(rates) + 1)
    panel.plot(epochs, rates, color=_LIVE)
    panel.fill_between(epochs, rates, color=_LIVE, alpha=0.2, linewidth=0)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("epoch")
    panel.set_xlim(0, len(rates) + 0.5)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


def _colours(count: int) -> list[str]:
    """The live weights come first."""
    return [_LIVE, *(_COLOURS[i % len(_COLOURS)] for i in range(count - 1))]
