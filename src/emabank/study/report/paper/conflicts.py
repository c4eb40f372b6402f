"""Where the paper disagrees with itself: every conflict that the rules find in its numbers, and the list in Markdown.

Both values stay in the data. May import numbers, conflict and the rules.
"""

from collections.abc import Callable, Iterator, Sequence

from emabank.study.report.paper import arithmetic, disagreements, statements
from emabank.study.report.paper.conflict import Conflict, Kind
from emabank.study.report.paper.numbers import Printed, everything

RULES: tuple[Callable[[Sequence[Printed]], Iterator[Conflict]], ...] = (
    disagreements.printed_twice,
    disagreements.mixed_columns,
    disagreements.carried_over,
    disagreements.sgd_epochs,
    disagreements.mean_epochs,
    disagreements.misplaced_marks,
    statements.stopped_early,
    statements.best_decay,
    statements.peak_under_noise,
    statements.largest_decay,
    statements.measured_on,
    statements.rate_search,
    statements.always_better,
    statements.recomputing_helps,
    statements.better_calibrated,
    statements.loss_beats_accuracy,
    arithmetic.gain_under_noise,
    arithmetic.memory,
    arithmetic.divergence_scale,
    arithmetic.complete,
)
KINDS: dict[Kind, str] = {
    "number": "Printed twice, differently",
    "choice": "Chosen on validation, and not what the refit has",
    "rounding": "Means that their lists do not round to",
    "mark": "Bold or underlined in the wrong place",
    "statement": "Said, and not so in the tables",
}


def found_in(values: Sequence[Printed]) -> list[Conflict]:
    """All conflicts among some values, rule by rule.

    >>> found_in([])
    []
    """
    return [conflict for rule in RULES for conflict in rule(values)]


CONFLICTS: tuple[Conflict, ...] = tuple(found_in(everything()))


def markdown(conflicts: Sequence[Conflict] = CONFLICTS) -> str:
    """The conflicts as tables, one for each kind, as docs/paper.md has them.

    >>> print(markdown(CONFLICTS[:1]))
    ### Printed twice, differently
    <BLANKLINE>
    | about | printed | what does not fit |
    |---|---|---|
    ...
    """
    parts: list[str] = []
    for kind, title in KINDS.items():
        rows = [f"| {each.about} | {each.places} | {each.sentence} |" for each in conflicts if each.kind == kind]
        if rows:
            parts += [f"### {title}", "", "| about | printed | what does not fit |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)
