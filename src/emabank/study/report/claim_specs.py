"""The nineteen claims of the paper: which statistics test each of them, in which settings, under which rule."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from emabank.study.report import paper, series
from emabank.study.report.claims import (
    EQUAL,
    Claim,
    ClaimSpec,
    Sample,
    Statistic,
    above,
    below,
    conclude,
    evaluate,
    finding_of,
    no_gain,
    within,
)
from emabank.study.report.results import LIVE, OF_PAIRS, TRANSFER, Overhead, Results, Run, Setting
from emabank.study.report.series import (
    REFIT,
    TUNED_ON_TEST,
    Stage,
    at,
    average,
    best,
    chosen,
    first_quarter,
    gap,
    live,
    mean,
    peak,
    points,
)
from emabank.study.studies.scales import CLEAN, CONSTANT, NOISY

SGD, SGD_BEST, ACC, LOSS, SWA = "SGD", "SGD (best)", "slowest (acc.)", "slowest (loss)", "SWA"
ALL = (*CLEAN, *NOISY)
THROUGHOUT = 75.0
"""Percent of the epochs that count as "all through" (ours): in the last ones both coincide by claim 3, and which is
ahead is chance there."""
BUDGET = 75.0
TINY = 1.0
"""Percent of the step that still count as a tiny share (ours)."""
_ORACLE = "the best of all averages at each epoch on test is an oracle's choice: it favours the averages"
_PAIRS = "values are of pairs of seeds, which are not independent: no more of them are counted than there are seeds"

Samples = Callable[[Setting], Sequence[Sample]]
OfRun = Callable[[Setting, Run], float | None]
OfRuns = Callable[[Setting, Run, Run], float | None]


def make_claims(results: Results) -> list[Claim]:
    """What became of each of the nineteen claims, 1 to 19."""
    claims = [evaluate(spec, results) for spec in CLAIMS]
    return sorted([*claims, _overhead_claim(results)], key=lambda claim: claim.number)


# How samples are taken ------------------------------------------------------------------------------------------------


def _sample(values: Mapping[str, float | None]) -> Sample:
    """The values by name that are there; a note names those that are not."""
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    absent = [name for name in values if name not in known]
    return Sample(list(known.values()), notes=(f"no value for {', '.join(absent)}",) if absent else ())


def columns(
    one: str,
    other: str,
    metric: str = "accuracy",
    *,
    other_metric: str = "",
    stage: Stage = REFIT,
    combine: Callable[[float, float], float | None] = points,
) -> Samples:
    """One column against another, seed by seed: by default the difference in points."""

    def sample(setting: Setting) -> Sequence[Sample]:
        left = series.values(setting, one, metric, stage)
        right = series.values(setting, other, other_metric or metric, stage)
        values = series.combined(left, right, combine)
        if values is None:
            return []
        if metric in OF_PAIRS:
            of_pairs = _sample({f"pair {place + 1} of seeds": value for place, value in enumerate(values)})
            return [of_pairs._replace(independent=len(setting.seeds))]
        seeds = setting.seeds if len(setting.seeds) == len(values) else range(len(values))
        return [_sample({f"seed {seed}": value for seed, value in zip(seeds, values, strict=True)})]

    return sample


def transfers(one: str, other: str) -> Samples:
    """The same for the accuracy on every data set that was transferred to."""
    return lambda setting: [
        sample._replace(target=metric.removeprefix(TRANSFER))
        for metric in series.transfers(setting, one)
        for sample in columns(one, other, metric)(setting)
    ]


def runs(variant: str, value: OfRun, *, otherwise: str = "") -> Samples:
    """A value of each run of a variant, or of another where there is none; nothing where no run has the value."""

    def sample(setting: Setting) -> Sequence[Sample]:
        own = setting.variants.get(variant if variant in setting.variants else otherwise, ())
        return _unless_absent({f"seed {run.seed}": value(setting, run) for run in own})

    return sample


def paired(variant: str, other: str, value: OfRuns) -> Samples:
    """A value of the runs of two variants, paired by their seeds."""

    def sample(setting: Setting) -> Sequence[Sample]:
        others = {run.seed: run for run in setting.variants.get(other, ())}
        own = [run for run in setting.variants.get(variant, ()) if run.seed in others]
        return _unless_absent({f"seed {run.seed}": value(setting, run, others[run.seed]) for run in own})

    return sample


def _unless_absent(values: Mapping[str, float | None]) -> Sequence[Sample]:
    return [] if all(value is None for value in values.values()) else [_sample(values)]


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of values that are all there."""
    known = [value for value in values if value is not None]
    return mean(np.array(known)) if known and len(known) == len(values) else None


