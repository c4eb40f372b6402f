"""update.json: how long an update takes, emabank against every peer, in multiples of the memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drawn.look import DotPlot, Picture, aligned, in_lines
from drawn.page import Shown, table
from emabank.bench.cases import Case, Row
from emabank.bench.interleave import Spread
from emabank.bench.peers import BANK, LIMIT, OURS
from emabank.bench.tables import number, with_spread
from emabank.bench.zoo import BF16

_FIGURES = {
    "update": "One update of all averages, as multiples of the memory limit: emabank, and every peer",
    "update-bf16": "The same for models in bfloat16",
}


def cases_of(result: Mapping[str, Any]) -> list[Case]:
    """The quiet cases, the smallest model first."""
    cases = [
        Case(**{**case, "rows": tuple(map(_row, case["rows"]))}) for case in result["cases"] if not case["neighbour"]
    ]
    return sorted(cases, key=lambda case: (case.model.endswith(BF16), case.elements, case.averages))


def _row(row: Mapping[str, Any]) -> Row:
    values = (Spread(**row[key]) if row[key] else None for key in ("milliseconds", "of_limit", "bank_faster"))
    return Row(row["name"], *values)  # pyright: ignore[reportArgumentType]


def show(result: Mapping[str, Any]) -> Shown:
    """One figure for models in float32, one for bfloat16; one table of all."""
    cases = cases_of(result)
    groups = ([case for case in cases if case.model.endswith(BF16) is bf16] for bf16 in (False, True))
    figures = {
        name: (Picture(plot_of(group)), words)
        for (name, words), group in zip(_FIGURES.items(), groups, strict=True)
        if group
    }
    return Shown(figures, [_table(cases), _not_due(result)])


def plot_of(cases: Sequence[Case]) -> DotPlot:
    """A column for each model, a line of panels for each number of averages."""
    models = list(dict.fromkeys(case.model for case in cases))
    found = {(case.averages, case.model): case for case in cases}
    panels: dict[str, dict[str, Spread]] = {}
    for averages in sorted({case.averages for case in cases}):
        for model in models:
            case = found.get((averages, model))
            shown = [row for row in case.rows if row.name == BANK or row.name not in (LIMIT, *OURS)] if case else []
            panels[f"{model}, M = {averages}"] = {row.name: row.of_limit for row in shown}
    lines = in_lines(aligned(panels, ours=BANK), len(models))
    return DotPlot(lines, "time of an update, × the memory limit", of_one=LIMIT, labelled_once=True)


def _table(cases: Sequence[Case]) -> str:
    header = ["model", "averages", "ms", "× limit", "fastest peer", "× limit of that", "emabank is faster by", "rounds"]
    rows: list[list[str]] = []
    for case in cases:
        bank, peer = case.row(BANK), case.fastest_peer()
        rows.append(
            [
                case.model,
                str(case.averages),
                number(bank.milliseconds.median) if bank else "",
                with_spread(bank.of_limit) if bank else "",
                peer.name if peer else "none took part",
                number(peer.of_limit.median) if peer else "",
                with_spread(peer.bank_faster) if peer else "",
                str(case.rounds),
            ]
        )
    return table(header, rows)


def _not_due(result: Mapping[str, Any]) -> str:
    idle = result.get("not_due")
    return f"A step on which no average is due: {idle['nanoseconds']:.0f} ns." if idle else ""
