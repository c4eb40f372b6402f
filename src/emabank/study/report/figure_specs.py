"""Every figure of the report: its settings, its lines and its caption."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from emabank.study.metrics import (
    Floats,
    ReliabilityCurve,
    apply_temperature,
    default_bins,
    ece,
    fit_temperature,
    reliability_curve,
    softmax,
)
from emabank.study.report import series
from emabank.study.report.figures import (
    BEST_ON_TEST,
    ORACLE,
    Figure,
    FigureSpec,
    Line,
    Mark,
    Panel,
    average_note,
    complete,
    drawable,
    epochs_text,
    focus,
    line,
    line_of,
    mark,
    mark_at,
    mark_of,
    percent_text,
    training_panel,
)
from emabank.study.report.results import LIVE, Results, Setting
from emabank.study.report.series import REACHED, REFIT, TUNED_ON_TEST, OnTrain, average_of, best_of, sgd
from emabank.study.report.tables import HELD_FROM, settings_for
from emabank.study.studies.scales import CLEAN, CONSTANT, MAIN, NOISY, Scale

ITEMS = {
    "cifar100-resnet18": "Figure 1a",
    "cifar10n-resnet34": "Figure 4a",
    "cifar10-resnet18": "Figure 4b",
    "cifar100-vgg16": "Figure 4c",
    "cifar100-wrn-28-10": "Figure 4d",
    "tiny-imagenet-resnet18": "Figure 4e",
}
STATISTICS = {
    "averaged": "statistics averaged with the weights",
    "recomputed": "statistics recomputed on the training images",
}
ON_VALIDATION = "validation accuracy, %"


def make_figures(results: Results) -> list[Figure]:
    """All figures that the results allow, the largest scale first."""
    return [figure for scale in results.scales for make in _FIGURES for figure in make(results, scale)]


# Live weights and the best average ------------------------------------------------------------------------------------


def _live_and_best(setting: Setting, variant: str, *, prefix: str = "", **look: Any) -> list[Line]:
    """The two lines of the paper's Figure 1a for a variant with test curves; none if either is missing."""
    return complete(
        line_of(setting, variant, sgd("test"), f"{prefix}live weights", kind="live", **look),
        line_of(setting, variant, best_of(setting, "test"), f"{prefix}{BEST_ON_TEST}", kind="best", **look),
    )


def _dynamics_panels(setting: Setting) -> list[Panel]:
    return training_panel(setting, _live_and_best(setting, "refit"), "refit", marks=_chosen_mark(setting))


def _chosen_mark(setting: Setting) -> list[Mark]:
    """The epoch that validation chose and the refits' test accuracy there: what one gets without the oracle."""
    column = series.column(setting, "EMA (acc.)", REFIT)
    if column is None:
        return []
    return mark_of(column.epochs, column.values.get("accuracy", ()), f"{column.title}, chosen on validation")


def dynamics(results: Results, scale: Scale) -> list[Figure]:
    """Live weights and the best average through training, with the learning rate: a figure per pair."""
    specs = [
        FigureSpec(
            name=f"dynamics/{pair}", title="Live weights and the best average through training", pairs=[pair],
            panels_of=_dynamics_panels, item=ITEMS.get(pair, ""), averaged=True, cut=True, curves=True,
            caption="Cosine schedule. The point marks what validation chose, measured on all test images.",
        )
        for pair in dict.fromkeys(setting.pair for setting in settings_for(results, scale))
    ]  # fmt: skip
    return [figure for spec in specs for figure in spec(results, scale)]


def _early_panels(setting: Setting) -> list[Panel]:
    runs = setting.variants.get("refit", ())
    until = series.first_quarter(runs[0].epochs) if runs else None
    lines = _live_and_best(setting, "refit", until=until)
    return [Panel(title=setting.title, lines=lines)] if lines else []


def _constant_panels(setting: Setting) -> list[Panel]:
    cosine = _live_and_best(setting, "refit", prefix="cosine: ")
    constant = _live_and_best(setting, "constant", prefix="constant: ", dashed=True)
    if not cosine or not constant:
        return []
    lines = [*cosine, *constant]
    (panel,) = training_panel(setting, lines, "constant", marks=_fork(setting, cosine[1]), y_limits=focus(lines))
    return [replace(panel, rate=panel.rate and replace(panel.rate, label="constant rate"))]


