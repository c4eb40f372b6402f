"""The paper's nineteen claims and two of our own: the settings and statistics that test each of them.

A claim's first statistic is the primary one. It uses the epochs and decays that validation chose, never the best on
test. Under label noise, the choice made with noisy validation labels comes first where a run has one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from emabank.study.report import paper, series
from emabank.study.report.claims import (
    EQUAL,
    Claim,
    ClaimSpec,
    Rule,
    Sample,
    Statistic,
    above,
    below,
    conclude,
    evaluate,
    within,
)
from emabank.study.report.results import LIVE, OF_PAIRS, TRANSFER, Curve, Results, Run, Setting
from emabank.study.report.series import (
    REFIT,
    TUNED_ON_TEST,
    Stage,
    at,
    average,
    best,
    first_quarter,
    gap,
    height,
    live,
    mean,
    peak,
    points,
)
from emabank.study.studies.scales import CLEAN, CONSTANT, MAIN, NOISY, PAIRS

SGD, SGD_BEST, ACC, LOSS, SWA = "SGD", "SGD (best)", "EMA (acc.)", "EMA (loss)", "SWA"
SLOWEST_ACC, SLOWEST_LOSS = "slowest (acc.)", "slowest (loss)"
"""The EMA columns of the paper's tables: the slowest average with recomputed statistics, at the epoch of EMA (acc.) or
EMA (loss)."""
BY_NOISY_LABELS = {ACC: "EMA (acc., noisy)", LOSS: "EMA (loss, noisy)", SGD_BEST: "SGD (best, noisy)"}
"""The column chosen with noisy validation labels, by the one chosen with clean labels."""
ALL = (*CLEAN, *NOISY)
THROUGHOUT = 75.0
"""The percentage of epochs that counts as "all through training". Our choice: in the last epochs, by claim 3, averages
and SGD coincide, and chance decides which is ahead."""
BUDGET = 75.0
TINY = 1.0
"""The percentage of a training step that still counts as a tiny share. Our choice."""
_METRICS = {
    "accuracy": "test accuracy", "churn": "churn on test", "ece": "ECE on test",
    "ece_ts": "ECE on test after temperature scaling", TRANSFER: "accuracy of a linear head",
}  # fmt: skip
_ORACLE = "the best of all averages at each epoch on test is an oracle's choice"
_PAIRS = "the value of a seed is the mean over its pairs with the other seeds"

Samples = Callable[[Setting], Sequence[Sample]]


def make_claims(results: Results) -> list[Claim]:
    """Every claim with its findings: 1 to 19, then b and c."""
    claims = [evaluate(_with_clean_choice(spec), results) for spec in CLAIMS]
    claims.insert(int(OVERHEAD.number) - 1, _overhead_claim(results))
    return claims


# Which choice ---------------------------------------------------------------------------------------------------------


def _with_clean_choice(spec: ClaimSpec) -> ClaimSpec:
    """The claim with one more statistic: the primary one, chosen with clean labels, where noisy labels came first."""
    primary, *others = spec.statistics

    def sample(setting: Setting) -> Sequence[Sample]:
        columns = [column for column in setting.columns if column.title not in BY_NOISY_LABELS.values()]
        leading = [sample.by_seed for sample in primary.sample(setting)]
        return [one for one in primary.sample(replace(setting, columns=columns)) if one.by_seed not in leading]

    clean = replace(
        primary, key=f"{primary.key}_clean", words=f"{primary.words}, chosen with clean labels", sample=sample
    )
    return replace(spec, statistics=(primary, clean, *others))


def _chosen(setting: Setting, seed: int, title: str = ACC) -> tuple[str, int | None]:
    """The average and the epoch that validation chose for a seed, with noisy labels where a column has that choice.

    The epoch is None for a seed without a choice.
    """
    for column in setting.columns:
        if column.title == BY_NOISY_LABELS[title] and seed in setting.seeds:
            index = setting.seeds.index(seed)
            return column.weights[index], column.epochs[index]
    if title != SGD_BEST:
        return series.chosen(setting, seed, "accuracy" if title == ACC else "loss") or ("", None)
    return LIVE, next((choice["live_epoch"] for choice in setting.choices if choice["seed"] == seed), None)


# How samples are taken ------------------------------------------------------------------------------------------------


def columns(
    one: str,
    other: str,
    metric: str = "accuracy",
    *,
    other_metric: str = "",
    stage: Stage = REFIT,
    combine: Callable[[float, float], float | None] = points,
) -> Samples:
    """One column against another, per seed: by default the difference in points.

    Both use the same choice: that of noisy labels if both have one, else that of clean labels.
    """
    titles = [(one, other)]
    if {one, other} & {*BY_NOISY_LABELS} and not {one, other} & {SLOWEST_ACC, SLOWEST_LOSS}:
        titles.insert(0, (BY_NOISY_LABELS.get(one, one), BY_NOISY_LABELS.get(other, other)))

    def sample(setting: Setting) -> Sequence[Sample]:
        for left, right in titles:
            labels = "noisy" if {left, right} & {*BY_NOISY_LABELS.values()} else setting.validation_labels
            right = SGD if right == SGD_BEST and stage != REFIT else right  # in tuning SGD is at its best epoch
            ours = series.values(setting, left, metric, stage)
            theirs = series.values(setting, right, other_metric or metric, stage)
            values = series.combined(ours, theirs, combine)
            if values is not None:
                notes = (f"chosen with {labels} validation labels",) if labels else ()
                return [Sample(_by_seed(setting, metric, values), notes, of_pairs=metric in OF_PAIRS)]
        return []

    return sample


def _by_seed(setting: Setting, metric: str, values: Sequence[float | None]) -> dict[int, float | None]:
    """The values of a column by seed; for pairs of seeds, a seed's value is the mean over its pairs."""
    if metric not in OF_PAIRS:
        return dict(zip(setting.seeds, values, strict=False))
    pairs = [*zip(combinations(setting.seeds, 2), values, strict=False)]
    return {seed: _mean([value for pair, value in pairs if seed in pair]) for seed in setting.seeds}


