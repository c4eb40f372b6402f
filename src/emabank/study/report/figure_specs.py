"""Every figure of the report: which settings, which lines, and what its caption says."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from emabank.study.metrics.calibration import (
    ReliabilityCurve,
    apply_temperature,
    default_bins,
    ece,
    fit_temperature,
    reliability_curve,
)
from emabank.study.metrics.classification import Floats, softmax
from emabank.study.report import series
from emabank.study.report.figures import (
    BEST_ON_TEST,
    CUT,
    ORACLE,
    Figure,
    Line,
    Mark,
    Panel,
    average_note,
    drawable,
    epochs_text,
    figure,
    focus,
    line,
    mark,
    mark_at,
    percent_text,
    rate_line,
    seeds_note,
    statistics_note,
)
from emabank.study.report.results import LIVE, Results, Setting, kept_name
from emabank.study.report.series import REACHED, REFIT, TUNED_ON_TEST, OnTrain, average, best, live
from emabank.study.studies.scales import CLEAN, CONSTANT, MAIN, NOISY, PAIRS, Scale

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


def make_figures(results: Results) -> list[Figure]:
    """All figures, the largest scale first; one whose results are not there is not made."""
    return [figure for scale in results.scales for make in _FIGURES for figure in make(results, scale)]


def _panels(settings: Sequence[Setting], make: Callable[[Setting], Sequence[Panel]]) -> list[Panel]:
    return [panel for setting in settings for panel in make(setting)]


# Live weights and the best average ------------------------------------------------------------------------------------


def _live_and_best(setting: Setting, variant: str, *, until: int | None = None, dashed: bool = False) -> Sequence[Line]:
    """The two lines of the paper's Figure 1a for a variant with test curves; none where one of them is missing."""
    of_live = drawable(setting, variant, lambda run: live(run, "test"))
    of_best = drawable(setting, variant, lambda run: best(run, setting.averages, "test"))
    if of_live is None or of_best is None:
        return ()
    return (
        line(of_live, "live weights", kind="live", until=until, dashed=dashed),
        line(of_best, BEST_ON_TEST, kind="best", until=until, dashed=dashed),
    )


def _by_pair(results: Results, scale: Scale) -> dict[str, list[Setting]]:
    """The settings of a scale by pair, the paper's first."""
    pairs = {setting.pair: None for setting in results.of(scale=scale)}
    ordered = [*(pair for pair in PAIRS if pair in pairs), *(pair for pair in pairs if pair not in PAIRS)]
    return {pair: results.of(pair, scale=scale) for pair in ordered}


def dynamics(results: Results, scale: Scale) -> list[Figure]:
    """Live weights and the best average through training, with the learning rate: the paper's Figures 1a and 4."""

    def panels_of(setting: Setting) -> list[Panel]:
        lines = _live_and_best(setting, "refit")
        if not lines:
            return []
        rate, marks = rate_line(setting.variants["refit"]), _chosen_mark(setting)
        return [Panel(title=setting.title, lines=lines, rate=rate, marks=marks, y_limits=focus(lines, marks))]

    figures: list[Figure] = []
    for pair, settings in _by_pair(results, scale).items():
        panels = _panels(settings, panels_of)
        figures += figure(
            f"dynamics/{pair}", settings, panels, scale=scale, item=ITEMS.get(pair, ""),
            title="Live weights and the best average through training",
            caption=f"Cosine schedule. {ORACLE} The point marks what validation chose instead. "
            f"{statistics_note(settings)}{seeds_note(panels)} {CUT}",
        )  # fmt: skip
    return figures


def _chosen_mark(setting: Setting) -> list[Mark]:
    """Where validation chose, with the test accuracy of the refits there: beside the oracle's curve, what one gets."""
    column = series.column(setting, "EMA (acc.)", REFIT)
    values = column.values.get("accuracy", ()) if column else ()
    known = [value for value in values if value is not None]
    if not column or not known or len(known) < len(values):
        return []
    label = f"{column.title}, chosen on validation: {percent_text(known)}, {epochs_text(column.epochs)}"
    return mark(column.epochs, known, label)


