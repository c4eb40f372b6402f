"""Tables independent of any output format, with the paper's values beside ours; and the builders that fill them.

render.py renders them for the terminal and as Markdown, CSV and LaTeX, page.py as HTML.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from emabank.study.report import paper, series
from emabank.study.report.results import TRANSFER, Results, Setting
from emabank.study.report.series import BySeed, Stage
from emabank.study.studies.scales import PAIRS, Scale


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mean with its spread and number of values; or text, such as a list of epochs.

    Numbers are as shown: a percentage is 78.5, not 0.785. `digits` is the number of decimals.
    """

    mean: float | None = None
    std: float | None = None
    n: int = 0
    digits: int = 2
    text: str = ""
    """Shown instead of a number."""
    paper: str = ""
    """The paper's value for this cell as printed, such as "78.54 ± 0.28"; empty if it has none."""
    best: bool = False
    """Whether to show the cell in bold, as the paper does for the best of a row or group."""

    @classmethod
    def of(cls, values: Iterable[float | None], *, scale: float = 1.0, digits: int = 2, paper: str = "") -> "Cell":
        """The mean and sample standard deviation of the values, times `scale`; a dash if any value is missing."""
        values = list(values)
        known = [scale * value for value in values if value is not None and math.isfinite(value)]
        if not known or len(known) < len(values):
            return cls(text=DASH, paper=paper)
        std = statistics.stdev(known) if len(known) > 1 else None
        return cls(mean=statistics.fmean(known), std=std, n=len(known), digits=digits, paper=paper)


DASH = "–"
"""In place of a number that is missing or cannot exist."""
MISSING = Cell(text=DASH)


class Row(NamedTuple):
    """A row of a table."""

    label: str
    cells: Sequence[Cell]
    """One per column after the first."""
    group: str = ""
    """What the row belongs to, such as a setting; the rows of a group are adjacent."""

    @property
    def full_label(self) -> str:
        return f"{self.group}: {self.label}" if self.group else self.label


@dataclass(frozen=True, kw_only=True)
class Item:
    """The fields that tables and figures share."""

    name: str
    """The name of its files, such as "generalization/headline"."""
    title: str
    caption: str = ""
    item: str = ""
    """The paper's table or figure to compare it with, such as "Table 1"; empty if there is none."""
    study: str = ""
    scale: Literal["demo", "small", "paper", ""] = ""
    notes: Sequence[str] = ()
    """Notes that a reader needs to understand it and to compare it with the paper."""
    curves: bool = False
    """Whether its values are of single epochs, on test or training images; the caption then says of how many images."""


@dataclass(frozen=True, kw_only=True)
class Table(Item):
    """One table: its header and its rows."""

    columns: Sequence[str]
    """Column titles; the first is that of the row labels."""
    rows: Sequence[Row] = ()
    groups: Sequence[tuple[str, int]] = ()
    """Titles above several columns, each with the number of columns it spans, the label column included."""
    breaks: Sequence[int] = ()
    """Indices of the rows that a rule precedes."""
    over: str = "seeds"
    """What its numbers are means over; the caption states it, with n."""
    bold: str = ""
    """What bold cells mean; the caption states it if there are any."""
    folded: bool = False
    """Whether the page hides it until the reader unfolds it."""


# Cells ----------------------------------------------------------------------------------------------------------------

Lines = Mapping[str, Sequence[Cell]]
"""The cells of each row of one setting, by row label; with an empty label, the row is labelled by its setting."""


class Metric(NamedTuple):
    """How a metric is shown."""

    title: str
    short: str = ""
    percent: bool = True
    digits: int = 2
    lower_is_better: bool | None = True
    """None: no value is better than another."""


METRICS = {
    "accuracy": Metric("accuracy, %", "acc., %", lower_is_better=False),
    "loss": Metric("loss", "loss", percent=False, digits=3),
    "churn": Metric("churn, %", "churn, %"),
    "js": Metric("JS", "JS", percent=False, digits=4),
    "ece": Metric("ECE, %", "ECE, %"),
    "ece_if_calibrated": Metric("ECE if calibrated, %", "if cal., %", lower_is_better=None),
    "ece_ts": Metric("ECE with TS, %", "ECE TS, %"),
    "clean_accuracy": Metric("right labels, %", lower_is_better=None),
    "memorised": Metric("memorised, %", lower_is_better=None),
}
"""In the order of the paper's rows; the last two are measured on training images if some labels are wrong."""


def metric_of(name: str) -> Metric:
    """How a metric is shown; a transfer is an accuracy on another data set."""
    target = name.removeprefix(TRANSFER)
    return METRICS["accuracy"]._replace(title=f"transfer to {target}, %") if target != name else METRICS[name]


def metric_cell(values: Sequence[float | None] | None, metric: str, *, paper: str = "") -> Cell:
    """A metric's values as a cell, with that metric's unit and digits."""
    shown = metric_of(metric)
    return Cell.of(values or (), scale=100 if shown.percent else 1, digits=shown.digits, paper=paper)


