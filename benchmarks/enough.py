"""From recalibrations on more and more images to curves, and to the number of images that is enough: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from emabank.bench.cases import Verdict
from emabank.bench.interleave import Spread, spread
from emabank.bench.tables import table

WITHIN = 0.001  # of accuracy: 0.1 points


class Setting(NamedTuple):
    """One recalibration: of which average, on how many images, with augmentation or not, and which draw of them."""

    stage: str
    weights: str
    augmented: bool
    images: int
    draw: int


class Score(NamedTuple):
    """What the test images say."""

    accuracy: float
    loss: float


# Curves ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """All draws of one number of images, as differences from what all training images give.

    Args:
        accuracy, loss: over the draws.
        worst: the lowest accuracy among them.
    """

    images: int
    draws: int
    accuracy: Spread
    worst: float
    loss: Spread


@dataclass(frozen=True)
class Curve:
    """One average at one moment, recalibrated with augmentation or without.

    Args:
        accuracy, loss: with all training images, without augmentation: what the points are differences from.
        standard_error: of that accuracy, binomial.
        own: the same differences for the averaged statistics, without recalibration; None where they are not known.
    """

    stage: str
    weights: str
    augmented: bool
    accuracy: float
    loss: float
    standard_error: float
    own: Score | None
    points: Sequence[Point]


def curves_of(found: dict[Setting, Score], *, total: int, tested: int) -> list[Curve]:
    """The curves out of all that was measured."""
    kinds = dict.fromkeys((s.stage, s.weights, s.augmented) for s in found if s.images)
    curves: list[Curve] = []
    for stage, weights, augmented in kinds:
        full = found[Setting(stage, weights, False, total, 0)]
        own = found.get(Setting(stage, weights, False, 0, 0))
        error = math.sqrt(full.accuracy * (1 - full.accuracy) / tested)
        difference = None if own is None else Score(own.accuracy - full.accuracy, own.loss - full.loss)
        points = [
            point_of(images, [found[s] for s in found if s[:4] == (stage, weights, augmented, images)], full)
            for images in sorted({s.images for s in found if s[:3] == (stage, weights, augmented) and s.images})
        ]
        curves.append(Curve(stage, weights, augmented, full.accuracy, full.loss, error, difference, points))
    return curves


def point_of(images: int, scores: Sequence[Score], full: Score) -> Point:
    accuracies = [score.accuracy - full.accuracy for score in scores]
    losses = [score.loss - full.loss for score in scores]
    return Point(images, len(scores), spread(accuracies), min(accuracies), spread(losses))


@dataclass(frozen=True)
class Enough:
    """The fewest images from which on every average is as good as with all of them; None: all are needed.

    Args:
        mean: where no mean over the draws is more than 0.1 points of accuracy lower.
        worst: where no draw is lower by more than one binomial standard error.
        both: where both hold: a candidate for a default.
    """

    augmented: bool
    mean: int | None
    worst: int | None
    both: int | None


def enough(curves: Sequence[Curve], *, augmented: bool) -> Enough:
    """Over all averages and moments; a larger number must do as well, or a smaller one did by chance."""
    chosen = [curve for curve in curves if curve.augmented == augmented]
    sizes = sorted({point.images for curve in chosen for point in curve.points})[:-1]  # the last is all of them
    points = {n: [(c, p) for c in chosen for p in c.points if p.images == n] for n in sizes}
    mean = {n for n in sizes if all(p.accuracy.mean >= -WITHIN for _, p in points[n])}
    worst = {n for n in sizes if all(p.worst >= -c.standard_error for c, p in points[n])}

    def first(good: set[int]) -> int | None:
        return next((n for n in sizes if all(larger in good for larger in sizes if larger >= n)), None)

    return Enough(augmented, first(mean), first(worst), first(mean & worst))


# Showing --------------------------------------------------------------------------------------------------------------


def curve_table(curve: Curve) -> str:
    """One curve: accuracy in points and loss, each minus what all training images give."""
    heading = (
        f"{curve.weights}, {curve.stage}, {'with' if curve.augmented else 'without'} augmentation: with all training "
        f"images accuracy {100 * curve.accuracy:.2f} % (standard error {100 * curve.standard_error:.2f}), loss "
        f"{curve.loss:.4f}"
    )
    if curve.own is not None:
        heading += f"; without recalibration {100 * curve.own.accuracy:+.2f} points, loss {curve.own.loss:+.4f}"
    rows = [
        [
            f"{point.images:,}",
            str(point.draws),
            f"{100 * point.accuracy.mean:+.3f}",
            f"{100 * point.accuracy.low:+.2f} to {100 * point.accuracy.high:+.2f}",
            f"{100 * point.worst:+.2f}",
            f"{point.loss.mean:+.4f}",
            f"{point.loss.low:+.4f} to {point.loss.high:+.4f}",
        ]
        for point in curve.points
    ]
    header = ["images", "draws", "points: mean", "10–90 %", "worst", "loss: mean", "10–90 %"]
    return heading + "\n" + table(header, rows)


def enough_text(found: Enough, total: int) -> str:
    """What the curves come to."""
    mean, worst, both = (f"all {total:,}" if n is None else f"{n:,}" for n in (found.mean, found.worst, found.both))
    return (
        f"{'with' if found.augmented else 'without'} augmentation, for every average: within 0.1 points from {mean} "
        f"images on, each draw within one standard error from {worst} on; both from {both} on"
    )


def judge(found: Sequence[Enough], total: int) -> Verdict:
    """Whether there is a default to choose at all, without augmentation."""
    plain = next(each for each in found if not each.augmented)
    what = f"all {total:,} are needed" if plain.both is None else f"{plain.both:,} images of {total:,}"
    return Verdict("fewer images than all give the same accuracy", plain.both is not None, what)