def _fork(setting: Setting, best: Line) -> list[Mark]:
    """The epoch at which the two schedules part, marked on the best average, which both share up to there."""
    epochs = [run.constant_from for run in setting.variants["constant"] if run.constant_from is not None]
    if not epochs or not all(1 <= epoch <= len(best.y) for epoch in epochs):
        return []
    mean = float(np.mean(epochs))
    return [(mean, float(np.interp(mean, best.x, best.y)), f"constant rate from here on ({epochs_text(epochs)})")]


def _bootstrap_panels(setting: Setting) -> list[Panel]:
    copied = series.copied_back(setting) or ""  # "" has no curve
    lines = [
        line_of(setting, variant, curve, f"{words}: {label}", kind=kind, dashed=variant == "bootstrap")
        for variant, words in (("tune", "plain"), ("bootstrap", "bootstrapped"))
        for label, curve, kind in (
            ("live weights", sgd("val"), "live"),
            # Not in its shade among the five averages, which is as light as the live weights' grey.
            (copied, average_of(copied, "val"), "best"),
        )
    ]
    return training_panel(setting, complete(*lines), "tune", y_label=ON_VALIDATION)


EARLY = FigureSpec(
    name="dynamics/early", title="Early training: the first quarter enlarged", panels_of=_early_panels, columns=2,
    averaged=True, curves=True,
)  # fmt: skip
STEP_DECAY = FigureSpec(
    name="step-decay/accuracy", title="Step decay of the learning rate", item="Figure 3", pairs=[MAIN],
    panels_of=lambda setting: training_panel(setting, _live_and_best(setting, "step"), "step"),
    caption="The rate falls at three milestones instead of along a cosine.", averaged=True, cut=True, curves=True,
)  # fmt: skip
CONSTANT_RATE = FigureSpec(
    name="constant-lr/accuracy", title="Wrong labels: the learning rate held constant, against the cosine",
    item="Figure 8", pairs=[CONSTANT], panels_of=_constant_panels, averaged=True, cut=True, curves=True,
    caption=f"{HELD_FROM} Until then both are one run.",
)  # fmt: skip
BOOTSTRAP = FigureSpec(
    name="bootstrap/accuracy", title="The average copied back into training once per epoch", item="Figure 5",
    pairs=[MAIN], panels_of=_bootstrap_panels, averaged=True, cut=True,
    caption="Trained on 80% of the training images, measured on the rest. Bootstrapped: after each epoch the average "
    "becomes the live weights.",
    about=lambda settings: " ".join(dict.fromkeys(average_note(series.copied_back(setting) or "")
                                                  for setting in settings)),
)  # fmt: skip


# Several averages, rates or periods -----------------------------------------------------------------------------------


def _averages(setting: Setting, batchnorm: str) -> dict[str, Floats]:
    """The test accuracy of every average in the refits, [seeds, epochs]; empty unless all averages were measured."""
    stacks = {
        name: drawable(setting, "refit", average_of(name, "test", batchnorm=batchnorm)) for name in setting.averages
    }
    known = {name: curves for name, curves in stacks.items() if curves is not None}
    return known if len(known) == len(stacks) else {}


def _both_statistics(setting: Setting) -> dict[str, dict[str, Floats]]:
    """Every average with averaged and with recomputed statistics; empty unless both were measured at every epoch."""
    both = {words: _averages(setting, kind) for kind, words in STATISTICS.items()}
    return both if all(both.values()) else {}


def _decay_panels(setting: Setting) -> list[Panel]:
    # The live weights' grey is as light as the second shade of the averages: dashes distinguish them without hue.
    first = complete(line_of(setting, "refit", sgd("test"), "live weights", kind="live", dashed=True))
    lines = {
        words: [*first, *(line(curves, name, kind="average", order=order)
                          for order, (name, curves) in enumerate(averages.items()))]
        for words, averages in _both_statistics(setting).items()
    }  # fmt: skip
    if not lines:
        return []
    # Both panels have the same limits and show everything: the point is that slow averages fail early.
    curves = [drawn.curves for panel in lines.values() for drawn in panel]
    low, high = min(float(np.nanmin(curve)) for curve in curves), max(float(np.nanmax(curve)) for curve in curves)
    limits = low - 0.05 * (high - low), high + 0.05 * (high - low)
    return [
        panel
        for words, own in lines.items()
        for panel in training_panel(setting, own, "refit", title=f"{setting.title}: {words}", y_limits=limits)
    ]