def value_cell(setting: Setting, column: str, metric: str, stage: Stage, *, paper: str = "") -> Cell:
    """A metric of a column; a dash if it was not measured."""
    return metric_cell(series.values(setting, column, metric, stage), metric, paper=paper)


def difference_cell(
    setting: Setting, column: str, metric: str, stage: Stage, *, minus: str = "SGD", paper: str = ""
) -> Cell:
    """The paired difference of two columns, per seed or pair of seeds; a dash if they cannot be paired."""
    ours, theirs = (series.values(setting, title, metric, stage) for title in (column, minus))
    return metric_cell(series.combined(ours, theirs, lambda one, other: one - other), metric, paper=paper)


def ratio_cell(setting: Setting, column: str, metric: str, stage: Stage, *, over: str = "SGD", paper: str = "") -> Cell:
    """The paired ratio of two columns; a dash if they cannot be paired or a denominator is zero."""
    ours, theirs = (series.values(setting, title, metric, stage) for title in (column, over))
    return Cell.of(series.combined(ours, theirs, lambda one, other: one / other if other else None) or (), paper=paper)


def percent_cell(values: BySeed, *, paper: str = "") -> Cell:
    """Shares as a cell in percent."""
    return Cell.of(values.values(), scale=100, paper=paper)


def epoch_cell(values: BySeed, *, paper: str = "") -> Cell:
    """Epochs as a cell."""
    return Cell.of(values.values(), digits=1, paper=paper)


def has_values(cells: Iterable[Cell]) -> bool:
    """Whether any of these cells has a number of ours."""
    return any(cell.mean is not None for cell in cells)


def with_best(cells: Sequence[Cell], indices: Iterable[int], *, lower: bool | None = False) -> list[Cell]:
    """The cells with the best at these indices marked: all that round to the same value, none if only one has a value.

    `lower` says whether the lowest value is the best; with None, no cell is marked.
    """
    means = {at: round(mean, cells[at].digits) for at in indices if (mean := cells[at].mean) is not None}
    if len(means) < 2 or lower is None:
        return list(cells)
    best = min(means.values()) if lower else max(means.values())
    return [replace(cell, best=True) if means.get(at) == best else cell for at, cell in enumerate(cells)]


def with_best_by_column(lines: Lines, columns: Iterable[int]) -> Lines:
    """The rows with the best cell of each of these columns marked."""
    by_column = [
        with_best(cells, range(len(lines)) if index in columns else ())
        for index, cells in enumerate(zip(*lines.values(), strict=True))
    ]
    return dict(zip(lines, zip(*by_column, strict=True), strict=False))


# Settings -------------------------------------------------------------------------------------------------------------

HELD_FROM = (
    "The rate is held from the epoch that validation chose for EMA (acc.), by noisy labels where these choose the rate."
)
REFERENCE = "The paper's numbers come from a larger data set or network. They are for reference, not a target."


def settings_for(results: Results, scale: str, pairs: Iterable[str] = ()) -> list[Setting]:
    """The settings of a scale for these pairs, in their order; without pairs all, the paper's pairs first."""
    pairs = pairs or dict.fromkeys((*PAIRS, *(setting.pair for setting in results.settings)))
    return [setting for pair in pairs for setting in results.of(pair, scale=scale)]


def label_of(setting: Setting) -> str:
    """The title of a setting, and the paper's pair that it stands in for, if that is another one."""
    pair = PAIRS.get(setting.pair, setting.pair)
    return setting.title if setting.compares or not pair else f"{setting.title} (for {pair})"


def labels_of(settings: Sequence[Setting]) -> list[str]:
    """A label per setting, with the protocol's folder if several settings have the same label."""
    labels = [label_of(setting) for setting in settings]
    return [
        f"{label}, {setting.protocol}" if labels.count(label) > 1 else label
        for label, setting in zip(labels, settings, strict=True)
    ]