def _peak_gap(one: np.ndarray | None, other: np.ndarray | None) -> float | None:
    """The highest value of one curve minus that of another, in points."""
    high, other_high = peak(one), peak(other)
    return None if high is None or other_high is None else points(high.value, other_high.value)


# Through training -----------------------------------------------------------------------------------------------------


def _lead(setting: Setting, run: Run) -> np.ndarray | None:
    """By how many points the best average is ahead of the live weights at every epoch, on test."""
    return gap(best(run, setting.averages, "test"), live(run, "test"))


def _share_ahead(setting: Setting, run: Run) -> float | None:
    lead = _lead(setting, run)
    if lead is None:
        return None
    known = lead[np.isfinite(lead)]
    return mean(100.0 * (known > 0) + 50.0 * (known == 0))


def _early_lead(setting: Setting, run: Run) -> float | None:
    lead = _lead(setting, run)
    return None if lead is None else mean(lead[: first_quarter(len(lead))])


def _early_minus_later_lead(setting: Setting, run: Run) -> float | None:
    lead = _lead(setting, run)
    if lead is None:
        return None
    early, later = mean(lead[: first_quarter(len(lead))]), mean(lead[first_quarter(len(lead)) :])
    return None if early is None or later is None else early - later


def _chosen_share(setting: Setting, run: Run) -> float | None:
    choice = chosen(setting, run.seed)
    return None if choice is None or not run.epochs else 100.0 * choice[1] / run.epochs


def _after_choice(setting: Setting, run: Run) -> float | None:
    choice = chosen(setting, run.seed)
    if choice is None:
        return None
    curve = average(run, choice[0], "test")
    return points(at(curve, -1), at(curve, choice[1]))


def _end(setting: Setting, run: Run) -> float | None:
    return points(at(best(run, setting.averages, "test"), -1), at(live(run, "test"), -1))


def _peaks(setting: Setting, run: Run) -> float | None:
    return _peak_gap(best(run, setting.averages, "test"), live(run, "test"))


def _loss_minus_accuracy_epoch(setting: Setting, run: Run) -> float | None:
    loss, accuracy = (chosen(setting, run.seed, criterion) for criterion in ("loss", "accuracy"))
    return None if loss is None or accuracy is None else float(loss[1] - accuracy[1])


# Batch norm -----------------------------------------------------------------------------------------------------------


def _of_refits(value: OfRun) -> Samples:
    """Of networks with batch norm alone."""
    return lambda setting: runs("refit", value)(setting) if setting.has_batchnorm else []


def _recomputing_gain(setting: Setting, run: Run) -> np.ndarray | None:
    """Recomputed minus averaged statistics of the slowest average at every epoch, in points."""
    recomputed, averaged = (
        average(run, setting.slowest, "test", batchnorm=batchnorm) for batchnorm in ("recomputed", "averaged")
    )
    return gap(recomputed, averaged)


def _early_gain(setting: Setting, run: Run) -> float | None:
    gain = _recomputing_gain(setting, run)
    return None if gain is None else mean(gain[: first_quarter(len(gain))])


def _gain_at_choice(setting: Setting, run: Run) -> float | None:
    """The mean over both chosen epochs, because the claim makes no difference between them."""
    choices = [chosen(setting, run.seed, criterion) for criterion in ("accuracy", "loss")]
    gain = _recomputing_gain(setting, run)
    return _mean([None if choice is None else at(gain, choice[1]) for choice in choices])


def _slope(setting: Setting, run: Run, value: Callable[[series.Peak], float]) -> float | None:
    """By how much the peaks of the averages, recomputed, rise from one to the next slower, by least squares."""
    peaks = [peak(average(run, name, "test", batchnorm="recomputed")) for name in setting.averages]
    known = [value(point) for point in peaks if point is not None]
    if len(known) < len(peaks) or len(known) < 2:
        return None
    places = np.arange(len(known)) - (len(known) - 1) / 2
    return float(places @ np.array(known) / (places @ places))


