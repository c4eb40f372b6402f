"""The sampling period: equal horizons as decays, accuracy by period, and what averages cost in time and memory."""

import math

from emabank.study.report.evidence import Evidence, Overhead, Setting, all_chosen_on
from emabank.study.report.pairs import Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.measures import OVER_SEEDS, there
from emabank.study.report.tables.peaks import (
    ORACLE,
    at,
    average,
    best_average,
    chosen_epochs,
    end,
    minus,
    peak,
    percent,
)
from emabank.study.report.tables.settings import standing_for, titled

STUDY = "sampling-period"
EVERY = "every "
PERIODS = (1, 4, 16, 64)
PAPER_PERIOD = 16
_MIB = 2**20


def equivalence() -> list[Sheet]:
    """The paper's decays as decays per update at other periods: the same horizon in steps.

    >>> [cell.text for cell in equivalence()[0].rows[0][1]][:3]
    ['0.999875', '0.9995', '0.998']
    """
    rows: list[tuple[str, list[Cell]]] = []
    for decay in beside.rows("Table 23"):
        alpha = float(decay)
        cells = [
            Cell(
                text=f"{alpha ** (period / PAPER_PERIOD):.6g}",
                paper=beside.text("Table 23", row=decay, column=f"T={period}"),
            )
            for period in PERIODS
        ]
        rows.append((decay, [*cells, Cell(text=f"{PAPER_PERIOD * math.log(0.5) / math.log(alpha):.1f}")]))
    return [
        Sheet(
            name="sampling-period/equivalence", title="Decay per update for the same horizon, by sampling period T",
            columns=["decay at T = 16", *(f"T = {period}" for period in PERIODS), "half-life, steps"], rows=rows,
            study=STUDY, item="Table 23",
            caption="Computed: the decay α at T = 16 is α^(T/16) at T. Arithmetic, not measured. The paper rounds, and "
            "has T = 1 and T = 16.",
        )
    ]  # fmt: skip


# Accuracy by period ---------------------------------------------------------------------------------------------------


def accuracy(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """Averages with equal horizons, sampled every T steps of the same training.

    >>> accuracy(Evidence(), "demo")
    []
    """
    settings = [setting for setting in standing_for(evidence, scale) if len(periods(setting)) > 1]
    title, begins = titled("Test accuracy of averages by sampling period, equal horizons", settings)
    rows: list[tuple[str, list[Cell]]] = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        first = periods(setting)[0]
        found = [(f"{begin}T = {period}", _by_period(setting, period, first)) for period in periods(setting)]
        if any(there(cells) for _, cells in found):
            breaks += [len(rows)] if rows else []
            rows += found
    if not rows:
        return []
    return [
        Sheet(
            name="sampling-period/accuracy", title=title,
            columns=["sampling period", "peak, %", "chosen, %", "end, %", "peak, %", "peak", "chosen"],
            groups=[("", 1), ("best average", 3), ("slowest average", 1), ("best, minus the shortest T", 2)],
            rows=rows, breaks=breaks, study=STUDY, scale=scale,
            caption=f"Trained on all training images, no warm-up of the decay, averaged batch-norm statistics. "
            f"{OVER_SEEDS} The differences, in points, are paired: of each seed.{all_chosen_on(settings)}",
            notes=(
                "best average: the best of all at each epoch. chosen: at the epoch that each seed chose on validation "
                "for EMA (acc.).",
                f"peak, {ORACLE}",
                "The paper has T = 16 in runs of tens of thousands of steps and says that T = 1 gives the same; in a "
                "short run the third period stands for its 16.",
            ),
        )
    ]  # fmt: skip


def periods(setting: Setting) -> list[int]:
    """The sampling periods that were tried in a setting, from short to long.

    >>> periods(Setting(scale="demo", pair="", title="", dataset="", network="", protocol="", averages=(), choices=[],
    ...                 has_batchnorm=True, tables=[], arms={"every 16": (), "every 4": (), "tune": ()}))
    [4, 16]
    """
    return sorted(int(arm.removeprefix(EVERY)) for arm in setting.arms if arm.startswith(EVERY))


def _by_period(setting: Setting, period: int, first: int) -> list[Cell]:
    chosen = chosen_epochs(setting)
    best, shortest = (best_average(setting, f"{EVERY}{each}", "test") for each in (period, first))
    slowest = average(setting, f"{EVERY}{period}", setting.slowest, "test") if setting.averages else {}
    same = [Cell(text="–")] * 2
    differences = [percent(minus(peak(best), peak(shortest))), percent(minus(at(best, chosen), at(shortest, chosen)))]
    return [
        percent(peak(best)),
        percent(at(best, chosen)),
        percent(end(best)),
        percent(peak(slowest)),
        *(same if period == first else differences),
    ]


# Time and memory ------------------------------------------------------------------------------------------------------


def overhead(evidence: Evidence) -> list[Sheet]:
    """What the averages of each network cost beside its training step; the paper's example in the last line.

    >>> overhead(Evidence())
    []
    """
    if not evidence.overheads:
        return []
    parameters, memory = (beside.text("Section 3.1", metric=metric) for metric in ("parameters", "megabytes"))
    example = [Cell(text=parameters), Cell(text="1"), *[Cell(text="–")] * 5]
    example[3] = Cell(text=f"{_number(memory):.2f}") if memory else example[3]
    return [
        Sheet(
            name="sampling-period/overhead", title="Time and memory of the averages",
            columns=["network", "parameters", "averages", "every, steps", "MiB an average", "update, ms", "step, ms",
                     "share of a step, %"],
            rows=[*(_costs(each) for each in evidence.overheads), ("ResNet-50, paper", example)],
            breaks=[len(evidence.overheads)], study=STUDY, item="Section 3.1",
            caption="Times: mean ± standard deviation over repetitions of one interleaved run on this machine; sizes "
            "are counted, not measured.",
            notes=(
                "update: one update of all averages. step: one training step without averages. share: the time of an "
                "update divided by that of all steps from one to the next, in each repetition.",
                f"The paper (Section 3.1) says that a ResNet-50 with {parameters} parameters needs {memory}: float32, "
                "and a MB of 2^20 bytes. It gives no times.",
            ),
        )
    ]  # fmt: skip


def _costs(found: Overhead) -> tuple[str, list[Cell]]:
    updates, steps = found.update_seconds, found.step_seconds
    paired = zip(updates, steps, strict=True) if len(updates) == len(steps) else ()
    shares = [update / (found.every * step) if step else None for update, step in paired]
    return found.network, [
        Cell(text=f"{found.parameters:,}"),
        Cell(text=str(found.averages)),
        Cell(text=str(found.every)),
        Cell(text=f"{found.bytes / max(found.averages, 1) / _MIB:.2f}"),
        Cell.of(updates, scale=1000, digits=3),
        Cell.of(steps, scale=1000, digits=2),
        Cell.of(shares, scale=100, digits=3),
    ]


def _number(text: str) -> float:
    return float(text.split()[0])
