"""A table before it has a form: titles, cells with their spread and n, the paper's value beside them; and its builder.

What makes terminal, Markdown, CSV and LaTeX of it is in render.py, HTML in page.py.
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
    """One number with its spread and how many values it is the mean of; or a text, such as a list of epochs.

    Numbers are as people read them: percentages are multiplied out. `digits` are those behind the point.
    """

    mean: float | None = None
    std: float | None = None
    n: int = 0
    digits: int = 2
    text: str = ""
    """In place of a number."""
    paper: str = ""
    """What the paper prints in this place, such as "78.54 ± 0.28"; empty where it has nothing."""
    best: bool = False
    """Whether it is the best of its row or group, which the paper prints bold."""

    @classmethod
    def of(cls, values: Iterable[float | None], *, scale: float = 1.0, digits: int = 2, paper: str = "") -> "Cell":
        """The mean of some values and their standard deviation (of a sample); one that is missing makes it a dash."""
        values = list(values)
        known = [scale * value for value in values if value is not None and math.isfinite(value)]
        if not known or len(known) < len(values):
            return cls(text=DASH, paper=paper)
        std = statistics.stdev(known) if len(known) > 1 else None
        return cls(mean=statistics.fmean(known), std=std, n=len(known), digits=digits, paper=paper)


DASH = "–"
"""Where a number should stand and none does, or none can."""
MISSING = Cell(text=DASH)


class Row(NamedTuple):
    """A line of a table."""

    label: str
    cells: Sequence[Cell]
    """One for each column after the first."""
    group: str = ""
    """What the row belongs to, such as a setting; rows of one group stand together."""

    @property
    def full_label(self) -> str:
        return f"{self.group}: {self.label}" if self.group else self.label


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or a figure: which of the paper it answers to, and what a reader must know."""

    name: str
    """Of its files, such as "generalization/headline"."""
    title: str
    caption: str = ""
    item: str = ""
    """The paper's own name for it, such as "Table 1"; empty where the paper has none."""
    study: str = ""
    scale: Literal["demo", "small", "paper", ""] = ""
    notes: Sequence[str] = ()
    """What a reader must know to compare it with the paper."""


@dataclass(frozen=True, kw_only=True)
class Table(Item):
    """One table: its head and its rows."""

    columns: Sequence[str]
    """Titles; the first is that of the labels."""
    rows: Sequence[Row] = ()
    groups: Sequence[tuple[str, int]] = ()
    """Titles above several columns, with how many each spans, the first column included; empty: none."""
    breaks: Sequence[int] = ()
    """Rows before which a rule stands."""
    over: str = "seeds"
    """What its numbers are means over; the caption says it, with n."""
    bold: str = ""
    """What its bold cells are; the caption says it where there are any."""
    folded: bool = False
    """Whether the page hides it until the reader unfolds it."""


# Cells ----------------------------------------------------------------------------------------------------------------

Lines = Mapping[str, Sequence[Cell]]
"""The rows of one setting by label; an empty label: the setting's own is enough."""


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
"""In the order of the paper's rows; the last two are measured on training images, where some labels are wrong."""


def metric_of(name: str) -> Metric:
    """How a metric is shown; a transfer is an accuracy on another data set."""
    target = name.removeprefix(TRANSFER)
    return METRICS["accuracy"]._replace(title=f"transfer to {target}, %") if target != name else METRICS[name]


def metric_cell(values: Sequence[float | None] | None, metric: str, *, paper: str = "") -> Cell:
    """Values of a metric as a cell."""
    shown = metric_of(metric)
    return Cell.of(values or (), scale=100 if shown.percent else 1, digits=shown.digits, paper=paper)


def value_cell(setting: Setting, column: str, metric: str, stage: Stage, *, paper: str = "") -> Cell:
    """A metric of a column; a dash where it was not measured."""
    return metric_cell(series.values(setting, column, metric, stage), metric, paper=paper)


def difference_cell(
    setting: Setting, column: str, metric: str, stage: Stage, *, minus: str = "SGD", paper: str = ""
) -> Cell:
    """The paired difference of two columns: per seed, or per pair of seeds; a dash where they are no pairs."""
    ours, theirs = (series.values(setting, title, metric, stage) for title in (column, minus))
    return metric_cell(series.combined(ours, theirs, lambda one, other: one - other), metric, paper=paper)


