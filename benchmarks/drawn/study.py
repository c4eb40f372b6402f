"""study.json: how long a whole study takes, with one job and with two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import number, with_spread


def show(result: Mapping[str, Any]) -> Shown:
    """A table; two numbers need no figure."""
    found = result["result"]
    rows = [
        [
            f"{jobs} job{'s' if jobs != '1' else ''}",
            with_spread(Spread(**seconds)),
            number(seconds["median"] / found["runs"]),
            number(found["processor_seconds"][jobs]["median"] / found["runs"]),
            with_spread(Spread(**found["cores_busy"][jobs])),
        ]
        for jobs, seconds in found["seconds"].items()
    ]
    header = [
        f"{found['study']}, {found['runs']} runs",
        "seconds",
        "seconds a run",
        "processor seconds a run",
        "cores busy",
    ]
    faster, dearer = (with_spread(Spread(**found[key])) for key in ("speed_up", "dearer"))
    turns = found["turns"]
    words = f"Two jobs are {faster} × as fast as one and take {dearer} × its processor time; {turns} turns with each."
    return Shown(parts=[table(header, rows), words])
