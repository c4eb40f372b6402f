"""Reliability diagrams of the live weights and the slowest average, with and without temperature scaling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from emabank.study.config import Keep
from emabank.study.metrics.calibration import (
    ReliabilityCurve,
    apply_temperature,
    default_bins,
    ece,
    fit_temperature,
    reliability_curve,
)
from emabank.study.metrics.classification import Floats, softmax
from emabank.study.report.evidence import LIVE, Evidence, Setting
from emabank.study.report.figures.captions import figure_of
from emabank.study.report.figures.lines import percent_of
from emabank.study.report.pairs import CLEAN, Scale
from emabank.study.report.panel import Figure, Line, Panel

COLUMNS = {"SGD": "accuracy", "slowest (loss)": "loss"}
"""Which columns of the tuning tables are shown, and by which criterion their weights were kept."""
_MOST_BINS = 15  # so that they can be told apart, as in Guo et al. 2017; the ECE has bins of its own


class Reliability(NamedTuple):
    """One diagram's content: the curve of every seed, and the seeds' ECE."""

    curves: Sequence[ReliabilityCurve]
    ece: Sequence[float]


def reliability(evidence: Evidence, scale: Scale) -> list[Figure]:
    """Four diagrams for each of the pairs of the paper's calibration table.

    >>> reliability(Evidence(), "demo")
    []
    """
    settings = [setting for pair in CLEAN for setting in evidence.of(pair, scale=scale)]
    panels: list[Panel] = []
    notes: list[str] = []
    shown: list[Setting] = []
    for setting in settings:
        try:
            found = _panels(setting)
        except (OSError, ValueError) as error:  # damaged predictions, or such of weights that are not finite
            notes.append(f"{setting.title} is left out: {error}.")
            continue
        panels += found
        shown += [setting] * bool(found)
    return figure_of(
        "calibration/reliability",
        shown,
        panels,
        scale=scale,
        title="Confidence against accuracy on the test images",
        caption="Networks trained on 80% of the training images: the live weights at their best validation epoch, and "
        "the slowest average at the epoch of lowest loss, statistics recomputed. TS: with temperature scaling, the "
        f"temperature fitted on the other 20%. Bins of equal mass, {_MOST_BINS} at most; a bar's borders are halfway "
        "between mean confidences. Points: mean of the seeds, bin by bin; the band is one standard deviation over "
        "them. Below the diagonal a network is too sure of itself. The ECE is computed with the bins of the tables.",
        columns=4,
        notes=notes,
    )


def _panels(setting: Setting) -> list[Panel]:
    panels: list[Panel] = []
    for column in COLUMNS:
        for scaled in (False, True):
            found = reliability_of(setting, column, scaled=scaled)
            if found is None:
                return []
            panels.append(_panel(setting, column, found, scaled=scaled))
    return panels


def reliability_of(setting: Setting, column: str, *, scaled: bool) -> Reliability | None:
    """The diagram of a column of the tuning tables on the test images; None where a seed's predictions are not there.

    `scaled`: with the temperature that was fitted on the validation images.
    """
    kept, runs = _kept(setting, column), setting.arms.get("tune", ())
    if not runs or len(kept) != len(runs):
        return None
    curves: list[ReliabilityCurve] = []
    errors: list[float] = []
    for run, name in zip(runs, kept, strict=True):
        predictions = run.predictions(name)
        if "test" not in predictions or (scaled and "val" not in predictions):
            return None
        logits, labels = predictions["test"]
        if scaled:
            logits = apply_temperature(logits, fit_temperature(*predictions["val"]).temperature)
        probabilities = softmax(logits)
        bins = min(_MOST_BINS, default_bins(len(labels)), len(labels))
        curves.append(reliability_curve(probabilities, labels, bins=bins))
        errors.append(ece(probabilities, labels))
    return Reliability(curves, errors) if len({len(curve.samples) for curve in curves}) == 1 else None


def _kept(setting: Setting, column: str) -> list[str]:
    """Under which name each seed's tuning run keeps the weights of a column."""
    found: Any = setting.column(column, trained_on="80%", split="test")
    if found is None:
        return []
    of_average = "recomputed" if setting.has_batchnorm else "averaged"
    return [
        Keep(
            weights=weights,
            epoch=epoch,
            batchnorm="own" if weights == LIVE else of_average,
            selected_by=COLUMNS[column],  # type: ignore[arg-type]
        ).name
        for weights, epoch in zip(found["weights"], found["epochs"], strict=True)
    ]


def _panel(setting: Setting, column: str, found: Reliability, *, scaled: bool) -> Panel:
    confidence = 100 * np.stack([curve.confidence for curve in found.curves])
    accuracy = 100 * np.stack([curve.accuracy for curve in found.curves])
    is_live = column == "SGD"
    points = Line(
        label="live weights (SGD)" if is_live else "slowest average, lowest loss",
        x=confidence.mean(axis=0),
        y=accuracy.mean(axis=0),
        std=accuracy.std(axis=0, ddof=1) if len(accuracy) > 1 else None,
        n=len(accuracy),
        kind="live" if is_live else "average",
        order=0 if is_live else len(setting.averages) - 1,
    )
    ends = np.array([0.0, 100.0])
    ideal = Line(label="perfectly calibrated", x=ends, y=ends, kind="ideal", dashed=True)
    words = f"{column}{', TS' if scaled else ''}"
    return Panel(
        title=f"{setting.title}: {words}: ECE {percent_of(found.ece)}",
        x_label="confidence, %",
        y_label="accuracy, %",
        lines=(points, ideal),
        x_limits=(0, 100),
        y_limits=(0, 100),
        bars=bars_of(points.x, points.y),
    )


def bars_of(confidence: Floats, accuracy: Floats) -> list[tuple[float, float, float]]:
    """A bar for each bin: its borders halfway between mean confidences, the outermost as far from them as the inner.

    >>> bars_of(np.array([40.0, 60.0, 90.0]), np.array([30.0, 50.0, 80.0]))
    [(30.0, 20.0, 30.0), (50.0, 25.0, 50.0), (75.0, 25.0, 80.0)]
    """
    if len(confidence) == 1:
        return [(0.0, 100.0, float(accuracy[0]))]
    inner = (confidence[:-1] + confidence[1:]) / 2
    borders = np.concatenate([[2 * confidence[0] - inner[0]], inner, [2 * confidence[-1] - inner[-1]]]).clip(0, 100)
    return list(zip(borders[:-1].tolist(), np.diff(borders).tolist(), accuracy.tolist(), strict=True))