def ratio_cell(setting: Setting, column: str, metric: str, stage: Stage, *, over: str = "SGD", paper: str = "") -> Cell:
    """The paired ratio of two columns; a dash where they are no pairs, or where the other is zero."""
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
    """The same cells, the best of these places marked; several, if they look the same; none, if there is only one.

    `lower` says whether the lowest is the best; None: none is.
    """
    means = {at: round(mean, cells[at].digits) for at in indices if (mean := cells[at].mean) is not None}
    if len(means) < 2 or lower is None:
        return list(cells)
    best = min(means.values()) if lower else max(means.values())
    return [replace(cell, best=True) if means.get(at) == best else cell for at, cell in enumerate(cells)]


def with_best_by_column(lines: Lines, columns: Iterable[int]) -> Lines:
    """The same rows, the best of each of these columns marked."""
    by_column = [
        with_best(cells, range(len(lines)) if index in columns else ())
        for index, cells in enumerate(zip(*lines.values(), strict=True))
    ]
    return dict(zip(lines, zip(*by_column, strict=True), strict=False))


# Settings -------------------------------------------------------------------------------------------------------------

REFERENCE = "The paper's numbers come from a larger data set or network. They are for reference, not a target."


def settings_for(results: Results, scale: str, pairs: Iterable[str] = ()) -> list[Setting]:
    """The settings of a scale that stand for these pairs, in their order; without pairs all, the paper's first."""
    pairs = pairs or dict.fromkeys((*PAIRS, *(setting.pair for setting in results.settings)))
    return [setting for pair in pairs for setting in results.of(pair, scale=scale)]


def label_of(setting: Setting) -> str:
    """What was trained, and what it stands for where that is something else."""
    pair = PAIRS.get(setting.pair, setting.pair)
    return setting.title if setting.compares or not pair else f"{setting.title} (for {pair})"


def labels_of(settings: Sequence[Setting]) -> list[str]:
    """A label for each, with the protocol's folder where two would have the same."""
    labels = [label_of(setting) for setting in settings]
    return [
        f"{label}, {setting.protocol}" if labels.count(label) > 1 else label
        for label, setting in zip(labels, settings, strict=True)
    ]


def reference_note(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The note that the paper's numbers are of something else, where they are."""
    return () if all(setting.compares for setting in settings) else (REFERENCE,)


_LABELS = {
    "clean": "Clean labels of the validation images choose rates, epochs and averages",
    "noisy": "The given labels of the validation images, wrong ones included, choose rates; clean ones choose epochs "
    "and averages",
}


def selection_note(settings: Iterable[Setting]) -> str:
    """What a caption says of the validation labels of its settings; where it is true of some alone, these are named."""
    settings = list(settings)
    text = ""
    for labels, words in _LABELS.items():
        own = [setting for setting in settings if setting.validation_labels == labels]
        titles = "; ".join(dict.fromkeys(setting.title for setting in own))
        whose = "" if len(own) == len(settings) else f" ({titles})"
        if own:
            text += f" Some training labels are wrong{whose}. {words}, except where it says noisy."
    return text


# Builders -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TableSpec(Table):
    """A table without its rows; called with results and a scale, it has those of every setting of that scale.

    A setting without a value has no rows, and without any setting there is no table. Where a setting has several rows,
    a setting that is alone is named in the title; several are groups, with a rule between them.
    """

    lines: Callable[[Setting], Lines]
    pairs: Sequence[str] = ()
    """Empty: all."""
    paper_notes: Sequence[str] = ()
    """Shown if the paper prints something in the table."""
    quoted: Sequence[Row] = ()
    """Rows of the paper, below a rule."""

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
                scale=scale, caption=self.caption + selection_note(settings), notes=(*self.notes, *paper_notes),
            )
        ]  # fmt: skip


class ColumnSpec(NamedTuple):
    """What stands in one column of a table whose cells come from the columns of the protocol."""

    title: str
    column: str
    metric: str = ""
    """Empty: that of the row. "epoch": the epoch that was chosen."""
    op: Literal["value", "minus", "ratio"] = "value"
    """The value itself, or paired with the baseline's."""
    group: str = ""
    """The title above it and its neighbours."""


def column_cells(
    setting: Setting, specs: Sequence[ColumnSpec], stage: Stage, *, source: str, metric: str = "", baseline: str = "SGD"
) -> list[Cell]:
    """A row of such a table beside an item of the paper; the best value of each metric is marked."""

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
    """A table whose cells come from the columns of one stage, beside an item of the paper, its `source`.

    It has a row per setting, or a row per metric or baseline (by label) of each.
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
