"""ratios.json: the ratios that later measurements are held against."""

from __future__ import annotations

from collections.abc import Mapping

from gate import Measured

from drawn.page import table
from emabank.bench.tables import with_spread


def block_of(kept: Mapping[str, Measured]) -> str:
    """A table of them; nothing where none is kept."""
    if not kept:
        return ""
    rows = [
        [name, with_spread(each.ratio.value), each.ratio.better, str(each.ratio.rounds), each.date[:10]]
        for name, each in sorted(kept.items())
    ]
    return table(["ratio", "median (10–90 %)", "better is", "rounds", "measured"], rows)