def difference(
    key: str, one: str, other: str, rule: Rule, metric: str = "accuracy", *, stage: Stage = REFIT
) -> Statistic:
    """The statistic of one column minus another, in points."""
    words = f"{one} minus {'SGD (last)' if other == SGD else other}, {_METRICS[metric]}, points"
    words = words if stage == REFIT else f"trained on 80%: {words}"
    sample = transfers(one, other) if metric == TRANSFER else columns(one, other, metric, stage=stage)
    return Statistic(key, words, rule, sample, _PAIRS if metric in OF_PAIRS else "")


def transfers(one: str, other: str) -> Samples:
    """The transfer accuracy of one column minus another, one sample per target data set."""
    return lambda setting: [
        sample._replace(target=metric.removeprefix(TRANSFER))
        for metric in series.transfers(setting, one)
        for sample in columns(one, other, metric)(setting)
    ]


def paired(variant: str, other: str, value: Callable[[Setting, Run, Run], float | None]) -> Samples:
    """A value computed from the runs of two variants, paired by seed; no sample if no seed has the value."""

    def sample(setting: Setting) -> Sequence[Sample]:
        others = {run.seed: run for run in setting.variants.get(other, ())}
        own = [run for run in setting.variants.get(variant, ()) if run.seed in others]
        by_seed = {run.seed: value(setting, run, others[run.seed]) for run in own}
        return [] if all(value is None for value in by_seed.values()) else [Sample(by_seed)]

    return sample