def _peaks_later(setting: Setting, run: Run) -> float | None:
    return _slope(setting, run, lambda peak: 100.0 * peak.epoch / run.epochs)


def _peaks_higher(setting: Setting, run: Run) -> float | None:
    return _slope(setting, run, lambda peak: 100.0 * peak.value)


# Label noise ----------------------------------------------------------------------------------------------------------


def _memorised(setting: Setting) -> Sequence[Sample]:
    """The slowest average minus the live weights, each when it first reaches 90% on the clean training images."""
    curves = {"the average": series.on_train(setting, setting.slowest), "SGD": series.on_train(setting, LIVE)}
    values: dict[str, float | None] = {}
    never: list[str] = []
    for place, run in enumerate(setting.variants.get("refit", ())):
        shares: dict[str, float | None] = {}
        for who, both in curves.items():
            if both is None:
                return []
            reached = series.first_reached(both.clean[place], both.memorised[place])
            shares[who] = reached and reached.memorised
        never += [f"{who} of seed {run.seed}" for who, share in shares.items() if share is None]
        values[f"seed {run.seed}"] = points(shares["the average"], shares["SGD"])
    if not values:
        return []
    if never:
        known = [value for value in values.values() if value is not None]
        return [Sample(known, complete=False, notes=(f"{', '.join(never)} never reaches 90% on the clean images",))]
    return [_sample(values)]


def _fall(setting: Setting, run: Run, trunk: Run) -> float | None:
    """The chosen average at the end minus at the chosen epoch, where both branches leave their common trunk."""
    choice = chosen(setting, run.seed)
    if choice is None:
        return None
    name, epoch = choice
    start = at(average(run, name, "test"), epoch)
    start = at(average(trunk, name, "test"), epoch) if start is None else start
    return points(at(average(run, name, "test"), -1), start)


def _cosine_fall(setting: Setting, constant: Run, refit: Run) -> float | None:
    return _fall(setting, refit, refit)


def _constant_minus_cosine(setting: Setting, constant: Run, refit: Run) -> float | None:
    one, other = _fall(setting, constant, refit), _fall(setting, refit, refit)
    return None if one is None or other is None else one - other


def _leaderboard(setting: Setting) -> Sequence[Sample]:
    """Ahead of the best method that the paper has below its own average in Table 2."""
    accuracies = series.values(setting, ACC, "accuracy", REFIT)
    if accuracies is None or not setting.compares:
        return []
    sample = _sample(
        {f"seed {place}": None if share is None else 100.0 * share for place, share in enumerate(accuracies)}
    )
    if not sample.values:
        return [sample]
    published = paper.printed("Table 2", metric="accuracy", pair=setting.pair)
    others = [value.mean or 0.0 for value in published if value.ours != ACC]
    (own,) = [value.mean or 0.0 for value in published if value.ours == ACC]
    ours = float(np.mean(sample.values))
    place, papers_place = (1 + sum(other > mean for other in others) for mean in (ours, own))
    note = f"place {place} of {len(others) + 1} printed methods; the paper has place {papers_place}"
    next_below = max(other for other in others if other < own)
    ahead = [value - next_below for value in sample.values]
    return [Sample(ahead, notes=(*sample.notes, *note.split("; ")))]


# Other ways to train --------------------------------------------------------------------------------------------------


def _periods(value: OfRuns) -> Samples:
    """T = 16 against T = 1; in a shorter run the third period that was tried stands for 16."""

    def sample(setting: Setting) -> Sequence[Sample]:
        periods = setting.periods()
        if 1 not in periods or (len(periods) < 3 and 16 not in periods):
            return []
        period = 16 if 16 in periods else list(periods)[2]
        notes = () if period == 16 else (f"T = {period} stands for 16 in this shorter run",)
        samples = paired(periods[period], periods[1], value)(setting)
        return [sample._replace(notes=(*sample.notes, *notes)) for sample in samples]

    return sample


def _best_peaks(setting: Setting, sampled: Run, every_step: Run) -> float | None:
    return _peak_gap(*(best(run, setting.averages, "test") for run in (sampled, every_step)))