def early(results: Results, scale: Scale) -> list[Figure]:
    """The first quarter of every pair's training enlarged, in one figure."""
    settings = [setting for settings in _by_pair(results, scale).values() for setting in settings]

    def panels_of(setting: Setting) -> list[Panel]:
        runs = setting.variants.get("refit", ())
        until = series.first_quarter(runs[0].epochs) if runs else None
        lines = _live_and_best(setting, "refit", until=until)
        return [Panel(title=setting.title, lines=lines)] if lines else []

    panels = _panels(settings, panels_of)
    return figure(
        "dynamics/early", settings, panels, scale=scale, title="Early training: the first quarter enlarged",
        caption=f"{ORACLE} {statistics_note(settings)}{seeds_note(panels)}", columns=min(2, len(panels)),
    )  # fmt: skip


def step_decay(results: Results, scale: Scale) -> list[Figure]:
    """The learning rate divided by 5 at three milestones: the paper's Figure 3."""
    settings = results.of(MAIN, scale=scale)

    def panels_of(setting: Setting) -> list[Panel]:
        lines = _live_and_best(setting, "step")
        if not lines:
            return []
        return [
            Panel(title=setting.title, lines=lines, rate=rate_line(setting.variants["step"]), y_limits=focus(lines))
        ]

    panels = _panels(settings, panels_of)
    return figure(
        "step-decay/accuracy", settings, panels, scale=scale, item="Figure 3", title="Step decay of the learning rate",
        caption=f"The rate falls at three milestones in place of a cosine. {ORACLE} "
        f"{statistics_note(settings)}{seeds_note(panels)} {CUT}",
    )  # fmt: skip


def constant_rate(results: Results, scale: Scale) -> list[Figure]:
    """The learning rate held from the chosen epoch on, against the cosine: the paper's Figure 8."""
    settings = results.of(CONSTANT, scale=scale)

    def panels_of(setting: Setting) -> list[Panel]:
        cosine, constant = _live_and_best(setting, "refit"), _live_and_best(setting, "constant", dashed=True)
        if not cosine or not constant:
            return []
        lines = [
            replace(curve, label=f"{rate}: {curve.label}")
            for rate, two in (("cosine", cosine), ("constant", constant))
            for curve in two
        ]
        rate, marks = rate_line(setting.variants["constant"], "constant rate"), _fork(setting, cosine[1])
        return [Panel(title=setting.title, lines=lines, rate=rate, marks=marks, y_limits=focus(lines))]

    panels = _panels(settings, panels_of)
    return figure(
        "constant-lr/accuracy", settings, panels, scale=scale, item="Figure 8",
        title="Wrong labels: the learning rate held constant, against the cosine",
        caption="The rate is held from the epoch on that validation chose for EMA (acc.); up to there both are one "
        f"run. {ORACLE} {statistics_note(settings)}{seeds_note(panels)} {CUT}",
    )  # fmt: skip


def _fork(setting: Setting, best: Line) -> list[Mark]:
    """Where the two part: on the line of the best average, which they share up to there."""
    epochs = [run.constant_from for run in setting.variants["constant"] if run.constant_from is not None]
    if not epochs or not all(1 <= epoch <= len(best.y) for epoch in epochs):
        return []
    mean = float(np.mean(epochs))
    return [(mean, float(np.interp(mean, best.x, best.y)), f"the rate is held from here on ({epochs_text(epochs)})")]


def bootstrap(results: Results, scale: Scale) -> list[Figure]:
    """The average copied into the live weights after each epoch, against plain training: the paper's Figure 5."""
    settings = [setting for setting in results.of(MAIN, scale=scale) if series.copied_back(setting)]

    def panels_of(setting: Setting) -> list[Panel]:
        copied = series.copied_back(setting) or ""
        lines: list[Line] = []
        for variant, words in (("tune", "plain"), ("bootstrap", "bootstrapped")):
            of_live = drawable(setting, variant, lambda run: live(run, "val"))
            of_average = drawable(setting, variant, lambda run: average(run, copied, "val"))
            if of_live is None or of_average is None:
                return []
            dashed = variant == "bootstrap"
            lines += [
                line(of_live, f"{words}: live weights", kind="live", dashed=dashed),
                # Not in the shade it has among the five, which is as light as the live weights' grey.
                line(of_average, f"{words}: {copied}", kind="best", dashed=dashed),
            ]
        rate, limits = rate_line(setting.variants["tune"]), focus(lines)
        return [Panel(title=setting.title, y_label="validation accuracy, %", lines=lines, rate=rate, y_limits=limits)]

    panels = _panels(settings, panels_of)
    names = "".join(map(average_note, dict.fromkeys(series.copied_back(setting) or "" for setting in settings)))
    return figure(
        "bootstrap/accuracy", settings, panels, scale=scale, item="Figure 5",
        title="The average copied back into training once an epoch",
        caption="Trained on 80% of the training images, measured on the rest. Bootstrapped: after each epoch the "
        f"average becomes the live weights. {names}{statistics_note(settings)}{seeds_note(panels)} {CUT}",
    )  # fmt: skip


