"""How a claim is asked and answered: its statistics, the settings they are taken of, and one verdict of all parts.

May import the evidence, the intervals and the paper's values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from emabank.study.report.claims.interval import Rule, interval, judge
from emabank.study.report.claims.paper_values import paper_value
from emabank.study.report.evidence import Evidence, Setting
from emabank.study.report.verdict import Claim, Part, Verdict

ORIENTATION = "the paper's value is of its own data set and network, for orientation"
"""What the note of a part says whose setting only stands for the paper's."""
_EQUAL = "all values are equal, so the interval has no width"
_RANK = {"paper": 3, "small": 2, "demo": 1}
_DIGITS = 9
"""Behind the point: what is smaller is the rounding of a sum, and must not count as a difference."""


class Measured(NamedTuple):
    """A statistic in one setting: one value a seed, or a pair of seeds."""

    values: Sequence[float]
    note: str = ""
    independent: int | None = None
    """How many values to count where they are not independent of each other."""
    whole: bool = True
    """False: what there is cannot stand for all seeds, and no interval is made of it."""
    target: str = ""
    """Which of several of its kind it is, such as the data set that a transfer is to."""


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One thing that a claim says, as a number: how it is taken of a setting, and where its interval must lie."""

    key: str
    """Its name among the paper's values."""
    words: str
    rule: Rule
    measure: Callable[[Setting], Sequence[Measured]]
    """Nothing where the setting has no such evidence."""
    study: str
    """The study whose runs it needs."""
    pairs: tuple[str, ...]
    """The paper's pairs that the claim is about."""
    scales: tuple[str, ...] = ("paper", "small", "demo")
    note: str = ""
    """Of every part."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A claim before it is answered."""

    number: int
    title: str
    statistics: Sequence[Statistic]
    note: str = ""


def answer(question: Question, evidence: Evidence) -> Claim:
    """All parts of a claim, the largest scale first, and its verdict (see `overall`).

    >>> from emabank.study.report.claims.interval import above
    >>> gain = Statistic(key="gain", words="gain, points", rule=above(), measure=lambda setting: [], study="dynamics",
    ...                  pairs=("cifar100-resnet18",))
    >>> claim = answer(Question(number=1, title="it gains", statistics=[gain]), Evidence())
    >>> claim.verdict, claim.parts[0].note
    ('not run', 'emabank run dynamics')
    """
    by_statistic = {statistic.key: parts_of(question.number, statistic, evidence) for statistic in question.statistics}
    scale = largest_scale([part for parts in by_statistic.values() for part in parts])
    parts: list[Part] = []
    for statistic in question.statistics:
        found = by_statistic[statistic.key]
        if not any(part.scale == scale for part in found):
            found = [not_run(statistic, scale, evidence), *found]
        parts += sorted(found, key=lambda part: (-_RANK.get(part.scale, 0), part.statistic))
    return Claim(
        number=question.number,
        title=question.title,
        studies=tuple(dict.fromkeys(statistic.study for statistic in question.statistics)),
        verdict=overall(parts),
        parts=tuple(parts),
        note=question.note,
    )


def parts_of(number: int, statistic: Statistic, evidence: Evidence) -> list[Part]:
    """The parts of one statistic, in every setting that has the evidence.

    >>> any_of = Statistic(key="", words="", rule=Rule(""), measure=lambda setting: [], study="", pairs=())
    >>> parts_of(1, any_of, Evidence())
    []
    """
    made: list[Part] = []
    for setting in evidence.of(*statistic.pairs):
        if setting.scale not in statistic.scales:
            continue
        for found in statistic.measure(setting):
            words = statistic.words + (f", on {found.target}" if found.target else "")
            part = part_of(found, words=words, rule=statistic.rule, setting=setting.title, scale=setting.scale)
            paper = paper_value(number, statistic.key, setting.pair, found.target)
            orientation = ORIENTATION if paper and setting.scale != "paper" else ""
            chosen = f"chosen with {setting.validation_labels} validation labels" if setting.validation_labels else ""
            made.append(replace(part, paper=paper, note=sentences(part.note, statistic.note, chosen, orientation)))
    return made


def part_of(found: Measured, *, words: str, rule: Rule, setting: str, scale: str) -> Part:
    """One statistic in one setting, judged.

    >>> rule = Rule("above 0", low=0.0)
    >>> part = part_of(Measured([1.0, 1.0]), words="gain", rule=rule, setting="digits", scale="demo")
    >>> part.verdict, part.low, part.high, part.note
    ('reproduced', 1.0, 1.0, 'all values are equal, so the interval has no width')
    """
    values = tuple(round(float(value), _DIGITS) + 0.0 for value in found.values)  # + 0.0: no negative zero
    over = interval(values, independent=found.independent)
    if not found.whole:
        over = over._replace(mean=None, low=None, high=None)
    note = sentences(found.note, _EQUAL if over.low is not None and over.low == over.high else "")
    return Part(
        statistic=words, setting=setting, scale=scale, values=values, mean=over.mean, low=over.low, high=over.high,
        n=over.n, rule=rule.text, verdict=judge(over, rule), note=note,
    )  # fmt: skip


def not_run(statistic: Statistic, scale: str, evidence: Evidence) -> Part:
    """The part of a statistic for which nothing is there: it says what to run, and how the study stands."""
    wanted = scale if scale in statistic.scales else "" if "demo" in statistic.scales else statistic.scales[0]
    command = f"emabank run {statistic.study}" + (f" --scale {wanted}" if wanted else "")
    stands = [each for each in evidence.studies if each.name == statistic.study and wanted in ("", each.scale)]
    unfinished = [f"{each.name} ({each.scale}) {_stand(each.state, each.reason)}" for each in stands]
    return Part(
        statistic=statistic.words, setting="", scale=scale, values=(), mean=None, low=None, high=None, n=0,
        rule=statistic.rule.text, verdict="not run", note=sentences(command, *unfinished),
    )  # fmt: skip


def _stand(state: str, reason: str) -> str:
    if state == "failed":
        return f"failed: {reason}" if reason else "failed"
    return "is not done yet" if state == "running" else "is done, but has no runs with this measure"


# One verdict of many --------------------------------------------------------------------------------------------------


def largest_scale(parts: Sequence[Part]) -> str:
    """The largest scale at which something was run; empty where nothing was.

    >>> largest_scale([])
    ''
    """
    there = [part.scale for part in parts if part.verdict != "not run"]
    return max(there, key=lambda scale: _RANK.get(scale, 0), default="")


def overall(parts: Sequence[Part]) -> Verdict:
    """The verdict of a claim: of its parts at the largest scale at which any was run.

    Not run if none was; not reproduced if one part is not; else too few runs if one has too few; else inconclusive if
    one is, or if one of the claim's statistics was not run at that scale, because half a claim does not stand for the
    whole; else reproduced. Parts at smaller scales are shown and do not count.

    >>> overall([])
    'not run'
    """
    scale = largest_scale(parts)
    at_scale = {part.verdict for part in parts if part.scale == scale}
    if not at_scale - {"not run"}:
        return "not run"
    order: tuple[Verdict, ...] = ("not reproduced", "too few runs", "inconclusive")
    for verdict in order:
        if verdict in at_scale:
            return verdict
    return "inconclusive" if "not run" in at_scale else "reproduced"


def sentences(*given: str) -> str:
    """What is not empty, one after the other.

    >>> sentences("seed 2 has no value", "", "an oracle's choice")
    "seed 2 has no value; an oracle's choice"
    """
    return "; ".join(each for each in given if each)
