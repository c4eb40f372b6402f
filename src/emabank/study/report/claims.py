"""Tests claims. One primary statistic decides: per seed its mean over settings, then a 95% t-interval over seeds.

A rule turns the interval into a verdict. Secondary statistics have intervals of their own and decide nothing. The
claims themselves are in claim_specs.py.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from emabank.study.report import paper
from emabank.study.report.results import Results, Setting
from emabank.study.studies.scales import PAIRS, Scale

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "too few runs", "not run"]
Role = Literal["primary", "secondary", "beyond"]
"""Whether a finding decides a claim of the paper, decides nothing, or decides a claim of our own."""

EQUAL = 1.0
"""Two results are on a par if they differ by less than this many points."""
_SCALES = ("", *get_args(Scale))
"""The smallest first; "" for results without a scale."""
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""The 97.5% points of Student's t with 1 to 20 degrees of freedom. For more than 20, the last is slightly too wide."""
_DIGITS = 9
"""Decimals kept: anything smaller is the rounding error of a sum and must not count as a difference."""


# Intervals and rules --------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A mean with its confidence interval; the ends are None with too few values, all three with none."""

    mean: float | None
    low: float | None
    high: float | None


class Rule(NamedTuple):
    """The bounds of a claim: it holds if the whole interval lies strictly between them.

    It is refuted if the whole interval lies beyond one of them.
    """

    text: str
    low: float = -math.inf
    high: float = math.inf


def above(bound: float = 0.0) -> Rule:
    """The rule that the statistic is above a bound."""
    return Rule(f"above {bound:g}", low=bound)


def below(bound: float = 0.0) -> Rule:
    """The rule that the statistic is below a bound."""
    return Rule(f"below {bound:g}", high=bound)


def within(bound: float = EQUAL) -> Rule:
    """The rule that two results are on a par."""
    return Rule(f"between {-bound:g} and {bound:g}", low=-bound, high=bound)


def interval(values: Sequence[float], *, of_pairs: bool = False) -> Interval:
    """The mean of one value per seed and its 95% t-interval, which has no width if all values are equal.

    `of_pairs`: the value of a seed is the mean over its pairs with the other seeds, such as their churn. Each pair then
    enters two values, so the standard error is the jackknife's (Efron and Stein, 1981): that of independent values
    times 2 (n - 1) / (n - 2).
    """
    n = len(values)
    if not n:
        return Interval(None, None, None)
    mean = statistics.fmean(values)
    if n < (3 if of_pairs else 2):
        return Interval(mean, None, None)
    # Relative to the first value, so that equal values have exactly no spread, however their mean is rounded.
    spread = statistics.stdev([value - values[0] for value in values])
    if spread == 0.0:
        return Interval(values[0], values[0], values[0])
    half = _T[min(n - 1, len(_T)) - 1] * spread / math.sqrt(n) * (2 * (n - 1) / (n - 2) if of_pairs else 1)
    return Interval(mean, mean - half, mean + half)


def judge(estimate: Interval, rule: Rule) -> Verdict:
    """The verdict of a rule on an interval."""
    if estimate.low is None or estimate.high is None:
        return "too few runs"
    if estimate.high < rule.low or estimate.low > rule.high:
        return "not reproduced"
    return "reproduced" if rule.low < estimate.low and estimate.high < rule.high else "inconclusive"


# A claim before and after it is tested --------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A statistic in one setting, with one value per seed."""

    by_seed: Mapping[int, float | None]
    """None for a seed without a value."""
    notes: tuple[str, ...] = ()
    of_pairs: bool = False
    """Whether the value of a seed is the mean over its pairs with the other seeds."""
    target: str = ""
    """The target data set, for transfer accuracy."""
    setting: str = ""
    scale: str = ""
    pair: str = ""


