"""From the columns of a protocol's tables to cells: mean and spread, paired differences, which is best.

May import the evidence and the sheet.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from emabank.study.report.evidence import Setting
from emabank.study.report.sheet import Cell

MISSING = Cell(text="–")
OVER_SEEDS = "Mean ± standard deviation over seeds."
OVER_PAIRS = "Mean ± standard deviation over seeds, over pairs of seeds for churn and JS."
PAIRED = "Differences are paired: of each seed, then mean ± standard deviation."
JS_SCALE = (
    "JS: Jensen–Shannon divergence, natural logarithm, at most 0.693. The paper's JS has another scale (it prints up "
    "to 0.85), so only ratios compare."
)
SLOWEST = (
    "the average with the longest memory, batch-norm statistics recomputed where the network has any, at the epochs "
    "chosen on validation"
)


class Stage(NamedTuple):
    """What the models were trained on and measured on."""

    trained_on: str
    split: str


TUNED = Stage("80%", "val")
TUNED_ON_TEST = Stage("80%", "test")
REFIT = Stage("100%", "test")


class Measure(NamedTuple):
    """How a measure is shown."""

    title: str
    short: str
    percent: bool
    digits: int
    lower_is_better: bool


MEASURES = {
    "accuracy": Measure("accuracy, %", "acc., %", percent=True, digits=2, lower_is_better=False),
    "loss": Measure("loss", "loss", percent=False, digits=3, lower_is_better=True),
    "churn": Measure("churn, %", "churn, %", percent=True, digits=2, lower_is_better=True),
    "js": Measure("JS", "JS", percent=False, digits=4, lower_is_better=True),
    "ece": Measure("ECE, %", "ECE, %", percent=True, digits=2, lower_is_better=True),
    "ece_if_calibrated": Measure("ECE if calibrated, %", "if cal., %", percent=True, digits=2, lower_is_better=True),
    "ece_ts": Measure("ECE with TS, %", "ECE TS, %", percent=True, digits=2, lower_is_better=True),
}
"""Those of the protocol's tables, in the order of the paper's rows."""


def cell(setting: Setting, column: str, metric: str, stage: Stage, *, paper: str = "") -> Cell:
    """A measure of a column, a dash where it is not there; transfer is an accuracy.

    >>> made = Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                has_batchnorm=True, arms={}, tables=[
    ...                    {"trained_on": "100%", "split": "test", "column": name, "values": {"accuracy": values}}
    ...                    for name, values in (("SGD", [0.5, 0.75]), ("SWA", [0.75, 0.75]))])
    >>> cell(made, "SGD", "accuracy", REFIT).mean, cell(made, "SGD", "loss", REFIT).text
    (62.5, '–')
    """
    values = setting.values(column, metric, trained_on=stage.trained_on, split=stage.split)
    return of(values, metric, paper=paper)


def difference(
    setting: Setting, column: str, metric: str, stage: Stage, *, minus: str = "SGD", paper: str = ""
) -> Cell:
    """The paired difference of two columns: of each seed, or of each pair of seeds; a dash where they are no pairs.

    >>> made = Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                has_batchnorm=True, arms={}, tables=[
    ...                    {"trained_on": "100%", "split": "test", "column": name, "values": {"accuracy": values}}
    ...                    for name, values in (("SGD", [0.5, 0.75]), ("SWA", [0.75, 0.75]))])
    >>> difference(made, "SWA", "accuracy", REFIT).mean
    12.5
    """
    ours = setting.values(column, metric, trained_on=stage.trained_on, split=stage.split)
    theirs = setting.values(minus, metric, trained_on=stage.trained_on, split=stage.split)
    return of(subtracted(ours, theirs), metric, paper=paper)


def of(values: Sequence[float | None] | None, metric: str, *, paper: str = "") -> Cell:
    """Values of a measure as a cell.

    >>> made = of([0.5, 0.75], "accuracy")
    >>> made.mean, made.n, of(None, "loss").text
    (62.5, 2, '–')
    """
    measure = MEASURES.get(metric, MEASURES["accuracy"])
    return Cell.of(values or (), scale=100 if measure.percent else 1, digits=measure.digits, paper=paper)


def subtracted(ours: Sequence[float | None] | None, theirs: Sequence[float | None] | None) -> list[float | None] | None:
    """One difference for each two; None where they do not belong together.

    >>> subtracted([3.0, None], [1.0, 1.0]), subtracted([1.0], None), subtracted([1.0], [1.0, 2.0])
    ([2.0, None], None, None)
    """
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    return [None if None in both else both[0] - both[1] for both in zip(ours, theirs, strict=True)]  # type: ignore[operator]


def with_best(cells: Sequence[Cell], places: Sequence[int], *, lower: bool = False) -> list[Cell]:
    """The same cells, the best of these places marked; several, if they look the same; none, if there is one alone.

    >>> made = with_best([Cell(mean=1.001), Cell(mean=1.002), Cell(mean=0.5), Cell(mean=7)], [0, 1, 2])
    >>> [each.best for each in made]
    [True, True, False, False]
    """
    means = {at: round(mean, cells[at].digits) for at in places if (mean := cells[at].mean) is not None}
    if len(means) < 2:
        return list(cells)
    best = min(means.values()) if lower else max(means.values())
    return [replace(each, best=True) if means.get(at) == best else each for at, each in enumerate(cells)]


def there(cells: Sequence[Cell]) -> bool:
    """Whether any of these cells has a number of ours.

    >>> there([Cell(text="–", paper="78.54")]), there([Cell(mean=1.0, n=1)])
    (False, True)
    """
    return any(each.mean is not None for each in cells)