def runs(variant: str, value: Callable[[Setting, Run], float | None]) -> Samples:
    """A value of every run of a variant; no sample if no run has the value."""
    return paired(variant, variant, lambda setting, run, _: value(setting, run))


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if any value is missing."""
    known = [value for value in values if value is not None]
    return mean(np.array(known)) if known and len(known) == len(values) else None


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


# Through training -----------------------------------------------------------------------------------------------------


def _accuracy(setting: Setting, run: Run, epoch: int | None = None) -> float | None:
    """The test accuracy of the average with the chosen decay, at the chosen epoch or at `epoch`."""
    name, chosen = _chosen(setting, run.seed)
    return at(average(run, name, "test"), epoch or chosen)


def _gap_at_end(setting: Setting, run: Run) -> float | None:
    return points(_accuracy(setting, run, -1), at(live(run, "test"), -1))


def _validated(setting: Setting, run: Run) -> np.ndarray | None:
    """Per epoch, the test accuracy of the average with the best validation accuracy then; the fastest on a tie.

    Validation accuracy is that of the tuning run with the same seed.
    """
    tuned = next((other for other in setting.variants.get("tune", ()) if other.seed == run.seed), None)
    curves = [average(run, name, "test") for name in setting.averages]
    if tuned is None or not curves:
        return None
    for metric in ("noisy_accuracy", "accuracy"):
        ranked = [tuned.curves.get(Curve(name, "averaged", "val", metric)) for name in setting.averages]
        pairs = zip(ranked, curves, strict=True)
        if all(one is not None and other is not None and len(one) == len(other) for one, other in pairs):
            first = np.argmax(np.nan_to_num(np.array(ranked, dtype=float), nan=-1.0), axis=0)
            return np.array(curves, dtype=float)[first, np.arange(len(first))]
    return None


def _share_ahead(curve: np.ndarray | None, run: Run) -> float | None:
    lead = gap(curve, live(run, "test"))
    if lead is None:
        return None
    known = lead[np.isfinite(lead)]
    return mean(100.0 * (known > 0) + 50.0 * (known == 0))


def _early_and_late_lead(setting: Setting, run: Run) -> tuple[float | None, float | None]:
    """The mean lead of the best average on test, in points: in the first quarter, and in the other three."""
    lead = gap(best(run, setting.averages, "test"), live(run, "test"))
    if lead is None:
        return None, None
    quarter = first_quarter(len(lead))
    return mean(lead[:quarter]), mean(lead[quarter:])


def _epoch_share(setting: Setting, run: Run, title: str) -> float | None:
    """The epoch that validation chose, as a percentage of the run."""
    _, epoch = _chosen(setting, run.seed, title)
    return None if epoch is None else 100.0 * epoch / run.epochs


def _at_own_choices(setting: Setting, run: Run) -> float | None:
    """The average minus the live weights on test, each at the epoch that validation chose."""
    _, epoch = _chosen(setting, run.seed, SGD_BEST)
    return points(_accuracy(setting, run), at(live(run, "test"), epoch))


def _steps_to_target(setting: Setting, run: Run) -> float | None:
    """Epochs until any average has the live weights' best validation accuracy, in percent of the live weights' own."""
    target, curve = peak(live(run, "val")), best(run, setting.averages, "val")
    if target is None or curve is None:
        return None
    reached = np.flatnonzero(curve >= target.value)
    return 100.0 * (int(reached[0]) + 1 if len(reached) else run.epochs) / target.epoch


# Batch norm -----------------------------------------------------------------------------------------------------------


def _recomputing_gain(setting: Setting, run: Run) -> np.ndarray | None:
    """The slowest average's gain from recomputed over averaged statistics, at every epoch, in points."""
    recomputed, averaged = (
        average(run, setting.slowest, "test", batchnorm=batchnorm) for batchnorm in ("recomputed", "averaged")
    )
    return gap(recomputed, averaged)


def _early_gain(setting: Setting, run: Run) -> float | None:
    gain = _recomputing_gain(setting, run)
    return None if gain is None else mean(gain[: first_quarter(len(gain))])


