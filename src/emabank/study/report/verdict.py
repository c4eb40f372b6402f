"""What became of a claim of the paper: its parts, each with a statistic, an interval and a verdict. Imports nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "too few runs", "not run"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One statistic of a claim in one setting."""

    statistic: str
    """What was computed, in words: "EMA (acc.) minus SGD, test accuracy, points"."""
    setting: str
    """The title of the setting; empty where nothing was run."""
    scale: str
    values: Sequence[float]
    """One a seed (a pair of seeds, a repetition), as people read them: points, not fractions."""
    mean: float | None
    low: float | None
    high: float | None
    """The paired 95% t-interval."""
    n: int
    rule: str
    """What the interval is held against: "above 0", "below 0", "within ±1", ..."""
    verdict: Verdict
    paper: str = ""
    """The paper's value of the same statistic, with where it stands."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the paper, with all that was found about it."""

    number: int
    title: str
    """The claim, as a sentence."""
    studies: Sequence[str]
    """The studies whose runs it needs."""
    verdict: Verdict
    parts: Sequence[Part] = field(default_factory=tuple)
    note: str = ""
    """What a reader must know about it."""

    @property
    def tally(self) -> str:
        """How many of its parts hold, since one that does not decides the verdict; empty where nothing was run.

        >>> Claim(number=3, title="They coincide", studies=["dynamics"], verdict="not run").tally
        ''
        """
        ran = [part for part in self.parts if part.verdict != "not run"]
        return f"{sum(part.verdict == 'reproduced' for part in ran)} of {len(ran)} hold" if ran else ""
