"""Windows that were chosen after the training, each at its best stopping epoch, beside averages that were kept."""

from collections.abc import Sequence

import numpy as np

from emabank.study.report.evidence import Curve, Evidence, Setting, all_chosen_on
from emabank.study.report.pairs import PAIRS, Scale
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables.measures import OVER_SEEDS, with_best
from emabank.study.report.tables.settings import standing_for, titled


def windows(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """A row for each window.

    >>> windows(Evidence(), "demo")
    []
    """
    found = standing_for(evidence, scale, (*PAIRS, *{s.pair: None for s in evidence.settings if s.pair not in PAIRS}))
    settings = [setting for setting in found if setting.afterwards()]
    title, begins = titled("Windows chosen after the training, at their best stopping epoch", settings)
    rows: list[tuple[str, list[Cell]]] = []
    breaks: list[int] = []
    for setting, begin in zip(settings, begins, strict=True):
        breaks += [len(rows)] if rows else []
        rows += [(begin + name.removeprefix("ema-"), cells) for name, cells in _lines(setting)]
    if not rows:
        return []
    return [
        Sheet(
            name="posthoc/windows", title=title,
            columns=["window", "epoch", "afterwards, %", "kept live, %", "difference, points", "profile error",
                     "weights off, %"],
            rows=rows, breaks=breaks, study="posthoc", scale=scale,
            caption=f"Trained on 80%, measured on validation. {OVER_SEEDS} The difference is paired: of each seed. "
            f"Bold: the best of a column.{all_chosen_on(settings)}",
            notes=(
                "window: the decay per update; a percentage is the half-life as a share of the run. A dash: nobody "
                "kept that average.",
                "afterwards: put together from snapshots, at the stopping epoch at which the mean over the seeds is "
                "best on validation. kept live: the same average, kept beside the training, at that epoch.",
                "profile error: how far the weights of the samples are from those in the true average, at that epoch. "
                "weights off: the distance of the network's weights from those of the average that was kept, over "
                "their length, at the end of the run.",
            ),
        )
    ]  # fmt: skip


def _lines(setting: Setting) -> list[tuple[str, list[Cell]]]:
    made, errors, off = (setting.afterwards(metric) for metric in ("accuracy", "profile_error", "weight_distance"))
    statistics = "recomputed" if setting.has_batchnorm else "averaged"
    lines: list[list[Cell]] = []
    for name, curves in made.items():
        at = int(np.nanargmax(curves.mean(axis=0)))
        kept = setting.curves("posthoc", Curve(name, statistics, "val", "accuracy"))
        there = kept is not None and kept.shape == curves.shape
        lines.append(
            [
                Cell(text=str(at + 1)),
                _cell(curves[:, at], scale=100),
                _cell(kept[:, at] if kept is not None and there else (), scale=100),
                _cell(curves[:, at] - kept[:, at] if kept is not None and there else (), scale=100),
                _cell(errors[name][:, at] if name in errors else (), digits=4),
                _cell(off[name][:, -1] if name in off else (), scale=100, digits=3),
            ]
        )
    columns = [list(column) for column in zip(*lines, strict=True)]
    columns[1], columns[2] = (with_best(column, range(len(lines))) for column in columns[1:3])
    return list(zip(made, map(list, zip(*columns, strict=True)), strict=True))


def _cell(values: Sequence[float] | np.ndarray, *, scale: float = 1.0, digits: int = 2) -> Cell:
    return Cell.of([float(value) for value in values], scale=scale, digits=digits)