def _gain_at_choice(setting: Setting, run: Run) -> float | None:
    """The mean gain over both chosen epochs, because the claim does not distinguish between them."""
    gain = _recomputing_gain(setting, run)
    return _mean([at(gain, _chosen(setting, run.seed, title)[1]) for title in (ACC, LOSS)])


def _slope(setting: Setting, run: Run, value: Callable[[series.Peak], float]) -> float | None:
    """The rise of the averages' peaks (recomputed statistics) from one to the next slower average, by least squares."""
    peaks = [peak(average(run, name, "test", batchnorm="recomputed")) for name in setting.averages]
    known = [value(point) for point in peaks if point is not None]
    if len(known) < len(peaks) or len(known) < 2:
        return None
    ranks = np.arange(len(known)) - (len(known) - 1) / 2
    return float(ranks @ np.array(known) / (ranks @ ranks))


# Label noise ----------------------------------------------------------------------------------------------------------


def _memorised(setting: Setting) -> Sequence[Sample]:
    """Share memorised: slowest average minus live weights, each when it first reaches 90% on the clean images."""
    average, live = (series.on_train(setting, weights) for weights in (setting.slowest, LIVE))
    if average is None or live is None:
        return []
    seeds = [run.seed for run in setting.variants["refit"]]
    reached = {"the average": average.first_reached(), "SGD": live.first_reached()}
    never = [
        f"{who} of seed {seed}" for at, seed in enumerate(seeds) for who, own in reached.items() if own[at] is None
    ]
    if never:  # the seeds that reach it do not represent all
        return [Sample(dict.fromkeys(seeds), (f"{', '.join(never)} never reaches 90% on the clean images",))]
    pairs = zip(*reached.values(), strict=True)
    differences = [points(one and one.memorised, other and other.memorised) for one, other in pairs]
    return [Sample(dict(zip(seeds, differences, strict=True)))]


def _since_fork(setting: Setting, constant: Run, refit: Run) -> tuple[float | None, float | None]:
    """The average at the end minus at the fork, in points: with the constant rate, and with the cosine."""
    start = _accuracy(setting, refit, constant.constant_from)
    return points(_accuracy(setting, constant, -1), start), points(_accuracy(setting, refit, -1), start)


def _lost_by_noisy_choice(setting: Setting) -> Sequence[Sample]:
    """Test accuracy of the average chosen with clean validation labels minus the one chosen with noisy labels."""
    clean, noisy = (series.values(setting, title, "accuracy", REFIT) for title in (ACC, BY_NOISY_LABELS[ACC]))
    values = series.combined(clean, noisy, points)
    return [] if values is None else [Sample(_by_seed(setting, "accuracy", values))]


def _leaderboard(setting: Setting) -> Sequence[Sample]:
    """Our lead over the best method that the paper ranks below its own average in Table 2."""
    accuracies = series.values(setting, SLOWEST_ACC, "accuracy", REFIT)
    known = [100.0 * share for share in accuracies or () if share is not None]
    if accuracies is None or not known or not setting.compares:
        return []
    published = paper.printed("Table 2", metric="accuracy", pair=setting.pair)
    others = [value.mean or 0.0 for value in published if value.ours != SLOWEST_ACC]
    (own,) = [value.mean or 0.0 for value in published if value.ours == SLOWEST_ACC]
    next_below = max(other for other in others if other < own)
    rank, papers = (1 + sum(other > score for other in others) for score in (float(np.mean(known)), own))
    note = f"{PAIRS[setting.pair]}: place {rank} of {len(others) + 1} printed methods, the paper's is {papers}"
    ahead = [None if share is None else 100.0 * share - next_below for share in accuracies]
    return [Sample(_by_seed(setting, "accuracy", ahead), (note,))]


# Other ways to train --------------------------------------------------------------------------------------------------