def reference_note(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The note that the paper's numbers are only for reference, if any setting differs from the paper's."""
    return () if all(setting.compares for setting in settings) else (REFERENCE,)


_LABELS = {
    "clean": "Clean labels of the validation images choose rates, epochs and averages",
    "noisy": "The given labels of the validation images, wrong ones included, choose rates; clean ones choose epochs "
    "and averages",
}


def selection_note(settings: Iterable[Setting]) -> str:
    """The caption's words on the validation labels of its settings, naming the settings if they apply only to some."""
    settings = list(settings)
    text = ""
    for labels, words in _LABELS.items():
        own = [setting for setting in settings if setting.validation_labels == labels]
        titles = "; ".join(dict.fromkeys(setting.title for setting in own))
        whose = "" if len(own) == len(settings) else f" ({titles})"
        if own:
            text += f" Some training labels are wrong{whose}. {words}, except where it says noisy."
    return text


def curves_note(settings: Iterable[Setting]) -> str:
    """The caption's words on the images of curves, if a setting uses only a part of them."""
    counts = sorted({setting.config.measuring.curve_images or 0 for setting in settings} - {0})
    most = " or ".join(f"{count:,}" for count in counts)
    return f" Epochs are measured on at most {most} images, always the same; kept weights on all." if counts else ""


# Builders -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TableSpec(Table):
    """A table without rows. Calling it with results and a scale fills in the rows of every setting of that scale.

    A setting without values has no rows; without any rows, there is no table. If settings have several rows each, a
    single setting is named in the title, and several settings become groups with rules between them.
    """

    lines: Callable[[Setting], Lines]
    pairs: Sequence[str] = ()
    """The pairs whose settings it shows; empty for all."""
    paper_notes: Sequence[str] = ()
    """Notes that are shown only if a cell has a value of the paper."""
    quoted: Sequence[Row] = ()
    """Rows quoted from the paper, below a rule."""

    def __call__(self, results: Results, scale: Scale) -> list[Table]:
        every = [(setting, self.lines(setting)) for setting in settings_for(results, scale, self.pairs)]
        shown = [(setting, lines) for setting, lines in every if any(map(has_values, lines.values()))]
        settings = [setting for setting, _ in shown]
        labels, title = labels_of(settings), self.title
        one_row_each = all("" in lines for _, lines in shown)
        if len(labels) == 1 and not one_row_each:
            title, labels = f"{title}: {labels[0]}", [""]
        rows: list[Row] = []
        breaks: list[int] = []
        for (_, lines), group in zip(shown, labels, strict=True):
            breaks += [len(rows)] if rows and not one_row_each else []
            rows += [Row(label or group, cells, group if label else "") for label, cells in lines.items()]
        if not rows:
            return []
        breaks += [len(rows)] if self.quoted else []
        printed = any(cell.paper for row in rows for cell in row.cells)
        paper_notes = (*self.paper_notes, *reference_note(settings)) if printed else ()
        return [
            replace(
                self, title=title, rows=[*rows, *self.quoted], breaks=breaks, study=self.name.partition("/")[0],
                scale=scale, notes=(*self.notes, *paper_notes),
                caption=self.caption + selection_note(settings) + (curves_note(settings) if self.curves else ""),
            )
        ]  # fmt: skip


class ColumnSpec(NamedTuple):
    """One column of a table whose cells come from the protocol's columns."""

    title: str
    column: str
    metric: str = ""
    """Empty for the metric of the row; "epoch" for the chosen epoch."""
    op: Literal["value", "minus", "ratio"] = "value"
    """Whether to show the value, or its paired difference from or ratio to the baseline's value."""
    group: str = ""
    """The group title above it and its neighbours."""


def column_cells(
    setting: Setting, specs: Sequence[ColumnSpec], stage: Stage, *, source: str, metric: str = "", baseline: str = "SGD"
) -> list[Cell]:
    """A row of such a table with the paper's values from `source`; the best value of each metric is marked."""

    def make(spec: ColumnSpec) -> Cell:
        name = spec.metric or metric
        ours, theirs = (
            paper.lookup(source, pair=setting.pair, ours=column, metric=name) for column in (spec.column, baseline)
        )
        if spec.op == "minus":
            text = paper.difference(ours, theirs)
            return difference_cell(setting, spec.column, name, stage, minus=baseline, paper=text)
        if spec.op == "ratio":
            return ratio_cell(setting, spec.column, name, stage, over=baseline, paper=paper.ratio(ours, theirs))
        if name == "epoch":
            column = series.column(setting, spec.column, stage)
            return Cell.of(column.epochs if column else (), digits=1, paper=ours)
        return value_cell(setting, spec.column, name, stage, paper=ours)

    cells = [make(spec) for spec in specs]
    names = [spec.metric or metric if spec.op == "value" else "" for spec in specs]
    for name in {*names} & {*METRICS}:
        indices = [index for index, own in enumerate(names) if own == name]
        cells = with_best(cells, indices, lower=METRICS[name].lower_is_better)
    return cells


def column_table(
    name: str,
    title: str,
    specs: Sequence[ColumnSpec],
    stage: Stage,
    *,
    source: str,
    metrics: Sequence[str] = (),
    baselines: Mapping[str, str] | None = None,
    **fields: Any,
) -> TableSpec:
    """A table whose cells come from the columns of one stage, with the paper's values from `source`, such as "Table 1".

    It has one row per setting or, if `metrics` or `baselines` (column by row label) are given, one for each of these.
    """
    groups = [spec.group for spec in specs]
    rows = {METRICS[metric].title: {"metric": metric} for metric in metrics}
    rows |= {label: {"baseline": baseline} for label, baseline in (baselines or {}).items()}

    def lines(setting: Setting) -> Lines:
        return {
            label: column_cells(setting, specs, stage, source=source, **row)
            for label, row in (rows or {"": {}}).items()
        }

    return TableSpec(
        name=name, title=title, columns=["", *(spec.title for spec in specs)], lines=lines,
        groups=[("", 1), *((group, groups.count(group)) for group in dict.fromkeys(groups))] if any(groups) else (),
        paper_notes=[paper.OF_MEANS] if any(spec.op != "value" for spec in specs) else [], **fields,
    )  # fmt: skip