# Several averages, rates or periods -----------------------------------------------------------------------------------


def _averages(setting: Setting, batchnorm: str) -> dict[str, Floats]:
    """The test accuracy of every average in the refits, [seeds, epochs]; none where one of them was not measured."""
    stacks = {
        name: drawable(setting, "refit", lambda run, n=name: average(run, n, "test", batchnorm=batchnorm))
        for name in setting.averages
    }
    known = {name: curves for name, curves in stacks.items() if curves is not None}
    return known if len(known) == len(stacks) else {}


def _recomputed(results: Results, scale: Scale) -> list[Setting]:
    """The settings in which statistics were recomputed after every epoch."""
    return [
        setting for setting in results.of(MAIN, scale=scale) if all(_averages(setting, kind) for kind in STATISTICS)
    ]


def decays(results: Results, scale: Scale) -> list[Figure]:
    """Each average as a curve, with averaged and with recomputed statistics: the paper's Figures 1b and 9."""
    settings = _recomputed(results, scale)

    def panels_of(setting: Setting) -> list[Panel]:
        of_live = drawable(setting, "refit", lambda run: live(run, "test"))
        # The live weights' grey is as light as the second shade of the averages: dashes tell them apart without hue.
        first = [] if of_live is None else [line(of_live, "live weights", kind="live", dashed=True)]
        lines = {
            kind: [*first, *(line(curves, name, kind="average", order=order)
                             for order, (name, curves) in enumerate(_averages(setting, kind).items()))]
            for kind in STATISTICS
        }  # fmt: skip
        # The same limits for both panels, and all of it: that slow averages fail early is what is to be seen.
        curves = [drawn.y if drawn.seeds is None else drawn.seeds for panel in lines.values() for drawn in panel]
        low, high = min(float(np.nanmin(curve)) for curve in curves), max(float(np.nanmax(curve)) for curve in curves)
        limits = low - 0.05 * (high - low), high + 0.05 * (high - low)
        rate = rate_line(setting.variants["refit"])
        return [
            Panel(title=f"{setting.title}: {words}", lines=lines[kind], rate=rate, y_limits=limits)
            for kind, words in STATISTICS.items()
        ]

    panels = _panels(settings, panels_of)
    return figure(
        "batchnorm/decays", settings, panels, scale=scale, item="Figure 1b, Figure 9", columns=2,
        title="Every average, with averaged and with recomputed batch-norm statistics",
        caption=f"Statistics are recomputed after every epoch. {_slowest_note(settings)}{seeds_note(panels)}",
    )  # fmt: skip


def _slowest_note(settings: Sequence[Setting]) -> str:
    return average_note(settings[0].slowest) if settings else ""


def lr_search(results: Results, scale: Scale) -> list[Figure]:
    """Validation accuracy through training for each learning rate tried: the paper's Figure 6."""
    settings = [setting for pair in (MAIN, "cifar100-wrn-28-10") for setting in results.of(pair, scale=scale)]
    tried = sorted({rate for setting in settings for rate in _rates(setting)})
    panels = _panels(settings, lambda setting: _rate_panels(setting, tried))
    return figure(
        "lr-search/curves", settings, panels, scale=scale, item="Figure 6", columns=2,
        title="Initial learning rates, on validation",
        caption="Trained on 80% of the training images, measured on the rest; the rate is the peak of the cosine. The "
        "best of the averages is taken anew at each epoch, on this very curve. A rate with which a seed diverged is "
        f"left out. {statistics_note(settings)}{seeds_note(panels)} {CUT}",
    )  # fmt: skip


def _rates(setting: Setting) -> dict[float, str]:
    return {rate: variant for rate, variant in setting.rates().items() if setting.variants[variant]}