def _slowest_note(settings: Sequence[Setting]) -> str:
    return average_note(settings[0].slowest)


def _rate_panels(setting: Setting, tried: Sequence[float]) -> list[Panel]:
    """One panel for the live weights and one for the best average, with a curve per rate."""
    shades = 5
    # A rate has the same shade in all panels; with more rates than shades, each setting has legend entries of its own.
    order, words = (tried, "") if len(tried) <= shades else (list(setting.rates()), f"{setting.title}: ")
    lines: dict[str, list[Line]] = {"live weights": [], "best average at each epoch": []}
    for rate, variant in setting.rates().items():
        label, index = f"{words}rate {rate:g}", order.index(rate)
        curves = (sgd("val"), best_of(setting, "val"))
        both = complete(*(line_of(setting, variant, curve, label, order=index) for curve in curves))
        for own, drawn in zip(lines.values(), both, strict=False):
            own.append(drawn)
    if len(lines["live weights"]) < 2:  # one rate is no search
        return []
    limits = focus([drawn for panel in lines.values() for drawn in panel])
    return [
        Panel(title=f"{setting.title}: {weights}", y_label=ON_VALIDATION, lines=own, y_limits=limits)
        for weights, own in lines.items()
    ]


def lr_search(results: Results, scale: Scale) -> list[Figure]:
    """Validation accuracy through training, per learning rate tried."""
    pairs = (MAIN, "cifar100-wrn-28-10")
    tried = sorted({rate for setting in results.of(*pairs, scale=scale) for rate in setting.rates()})
    spec = FigureSpec(
        name="lr-search/curves", title="Initial learning rates, on validation", item="Figure 6", columns=2,
        pairs=pairs, panels_of=lambda setting: _rate_panels(setting, tried), averaged=True, cut=True,
        caption="Trained on 80% of the training images, measured on the rest; the rate is the peak of the cosine. At "
        "each epoch the best average is chosen on this curve itself. A rate with which a seed diverged is skipped.",
    )  # fmt: skip
    return spec(results, scale)


def _period_panels(setting: Setting) -> list[Panel]:
    stacks = {
        period: drawable(setting, variant, best_of(setting, "test")) for period, variant in setting.periods().items()
    }
    periods = {period: curves for period, curves in stacks.items() if curves is not None}
    if len(periods) < 2:
        return []
    shortest = min(periods)
    # Dashed, because the live weights' grey is as light as the second shade.
    live_weights = (setting.periods()[shortest], sgd("test"), "live weights")
    lines = complete(line_of(setting, *live_weights, kind="live", dashed=True))
    differences: list[Line] = []
    for order, (period, curves) in enumerate(periods.items()):
        lines.append(line(curves, f"T = {period}", kind="average", order=order))
        if order and curves.shape == periods[shortest].shape:
            differences.append(line(curves - periods[shortest], f"T = {period}", kind="average", order=order))
    above = f"above T = {shortest}, points"
    return [
        Panel(title=f"{setting.title}: best average at each epoch", lines=lines, y_limits=focus(lines)),
        Panel(title=f"{setting.title}: difference from T = {shortest}", y_label=above, lines=differences),
    ]


DECAYS = FigureSpec(
    name="batchnorm/decays", title="Every average, with averaged and with recomputed batch-norm statistics",
    item="Figure 1b, Figure 9", pairs=[MAIN], panels_of=_decay_panels, columns=2, about=_slowest_note, curves=True,
    caption="Statistics are recomputed after every epoch.",
)  # fmt: skip
SAMPLING_PERIOD = FigureSpec(
    name="sampling-period/accuracy", title="Averages of the same horizon, updated every T steps", pairs=[MAIN],
    panels_of=_period_panels, columns=2, averaged=True, cut=True, curves=True,
    caption=f"{ORACLE} The difference is paired by seed; the paper samples every 16 steps.",
)  # fmt: skip


# Label noise ----------------------------------------------------------------------------------------------------------


