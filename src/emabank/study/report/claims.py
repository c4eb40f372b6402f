"""How a claim of the paper is tested: a statistic per seed, its 95% t-interval, a rule, and one verdict in the end.

The claims themselves are in claim_specs.py.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from emabank.study.report import paper
from emabank.study.report.results import Results, Setting

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "too few runs", "not run"]

REFERENCE = "the paper's value is of its own data set and network, for orientation"
"""The note of a finding whose setting only stands for the paper's."""
EQUAL = 1.0
"""Two results are on a par if they differ by less than so many points."""
_RANK = {"paper": 3, "small": 2, "demo": 1}
_DIGITS = 9
"""Behind the point: what is smaller is the rounding of a sum, and must not count as a difference."""


# Intervals and rules --------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A mean and where it may lie; no ends with fewer than two values, no mean with none."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """How many independent values it rests on."""


class Rule(NamedTuple):
    """Where an interval must lie for a claim to hold, and where for it to be refuted; in between nothing is decided."""

    text: str
    low: float = -math.inf
    high: float = math.inf
    """The claim holds if the whole interval lies strictly between `low` and `high`."""
    refuted_below: float = -math.inf
    refuted_above: float = math.inf
    """It is refuted if the whole interval lies below the one or above the other; this is looked at first."""


def above(bound: float = 0.0) -> Rule:
    """More than a bound."""
    return Rule(f"above {bound:g}", low=bound, refuted_below=bound)


def below(bound: float = 0.0) -> Rule:
    """Less than a bound; `below(EQUAL)` is "worse or equal"."""
    return Rule(f"below {bound:g}", high=bound, refuted_above=bound)


def within(bound: float = EQUAL) -> Rule:
    """On a par."""
    return Rule(f"within ±{bound:g}", low=-bound, high=bound, refuted_below=-bound, refuted_above=bound)


def no_gain(bound: float = EQUAL) -> Rule:
    """Worse or equal, and refuted by any gain that is beyond doubt, however small."""
    return Rule(f"below {bound:g}, and not above 0", high=bound, refuted_above=0.0)


def interval(values: Sequence[float], *, independent: int | None = None) -> Interval:
    """The mean of paired differences and its 95% t-interval; equal values make one without width.

    `independent`: how many values to count where they are not independent of each other, such as the pairs among a few
    seeds, of which no more are counted than there are seeds.

    >>> [round(end, 2) for end in interval([1.0, 2.0, 3.0])[:3]]
    [2.0, -0.48, 4.48]
    """
    n = len(values) if independent is None else min(len(values), independent)
    if not values:
        return Interval(None, None, None, 0)
    mean = statistics.fmean(values)
    if n < 2:
        return Interval(mean, None, None, n)
    # Counted from the first value, so that equal values have no spread at all, whatever their mean is rounded to.
    spread = statistics.stdev([value - values[0] for value in values])
    if spread == 0.0:
        return Interval(values[0], values[0], values[0], n)
    half = t_quantile(0.975, n - 1) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def judge(estimate: Interval, rule: Rule) -> Verdict:
    """What an interval says under a rule.

    >>> judge(interval([-1.0, 0.0, 1.5]), above()), judge(interval([1.0]), above())
    ('inconclusive', 'too few runs')
    """
    if estimate.low is None or estimate.high is None:
        return "too few runs"
    if estimate.high < rule.refuted_below or estimate.low > rule.refuted_above:
        return "not reproduced"
    return "reproduced" if rule.low < estimate.low and estimate.high < rule.high else "inconclusive"


def t_quantile(probability: float, freedom: int) -> float:
    """Where Student's t with so many degrees of freedom has this probability below it, at least one half.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        is_below = _central_probability(middle, freedom) < 2.0 * probability - 1.0
        low, high = (middle, high) if is_below else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _central_probability(angle: float, freedom: int) -> float:
    """How much probability lies within ±t, for t = sqrt(freedom) * tan(angle).

    The finite sums for whole degrees of freedom, Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    cosine2 = math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2.0 / math.pi * (angle + total) if odd else total


# Claims before and after ----------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A statistic in one setting: one value a seed, or a pair of seeds."""

    values: Sequence[float]
    notes: tuple[str, ...] = ()
    independent: int | None = None
    """How many values to count where they are not independent of each other."""
    complete: bool = True
    """False: what there is cannot stand for all seeds, and no interval is made of it."""
    target: str = ""
    """Which of several of its kind it is, such as the data set that a transfer is to."""


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One thing that a claim says, as a number: how it is taken of a setting, and where its interval must lie."""

    key: str
    """Its name among the paper's values."""
    words: str
    """What is computed: "EMA (acc.) minus SGD, test accuracy, points"."""
    rule: Rule
    sample: Callable[[Setting], Sequence[Sample]]
    """Nothing where the setting has no such results."""
    study: str
    """The study whose runs it needs."""
    pairs: tuple[str, ...]
    """The paper's pairs that the claim is about."""
    scales: tuple[str, ...] = ("paper", "small", "demo")
    note: str = ""
    """Of every finding."""