def _rate_panels(setting: Setting, tried: Sequence[float]) -> list[Panel]:
    """Live weights in one panel, the best average in another, a curve for each rate."""
    shades = 5
    # A rate has one shade in all panels; where these are too few for all rates, each setting has a legend of its own.
    order, words = (tried, "") if len(tried) <= shades else (list(_rates(setting)), f"{setting.title}: ")
    lines: dict[str, list[Line]] = {"live weights": [], "best average at each epoch": []}
    for rate, variant in _rates(setting).items():
        both = [
            drawable(setting, variant, lambda run: live(run, "val")),
            drawable(setting, variant, lambda run: best(run, setting.averages, "val")),
        ]
        for own, curves in zip(lines.values(), both, strict=True):
            if curves is not None and not any(other is None for other in both):
                own.append(line(curves, f"{words}rate {rate:g}", kind="average", order=order.index(rate)))
    if len(lines["live weights"]) < 2:  # one rate is no search
        return []
    limits = focus([drawn for panel in lines.values() for drawn in panel])
    return [
        Panel(title=f"{setting.title}: {weights}", y_label="validation accuracy, %", lines=own, y_limits=limits)
        for weights, own in lines.items()
    ]


def sampling_period(results: Results, scale: Scale) -> list[Figure]:
    """The same horizon sampled every T steps: accuracy by epoch, and the difference from the shortest period."""
    settings = results.of(MAIN, scale=scale)
    panels = _panels(settings, _period_panels)
    return figure(
        "sampling-period/accuracy", settings, panels, scale=scale, columns=2,
        title="Averages of the same horizon, updated every T steps",
        caption=f"{ORACLE} The difference is taken seed by seed; the paper samples every 16 steps. "
        f"{statistics_note(settings)}{seeds_note(panels)} {CUT}",
    )  # fmt: skip


def _period_panels(setting: Setting) -> list[Panel]:
    stacks = {
        period: drawable(setting, variant, lambda run: best(run, setting.averages, "test"))
        for period, variant in setting.periods().items()
    }
    periods = {period: curves for period, curves in stacks.items() if curves is not None}
    if len(periods) < 2:
        return []
    shortest = min(periods)
    of_live = drawable(setting, setting.periods()[shortest], lambda run: live(run, "test"))
    # Dashed, because the grey is as light as the second shade.
    lines = [] if of_live is None else [line(of_live, "live weights", kind="live", dashed=True)]
    differences: list[Line] = []
    for order, (period, curves) in enumerate(periods.items()):
        lines.append(line(curves, f"T = {period}", kind="average", order=order))
        if order and curves.shape == periods[shortest].shape:
            differences.append(line(curves - periods[shortest], f"T = {period}", kind="average", order=order))
    return [
        Panel(title=f"{setting.title}: best average at each epoch", lines=lines, y_limits=focus(lines)),
        Panel(
            title=f"{setting.title}: difference from T = {shortest}",
            y_label=f"above T = {shortest}, points",
            lines=differences,
        ),
    ]


# Label noise ----------------------------------------------------------------------------------------------------------


def noise_accuracy(results: Results, scale: Scale) -> list[Figure]:
    """Live weights and the slowest average on clean test images: the paper's Figure 2."""
    settings = [setting for pair in NOISY for setting in results.of(pair, scale=scale)]
    panels = _panels(settings, _noise_panels)
    return figure(
        "label-noise/accuracy", settings, panels, scale=scale, item="Figure 2", columns=min(2, len(panels)),
        title="Trained on wrong labels: the live weights and the slowest average",
        caption=f"Accuracy on test images, whose labels are clean. {_slowest_note(settings)}The points mark the epochs "
        "that validation chose for the live weights and for the average, each read off its own curves: the mean of the "
        f"seeds. {seeds_note(panels)} {CUT}",
    )  # fmt: skip


