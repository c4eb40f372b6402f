"""recalibration.json: accuracy with batch-norm statistics of n images, minus that with those of all training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enough import WITHIN

from drawn.curves import CurvePlot, Curves, Points, curve_plot
from drawn.look import Picture
from drawn.page import Shown, table
from emabank.bench.interleave import Spread

_WORDS = "Accuracy after recalibrating on n images, minus that after recalibrating on all of them, against n"


def show(result: Mapping[str, Any]) -> Shown:
    """A column of panels without augmentation and one with, a line for each moment of the training."""
    curves = result["curves"]
    found = {each["augmented"]: each["both"] for each in result["enough"]}
    panels = [
        _panel([curve for curve in curves if (curve["stage"], curve["augmented"]) == key], found.get(key[1]))
        for key in dict.fromkeys((curve["stage"], augmented) for curve in curves for augmented in sorted(found))
    ]
    plot = CurvePlot(tuple(panels), columns=len(found), share_y=True)
    total = f"{max(point['images'] for curve in curves for point in curve['points']):,}"
    words = [_enough(augmented, images, total) for augmented, images in sorted(found.items())]
    return Shown({"recalibration": (Picture(plot, curve_plot), _WORDS)}, [_table(curves), "\n".join(words)])


def _panel(curves: Sequence[Mapping[str, Any]], chosen: int | None) -> Curves:
    series = [
        Points(
            curve["weights"],
            tuple(point["images"] for point in curve["points"]),
            tuple(_points(point["accuracy"]) for point in curve["points"]),
        )
        for curve in curves
    ]
    return Curves(
        title=f"{curves[0]['stage']}, {_words(curves[0]['augmented'])}",
        x_label="images that the statistics are of",
        y_label="points of accuracy, minus all images'",
        series=tuple(series),
        within=100 * WITHIN,
        chosen=None if chosen is None else (chosen, f"enough: {chosen:,}"),
        log=True,
        connected=True,
    )


def _points(share: Mapping[str, float]) -> Spread:
    """In points, and with the mean over the draws in the middle, since that is what is judged."""
    return Spread(*(100 * share[key] for key in ("mean", "low", "high", "mean")))


def _words(augmented: bool) -> str:
    return "with crops and flips" if augmented else "images as they are"


def _table(curves: Sequence[Mapping[str, Any]]) -> str:
    sizes = sorted({point["images"] for curve in curves for point in curve["points"]})[::2]
    rows: list[list[str]] = []
    for curve in curves:
        means = {point["images"]: 100 * point["accuracy"]["mean"] for point in curve["points"]}
        rows.append(
            [
                f"{curve['weights']}, {curve['stage']}",
                _words(curve["augmented"]),
                f"{100 * curve['accuracy']:.2f} %",
                f"{100 * curve['own']['accuracy']:+.2f}",
                *(f"{means[size]:+.2f}" if size in means else "" for size in sizes),
            ]
        )
    header = ["average", "recalibrated on", "accuracy, all images", "points without", *(f"{n:,} images" for n in sizes)]
    return table(header, rows)


def _enough(augmented: bool, images: int | None, total: str) -> str:
    many = f"all {total} images are needed" if images is None else f"{images:,} images are enough"
    return (
        f"- {_words(augmented)}: {many} for every average to be within {100 * WITHIN:g} points, and every draw within "
        "one standard error."
    )