@dataclass(frozen=True)
class Statistic:
    """One number per seed and setting, and the rule for its interval."""

    key: str
    """Its key in assets/claim_values.json, which holds the paper's values."""
    words: str
    """What is computed: "EMA (acc.) minus SGD (last), test accuracy, points"."""
    rule: Rule
    sample: Callable[[Setting], Sequence[Sample]]
    """Takes the samples from a setting; none if the setting has no such results."""
    note: str = ""


@dataclass(frozen=True)
class ClaimSpec:
    """A claim before it is tested. Its first statistic is the primary one, which alone decides the verdict."""

    number: str
    """"1" to "19" for the paper's claims; a letter for our own."""
    title: str
    """The claim, as a sentence."""
    studies: tuple[str, ...]
    """The studies whose runs it needs; the primary statistic needs the first."""
    pairs: tuple[str, ...]
    """The paper's pairs that the claim is about."""
    statistics: Sequence[Statistic]
    scale: Scale | None = None
    """The only scale at which it can be tested; None for any."""
    beyond: bool = False
    """Whether it is ours, not the paper's."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One statistic of a claim: in one setting, or its mean over several."""

    role: Role
    key: str
    statistic: str
    rule: Rule
    verdict: Verdict
    setting: str = ""
    """The title of the setting, or "mean of 3 settings"; empty if nothing was run."""
    scale: str = ""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """The value of each seed, as shown: in points, for example, not as a fraction."""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    missing: tuple[str, ...] = ()
    """The paper's pairs that the claim is about but this finding does not cover."""
    skipped: tuple[int, ...] = ()
    """Seeds without a value in one of the settings."""
    paper: str = ""
    """The paper's value of the same statistic, with its place in the paper."""
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.by_seed)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.by_seed.values())

    @property
    def seeds_for(self) -> int:
        """The number of seeds whose value satisfies the rule."""
        return sum(self.rule.low < value < self.rule.high for value in self.values)

    @property
    def note(self) -> str:
        seeds = ", ".join(map(str, self.skipped))
        texts = (f"without {'; '.join(self.missing)}" if self.missing else "", f"without seed {seeds}" if seeds else "")
        return "; ".join(text for text in (*texts, *self.notes) if text)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim with its findings."""

    number: str
    title: str
    studies: Sequence[str]
    """The studies whose runs it needs."""
    findings: Sequence[Finding]
    """The deciding finding first."""
    note: str = ""

    @property
    def primary(self) -> Finding:
        """The deciding finding: the primary statistic at the largest scale that was run."""
        return self.findings[0]

    @property
    def verdict(self) -> Verdict:
        return self.primary.verdict

    @property
    def beyond(self) -> bool:
        """Whether it is ours, not the paper's."""
        return self.primary.role == "beyond"

    @property
    def exceptions(self) -> list[Finding]:
        """If the claim is reproduced, the secondary findings at the same scale that are refuted."""
        return [
            finding
            for finding in self.findings[1:]
            if self.verdict == "reproduced"
            and (finding.verdict, finding.scale) == ("not reproduced", self.primary.scale)
        ]


# Testing --------------------------------------------------------------------------------------------------------------


def evaluate(spec: ClaimSpec, results: Results) -> Claim:
    """Test a claim in every setting that it is about: of several for one pair, that of the claim's first study."""
    own = {
        (study.scale, ran.pair): ran.protocol
        for study in results.studies
        for ran in study.pairs
        if study.study == spec.studies[0]
    }
    samples = {statistic.key: list[Sample]() for statistic in spec.statistics}
    for setting in results.of(*spec.pairs):
        is_own = own.get((setting.scale, setting.pair)) in (None, setting.protocol)
        if is_own and spec.scale in (None, setting.scale):
            for statistic in spec.statistics:
                for sample in statistic.sample(setting):
                    by_seed = {**dict.fromkeys(setting.seeds), **sample.by_seed}  # every missing seed is reported
                    located = sample._replace(
                        by_seed=by_seed, setting=setting.title, scale=setting.scale, pair=setting.pair
                    )
                    samples[statistic.key].append(located)
    return conclude(spec, samples, results)


