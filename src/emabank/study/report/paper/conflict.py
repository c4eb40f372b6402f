"""Two or more things that the paper prints and that cannot all be right, and how a statement becomes one of them.

May import numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from emabank.study.report.paper.numbers import Printed, among

Kind = Literal["number", "choice", "rounding", "mark", "statement"]


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A disagreement: all that is printed about one thing, and one sentence on what does not fit."""

    kind: Kind
    """"number": printed twice, differently. "choice": tuning chose one thing, the refit has another. "rounding": a mean
    that its list does not round to. "mark": bold or underlined in the wrong place. "statement": said in words or by
    arithmetic, and not so in the tables."""
    about: str
    printed: tuple[Printed, ...]
    """At least two, in the order of the paper unless a statement comes first."""
    sentence: str

    @property
    def places(self) -> str:
        """Every value with its place.

        >>> from emabank.study.report.paper.numbers import value
        >>> memory = value(item="Section 3.1", metric="megabytes")
        >>> size = value(item="Section 3.1", metric="parameters")
        >>> Conflict(kind="statement", about="memory", printed=(memory, size), sentence="").places
        '90.43 MB (Section 3.1); 23.7M (Section 3.1)'
        """
        return "; ".join(f"{each.text} ({each.where})" for each in self.printed)


def said(values: Sequence[Printed], item: str, metric: str, row: str = "") -> list[Printed]:
    """A statement, by where it stands and a part of what it is about; nothing if it is not among the values.

    >>> from emabank.study.report.paper.numbers import everything
    >>> [each.text for each in said(everything(), "Section 4.6", "claim", "Table 5")]
    ['test set']
    """
    return [each for each in among(values, item=item, metric=metric) if row in each.row][:1]


def against(about: str, statement: Printed, counter: Sequence[Printed], sentence: str) -> Iterator[Conflict]:
    """One conflict of a statement with all that speaks against it; none if nothing does.

    >>> from emabank.study.report.paper.numbers import value
    >>> list(against("memory", value(item="Section 3.1", metric="megabytes"), counter=[], sentence=""))
    []
    """
    if counter:
        yield Conflict(kind="statement", about=about, printed=(statement, *counter), sentence=sentence)
