"""The claims as people read them: on a terminal, as Markdown, as CSV. Computes nothing; may import rich."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from emabank.study.report.claims.question import ORIENTATION
from emabank.study.report.verdict import Claim, Part, Verdict

SYMBOLS: dict[Verdict, str] = {
    "reproduced": "✓",
    "not reproduced": "✗",
    "inconclusive": "?",
    "too few runs": "…",
    "not run": "–",
}
_STYLES: dict[Verdict, str] = {
    "reproduced": "green",
    "not reproduced": "bold red",
    "inconclusive": "yellow",
    "too few runs": "cyan",
    "not run": "dim",
}
FOOTER = (
    "Mean [paired 95% t-interval] over n seeds. Reproduced: the interval lies wholly where the claim has it (above 0, "
    "below 0, within ±1 point); not reproduced: wholly on the other side; else inconclusive. A claim has the verdict "
    "of its parts at the largest scale that was run: not reproduced if one part is not, else too few runs if one has "
    "too few, else inconclusive if one is or was not run, else reproduced. Nothing is smoothed, and nothing is "
    "corrected for the number of parts. At demo and small scale the data set and the network are not the paper's, "
    "whose values stand there for orientation only. "
) + ", ".join(f"{symbol} {verdict}" for verdict, symbol in SYMBOLS.items())
_FIELDS = (
    "claim", "title", "claim_verdict", "statistic", "setting", "scale", "mean", "low", "high", "n", "rule", "verdict",
    "paper", "values", "note",
)  # fmt: skip


# On a terminal --------------------------------------------------------------------------------------------------------


def claims_text(claims: Sequence[Claim], *, parts: bool = True) -> Group:
    """Every claim with its verdict and its parts, for 80 columns and more; without `parts` the claims alone.

    >>> from rich.console import Console
    >>> claim = Claim(number=3, title="They coincide", studies=["dynamics"], verdict="not run")
    >>> Console(width=60, color_system=None).print(claims_text([claim], parts=False))
    – not run          3  They coincide
    <BLANKLINE>
    1 not run
    """
    shown: list[RenderableType] = []
    for claim in claims:
        shown.append(_heading(claim))
        if parts:
            shown += [Padding(each, (0, 0, 0, 4)) for each in _details(claim)]
            shown.append(Text())
    ending = [Text(FOOTER, style="italic")] if parts else []
    return Group(*shown, *([] if parts else [Text()]), Text(summary(claims), style="bold"), *ending)


def summary(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict.

    >>> summary([Claim(number=3, title="They coincide", studies=["dynamics"], verdict="not run")])
    '1 not run'
    """
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in SYMBOLS if counts[verdict])


def _heading(claim: Claim) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=2 + max(map(len, SYMBOLS)))
    grid.add_column(width=2, justify="right")
    grid.add_column(style="bold")
    title = Text(claim.title)
    if claim.tally:
        title.append(f" ({claim.tally})", style="not bold dim")
    grid.add_row(Text(_with_symbol(claim.verdict), style=_STYLES[claim.verdict]), str(claim.number), title)
    return grid


def _details(claim: Claim) -> list[RenderableType]:
    """A line for each statistic, one or two for each setting below it, and what has to be said."""
    made: list[RenderableType] = []
    for (statistic, rule), group in groupby(claim.parts, key=lambda part: (part.statistic, part.rule)):
        parts = list(group)
        width = max(len(_estimate(part)) for part in parts)
        said: set[str] = set()
        made.append(Text(f"{statistic}: {rule}"))
        for part in parts:
            note = _own_note(part)
            below = [f"paper: {part.paper}" if part.paper else "", "" if note in said else note]
            made.append(Padding(_line(part, width), (0, 0, 0, 2)))
            made += [Padding(Text(text, style="dim"), (0, 0, 0, 4)) for text in below if text]
            said.add(note)
    return [*made, Text(f"Note: {claim.note}.", style="dim italic")] if claim.note else made


