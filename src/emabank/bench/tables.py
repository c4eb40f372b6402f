"""How results are shown: plain tables for a terminal."""

from collections.abc import Mapping, Sequence

from emabank.bench.cases import Case, slowdown, title
from emabank.bench.interleave import Spread


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headers: the first to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def with_spread(value: Spread | None) -> str:
    return "" if value is None else f"{number(value.median)} ({number(value.low)}–{number(value.high)})"


def percent(share: Spread, divisor: int = 1) -> str:
    """A share with its spread, in percent; of every so many steps, where it is paid at one of them."""
    median, low, high = (f"{100 * value / divisor:.3g} %" for value in (share.median, share.low, share.high))
    return f"{median} ({low}–{high})"


def case_table(case: Case, quiet: Case | None = None) -> str:
    """One case; with `quiet`, also how much longer each contestant takes than in that quiet case."""
    header = ["contestant", "ms: median (10–90 %)", "mean", "× limit", "emabank is faster by"]
    rows = [
        [
            row.name,
            with_spread(row.milliseconds),
            number(row.milliseconds.mean),
            with_spread(row.of_limit),
            with_spread(row.bank_faster),
        ]
        for row in case.rows
    ]
    if quiet is not None:
        header += ["busy/quiet: median", "mean"]
        for row in rows:
            factor = slowdown(quiet, case, row[0])
            row += [number(factor[0]), number(factor[1])] if factor else ["", ""]
    heading = (
        f"{title(case.model, case.averages)}: {case.elements:,} elements in "
        f"{case.tensors} tensors; {case.rounds} rounds; "
        f"{surroundings(case)}"
    )
    missing = [f"  {name}: {reason}" for name, reason in case.missing.items()]
    return "\n".join([heading, table(header, rows), *missing])


def surroundings(case: Case) -> str:
    others = "an unknown share" if case.bystanders is None else f"{case.bystanders:.1%}"
    dropped = f" ({case.dropped} rounds dropped)" if case.dropped else ""
    disturbed = ": DISTURBED" if case.disturbed else ""
    neighbour = f"busy neighbour ({case.neighbour}), " if case.neighbour else ""
    return f"{neighbour}other processes took {others} of the machine{dropped}{disturbed}"


def facts(values: Mapping[str, object]) -> str:
    """Conditions, one a line."""
    width = max(map(len, values))
    return "\n".join(f"{name.replace('_', ' ').ljust(width)}  {value}" for name, value in values.items())
