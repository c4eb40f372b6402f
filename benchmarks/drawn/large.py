"""large.json: the memory and time of each stage of a large model with five averages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import number, with_spread


def show(result: Mapping[str, Any]) -> Shown:
    """One table of stages, and for each model what an update takes and what was left out."""
    rows: list[list[str]] = []
    words: list[str] = []
    for model in result["models"]:
        size, what = model["size"], f"{model['size']['parameters'] / 1e6:.0f} million, {model['live']}"
        rows += [
            [what, stage["name"], number(stage["seconds"]), _gib(stage["resident"]), _gib(stage["peak"])]
            for stage in model["stages"]
        ]
        took, of_limit = (with_spread(Spread(**model[key])) for key in ("milliseconds", "of_limit"))
        facts = [
            f"live weights {_gib(size['live'])} GiB, the bare process {_gib(model['bare'])} GiB more",
            f"an update takes {took} ms, {of_limit} × the memory limit ({model['rounds']} rounds)",
            *model["left_out"],
        ]
        words.append(f"- {what}: {'; '.join(facts)}.")
    header = ["parameters, live weights", "stage", "seconds", "resident, GiB", "peak, GiB"]
    return Shown(parts=[table(header, rows), "\n".join(words)])


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"