def _line(part: Part, width: int) -> Table:
    """What was found in one setting; the estimates of all settings stand below each other."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(width=1)
    grid.add_column(ratio=1)
    grid.add_column(width=width, justify="right", no_wrap=True)
    grid.add_column(width=0 if part.verdict == "not run" else len("n=10"), no_wrap=True)
    where = (part.setting or part.verdict) + (f" ({part.scale})" if part.scale else "")
    n = "" if part.verdict == "not run" else f"n={part.n}"
    grid.add_row(Text(SYMBOLS[part.verdict], style=_STYLES[part.verdict]), Text(where), Text(_estimate(part)), Text(n))
    return grid


def _own_note(part: Part) -> str:
    """What is not said at the foot already."""
    return "; ".join(each for each in part.note.split("; ") if each and each != ORIENTATION)


def _estimate(part: Part) -> str:
    """The mean with its interval, with digits enough for the larger of them.

    >>> _estimate(Part(statistic="", setting="", scale="", values=(), mean=0.5, low=-0.25, high=1.25, n=3, rule="",
    ...                verdict="inconclusive"))
    '0.50 [−0.25, 1.25]'
    """
    there = [end for end in (part.mean, part.low, part.high) if end is not None]
    if part.mean is None:
        return "" if part.verdict == "not run" else "–"
    digits = 4 if 0 < max(map(abs, there)) < 0.1 else 2
    mean, *ends = (f"{end:.{digits}f}".replace("-", "−") for end in there)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


# As files -------------------------------------------------------------------------------------------------------------


def claims_markdown(claims: Sequence[Claim]) -> str:
    """A table of the claims, then a section for each with a table of its parts.

    >>> claim = Claim(number=3, title="They coincide", studies=["dynamics"], verdict="not run")
    >>> print(claims_markdown([claim]).splitlines()[6])
    | 3 | They coincide | – not run |
    """
    lines = ["# The paper's claims", "", f"{summary(claims)}.", ""]
    lines += _markdown_table(
        ("", "claim", "verdict"), [(str(each.number), each.title, _with_symbol(each.verdict)) for each in claims]
    )
    heads = ("verdict", "statistic", "setting", "scale", "mean [95% interval]", "n", "rule", "paper", "note")
    for claim in claims:
        lines += ["", f"## {claim.number}. {claim.title}", "", f"**{_with_symbol(claim.verdict)}**", ""]
        rows = [
            (_with_symbol(part.verdict), part.statistic, part.setting, part.scale, _estimate(part), str(part.n),
             part.rule, part.paper, part.note)
            for part in claim.parts
        ]  # fmt: skip
        lines += _markdown_table(heads, rows)
        lines += ["", f"Note: {claim.note}."] if claim.note else []
    return "\n".join([*lines, "", FOOTER, ""])


def _with_symbol(verdict: Verdict) -> str:
    return f"{SYMBOLS[verdict]} {verdict}"


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (heads, *rows)]
    head, *body = (f"| {' | '.join(row)} |" for row in cells)
    return [head, f"|{' --- |' * len(heads)}", *body]


def claims_csv(claims: Sequence[Claim]) -> str:
    """One line a part, with a head; numbers in full, values with a blank between them.

    >>> claim = Claim(number=3, title="They coincide", studies=["dynamics"], verdict="not run")
    >>> print(claims_csv([claim]), end="")
    claim,title,claim_verdict,statistic,setting,scale,mean,low,high,n,rule,verdict,paper,values,note
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FIELDS)
    for claim in claims:
        for part in claim.parts:
            ends = ["" if end is None else repr(end) for end in (part.mean, part.low, part.high)]
            values = " ".join(map(repr, part.values))
            writer.writerow((
                claim.number, claim.title, claim.verdict, part.statistic, part.setting, part.scale, *ends, part.n,
                part.rule, part.verdict, part.paper, values, part.note,
            ))  # fmt: skip
    return out.getvalue()
