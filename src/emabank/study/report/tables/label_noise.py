"""Label noise: our rows among the published methods, and how much of the wrong labels is memorised at what accuracy."""

from collections.abc import Mapping, Sequence

from emabank.study.report.curves import OnTrain, Reached, on_train, when_reached
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.pairs import NOISY, PAIRS, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import MISSING, OVER_SEEDS, REFIT, SLOWEST, cell, there
from emabank.study.report.tables.peaks import chosen_epochs
from emabank.study.report.tables.settings import compares, labels, standing_for, titled

STUDY = "label-noise"
OURS = {"SGD": "SGD (last)", "SGD (best)": "SGD (best)", "slowest (acc.)": "EMA (acc.)"}
"""Columns of the refit tables that stand in the leaderboard, with their titles."""
LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Accuracies on the training images with right labels, at which memorisation is compared; the paper's is 90%."""

Row = tuple[str, list[Cell]]


# The leaderboard ------------------------------------------------------------------------------------------------------
COLUMNS = NOISY[::-1]  # as the paper's table has them


def leaderboard(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """Ours among the published methods, by accuracy, where it is the same data and network; apart from them elsewhere.

    >>> leaderboard(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, COLUMNS)
    same = [setting for setting in settings if compares(setting)]
    apart = [setting for setting in settings if not compares(setting)]
    published: list[Row] = [
        (f"{row}, paper" if any(value.ours for value in values) else row, _by_pair({v.pair: v.text for v in values}))
        for row, values in beside.rows("Table 2").items()
    ]
    among, below = _rows(same, "ours"), _rows(apart, "")
    if not among and not below:
        return []
    rows = _sorted([*published, *among])
    return [
        Sheet(
            name="label-noise/leaderboard", title="Accuracy on clean test images after training with wrong labels",
            columns=["method", *(PAIRS[pair].split(",")[0] + ", %" for pair in COLUMNS)], rows=[*rows, *below],
            breaks=[len(rows)] if below else [], study=STUDY, scale=scale, item="Table 2",
            caption=f"Published: as the paper quotes them, a selection, without n. Ours: {OVER_SEEDS.lower()}",
            notes=(
                f"EMA (acc.): {SLOWEST} by the best accuracy.",
                *([_NOT_COMPARABLE] if below else []),
            ),
        )
    ]  # fmt: skip


_NOT_COMPARABLE = (
    "Rows below the rule are of other data or another network than CIFAR-N in full with ResNet-34: they cannot be "
    "compared with the published ones, and stand in the column of what they stand for."
)


def _by_pair(texts: Mapping[str, str]) -> list[Cell]:
    return [Cell(text=texts[pair]) if pair in texts else MISSING for pair in COLUMNS]


def _rows(settings: Sequence[Setting], whose: str) -> list[Row]:
    """Our rows: of both data sets together where there is one setting for each, else each setting by itself."""
    named = [(setting.pair, setting) for setting in settings]
    together = bool(whose) and len({pair for pair, _ in named}) == len(named)
    made: list[Row] = []
    units = [dict(named)] if together and named else [{pair: setting} for pair, setting in named]
    titles = [whose] if together else labels(settings)
    for unit, title in zip(units, titles, strict=False):
        for column, short in OURS.items():
            cells = [cell(unit[pair], column, "accuracy", REFIT) if pair in unit else MISSING for pair in COLUMNS]
            if there(cells):
                label = f"{short}, {whose}" if together else f"{title}: {short}"
                made.append((label, [_bold(each) for each in cells]))
    return made


def _bold(each: Cell) -> Cell:
    """Ours is highlighted, as in the paper's table."""
    return each if each.mean is None else Cell(mean=each.mean, std=each.std, n=each.n, digits=each.digits, best=True)


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """By the last column, as in the paper, unless ours are in the other alone; what has no number there is last."""
    ours = [cells for _, cells in rows if there(cells)]
    by = -1 if not ours or any(cells[-1].mean is not None for cells in ours) else 0
    return sorted(rows, key=lambda row: -_accuracy(row[1][by]))


def _accuracy(each: Cell) -> float:
    if each.mean is not None:
        return each.mean
    return float(each.text.split("±")[0]) if "±" in each.text else -1.0


# Memorisation ---------------------------------------------------------------------------------------------------------


def memorisation(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """The share of wrong labels that is memorised when so many of the right ones are learned.

    >>> memorisation(Evidence(), "demo")
    []
    """
    settings = [each for each in standing_for(evidence, scale, NOISY) if _on_train(each)]
    title, begins = titled("Wrong labels memorised, by the accuracy on right ones", settings)
    rows: list[Row] = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        breaks += [len(rows)] if rows else []
        rows += [(begin + label, cells) for label, cells in _memorised(setting)]
    if not rows:
        return []
    return [
        Sheet(
            name="label-noise/memorisation", title=title,
            columns=["clean accuracy reached", *("epoch", "clean, %", "memorised, %") * 2, "memorised, points"],
            groups=[("", 1), ("SGD", 3), ("EMA, slowest", 3), ("EMA − SGD", 1)], rows=rows, breaks=breaks, study=STUDY,
            scale=scale, item="Figure 7",
            caption=f"On the training images, without augmentation. {OVER_SEEDS} A dash: not every seed reached it. "
            "The difference is paired: of each seed.",
            notes=(
                "clean: accuracy on the training images with a right label. memorised: of those with a wrong label, "
                "the share predicted as that label.",
                "The first epoch at which each seed reaches the accuracy. EMA: recomputed batch-norm statistics where "
                "they were measured at every epoch, else averaged ones.",
                *(["The paper's numbers (Appendix E.1) are of CIFAR-100N with ResNet-34."]
                  if any(each.paper for _, cells in rows for each in cells) else []),
            ),
        )
    ]  # fmt: skip


def _on_train(setting: Setting) -> tuple[OnTrain, OnTrain] | None:
    """The curves of the live weights and of the slowest average on right and on wrong labels."""
    if not setting.averages:
        return None
    sgd, ema = on_train(setting, LIVE), on_train(setting, setting.slowest)
    return None if sgd is None or ema is None else (sgd, ema)


def _memorised(setting: Setting) -> list[Row]:
    both = _on_train(setting)
    if both is None:
        return []
    made: list[Row] = []
    for level in LEVELS:
        reached = [
            [when_reached(*curves, level) for curves in zip(one.clean, one.memorised, strict=True)] for one in both
        ]
        made.append((f"{100 * level:g}%", _compared(reached, setting, level)))
    chosen = chosen_epochs(setting)
    at_choice = [chosen.get(run.seed) for run in setting.arms["refit"]]
    last = [run.epochs for run in setting.arms["refit"]]
    for words, epochs in (("at the EMA (acc.) epoch", at_choice), ("at the end", last)):
        made.append((words, _compared([_at(one, epochs) for one in both], setting)))
    return [row for row in made if there(row[1])]


def _at(curves: OnTrain, epochs: Sequence[float | None]) -> list[Reached | None]:
    """What each seed has at an epoch of its own."""
    return [
        Reached(int(epoch), float(clean[int(epoch) - 1]), float(memorised[int(epoch) - 1]))
        if epoch is not None and 1 <= epoch <= len(clean)
        else None
        for clean, memorised, epoch in zip(curves.clean, curves.memorised, epochs, strict=True)
    ]


def _compared(both: Sequence[Sequence[Reached | None]], setting: Setting, level: float = 0) -> list[Cell]:
    """Epoch, accuracy on right labels and share memorised, of SGD and EMA; then the difference of the shares."""
    cells: list[Cell] = []
    for seeds, weights in zip(both, ("SGD", "EMA"), strict=True):
        papers = [_printed(setting, weights, metric, level) for metric in ("epoch", "memorised")]
        cells += [
            Cell.of([seed and seed.epoch for seed in seeds], digits=1, paper=papers[0]),
            Cell.of([seed and seed.clean for seed in seeds], scale=100),
            Cell.of([seed and seed.memorised for seed in seeds], scale=100, paper=papers[1]),
        ]
    differences = [ema.memorised - sgd.memorised if ema and sgd else None for sgd, ema in zip(*both, strict=True)]
    ema, sgd = (_printed(setting, weights, "memorised", level) for weights in ("EMA", "SGD"))
    return [*cells, Cell.of(differences, scale=100, paper=beside.difference(ema, sgd))]


def _printed(setting: Setting, weights: str, metric: str, level: float) -> str:
    there = setting.pair == "cifar100n-resnet34" and level == 0.9
    return beside.text("Appendix E.1", column=weights, metric=metric).rstrip("%") if there else ""