def _all_curves(setting: Setting, sampled: Run, every_step: Run) -> float | None:
    return _mean(
        [mean(gap(average(sampled, name, "test"), average(every_step, name, "test"))) for name in setting.averages]
    )


def _bootstrapped_live(setting: Setting, bootstrap: Run, tune: Run) -> float | None:
    return _peak_gap(live(bootstrap, "val"), live(tune, "val"))


def _bootstrapped_averages(setting: Setting, bootstrap: Run, tune: Run) -> float | None:
    names = [
        name for name in setting.averages if all(average(run, name, "val") is not None for run in (bootstrap, tune))
    ]
    return _peak_gap(best(bootstrap, names, "val"), best(tune, names, "val"))


def _own_rate(setting: Setting) -> Sequence[Sample]:
    """By how much the averages would gain from a rate of their own, and how many seeds have the same for both."""
    values: dict[str, float | None] = {}
    agreeing = 0
    variants = [setting.variants[variant] for variant in setting.rates().values()]  # the lowest rate first
    for seed in sorted({run.seed for variant in variants for run in variant}):
        peaks: list[tuple[float, float]] = []
        for run in (run for variant in variants for run in variant if run.seed == seed):
            of_live, of_averages = peak(live(run, "val")), peak(best(run, setting.averages, "val"))
            if of_live is not None and of_averages is not None:
                peaks.append((of_live.value, of_averages.value))
        if len(peaks) < 2:
            values[f"seed {seed}"] = None
            continue
        at_lives_rate = max(peaks, key=lambda both: both[0])[1]  # of equals the first, the lower rate
        highest = max(of_averages for _, of_averages in peaks)
        values[f"seed {seed}"] = points(highest, at_lives_rate)
        agreeing += at_lives_rate == highest
    if all(value is None for value in values.values()):
        return []
    sample = _sample(values)
    note = f"the same rate is best for both in {agreeing} of {len(sample.values)} seeds"
    return [sample._replace(notes=(note, *sample.notes))]


# The claims -----------------------------------------------------------------------------------------------------------

