"""Transfer: a linear head on the frozen features of the refits, on another data set, beside training on it outright."""

from collections.abc import Sequence
from typing import NamedTuple

from emabank.study.report.evidence import Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import CLEAN, PAIRS, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import (
    MISSING,
    OVER_SEEDS,
    PAIRED,
    REFIT,
    SLOWEST,
    cell,
    difference,
    there,
    with_best,
)
from emabank.study.report.tables.settings import labels, orientation, standing_for

ITEM = "Table 4"
TRANSFER = "transfer:"
ROWS = {"SGD": "Baseline", "slowest (acc.)": "EMA (acc.)", "slowest (loss)": "EMA (loss)"}
# In the paper's order of columns: first all that are evaluated on CIFAR-10.
_TARGETS = {"cifar10": "cifar10-resnet18", "cifar100": "cifar100-resnet18"}
"""Data sets that features are evaluated on in the paper, with the pair that is its supervised training."""


class Way(NamedTuple):
    """From where to where."""

    setting: Setting
    source: str
    """The setting's label."""
    target: str

    @property
    def metric(self) -> str:
        return TRANSFER + self.target

    @property
    def paper(self) -> str:
        """The measure of the paper that this stands for: its own target, or the only one that its pair has there."""
        found = {
            each.metric for values in beside.rows(ITEM).values() for each in values if each.pair == self.setting.pair
        }
        found = {metric for metric in found if metric.startswith(TRANSFER)}
        mine = TRANSFER + self.target.split("-test")[0]  # where only test images were found, halves of them
        return mine if mine in found else found.pop() if len(found) == 1 and self.target not in _TARGETS else ""


def linear(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """The accuracy of a linear head on the features of SGD and EMA, and the paired differences.

    >>> linear(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, (*CLEAN, *(pair for pair in PAIRS if pair not in CLEAN)))
    ways = _ways(settings)
    rows: list[tuple[str, list[Cell]]] = []
    for column, title in ROWS.items():
        rows.append(
            (title, [cell(way.setting, column, way.metric, REFIT, paper=_printed(way, column)) for way in ways])
        )
    rows = _best_by_column(rows)
    if not ways or not any(there(cells) for _, cells in rows):
        return []
    supervised = [_supervised(way, settings) for way in ways]
    differences = [
        (
            f"{title} − Baseline, points",
            [
                difference(
                    way.setting, column, way.metric, REFIT,
                    paper=beside.difference(_printed(way, column), _printed(way, "SGD")),
                )
                for way in ways
            ],
        )
        for column, title in ROWS.items()
        if column != "SGD"
    ]  # fmt: skip
    return [
        Sheet(
            name="transfer/linear", title="Linear evaluation of frozen features on another data set: accuracy, %",
            columns=["trained on", *(way.source for way in ways)], groups=[("evaluated on", 1), *_groups(ways)],
            rows=[*rows, *([("Supervised", supervised)] if there(supervised) else []), *differences],
            breaks=sorted({len(rows), len(rows) + there(supervised)}), study="transfer", scale=scale, item=ITEM,
            caption=f"Features of the models trained on all training images. {OVER_SEEDS} {PAIRED} Bold: the best of a "
            f"column.{all_chosen_on(way.setting for way in ways)}",
            notes=(
                f"EMA: {SLOWEST}. Baseline: the live weights at the last epoch. Supervised: the same kind of network "
                "trained on the target itself, SGD, last epoch.",
                beside.OF_MEANS,
                *orientation(way.setting for way in ways),
            ),
        )
    ]  # fmt: skip


def _ways(settings: Sequence[Setting]) -> list[Way]:
    """All that was evaluated, those with the same target together."""
    found: list[Way] = []
    for setting, source in zip(settings, labels(settings), strict=True):
        tables = [t for t in setting.tables if (t["trained_on"], t["split"]) == tuple(REFIT)]
        targets = dict.fromkeys(name for table in tables for name in table["values"] if name.startswith(TRANSFER))
        found += [Way(setting, source, name.removeprefix(TRANSFER)) for name in targets]
    targets = [*_TARGETS, *dict.fromkeys(way.target for way in found if way.target not in _TARGETS)]
    # The paper has Tiny-ImageNet, with the most images, first.
    return sorted(found, key=lambda way: (targets.index(way.target), not way.setting.pair.startswith("tiny")))


def _groups(ways: Sequence[Way]) -> list[tuple[str, int]]:
    targets = [way.target for way in ways]
    return [(target, targets.count(target)) for target in dict.fromkeys(targets)]


def _printed(way: Way, column: str) -> str:
    return beside.text(ITEM, pair=way.setting.pair, ours=column, metric=way.paper) if way.paper else ""


def _supervised(way: Way, settings: Sequence[Setting]) -> Cell:
    """The accuracy of training on the target: with the same network, if there is such a setting."""
    paper = beside.text(ITEM, row="Supervised", pair=_TARGETS.get(way.paper.removeprefix(TRANSFER), "none"))
    same = [setting for setting in settings if setting.dataset == way.target]
    best = sorted(same, key=lambda setting: setting.network != way.setting.network)
    return cell(best[0], "SGD", "accuracy", REFIT, paper=paper) if best else Cell(text=MISSING.text, paper=paper)


def _best_by_column(rows: Sequence[tuple[str, list[Cell]]]) -> list[tuple[str, list[Cell]]]:
    columns = [with_best(column, range(len(rows))) for column in zip(*(cells for _, cells in rows), strict=True)]
    return [(title, [column[place] for column in columns]) for place, (title, _) in enumerate(rows)]
