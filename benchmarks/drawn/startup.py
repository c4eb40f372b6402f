"""startup.json: how long fresh processes take: commands that only say something, and imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from startup import EMPTY, IMPORTS, MOST_SECONDS, TORCH

from drawn.look import Dot, DotPlot, Dots, Picture
from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import with_spread

_WORDS = "Seconds of fresh processes: an empty interpreter, commands of emabank, import torch, imports of emabank"


def show(result: Mapping[str, Any]) -> Shown:
    """One panel of commands, one of imports, on the same axis."""
    (found,) = result["results"]
    rows = {row["name"]: row for row in found["rows"]}
    imports = [name for name in rows if name in (TORCH, *IMPORTS)]
    commands = [name for name in rows if name not in imports]

    def dots(names: list[str]) -> tuple[Dot, ...]:
        return tuple(Dot(name, Spread(**rows[name]["seconds"]), name not in (EMPTY, TORCH)) for name in names)

    panels = Dots("commands (dashed: the goal)", dots(commands), MOST_SECONDS), Dots("imports", dots(imports))
    plot = DotPlot(
        tuple((panel,) for panel in panels), "seconds from start to end of the process", scale="from zero", width=8.0
    )
    header = ["fresh process", "seconds", "× an empty interpreter", "ms beyond import torch", "timed inside, ms"]
    cells = [
        [name, *(with_spread(Spread(**row[key])) for key in ("seconds", "of_empty")), *_beyond(row)]
        for name, row in rows.items()
    ]
    rounds = f"{found['case']['rounds']} rounds."
    return Shown({"startup": (Picture(plot), _WORDS)}, [table(header, cells), rounds])


def _beyond(row: Mapping[str, Any]) -> list[str]:
    """Differences, which may well be below 0 where there is none."""
    values = (row["over_torch"], row["inside"])
    return [f"{1e3 * v['median']:.0f} ({1e3 * v['low']:.0f} to {1e3 * v['high']:.0f})" if v else "" for v in values]