def _periods(value: Callable[[Setting, Run, Run], float | None]) -> Samples:
    """T = 16 against T = 1; in a shorter run, the third period that was tried stands in for 16."""

    def sample(setting: Setting) -> Sequence[Sample]:
        periods = setting.periods()
        if 1 not in periods or (len(periods) < 3 and 16 not in periods):
            return []
        period = 16 if 16 in periods else list(periods)[2]
        notes = () if period == 16 else (f"T = {period} stands in for 16 in this shorter run",)
        return [sample._replace(notes=notes) for sample in paired(periods[period], periods[1], value)(setting)]

    return sample


def _all_curves(setting: Setting, sampled: Run, every_step: Run) -> float | None:
    return _mean(
        [mean(gap(average(sampled, name, "test"), average(every_step, name, "test"))) for name in setting.averages]
    )


def _bootstrapped_live(setting: Setting, bootstrap: Run, tune: Run) -> float | None:
    return points(height(live(bootstrap, "val")), height(live(tune, "val")))


def _bootstrapped_averages(setting: Setting, bootstrap: Run, tune: Run) -> float | None:
    names = [
        name for name in setting.averages if all(average(run, name, "val") is not None for run in (bootstrap, tune))
    ]
    return points(height(best(bootstrap, names, "val")), height(best(tune, names, "val")))


def _loss_at_sgd_rate(setting: Setting) -> Sequence[Sample]:
    """The averages at the live weights' best rate minus at their own, noting in how many seeds the two rates agree."""
    by_seed: dict[int, float | None] = {}
    variants = [setting.variants[variant] for variant in setting.rates().values()]  # the lowest rate first
    for seed in sorted({run.seed for variant in variants for run in variant}):
        peaks: list[tuple[float, float]] = []
        for run in (run for variant in variants for run in variant if run.seed == seed):
            of_live, of_averages = height(live(run, "val")), height(best(run, setting.averages, "val"))
            if of_live is not None and of_averages is not None:
                peaks.append((of_live, of_averages))
        at_live_rate = max(peaks, key=lambda both: both[0])[1] if peaks else None  # on a tie, the lower rate
        by_seed[seed] = points(at_live_rate, max(own for _, own in peaks)) if len(peaks) > 1 else None
    known = [value for value in by_seed.values() if value is not None]
    note = f"the same rate is best for both in {known.count(0.0)} of {len(known)} seeds"
    return [Sample(by_seed, (note,))] if known else []


# The claims -----------------------------------------------------------------------------------------------------------