@dataclass(frozen=True, kw_only=True)
class ClaimSpec:
    """A claim before it is tested."""

    number: int
    title: str
    """The claim, as a sentence."""
    statistics: Sequence[Statistic]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One statistic of a claim in one setting."""

    key: str
    statistic: str
    setting: str
    """The title of the setting; empty where nothing was run."""
    scale: str
    rule: Rule
    verdict: Verdict
    values: Sequence[float] = ()
    """As people read them: points, not fractions."""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    paper: str = ""
    """The paper's value of the same statistic, with where it stands."""
    notes: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        return "; ".join(self.notes)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the paper, with all that was found about it."""

    number: int
    title: str
    studies: Sequence[str]
    """The studies whose runs it needs."""
    verdict: Verdict
    findings: Sequence[Finding] = ()
    note: str = ""

    @property
    def tally(self) -> str:
        """How many of its findings hold, since one that does not decides the verdict; empty where nothing was run."""
        ran = [finding for finding in self.findings if finding.verdict != "not run"]
        return f"{sum(finding.verdict == 'reproduced' for finding in ran)} of {len(ran)} hold" if ran else ""


# From one to the other ------------------------------------------------------------------------------------------------


def evaluate(spec: ClaimSpec, results: Results) -> Claim:
    """All findings of a claim, the largest scale first, and its verdict (see `overall`)."""
    by_key = {statistic.key: findings_of(spec.number, statistic, results) for statistic in spec.statistics}
    return conclude(spec, by_key, results)


def findings_of(number: int, statistic: Statistic, results: Results) -> list[Finding]:
    """One statistic in every setting that has the results for it."""
    findings: list[Finding] = []
    for setting in results.of(*statistic.pairs):
        if setting.scale not in statistic.scales:
            continue
        labels = setting.validation_labels
        chosen = f"chosen with {labels} validation labels" if labels else ""
        for sample in statistic.sample(setting):
            printed = paper.claim_value(number, statistic.key, setting.pair, sample.target)
            reference = REFERENCE if printed and setting.scale != "paper" else ""
            notes = (statistic.note, chosen, reference)
            findings.append(finding_of(statistic, sample, setting.title, setting.scale, paper=printed, notes=notes))
    return findings


def finding_of(
    statistic: Statistic, sample: Sample, setting: str, scale: str, *, paper: str = "", notes: Sequence[str] = ()
) -> Finding:
    """One statistic in one setting, judged."""
    values = tuple(round(float(value), _DIGITS) + 0.0 for value in sample.values)  # + 0.0: no negative zero
    estimate = interval(values, independent=sample.independent)
    if not sample.complete:
        estimate = estimate._replace(mean=None, low=None, high=None)
    no_width = estimate.low is not None and estimate.low == estimate.high
    equal = "all values are equal, so the interval has no width" if no_width else ""
    return Finding(
        key=statistic.key, statistic=statistic.words + (f", on {sample.target}" if sample.target else ""),
        setting=setting, scale=scale, rule=statistic.rule, verdict=judge(estimate, statistic.rule), values=values,
        **estimate._asdict(), paper=paper, notes=tuple(note for note in (*sample.notes, equal, *notes) if note),
    )  # fmt: skip


def conclude(spec: ClaimSpec, by_key: dict[str, list[Finding]], results: Results) -> Claim:
    """The claim with its findings; a statistic without one at the largest scale has one that says what to run."""
    scale = largest_scale([finding for findings in by_key.values() for finding in findings])
    findings: list[Finding] = []
    for statistic in spec.statistics:
        own = by_key[statistic.key]
        if not any(finding.scale == scale for finding in own):
            own = [_not_run(statistic, scale, results), *own]
        findings += sorted(own, key=lambda finding: (-_RANK.get(finding.scale, 0), finding.statistic))
    return Claim(
        number=spec.number, title=spec.title, verdict=overall(findings), findings=tuple(findings), note=spec.note,
        studies=tuple(dict.fromkeys(statistic.study for statistic in spec.statistics)),
    )  # fmt: skip


def _not_run(statistic: Statistic, scale: str, results: Results) -> Finding:
    """The finding of a statistic without results: it says what to run, and how the study stands."""
    wanted = scale if scale in statistic.scales else "" if "demo" in statistic.scales else statistic.scales[0]
    command = f"emabank run {statistic.study}" + (f" --scale {wanted}" if wanted else "")
    states = {"failed": "failed", "running": "is not done yet"}
    unfinished = [
        f"{study.name} ({study.scale}) {states.get(study.state, 'is done, but has no runs with this measure')}"
        + (f": {study.reason}" if study.state == "failed" and study.reason else "")
        for study in results.studies
        if study.name == statistic.study and wanted in ("", study.scale)
    ]
    return Finding(
        key=statistic.key, statistic=statistic.words, setting="", scale=scale, rule=statistic.rule, verdict="not run",
        notes=(command, *unfinished),
    )  # fmt: skip


def largest_scale(findings: Sequence[Finding]) -> str:
    """The largest scale at which something was run; empty where nothing was."""
    scales = [finding.scale for finding in findings if finding.verdict != "not run"]
    return max(scales, key=lambda scale: _RANK.get(scale, 0), default="")


def overall(findings: Sequence[Finding]) -> Verdict:
    """The verdict of a claim: of its findings at the largest scale at which any was run.

    Not run if none was; not reproduced if one finding is not; else too few runs if one has too few; else inconclusive
    if one is, or if one of the claim's statistics was not run at that scale, because half a claim does not stand for
    the whole; else reproduced. Findings at smaller scales are shown and do not count.
    """
    scale = largest_scale(findings)
    at_scale = {finding.verdict for finding in findings if finding.scale == scale}
    if not at_scale - {"not run"}:
        return "not run"
    order: tuple[Verdict, ...] = ("not reproduced", "too few runs", "inconclusive")
    for verdict in order:
        if verdict in at_scale:
            return verdict
    return "inconclusive" if "not run" in at_scale else "reproduced"