def conclude(spec: ClaimSpec, samples: Mapping[str, Sequence[Sample]], results: Results) -> Claim:
    """The claim with its findings: the primary statistic per scale, the largest first, then every one per setting."""
    primary = spec.statistics[0]
    role: Role = "beyond" if spec.beyond else "primary"
    scales = sorted({sample.scale for sample in samples[primary.key]}, key=_SCALES.index, reverse=True)
    findings = [
        find(spec, primary, [sample for sample in samples[primary.key] if sample.scale == scale], role)
        for scale in scales
    ] or [_not_run(spec, role, results)]
    counts = Counter(sample.scale for sample in samples[primary.key])
    findings += [
        find(spec, statistic, [sample], "secondary")
        for statistic in spec.statistics
        for sample in sorted(samples[statistic.key], key=lambda sample: -_SCALES.index(sample.scale))
        if statistic is not primary or counts[sample.scale] > 1  # else it is the finding above
    ]
    return Claim(
        number=spec.number, title=spec.title, studies=spec.studies, findings=tuple(findings), note=spec.note
    )  # fmt: skip


def find(spec: ClaimSpec, statistic: Statistic, samples: Sequence[Sample], role: Role) -> Finding:
    """Judge a statistic by its mean per seed over samples of one scale, using the seeds that all samples have."""
    first = samples[0]
    known = [
        {seed: value for seed, value in sample.by_seed.items() if value is not None and math.isfinite(value)}
        for sample in samples
    ]
    every = sorted({seed for sample in samples for seed in sample.by_seed})
    by_seed = {
        # Smaller digits are rounding errors; + 0.0 avoids a negative zero.
        seed: round(statistics.fmean(values[seed] for values in known), _DIGITS) + 0.0
        for seed in every
        if all(seed in values for values in known)
    }
    estimate = interval(list(by_seed.values()), of_pairs=first.of_pairs)
    one = len(samples) == 1
    pairs = {sample.pair for sample in samples}
    missing = tuple(PAIRS[pair] for pair in spec.pairs if pair not in pairs) if role != "secondary" else ()
    no_width = estimate.low is not None and estimate.low == estimate.high
    notes = (
        *dict.fromkeys(note for sample in samples for note in sample.notes),
        "all values are equal, so the interval has no width" if no_width else "",
        statistic.note,
    )
    return Finding(
        role=role,
        key=statistic.key,
        statistic=statistic.words + (f", on {first.target}" if one and first.target else ""),
        rule=statistic.rule,
        verdict=judge(estimate, statistic.rule),
        setting=first.setting if one else f"mean of {len(samples)} settings",
        scale=first.scale,
        by_seed=by_seed,
        **estimate._asdict(),
        missing=missing,
        skipped=tuple(seed for seed in every if seed not in by_seed),
        paper=paper.claim_value(spec.number, statistic.key, first.pair, first.target) if one else "",
        notes=tuple(note for note in notes if note),
    )


def _not_run(spec: ClaimSpec, role: Role, results: Results) -> Finding:
    """The finding of a claim without results: what to run, and the state of the study."""
    primary = spec.statistics[0]
    command = f"emabank run {spec.studies[0]}" + (f" --scale {spec.scale}" if spec.scale else "")
    states = {"failed": "failed", "running": "is not done yet"}
    unfinished = [
        f"{study.study} ({study.scale}) {states.get(study.state, 'is done, but has no runs with this measure')}"
        + (f": {study.reason}" if study.state == "failed" and study.reason else "")
        for study in results.studies
        if study.study == spec.studies[0] and spec.scale in (None, study.scale)
    ]
    return Finding(
        role=role, key=primary.key, statistic=primary.words, rule=primary.rule, verdict="not run",
        notes=(command, *unfinished),
    )  # fmt: skip