def _noise_panels(setting: Setting) -> list[Panel]:
    for batchnorm in ("recomputed", "averaged"):  # recomputed if it was measured at every epoch
        slowest = average_of(setting.slowest, "test", batchnorm=batchnorm)
        words = f"{setting.slowest}, {batchnorm} statistics" if setting.has_batchnorm else setting.slowest
        lines = complete(
            line_of(setting, "refit", sgd("test"), "live weights", kind="live"),
            line_of(setting, "refit", slowest, words, order=len(setting.averages) - 1),
        )
        if lines:
            choices = {choice["seed"]: choice for choice in setting.choices}
            own = [choices[run.seed] for run in setting.variants["refit"] if run.seed in choices]
            averages = [choice["averages"]["accuracy"][1] for choice in own]
            marks = [
                *mark_at(lines[0], [choice["live_epoch"] for choice in own], "live weights, chosen on validation"),
                *mark_at(lines[1], averages, f"{setting.slowest}, chosen on validation"),
            ]
            return training_panel(setting, lines, "refit", marks=marks)
    return []


def _memorisation_panels(setting: Setting) -> list[Panel]:
    lines: list[Line] = []
    marks: list[Mark] = []
    for weights, words in ((LIVE, "live weights"), (setting.slowest, setting.slowest)):
        curves = series.on_train(setting, weights)
        if curves is None:
            return []
        kind, order = ("live", 0) if weights == LIVE else ("average", len(setting.averages) - 1)
        if weights != LIVE and setting.has_batchnorm:
            words = f"{words}, averaged statistics"
        lines += [
            line(curves.memorised, f"{words}: memorised", kind=kind, order=order),
            line(curves.clean, f"{words}: clean", kind=kind, order=order, dashed=True),
        ]
        marks += _reached_mark(curves, words)
    return training_panel(setting, lines, "refit", marks=marks, y_label="training images, %", y_limits=(-2, 102))


def _reached_mark(curves: OnTrain, words: str) -> list[Mark]:
    """Marks the share memorised when the clean accuracy first reaches 90%; no mark unless every seed reaches it."""
    reached = [seed for seed in curves.first_reached() if seed is not None]
    if len(reached) < len(curves.clean):
        return []
    epochs, shares = [seed.epoch for seed in reached], [seed.memorised for seed in reached]
    label = f"{words}: {percent_text(shares)} memorised when clean reaches {REACHED:.0%} ({epochs_text(epochs)})"
    return mark(epochs, shares, label)


NOISE_ACCURACY = FigureSpec(
    name="label-noise/accuracy", title="Trained on wrong labels: the live weights and the slowest average",
    item="Figure 2", pairs=NOISY, panels_of=_noise_panels, columns=2, about=_slowest_note, cut=True, curves=True,
    caption="Accuracy on test images, whose labels are clean. Points: the mean over seeds at the epochs that "
    "validation chose for the live weights and for the average.",
)  # fmt: skip
MEMORISATION = FigureSpec(
    name="label-noise/memorisation", title="Wrong labels memorised, beside clean training images learnt",
    item="Figure 7", pairs=NOISY, panels_of=_memorisation_panels, columns=2, about=_slowest_note, curves=True,
    caption="On the training images: the share of wrongly labelled ones predicted as that label (memorised), and the "
    "accuracy on those with a right label (clean). Points: what is memorised when the clean accuracy first reaches "
    f"{REACHED:.0%}, from each seed's own curve; weights without a point do not reach it with every seed.",
)  # fmt: skip


# Heat maps ------------------------------------------------------------------------------------------------------------


def _heat_panels(setting: Setting) -> list[Panel]:
    panels: list[Panel] = []
    for words, averages in _both_statistics(setting).items():
        grid = np.stack([100 * curves.mean(axis=0) for curves in averages.values()])
        marks = [
            (float(column), float(row), f"{name}: best at epoch {column + 1}")
            for row, (name, column) in enumerate(zip(averages, np.nanargmax(grid, axis=1), strict=True))
        ]
        epochs = [str(epoch) for epoch in range(1, grid.shape[1] + 1)]
        title = f"{setting.title}: {words}"
        panels.append(Panel(title=title, y_label="", grid=grid, x_ticks=epochs, y_ticks=list(averages), marks=marks))
    return panels


def _spread_note(settings: Sequence[Setting]) -> str:
    """The number of seeds and the median over all fields of their standard deviation, which colours cannot show."""
    seeds = " or ".join(map(str, sorted({len(setting.variants["refit"]) for setting in settings})))
    spreads = [
        100 * curves.std(axis=0, ddof=1)
        for setting in settings
        for averages in _both_statistics(setting).values()
        for curves in averages.values()
        if len(curves) > 1
    ]
    if not spreads:
        return "One seed."
    median = np.nanmedian(np.concatenate(spreads))
    return f"Mean of {seeds} seeds; their standard deviation is {median:.1f} points in the median field."


