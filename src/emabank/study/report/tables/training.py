"""Other ways to train: a constant learning rate, step decay, and copying the average back: peak, end, difference."""

from emabank.study.report.curves import copied_back
from emabank.study.report.evidence import Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import OVER_SEEDS, there
from emabank.study.report.tables.peaks import (
    ORACLE,
    Curves,
    average,
    best_average,
    end,
    epochs,
    live,
    minus,
    peak,
    peak_epoch,
    percent,
)
from emabank.study.report.tables.settings import orientation, standing_for, titled

_COLUMNS = ["", "peak, %", "epoch", "end, %", "end − peak"]
_CAPTION = f"Accuracy. {OVER_SEEDS} Peak and epoch are those of each seed's own curve"
_PAIRED = "Rows of differences are paired: of each seed, then mean ± standard deviation, in points."
_BEST = "EMA: the best of all averages at each epoch, averaged batch-norm statistics, as in the paper's figures."

Rows = list[tuple[str, list[Cell]]]


def constant_rate(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """From the epoch that EMA (acc.) chose, a constant learning rate against the cosine that goes on to 0.

    >>> constant_rate(Evidence(), "demo")
    []
    """
    settings = [each for each in standing_for(evidence, scale) if each.arms.get("constant")]
    title, begins = titled("Constant learning rate from the EMA (acc.) epoch on, against the cosine", settings)
    rows: Rows = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        curves = {
            (rate, weights): found
            for rate, arm in (("cosine", "refit"), ("constant", "constant"))
            for weights, found in (("SGD", live(setting, arm, "test")), ("EMA", best_average(setting, arm, "test")))
        }
        mine: Rows = [(f"{begin}{rate}, {weights}", _line(found)) for (rate, weights), found in curves.items()]
        for weights in ("SGD", "EMA"):
            difference = _difference(curves["constant", weights], curves["cosine", weights])
            mine.append((f"{begin}{weights}, constant − cosine", difference))
        _add(rows, breaks, mine)
    return _sheet(
        "constant-lr/peak", title, rows, breaks, study="constant-lr", scale=scale, item="Figure 8", settings=settings,
        notes=("Measured on test, trained on all training images.", _BEST, ORACLE),
    )  # fmt: skip


def step_decay(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """With a learning rate that falls in steps.

    >>> step_decay(Evidence(), "demo")
    []
    """
    settings = [each for each in standing_for(evidence, scale) if each.arms.get("step")]
    title, begins = titled("Step decay of the learning rate", settings)
    rows: Rows = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        sgd, ema = live(setting, "step", "test"), best_average(setting, "step", "test")
        mine: Rows = [(f"{begin}SGD", _line(sgd)), (f"{begin}EMA", _line(ema))]
        _add(rows, breaks, [*mine, (f"{begin}EMA − SGD", _difference(ema, sgd))])
    return _sheet(
        "step-decay/end", title, rows, breaks, study="step-decay", scale=scale, item="Figure 3", settings=settings,
        notes=("Measured on test, trained on all training images.", _BEST, ORACLE),
    )  # fmt: skip


def bootstrap(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """With the average copied into the live weights after each epoch, against the same training without.

    >>> bootstrap(Evidence(), "demo")
    []
    """
    averages = [(each, name) for each in standing_for(evidence, scale) if (name := copied_back(each))]
    settings = [setting for setting, _ in averages]
    title, begins = titled("The average copied back into training after each epoch (bootstrap)", settings)
    rows: Rows = []
    breaks: list[int] = []
    for (setting, copied), begin in zip(averages, begins, strict=True):
        mine: Rows = []
        for weights in ("SGD", "EMA"):
            plain, bootstrapped = (
                live(setting, arm, "val") if weights == "SGD" else average(setting, arm, copied, "val")
                for arm in ("tune", "bootstrap")
            )
            mine += [
                (f"{begin}{weights}", _line(plain, paper=_printed(setting, weights, copied=False))),
                (f"{begin}{weights}, bootstrapped", _line(bootstrapped, paper=_printed(setting, weights, copied=True))),
                (f"{begin}{weights}, difference", _difference(bootstrapped, plain)),
            ]
        _add(rows, breaks, mine)
    return _sheet(
        "bootstrap/accuracy", title, rows, breaks, study="bootstrap", scale=scale, item="Figure 5", settings=settings,
        notes=(
            "Trained on 80%, measured on validation; the paper prints the accuracy of SGD alone, as final.",
            f"EMA: the average that is copied back, {', '.join(dict.fromkeys(name for _, name in averages))} (in the "
            "paper 0.992), averaged batch-norm statistics.",
            "peak: of the validation curve of each seed, as an epoch is chosen.",
        ),
    )  # fmt: skip


def _printed(setting: Setting, weights: str, *, copied: bool) -> str:
    if weights != "SGD" or setting.pair != "cifar100-resnet18":
        return ""
    return beside.text("Appendix C", metric="bootstrapped_accuracy" if copied else "accuracy").rstrip("%")


def _line(curves: Curves, *, paper: str = "") -> list[Cell]:
    top, last = peak(curves), end(curves)
    return [percent(top), epochs(peak_epoch(curves)), percent(last, paper=paper), percent(minus(last, top))]


def _difference(ours: Curves, theirs: Curves) -> list[Cell]:
    tops, ends = minus(peak(ours), peak(theirs)), minus(end(ours), end(theirs))
    return [
        percent(tops),
        epochs(minus(peak_epoch(ours), peak_epoch(theirs))),
        percent(ends),
        percent(minus(ends, tops)),
    ]


def _add(rows: Rows, breaks: list[int], mine: Rows) -> None:
    """The rows of a setting that have anything in them, below a rule."""
    found = [(label, cells) for label, cells in mine if there(cells)]
    if found:
        breaks.append(len(rows))
        rows += found


def _sheet(
    name: str, title: str, rows: Rows, breaks: list[int], *, study: str, scale: Scale, item: str,
    settings: list[Setting], notes: tuple[str, ...],
) -> list[Sheet]:  # fmt: skip
    if not rows:
        return []
    other = orientation(settings) if any(cell.paper for _, cells in rows for cell in cells) else ()
    return [
        Sheet(
            name=name, title=title, columns=_COLUMNS, rows=rows, breaks=[at for at in breaks if at], study=study,
            scale=scale, item=item, notes=(*notes, *other),
            caption=f"{_CAPTION}{' (oracle)' if ORACLE in notes else ''}. {_PAIRED}{all_chosen_on(settings)}",
        )
    ]  # fmt: skip