CLAIMS = (
    ClaimSpec(
        number=1, title="The averages are ahead of SGD all through training, most of all early",
        statistics=(
            Statistic(
                key="share", sample=runs("refit", _share_ahead), rule=above(THROUGHOUT), study="dynamics", pairs=ALL,
                words="share of epochs at which the best average is ahead of SGD on test (a tie is half), %",
            ),
            Statistic(
                key="early", sample=runs("refit", _early_lead), rule=above(), study="dynamics", pairs=ALL,
                words="best average minus SGD, test accuracy, mean over the first quarter, points",
            ),
            Statistic(
                key="most", sample=runs("refit", _early_minus_later_lead), rule=above(), study="dynamics", pairs=ALL,
                words="the same lead in the first quarter minus in the other three, points",
            ),
        ),
        note=f"{_ORACLE}; that three quarters of the epochs count as all through is ours, the paper prints no number",
    ),
    ClaimSpec(
        number=2, title="The best epoch comes before 3/4 of the budget, and from there on it gets worse or equal",
        statistics=(
            Statistic(
                key="when", sample=runs("tune", _chosen_share, otherwise="refit"), rule=below(BUDGET),
                study="dynamics", pairs=ALL, words="epoch that validation accuracy chose, % of all epochs",
            ),
            Statistic(
                key="afterwards", sample=runs("refit", _after_choice), rule=below(EQUAL), study="dynamics", pairs=ALL,
                words="chosen average, refit: test accuracy at the end minus at the chosen epoch, points",
            ),
        ),
        note="the epoch is chosen on validation and looked at on test, so that it is no peak by construction; the "
        "paper's own lists have 153 to 162 of 200 epochs as well",
    ),
    ClaimSpec(
        number=3, title="At the end, as the learning rate goes to 0, averages and SGD coincide",
        statistics=(
            Statistic(
                key="end", sample=runs("refit", _end), rule=within(), study="dynamics", pairs=ALL,
                words="best average minus SGD at the last epoch, test accuracy, points",
            ),
        ),
        note=f"{_ORACLE}, here against the claim",
    ),
    ClaimSpec(
        number=4, title="Sampling every 16 steps gives what sampling every step gives",
        statistics=(
            Statistic(
                key="peak", sample=_periods(_best_peaks), rule=within(), study="sampling-period", pairs=CLEAN,
                words="T = 16 minus T = 1: best average at its best epoch, test accuracy, points",
            ),
            Statistic(
                key="curves", sample=_periods(_all_curves), rule=within(), study="sampling-period", pairs=CLEAN,
                words="T = 16 minus T = 1: test accuracy, mean over all averages and epochs, points",
            ),
        ),
        note="at equal horizon, and without a warm-up of the decay, which would not be the same for both",
    ),
    ClaimSpec(
        number=5, title="Slow averages fail with averaged batch-norm statistics and recover with recomputed ones; "
        "recomputing improves generalisation; slower averages then peak later and higher",
        statistics=(
            Statistic(
                key="early", sample=_of_refits(_early_gain), rule=above(), study="batchnorm", pairs=ALL,
                words="slowest average, recomputed minus averaged statistics, test accuracy, mean over the first "
                "quarter, points",
            ),
            Statistic(
                key="choice", sample=_of_refits(_gain_at_choice), rule=above(), study="batchnorm", pairs=ALL,
                words="slowest average, recomputed minus averaged statistics, test accuracy, mean over the two epochs "
                "that validation chose, points",
            ),
            Statistic(
                key="later", sample=_of_refits(_peaks_later), rule=above(), study="batchnorm", pairs=ALL,
                words="slope of the peak's epoch over the averages, recomputed, from one to the next slower, % of the "
                "run",
            ),
            Statistic(
                key="higher", sample=_of_refits(_peaks_higher), rule=above(), study="batchnorm", pairs=ALL,
                words="slope of the peak's test accuracy over the averages, recomputed, from one to the next slower, "
                "points",
            ),
        ),
        note="the first quarter is a window that was fixed beforehand; peaks on test are an oracle's, as in the "
        "paper's Table 24; each average has about twice the half-life of the one before",
    ),
    ClaimSpec(
        number=6, title="Under label noise the averages beat the best SGD by far, and memorise less",
        statistics=(
            Statistic(
                key="ahead", sample=columns(ACC, SGD_BEST), rule=above(), study="label-noise", pairs=NOISY,
                words="slowest (acc.) minus SGD (best), test accuracy, points",
            ),
            Statistic(
                key="memorised", sample=_memorised, rule=below(), study="label-noise", pairs=NOISY,
                words="slowest average minus SGD: share of wrong labels memorised when the accuracy on the clean ones "
                "first reaches 90%, points",
            ),
        ),
        note="SGD (best): the live weights of their best validation epoch; how far is far is left to the reader; "
        "memorised by the average with recomputed statistics where these were measured each epoch, else with averaged "
        "ones; at the first epoch that reaches 90%, as in the paper",
    ),
    ClaimSpec(
        number=7, title="Under label noise going on at a constant rate does not overfit, decaying the rate does",
        statistics=(
            Statistic(
                key="constant", sample=paired("constant", "refit", _fall), rule=above(-EQUAL), study="constant-lr",
                pairs=(*NOISY, CONSTANT),
                words="constant rate: chosen average at the end minus at the chosen epoch, test accuracy, points",
            ),
            Statistic(
                key="cosine", sample=paired("constant", "refit", _cosine_fall), rule=below(), study="constant-lr",
                pairs=(*NOISY, CONSTANT),
                words="cosine: chosen average at the end minus at the chosen epoch, test accuracy, points",
            ),
            Statistic(
                key="difference", sample=paired("constant", "refit", _constant_minus_cosine), rule=above(),
                study="constant-lr", pairs=(*NOISY, CONSTANT), words="constant minus cosine of these two, points",
            ),
        ),
        note="the peak is the epoch that validation chose, from which the rate is held: the highest epoch on test "
        "would lie above the end in any noisy curve; a rise at a constant rate is no overfitting",
    ),
    ClaimSpec(
        number=8, title="Predictions of independent runs agree better: lower churn and JS divergence",
        statistics=(
            Statistic(
                key="churn", sample=columns(LOSS, SGD, "churn"), rule=below(), study="consistency", pairs=CLEAN,
                words="slowest (loss) minus SGD, churn on test, points", note=_PAIRS,
            ),
            Statistic(
                key="js", rule=below(), study="consistency", pairs=CLEAN, note=_PAIRS,
                sample=columns(LOSS, SGD, "js", combine=lambda a, b: 100.0 * (a / b - 1.0) if b > 0 else None),
                words="slowest (loss) against SGD, JS divergence on test, change in %",
            ),
        ),
        note="the paper's JS divergence has another scale than ours (natural logarithm, at most 0.693), so it is "
        "compared as a ratio",
    ),
    ClaimSpec(
        number=9, title="The averages are better calibrated, and temperature scaling adds to it",
        statistics=(
            Statistic(
                key="ece", sample=columns(LOSS, SGD, "ece", stage=TUNED_ON_TEST), rule=below(), study="calibration",
                pairs=CLEAN, words="trained on 80%: slowest (loss) minus SGD, ECE on test, points",
            ),
            Statistic(
                key="ece_ts", sample=columns(LOSS, SGD, "ece_ts", stage=TUNED_ON_TEST), rule=below(),
                study="calibration", pairs=CLEAN,
                words="trained on 80%: slowest (loss) minus SGD, ECE on test after temperature scaling, points",
            ),
            Statistic(
                key="scaled", sample=columns(LOSS, LOSS, "ece_ts", other_metric="ece", stage=TUNED_ON_TEST),
                rule=below(), study="calibration", pairs=CLEAN,
                words="trained on 80%: slowest (loss), ECE on test with minus without temperature scaling, points",
            ),
        ),
        note="a perfectly calibrated model has an ECE above 0 too, the more so the fewer images are tested on; the "
        "paper's calibration table has the numbers of its validation tables",
    ),
    ClaimSpec(
        number=10, title="The features transfer better to other data sets under a linear head",
        statistics=(
            Statistic(
                key="acc", sample=transfers(ACC, SGD), rule=above(), study="transfer", pairs=CLEAN,
                words="slowest (acc.) minus SGD, accuracy of a linear head, points",
            ),
            Statistic(
                key="loss", sample=transfers(LOSS, SGD), rule=above(), study="transfer", pairs=CLEAN,
                words="slowest (loss) minus SGD, accuracy of a linear head, points",
            ),
        ),
    ),
    ClaimSpec(
        number=11, title="Copying the average back into training once an epoch (bootstrapping) does not help",
        statistics=(
            Statistic(
                key="live", sample=paired("bootstrap", "tune", _bootstrapped_live), rule=no_gain(), study="bootstrap",
                pairs=CLEAN, words="bootstrapped minus plain: best validation accuracy of the live weights, points",
            ),
            Statistic(
                key="average", sample=paired("bootstrap", "tune", _bootstrapped_averages), rule=no_gain(),
                study="bootstrap", pairs=CLEAN,
                words="bootstrapped minus plain: best validation accuracy of the averages, points",
            ),
        ),
        note="less than 1 point is no help, but a gain beyond doubt refutes the claim, however small it is",
    ),
    ClaimSpec(
        number=12, title="The same initial learning rate is best for SGD and for its averages",
        statistics=(
            Statistic(
                key="rate", sample=_own_rate, rule=within(), study="lr-search", pairs=CLEAN,
                words="best average at its own best rate minus at SGD's best rate, validation accuracy, points",
            ),
        ),
        note="it cannot be below 0, so only the upper end of the interval matters; both are best values on validation",
    ),
    ClaimSpec(
        number=13, title="With step decay of the learning rate the averages only match SGD",
        statistics=(
            Statistic(
                key="peak", sample=runs("step", _peaks), rule=within(), study="step-decay", pairs=CLEAN,
                words="step decay: best average minus SGD, each at its best epoch, test accuracy, points",
            ),
            Statistic(
                key="end", sample=runs("step", _end), rule=within(), study="step-decay", pairs=CLEAN,
                words="step decay: best average minus SGD at the last epoch, test accuracy, points",
            ),
        ),
        note="the best of all averages on test is an oracle's choice: it favours the averages, here against the claim",
    ),
    ClaimSpec(
        number=14, title="EMA and SWA are on a par",
        statistics=(
            Statistic(
                key="swa", sample=columns(ACC, SWA), rule=within(), study="generalization", pairs=CLEAN,
                words="slowest (acc.) minus SWA, test accuracy, points",
            ),
        ),
    ),
    ClaimSpec(
        number=16, title="On the test set EMA beats SGD in accuracy and in loss, and so does SWA in accuracy",
        statistics=(
            Statistic(
                key="accuracy", sample=columns(ACC, SGD), rule=above(), study="generalization", pairs=CLEAN,
                words="slowest (acc.) minus SGD, test accuracy, points",
            ),
            Statistic(
                key="loss", sample=columns(ACC, SGD, "loss", combine=lambda one, other: one - other), rule=below(),
                study="generalization", pairs=CLEAN, words="slowest (acc.) minus SGD, test loss",
            ),
            Statistic(
                key="swa", sample=columns(SWA, SGD), rule=above(), study="generalization", pairs=CLEAN,
                words="SWA minus SGD, test accuracy, points",
            ),
        ),
    ),
    ClaimSpec(
        number=17, title="The epoch of the lowest loss comes before that of the best accuracy",
        statistics=(
            Statistic(
                key="epochs", sample=runs("tune", _loss_minus_accuracy_epoch, otherwise="refit"), rule=below(),
                study="generalization", pairs=ALL,
                words="epoch chosen by validation loss minus by validation accuracy, epochs",
            ),
        ),
    ),
    ClaimSpec(
        number=18, title="EMA (loss) is better than EMA (acc.) in calibration, consistency and transfer",
        statistics=(
            Statistic(
                key="ece", sample=columns(LOSS, ACC, "ece"), rule=below(), study="generalization", pairs=CLEAN,
                words="slowest (loss) minus slowest (acc.), ECE on test, points",
            ),
            Statistic(
                key="churn", sample=columns(LOSS, ACC, "churn"), rule=below(), study="consistency", pairs=CLEAN,
                words="slowest (loss) minus slowest (acc.), churn on test, points", note=_PAIRS,
            ),
            Statistic(
                key="transfer", sample=transfers(LOSS, ACC), rule=above(), study="transfer", pairs=CLEAN,
                words="slowest (loss) minus slowest (acc.), accuracy of a linear head, points",
            ),
        ),
        note="of the refits on all training images; the paper itself has one exception, CIFAR-10 to CIFAR-100",
    ),
    ClaimSpec(
        number=19, title="It keeps its place in the label-noise leaderboard",
        statistics=(
            Statistic(
                key="place", sample=_leaderboard, rule=above(), study="label-noise", pairs=NOISY, scales=("paper",),
                words="slowest (acc.), test accuracy, minus the best method that the paper has below it, points",
            ),
        ),
        note="only CIFAR-10N and CIFAR-100N with ResNet-34 compare with the published numbers, which are taken as they "
        "stand, without their spread; the paper prints a selection of the leaderboard's methods",
    ),
)  # fmt: skip
"""All but claim 15, which is not about settings."""