def _posthoc_panels(setting: Setting) -> list[Panel]:
    windows, kept = series.posthoc(setting), _kept(setting)
    panels: list[Panel] = []
    for words, some in (("synthesized from snapshots", windows), ("kept during training", kept)):
        if some and all(curves.shape[1] > _stop_indices(windows)[-1] for curves in some.values()):
            stops = _stop_indices(windows)
            grid, best = _grid_and_best(some, stops)
            panels.append(
                Panel(
                    title=f"{setting.title}: {words}", x_label="stopping epoch", y_label="", grid=grid,
                    x_ticks=[str(index + 1) for index in stops], y_ticks=list(some), marks=[best],
                )
            )  # fmt: skip
    return panels


def _kept(setting: Setting) -> dict[str, Floats]:
    """The windows that were also kept as averages during training."""
    names = [name for name in series.posthoc(setting) if name in setting.averages]
    return {name: kept for name in names if (kept := series.kept_during_training(setting, name)) is not None}


def _stop_indices(windows: dict[str, Floats]) -> list[int]:
    """The indices of the stopping epochs that were tried; a long run tries only some of its epochs."""
    return [int(index) for index in np.flatnonzero(np.isfinite(np.stack(list(windows.values()))).any(axis=(0, 1)))]


def _grid_and_best(windows: dict[str, Floats], stops: list[int]) -> tuple[Floats, Mark]:
    """The means over the seeds, [windows, stops], and a mark on the best."""
    grid = np.stack([100 * curves.mean(axis=0)[stops] for curves in windows.values()])
    row, column = (int(index) for index in np.unravel_index(np.nanargmax(grid), grid.shape))
    return grid, (float(column), float(row), f"best: {list(windows)[row]} at epoch {stops[column] + 1}")


def _posthoc_note(setting: Setting) -> str:
    """The best field, its number of seeds, and by how much the two panels differ where both have a field.

    Colours cannot show these.
    """
    windows = series.posthoc(setting)
    stops = _stop_indices(windows)
    grid, (column, row, best) = _grid_and_best(windows, stops)
    seeds = len(next(iter(windows.values())))
    text = f"{setting.title}: {best}, {grid[int(row), int(column)]:.1f}%"
    text += f" in the mean of {seeds} seeds." if seeds > 1 else " with one seed."
    gaps = [
        100 * np.abs(windows[name][:, stops] - kept[:, stops]).ravel()
        for name, kept in _kept(setting).items()
        if kept.shape == windows[name].shape
    ]
    if not gaps:
        return text
    points = np.concatenate(gaps)
    return f"{text} Synthesized and kept averages differ by {np.nanmedian(points):.2f} points in the median field, " + (
        f"{np.nanmax(points):.2f} at most; the table posthoc/windows has every window."
    )


DECAY_HEATMAP = FigureSpec(
    name="batchnorm/heatmap", title="Test accuracy over average and epoch; points: the best epoch of each, on test",
    pairs=[MAIN], panels_of=_heat_panels, columns=2, curves=True,
    caption="From the average with the shortest memory to that with the longest. Points: the best epoch of each "
    "average's mean over seeds, found on test itself: an oracle's choice. Not smoothed.",
    about=lambda settings: f"{_slowest_note(settings)} {_spread_note(settings)}",
)  # fmt: skip
POSTHOC_HEATMAP = FigureSpec(
    name="posthoc/heatmap", title="Window and stopping epoch, chosen after one run; the point: the best field",
    panels_of=_posthoc_panels, columns=2,
    caption="Left: averages that no run kept, synthesized after the training from snapshots of two power-function "
    "averages. Right: those of them that were kept during training. From the shortest window to the longest; a "
    "percentage is the half-life as a share of the run. Trained on 80% of the training images, measured on the rest, "
    "with recomputed batch-norm statistics if the network has any. Not smoothed.",
    about=lambda settings: " ".join(map(_posthoc_note, settings)),
)  # fmt: skip


# Reliability diagrams -------------------------------------------------------------------------------------------------

_MOST_BINS = 15  # few enough to see each, as in Guo et al. 2017; the ECE has bins of its own


class Reliability(NamedTuple):
    """The content of one diagram: each seed's curve and ECE."""

    curves: Sequence[ReliabilityCurve]
    ece: Sequence[float]