def _noise_panels(setting: Setting) -> list[Panel]:
    of_live = drawable(setting, "refit", lambda run: live(run, "test"))
    for batchnorm in ("recomputed", "averaged"):  # recomputed if that was measured every epoch
        slowest = drawable(
            setting, "refit", lambda run, b=batchnorm: average(run, setting.slowest, "test", batchnorm=b)
        )
        if of_live is None or slowest is None:
            continue
        statistics = f", {batchnorm} statistics" if setting.has_batchnorm else ""
        lines = (
            line(of_live, "live weights", kind="live"),
            line(slowest, f"{setting.slowest}{statistics}", kind="average", order=len(setting.averages) - 1),
        )
        choices = {choice["seed"]: choice for choice in setting.choices}
        own = [choices[run.seed] for run in setting.variants["refit"] if run.seed in choices]
        epochs = [choice["averages"]["accuracy"][1] for choice in own]
        marks = [
            *mark_at(of_live, [choice["live_epoch"] for choice in own], "live weights, chosen on validation"),
            *mark_at(slowest, epochs, f"{setting.slowest}, chosen on validation"),
        ]
        rate = rate_line(setting.variants["refit"])
        return [Panel(title=setting.title, lines=lines, rate=rate, marks=marks, y_limits=focus(lines, marks))]
    return []


def memorisation(results: Results, scale: Scale) -> list[Figure]:
    """Wrong labels predicted as given, beside the accuracy on right ones: the paper's Figure 7."""
    settings = [setting for pair in NOISY for setting in results.of(pair, scale=scale)]
    panels = _panels(settings, _memorisation_panels)
    return figure(
        "label-noise/memorisation", settings, panels, scale=scale, item="Figure 7", columns=min(2, len(panels)),
        title="Wrong labels memorised, beside clean training images learnt",
        caption="On the training images: the share of wrongly labelled ones predicted as that label (memorised), and "
        f"the accuracy on those with a right label (clean). {_slowest_note(settings)}The points mark what is memorised "
        f"when the clean accuracy first reaches {REACHED:.0%}, found in each seed's own curve; weights without a point "
        f"did not reach it with every seed. {seeds_note(panels)}",
    )  # fmt: skip


def _memorisation_panels(setting: Setting) -> list[Panel]:
    lines: list[Line] = []
    marks: list[Mark] = []
    for weights, words in ((LIVE, "live weights"), (setting.slowest, setting.slowest)):
        curves = series.on_train(setting, weights)
        if curves is None:
            return []
        kind, order = ("live", 0) if weights == LIVE else ("average", len(setting.averages) - 1)
        if weights != LIVE and setting.has_batchnorm:
            words = f"{words}, {curves.batchnorm} statistics"
        lines += [
            line(curves.memorised, f"{words}: memorised", kind=kind, order=order),
            line(curves.clean, f"{words}: clean", kind=kind, order=order, dashed=True),
        ]
        marks += _reached_mark(curves, words)
    return [
        Panel(
            title=setting.title, y_label="training images, %", lines=lines, rate=rate_line(setting.variants["refit"]),
            marks=marks, y_limits=(-2, 102),
        )
    ]  # fmt: skip


def _reached_mark(curves: OnTrain, words: str) -> list[Mark]:
    """What is memorised when the clean accuracy first reaches 90%, as a mark; none unless every seed reaches it."""
    seeds = [series.first_reached(*both) for both in zip(curves.clean, curves.memorised, strict=True)]
    reached = [seed for seed in seeds if seed is not None]
    if len(reached) < len(seeds):
        return []
    epochs, shares = [seed.epoch for seed in reached], [seed.memorised for seed in reached]
    label = f"{words}: {percent_text(shares)} memorised when clean reaches {REACHED:.0%} ({epochs_text(epochs)})"
    return mark(epochs, shares, label)


# Heat maps ------------------------------------------------------------------------------------------------------------


def decay_heatmap(results: Results, scale: Scale) -> list[Figure]:
    """Accuracy over average and epoch, one panel for each kind of statistics."""
    settings = _recomputed(results, scale)

    def panels_of(setting: Setting) -> list[Panel]:
        panels: list[Panel] = []
        for kind, words in STATISTICS.items():
            averages = _averages(setting, kind)
            grid = np.stack([100 * curves.mean(axis=0) for curves in averages.values()])
            marks = [
                (float(column), float(row), f"{name}: best at epoch {column + 1}")
                for row, (name, column) in enumerate(zip(averages, np.nanargmax(grid, axis=1), strict=True))
            ]
            epochs = [str(epoch) for epoch in range(1, grid.shape[1] + 1)]
            title = f"{setting.title}: {words}"
            panels.append(
                Panel(title=title, y_label="", grid=grid, x_ticks=epochs, y_ticks=list(averages), marks=marks)
            )
        return panels

    return figure(
        "batchnorm/heatmap", settings, _panels(settings, panels_of), scale=scale, columns=2,
        title="Test accuracy over average and epoch; points: the best epoch of each, on test",
        caption="From the average with the shortest memory to that with the longest. "
        f"{_slowest_note(settings)}The points mark the best epoch of each average's mean over the seeds, found on test "
        f"itself: an oracle's choice. {_spread_note(settings)}Not smoothed.",
    )  # fmt: skip