# The cost of averages -------------------------------------------------------------------------------------------------

OVERHEAD = ClaimSpec(
    number=15, title="Five averages sampled every 16 steps cost a tiny share of the training step",
    statistics=(
        Statistic(
            key="share", sample=lambda setting: [], rule=below(TINY), study="sampling-period", pairs=(),
            words="time of an update of five averages over that of the 16 steps between two, %",
        ),
    ),
    note="that 1% is a tiny share is ours; one value a repetition on one machine, not a seed",
)  # fmt: skip


def _overhead_claim(results: Results) -> Claim:
    """With a finding for every network whose step was timed beside five averages at T = 16."""
    (statistic,) = OVERHEAD.statistics
    printed = paper.claim_value(OVERHEAD.number, statistic.key, "")
    findings = [
        finding_of(statistic, _cost(cost), cost.network, "", paper=printed)
        for cost in results.overheads
        if (cost.averages, cost.every) == (5, 16)
    ]
    return conclude(OVERHEAD, {statistic.key: findings}, results)


def _cost(cost: Overhead) -> Sample:
    shares = [
        100.0 * update / (cost.every * step)
        for step, update in zip(cost.step_seconds, cost.update_seconds, strict=False)
        if step > 0 and math.isfinite(update / step)
    ]
    return Sample(shares)
