"""Label noise: our rows, among published methods where these compare, and how much is memorised at what accuracy."""

from collections.abc import Mapping, Sequence

from emabank.study.report.curves import OnTrain, Reached, on_train, when_reached
from emabank.study.report.evidence import LIVE, Evidence, Setting, all_chosen_on, compares
from emabank.study.report.pairs import NOISY, PAIRS, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import MISSING, OVER_SEEDS, REFIT, SLOWEST, cell, there
from emabank.study.report.tables.peaks import chosen_epochs
from emabank.study.report.tables.settings import labels, standing_for, titled

STUDY = "label-noise"
OURS = {"SGD (best)": "SGD (best)", "SGD": "SGD (last)", "slowest (acc.)": "EMA (acc.)"}
"""Columns of the refit tables that stand in the leaderboard, with their titles; the fair baseline first."""
LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Accuracies on the training images with right labels, at which memorisation is compared; the paper's is 90%."""

Row = tuple[str, list[Cell]]


# The leaderboard ------------------------------------------------------------------------------------------------------
COLUMNS = NOISY[::-1]  # as the paper's table has them


def leaderboard(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """Ours among the published methods, by accuracy, where it is the same data and network at the paper's scale.

    Other data have a table of their own, without the published methods: nothing in it could be compared with them.

    >>> leaderboard(Evidence(), "demo")
    []
    """
    settings = standing_for(evidence, scale, COLUMNS)
    same = [scale == "paper" and compares(setting) for setting in settings]
    return [
        *_among_published([setting for setting, is_same in zip(settings, same, strict=True) if is_same]),
        *_apart([setting for setting, is_same in zip(settings, same, strict=True) if not is_same]),
    ]


def _among_published(settings: Sequence[Setting]) -> list[Sheet]:
    ours = _rows(settings)
    if not ours:
        return []
    published: list[Row] = [
        (f"{row}, paper" if any(value.ours for value in values) else row, _by_pair({v.pair: v.text for v in values}))
        for row, values in beside.rows("Table 2").items()
    ]
    return [
        Sheet(
            name="label-noise/leaderboard", title=_TITLE,
            columns=["method", *(PAIRS[pair].split(",")[0] + ", %" for pair in COLUMNS)],
            rows=_sorted([*published, *ours]), study=STUDY, scale="paper", item="Table 2",
            caption=f"Published: as the paper quotes them, a selection, without n. Ours: {OVER_SEEDS.lower()}"
            f"{all_chosen_on(settings)}",
            notes=_NOTES,
        )
    ]  # fmt: skip


def _apart(settings: Sequence[Setting]) -> list[Sheet]:
    """A column for each setting, under its own name."""
    titles = [setting.title for setting in settings]
    names = [each.title if titles.count(each.title) == 1 else f"{each.title}, {each.protocol}" for each in settings]
    rows = [(title, [cell(each, column, "accuracy", REFIT) for each in settings]) for column, title in OURS.items()]
    rows = [(title, cells) for title, cells in rows if there(cells)]
    if not rows:
        return []
    return [
        Sheet(
            name="label-noise/test-accuracy", title=_TITLE, columns=["weights", *(f"{name}, %" for name in names)],
            rows=rows, study=STUDY, scale=settings[0].scale, caption=f"{OVER_SEEDS}{all_chosen_on(settings)}",
            notes=_NOTES,
        )
    ]  # fmt: skip


_TITLE = "Accuracy on clean test images after training with wrong labels"
_NOTES = (
    f"EMA (acc.): {SLOWEST} by the best accuracy. SGD (best): the live weights at the epoch that validation chose for "
    "them. SGD (last): at the last epoch.",
)


def _by_pair(texts: Mapping[str, str]) -> list[Cell]:
    return [Cell(text=texts[pair]) if pair in texts else MISSING for pair in COLUMNS]


def _rows(settings: Sequence[Setting]) -> list[Row]:
    """Our rows: of both data sets together where there is one setting for each, else each setting by itself."""
    together = len({setting.pair for setting in settings}) == len(settings)
    named = [(setting.pair, setting) for setting in settings]
    units = [dict(named)] if together and named else [{pair: setting} for pair, setting in named]
    titles = [] if together else labels(settings)
    made: list[Row] = []
    for place, unit in enumerate(units):
        for column, short in OURS.items():
            cells = [cell(unit[pair], column, "accuracy", REFIT) if pair in unit else MISSING for pair in COLUMNS]
            if there(cells):
                made.append(
                    (f"{short}, ours" if together else f"{titles[place]}: {short}", [_bold(each) for each in cells])
                )
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
            f"The difference is paired: of each seed.{all_chosen_on(settings)}",
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