CLAIMS = (
    ClaimSpec("1", "The averages are ahead of SGD all through training, most of all early", ("dynamics",), ALL, (
        Statistic("share", "share of epochs at which the average with the best validation accuracy then is ahead of "
                  "SGD on test, %", above(THROUGHOUT),
                  runs("refit", lambda setting, run: _share_ahead(_validated(setting, run), run))),
        Statistic("chosen", "share of epochs at which the average of the chosen decay is ahead of SGD on test, %",
                  above(THROUGHOUT), runs("refit", lambda setting, run: _share_ahead(
                      average(run, _chosen(setting, run.seed)[0], "test"), run))),
        Statistic("early", "best average minus SGD, test accuracy, mean over the first quarter, points", above(),
                  runs("refit", lambda setting, run: _early_and_late_lead(setting, run)[0]), _ORACLE),
        Statistic("most", "the same lead in the first quarter minus in the other three, points", above(),
                  runs("refit", lambda setting, run: _minus(*_early_and_late_lead(setting, run))), _ORACLE),
    ), note="we count three quarters of the epochs as “all through”, because the paper prints no number; a tie is half "
       "an epoch"),
    ClaimSpec("2", "The best epoch comes before 3/4 of the budget, and from there on it gets worse or equal",
              ("dynamics",), ALL, (
        Statistic("when", "epoch that validation accuracy chose for the averages, % of all epochs", below(BUDGET),
                  runs("tune", lambda setting, run: _epoch_share(setting, run, ACC))),
        Statistic("afterwards", "chosen average, test accuracy at the end minus at the chosen epoch, points",
                  below(EQUAL),
                  runs("refit", lambda setting, run: points(_accuracy(setting, run, -1), _accuracy(setting, run)))),
    ), note="the paper's own lists have 153 to 162 of 200 epochs as well"),
    ClaimSpec("3", "At the end, as the learning rate goes to 0, averages and SGD coincide", ("dynamics",), ALL, (
        Statistic("end", "average of the chosen decay minus SGD at the last epoch, test accuracy, points", within(),
                  runs("refit", _gap_at_end)),
    )),
    ClaimSpec("4", "Sampling every 16 steps gives what sampling every step gives", ("sampling-period",), (MAIN,), (
        Statistic("choice", "T = 16 minus T = 1: chosen average at the chosen epoch, test accuracy, points", within(),
                  _periods(lambda setting, one, other: points(_accuracy(setting, one), _accuracy(setting, other)))),
        Statistic("curves", "T = 16 minus T = 1: test accuracy, mean over all averages and epochs, points", within(),
                  _periods(_all_curves)),
    ), note="at equal horizon, and without a warm-up of the decay, which would not be the same for both"),
    ClaimSpec("5", "Slow averages fail with averaged batch-norm statistics and recover with recomputed ones; "
              "recomputing improves generalisation; slower averages then peak later and higher", ("batchnorm",),
              (MAIN,), (
        Statistic("early", "slowest average, recomputed minus averaged statistics, test accuracy, mean over the "
                  "first quarter, points", above(), runs("refit", _early_gain)),
        Statistic("choice", "slowest average, recomputed minus averaged statistics, test accuracy, mean over the two "
                  "epochs that validation chose, points", above(), runs("refit", _gain_at_choice)),
        Statistic("later", "slope of the peak's epoch over the averages, recomputed, from one to the next slower, % "
                  "of the run", above(),
                  runs("refit", lambda setting, run: _slope(setting, run, lambda at: 100.0 * at.epoch / run.epochs))),
        Statistic("higher", "slope of the peak's test accuracy over the averages, recomputed, from one to the next "
                  "slower, points", above(),
                  runs("refit", lambda setting, run: _slope(setting, run, lambda at: 100.0 * at.value))),
    ), note="the first quarter is a window that was fixed beforehand; peaks on test are an oracle's, as in the "
       "paper's Table 24; each average has about twice the half-life of the one before"),
    ClaimSpec("6", "Under label noise the averages beat the best SGD by far, and memorise less", ("label-noise",),
              NOISY, (
        difference("chosen", ACC, SGD_BEST, above()),
        difference("ahead", SLOWEST_ACC, SGD_BEST, above()),
        Statistic("memorised", "slowest average minus SGD: share of wrong labels memorised when the accuracy on the "
                  "clean ones first reaches 90%, points", below(), _memorised),
    ), note="the paper does not say how much “by far” is; the average that memorises has averaged statistics"),
    ClaimSpec("7", "Under label noise, training on at a constant rate does not overfit, decaying the rate does",
              ("constant-lr",), (CONSTANT,), (
        Statistic("difference", "chosen average, test accuracy at the end minus where the rate is held: constant "
                  "rate minus cosine, points", above(),
                  paired("constant", "refit", lambda setting, one, other: _minus(*_since_fork(setting, one, other)))),
        Statistic("constant", "the same at a constant rate, points", above(-EQUAL),
                  paired("constant", "refit", lambda setting, one, other: _since_fork(setting, one, other)[0])),
        Statistic("cosine", "the same with the cosine, points", below(),
                  paired("constant", "refit", lambda setting, one, other: _since_fork(setting, one, other)[1])),
    ), note="the rate is held from the epoch that validation chose; a rise at a constant rate is no overfitting"),
    ClaimSpec("8", "Predictions of independent runs agree better: lower churn and JS divergence", ("consistency",),
              CLEAN, (
        difference("chosen", LOSS, SGD_BEST, below(), "churn"),
        difference("churn", SLOWEST_LOSS, SGD, below(), "churn"),
        Statistic("js", "slowest (loss) against SGD (last), JS divergence on test, change in %", below(),
                  columns(SLOWEST_LOSS, SGD, "js", combine=lambda a, b: 100.0 * (a / b - 1.0) if b > 0 else None),
                  _PAIRS),
    ), note="the paper's JS divergence has another scale than ours (natural logarithm, at most 0.693), so it is "
       "compared as a ratio"),
    ClaimSpec("9", "The averages are better calibrated, and temperature scaling adds to it", ("calibration",), CLEAN, (
        difference("chosen", LOSS, SGD_BEST, below(), "ece", stage=TUNED_ON_TEST),
        difference("ece", SLOWEST_LOSS, SGD_BEST, below(), "ece", stage=TUNED_ON_TEST),
        difference("ece_ts", SLOWEST_LOSS, SGD_BEST, below(), "ece_ts", stage=TUNED_ON_TEST),
        Statistic("scaled", "trained on 80%: slowest (loss), ECE on test with minus without temperature scaling, "
                  "points", below(),
                  columns(SLOWEST_LOSS, SLOWEST_LOSS, "ece_ts", other_metric="ece", stage=TUNED_ON_TEST)),
    ), note="a perfectly calibrated model has an ECE above 0 too, the more so the fewer images are tested on; the "
       "paper's calibration table has the numbers of its validation tables"),
    ClaimSpec("10", "The features transfer better to other data sets under a linear head", ("transfer",),
              ("tiny-imagenet-resnet18", MAIN, "cifar10-resnet18"), (
        difference("chosen", LOSS, SGD_BEST, above(), TRANSFER),
        difference("acc", SLOWEST_ACC, SGD, above(), TRANSFER),
        difference("loss", SLOWEST_LOSS, SGD, above(), TRANSFER),
    )),
    ClaimSpec("11", "Copying the average back into training once an epoch (bootstrapping) does not help",
              ("bootstrap",), (MAIN,), (
        Statistic("live", "bootstrapped minus plain: best validation accuracy of the live weights, points",
                  below(EQUAL), paired("bootstrap", "tune", _bootstrapped_live)),
        Statistic("average", "bootstrapped minus plain: best validation accuracy of the averages, points", below(EQUAL),
                  paired("bootstrap", "tune", _bootstrapped_averages)),
        Statistic("live5", "copied back every 5 steps minus plain: best validation accuracy of live weights, points",
                  below(EQUAL), paired("bootstrap every 5", "tune", _bootstrapped_live)),
        Statistic("average5", "copied back every 5 steps minus plain: best validation accuracy of averages, points",
                  below(EQUAL), paired("bootstrap every 5", "tune", _bootstrapped_averages)),
    ), note="less than 1 point is no help"),
    ClaimSpec("12", "The same initial learning rate is best for SGD and for its averages", ("lr-search",),
              (MAIN, "cifar100-wrn-28-10"), (
        Statistic("rate", "best average at SGD's best rate minus at its own best rate, validation accuracy, points",
                  within(), _loss_at_sgd_rate),
    ), note="it cannot be above 0, so only the lower end of the interval matters; both are best values on validation"),
    ClaimSpec("13", "With step decay of the learning rate the averages only match SGD", ("step-decay",), (MAIN,), (
        Statistic("chosen", "step decay: chosen average minus SGD, each at its chosen epoch, test accuracy, points",
                  within(), runs("step", _at_own_choices)),
        Statistic("end", "step decay: average of the chosen decay minus SGD at the last epoch, test accuracy, points",
                  within(), runs("step", _gap_at_end)),
    ), note="the epochs are those that validation chose in tuning, with the cosine: steps are not tuned"),
    ClaimSpec("14", "EMA and SWA are on a par", ("generalization",), CLEAN, (
        difference("chosen", ACC, SWA, within()),
        difference("swa", SLOWEST_ACC, SWA, within()),
    )),
    ClaimSpec("16", "On the test set EMA beats SGD in accuracy and in loss, and so does SWA in accuracy",
              ("generalization",), CLEAN, (
        difference("chosen", ACC, SGD, above()),
        difference("best", ACC, SGD_BEST, above()),
        difference("accuracy", SLOWEST_ACC, SGD, above()),
        Statistic("loss", "slowest (acc.) minus SGD (last), test loss", below(),
                  columns(SLOWEST_ACC, SGD, "loss", combine=lambda a, b: a - b)),
        difference("swa", SWA, SGD, above()),
    )),
    ClaimSpec("17", "The epoch of the lowest loss comes before that of the best accuracy", ("generalization",), ALL, (
        Statistic("epochs", "epoch of EMA (loss) minus that of EMA (acc.), % of all epochs", below(),
                  runs("tune",
                       lambda setting, run: _minus(_epoch_share(setting, run, LOSS), _epoch_share(setting, run, ACC)))),
    )),
    ClaimSpec("18", "EMA (loss) is better than EMA (acc.) in calibration, consistency and transfer",
              ("generalization", "consistency", "transfer"), CLEAN, (
        difference("chosen", LOSS, ACC, below(), "ece"),
        difference("ece", SLOWEST_LOSS, SLOWEST_ACC, below(), "ece"),
        difference("churn", SLOWEST_LOSS, SLOWEST_ACC, below(), "churn"),
        difference("transfer", SLOWEST_LOSS, SLOWEST_ACC, above(), TRANSFER),
    ), note="of the refits on all training images; the paper itself has one exception, CIFAR-10 to CIFAR-100"),
    ClaimSpec("19", "It keeps its place in the label-noise leaderboard", ("label-noise",), NOISY, (
        Statistic("place", "slowest (acc.), test accuracy, minus the best method that the paper has below it, points",
                  above(), _leaderboard),
    ), scale="paper", note="only CIFAR-10N and CIFAR-100N with ResNet-34 compare with the published numbers, which "
       "are taken as they stand, without their spread; the paper prints a selection of the leaderboard's methods"),
    ClaimSpec("b", "Noisy validation labels choose nearly as well as clean ones", ("label-noise",), NOISY, (
        Statistic("lost", "EMA (acc.) chosen with clean validation labels minus chosen with noisy ones, test accuracy, "
                  "points",
                  below(EQUAL), _lost_by_noisy_choice),
    ), beyond=True),
    ClaimSpec("c", "An average has the live weights' best accuracy in fewer steps", ("dynamics",), ALL, (
        Statistic("steps", "steps until an average first has the live weights' best validation accuracy, % of the "
                  "steps that these take", below(100.0), runs("tune", _steps_to_target)),
    ), beyond=True, note="counted in epochs; the first of all averages of the bank; if none gets there, it counts "
       "as the whole run"),
)  # fmt: skip
"""All claims but 15, which is not about settings."""


# The cost of averages -------------------------------------------------------------------------------------------------

OVERHEAD = ClaimSpec(
    "15", "Five averages sampled every 16 steps cost a tiny share of the training step", ("sampling-period",), (), (
        Statistic("share", "time of an update of five averages over that of the 16 steps between two, %", below(TINY),
                  lambda setting: []),
    ), note="that 1% is a tiny share is ours; one value per repetition on one machine, not per seed",
)  # fmt: skip


def _overhead_claim(results: Results) -> Claim:
    """Claim 15, with a sample per network that was timed with five averages at T = 16."""
    samples = [
        Sample({at: share and 100.0 * share for at, share in enumerate(cost.shares)}, setting=cost.network)
        for cost in results.overheads
        if (cost.averages, cost.every) == (5, 16)
    ]
    return conclude(OVERHEAD, {"share": samples}, results)