def _spread_note(settings: Sequence[Setting]) -> str:
    """How many seeds, and the median over all fields of their standard deviation, which colours cannot show."""
    seeds = " or ".join(map(str, sorted({len(setting.variants["refit"]) for setting in settings})))
    spreads = [
        100 * curves.std(axis=0, ddof=1)
        for setting in settings
        for kind in STATISTICS
        for curves in _averages(setting, kind).values()
        if len(curves) > 1
    ]
    if not spreads:
        return "One seed. "
    median = np.nanmedian(np.concatenate(spreads))
    return f"Mean of {seeds} seeds; their standard deviation is {median:.1f} points in the median field. "


def posthoc_heatmap(results: Results, scale: Scale) -> list[Figure]:
    """Validation accuracy over window and stopping epoch, both chosen after one run."""
    settings = [setting for setting in results.of(scale=scale) if series.posthoc(setting)]
    statistics = ", batch-norm statistics recomputed" if any(setting.has_batchnorm for setting in settings) else ""
    return figure(
        "posthoc/heatmap", settings, _panels(settings, _posthoc_panels), scale=scale, columns=2,
        title="Window and stopping epoch, chosen after one run; the point: the best field",
        caption="Left: averages that nobody kept, put together after the training from snapshots of two power-function "
        "averages. Right: those of them that were kept beside it. From the shortest window to the longest; a "
        "percentage is the half-life as a share of the run. Trained on 80% of the training images, measured on the "
        f"rest{statistics}. {' '.join(_posthoc_note(setting) for setting in settings)} Not smoothed.",
    )  # fmt: skip


def _posthoc_panels(setting: Setting) -> list[Panel]:
    windows, kept = series.posthoc(setting), _kept(setting)
    stops = _stops(windows)
    panels: list[Panel] = []
    for words, some in (("put together afterwards", windows), ("kept live", kept)):
        if some and all(curves.shape[1] > stops[-1] for curves in some.values()):
            grid, best = _field(some, stops)
            panels.append(
                Panel(
                    title=f"{setting.title}: {words}", x_label="stopping epoch", y_label="", grid=grid,
                    x_ticks=[str(place + 1) for place in stops], y_ticks=list(some), marks=[best],
                )
            )  # fmt: skip
    return panels


def _kept(setting: Setting) -> dict[str, Floats]:
    """The windows that were kept beside the training as well."""
    names = [name for name in series.posthoc(setting) if name in setting.averages]
    return {name: kept for name in names if (kept := series.kept_beside(setting, name)) is not None}


def _stops(windows: dict[str, Floats]) -> list[int]:
    """The places of the epochs that were tried: of a long run, some."""
    return [int(place) for place in np.flatnonzero(np.isfinite(np.stack(list(windows.values()))).any(axis=(0, 1)))]


def _field(windows: dict[str, Floats], stops: list[int]) -> tuple[Floats, Mark]:
    """The means over the seeds, [windows, stops], and the best of them."""
    grid = np.stack([100 * curves.mean(axis=0)[stops] for curves in windows.values()])
    row, column = (int(place) for place in np.unravel_index(np.nanargmax(grid), grid.shape))
    return grid, (float(column), float(row), f"best: {list(windows)[row]} at epoch {stops[column] + 1}")


def _posthoc_note(setting: Setting) -> str:
    """What was chosen, of how many seeds it is the mean, and by how much the two panels differ where both have a field.

    Colours cannot show it.
    """
    windows = series.posthoc(setting)
    stops = _stops(windows)
    grid, (column, row, best) = _field(windows, stops)
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
    return f"{text} Put together or kept, fields differ by {np.nanmedian(points):.2f} points in the median, " + (
        f"{np.nanmax(points):.2f} at most; posthoc/windows has each window apart."
    )