def reliability(results: Results, scale: Scale) -> list[Figure]:
    """Confidence against accuracy of the live weights and the slowest average, with and without temperature scaling."""
    notes: list[str] = []

    def panels(setting: Setting) -> list[Panel]:
        try:
            return _reliability_panels(setting)
        except (OSError, ValueError) as error:  # damaged predictions, or those of non-finite weights
            notes.append(f"{setting.title} is skipped: {error}.")
            return []

    spec = FigureSpec(
        name="calibration/reliability", title="Confidence against accuracy on the test images", pairs=CLEAN,
        panels_of=panels, columns=4,
        caption="Networks trained on 80% of the training images: the live weights at their best validation epoch, and "
        "the slowest average at the epoch of lowest loss, statistics recomputed. TS: temperature scaling, fitted on "
        f"the other 20%. Bins of equal mass, at most {_MOST_BINS}; bars meet halfway between mean confidences. Points "
        "below the diagonal are overconfident. The ECE uses the bins of the tables.",
    )  # fmt: skip
    return [replace(figure, notes=(*figure.notes, *notes)) for figure in spec(results, scale)]


def _reliability_panels(setting: Setting) -> list[Panel]:
    panels: list[Panel] = []
    for column in ("SGD", "slowest (loss)"):
        for scaled in (False, True):
            content = reliability_of(setting, column, scaled=scaled)
            if content is None:
                return []
            panels.append(_reliability_panel(setting, column, content, scaled=scaled))
    return panels


def reliability_of(setting: Setting, column: str, *, scaled: bool) -> Reliability | None:
    """A tuning column's diagram on the test images; None if a seed's predictions are missing or bins differ in number.

    `scaled` divides the logits by a temperature fitted on the validation images.
    """
    own, runs = series.column(setting, column, TUNED_ON_TEST), setting.variants.get("tune", ())
    if own is None or not runs or len(own.kept) != len(runs):
        return None
    curves: list[ReliabilityCurve] = []
    errors: list[float] = []
    for run, name in zip(runs, own.kept, strict=True):
        predictions = run.predictions(name)
        if "test" not in predictions or (scaled and "val" not in predictions):
            return None
        logits, labels = predictions["test"]
        if scaled:
            logits = apply_temperature(logits, fit_temperature(*predictions["val"]))
        probabilities = softmax(logits)
        bins = min(_MOST_BINS, default_bins(len(labels)))
        curves.append(reliability_curve(probabilities, labels, bins=bins))
        errors.append(ece(probabilities, labels))
    return Reliability(curves, errors) if len({len(curve.samples) for curve in curves}) == 1 else None


def _reliability_panel(setting: Setting, column: str, content: Reliability, *, scaled: bool) -> Panel:
    confidence = 100 * np.stack([curve.confidence for curve in content.curves])
    accuracy = 100 * np.stack([curve.accuracy for curve in content.curves])
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
    return Panel(
        title=f"{setting.title}: {column}{', TS' if scaled else ''}: ECE {percent_text(content.ece)}",
        x_label="confidence, %", y_label="accuracy, %", lines=(points, ideal), x_limits=(0, 100), y_limits=(0, 100),
        bars=bars_of(points.x, points.y),
    )  # fmt: skip


def bars_of(confidence: Floats, accuracy: Floats) -> list[tuple[float, float, float]]:
    """A bar (left, width, height) per bin.

    Bars meet halfway between mean confidences. The outermost borders are as far from their mean as the inner ones.
    """
    if len(confidence) == 1:
        return [(0.0, 100.0, float(accuracy[0]))]
    inner = (confidence[:-1] + confidence[1:]) / 2
    borders = np.concatenate([[2 * confidence[0] - inner[0]], inner, [2 * confidence[-1] - inner[-1]]]).clip(0, 100)
    return list(zip(borders[:-1].tolist(), np.diff(borders).tolist(), accuracy.tolist(), strict=True))


_FIGURES: Sequence[Callable[[Results, Scale], list[Figure]]] = (
    dynamics, EARLY, DECAYS, DECAY_HEATMAP, NOISE_ACCURACY, MEMORISATION, CONSTANT_RATE, reliability, STEP_DECAY,
    BOOTSTRAP, lr_search, SAMPLING_PERIOD, POSTHOC_HEATMAP,
)  # fmt: skip
"""Each makes figures of one scale."""
