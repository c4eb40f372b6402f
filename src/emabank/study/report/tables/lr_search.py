"""Learning-rate search: the best validation accuracy of the live weights and of their averages, by learning rate."""

from emabank.study.report.evidence import Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import PAIRS, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import OVER_SEEDS, there, with_best
from emabank.study.report.tables.peaks import best_average, live, minus, peak, percent
from emabank.study.report.tables.settings import orientation, standing_for, titled

ITEM = "Table 21"
AT = "tune at "
_FIRST = ("cifar100-resnet18", "cifar100-wrn-28-10")
"""The pairs of the paper's search."""


def rates(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """A row for each learning rate that was tried, where more than one was; the paper's pairs first.

    >>> rates(Evidence(), "demo")
    []
    """
    order = (*_FIRST, *(pair for pair in PAIRS if pair not in _FIRST))
    once: dict[str, Setting] = {}
    for setting in standing_for(evidence, scale, order):
        once.setdefault(setting.protocol, setting)  # at smaller scales one protocol may stand for two pairs
    settings = [setting for setting in once.values() if len(tried(setting)) > 1]
    title, begins = titled("Best validation accuracy by peak learning rate", settings)
    rows: list[tuple[str, list[Cell]]] = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        lines = {rate: _line(setting, rate) for rate in tried(setting)}
        columns = [with_best(column, range(len(lines))) for column in zip(*lines.values(), strict=True)]
        columns[2] = [line[2] for line in lines.values()]  # a difference is none to be bold
        found = [
            (begin + f"{rate:g}", list(cells)) for rate, cells in zip(lines, zip(*columns, strict=True), strict=True)
        ]
        if any(there(cells) for _, cells in found):
            breaks += [len(rows)] if rows else []
            rows += found
    if not rows:
        return []
    return [
        Sheet(
            name="lr-search/rates", title=title, columns=["learning rate", "SGD, %", "EMA, %", "EMA − SGD, points"],
            rows=rows, breaks=breaks, study="lr-search", scale=scale, item=ITEM,
            caption=f"Trained on 80%, measured on validation. {OVER_SEEDS} The difference is paired: of each seed. "
            f"Bold: the best rate of a column.{all_chosen_on(settings)}",
            notes=(
                "SGD: the best epoch of the live weights. EMA: the best epoch and average, averaged batch-norm "
                "statistics.",
                *(["The paper prints no spread here."] if any(c.paper for _, cells in rows for c in cells) else []),
                *orientation(settings),
            ),
        )
    ]  # fmt: skip


def tried(setting: Setting) -> list[float]:
    """The learning rates that a setting was tuned with, from low to high.

    >>> tried(Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...               has_batchnorm=True, tables=[], arms={"tune at 0.8": (), "tune at 0.4": (), "tune": ()}))
    [0.4, 0.8]
    """
    return sorted(float(arm.removeprefix(AT)) for arm in setting.arms if arm.startswith(AT))


def _line(setting: Setting, rate: float) -> list[Cell]:
    arm = next(arm for arm in setting.arms if arm.startswith(AT) and float(arm.removeprefix(AT)) == rate)
    sgd, ema = peak(live(setting, arm, "val")), peak(best_average(setting, arm, "val"))
    printed = [_printed(setting, rate, weights) for weights in ("SGD", "EMA")]
    return [
        percent(sgd, paper=printed[0]),
        percent(ema, paper=printed[1]),
        percent(minus(ema, sgd), paper=beside.difference(printed[1], printed[0])),
    ]


def _printed(setting: Setting, rate: float, weights: str) -> str:
    rows = beside.rows(ITEM)
    for row, values in rows.items():
        if row.endswith(f", {rate:g}") and values[0].pair == setting.pair:
            return beside.text(ITEM, row=row, pair=setting.pair, column=f"{weights} Acc.")
    return ""