# Reliability diagrams -------------------------------------------------------------------------------------------------

_RELIABILITY = {"SGD": "accuracy", "slowest (loss)": "loss"}
"""Which columns of the tuning tables are shown, and by which criterion their weights were kept."""
_MOST_BINS = 15  # so that each can be seen, as in Guo et al. 2017; the ECE has bins of its own


class Reliability(NamedTuple):
    """One diagram's content: the curve of every seed, and the seeds' ECE."""

    curves: Sequence[ReliabilityCurve]
    ece: Sequence[float]


def reliability(results: Results, scale: Scale) -> list[Figure]:
    """Confidence against accuracy of the live weights and the slowest average, with and without temperature scaling."""
    panels: list[Panel] = []
    notes: list[str] = []
    shown: list[Setting] = []
    for setting in (setting for pair in CLEAN for setting in results.of(pair, scale=scale)):
        try:
            own = _reliability_panels(setting)
        except (OSError, ValueError) as error:  # damaged predictions, or such of weights that are not finite
            notes.append(f"{setting.title} is left out: {error}.")
            continue
        panels += own
        shown += [setting] * bool(own)
    return figure(
        "calibration/reliability", shown, panels, scale=scale, columns=4, notes=notes,
        title="Confidence against accuracy on the test images",
        caption="Networks trained on 80% of the training images: the live weights at their best validation epoch, and "
        "the slowest average at the epoch of lowest loss, statistics recomputed. TS: with temperature scaling, the "
        f"temperature fitted on the other 20%. Bins of equal mass, {_MOST_BINS} at most; a bar's borders are halfway "
        "between mean confidences. Points: mean of the seeds, bin by bin; the band is one standard deviation over "
        "them. Below the diagonal a network is too sure of itself. The ECE is computed with the bins of the tables.",
    )  # fmt: skip


def _reliability_panels(setting: Setting) -> list[Panel]:
    panels: list[Panel] = []
    for column in _RELIABILITY:
        for scaled in (False, True):
            content = reliability_of(setting, column, scaled=scaled)
            if content is None:
                return []
            panels.append(_reliability_panel(setting, column, content, scaled=scaled))
    return panels


def reliability_of(setting: Setting, column: str, *, scaled: bool) -> Reliability | None:
    """The diagram of a column of the tuning tables on the test images; None where a seed's predictions are not there.

    `scaled`: with the temperature that was fitted on the validation images.
    """
    names, runs = _kept_names(setting, column), setting.variants.get("tune", ())
    if not runs or len(names) != len(runs):
        return None
    curves: list[ReliabilityCurve] = []
    errors: list[float] = []
    for run, name in zip(runs, names, strict=True):
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


def _kept_names(setting: Setting, title: str) -> list[str]:
    """Under which name each seed's tuning run keeps the weights of a column."""
    column = series.column(setting, title, TUNED_ON_TEST)
    if column is None:
        return []
    return [
        kept_name(weights, epoch, "own" if weights == LIVE else setting.statistics, _RELIABILITY[title])
        for weights, epoch in zip(column.weights, column.epochs, strict=True)
    ]


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
    """A bar for each bin: its borders halfway between mean confidences, the outermost as far from them as the inner.

    >>> bars_of(np.array([40.0, 60.0, 90.0]), np.array([30.0, 50.0, 80.0]))
    [(30.0, 20.0, 30.0), (50.0, 25.0, 50.0), (75.0, 25.0, 80.0)]
    """
    if len(confidence) == 1:
        return [(0.0, 100.0, float(accuracy[0]))]
    inner = (confidence[:-1] + confidence[1:]) / 2
    borders = np.concatenate([[2 * confidence[0] - inner[0]], inner, [2 * confidence[-1] - inner[-1]]]).clip(0, 100)
    return list(zip(borders[:-1].tolist(), np.diff(borders).tolist(), accuracy.tolist(), strict=True))


_FIGURES: Sequence[Callable[[Results, Scale], list[Figure]]] = (
    dynamics, early, decays, decay_heatmap, noise_accuracy, memorisation, constant_rate, reliability, step_decay,
    bootstrap, lr_search, sampling_period, posthoc_heatmap,
)  # fmt: skip
"""What makes the figures of one scale."""
