"""hotspots.json: where the time of a training step goes, by its parts and by torch operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import percent

_OPERATORS = 6  # that are named


def show(result: Mapping[str, Any]) -> Shown:
    """One table of parts with a column for each network, and the operators in a sentence each."""
    networks = [each["network"] for each in result["results"]]
    phases = list(result["results"][0]["phases"])
    rows = [[phase, *(percent(Spread(**each["phases"][phase])) for each in result["results"])] for phase in phases]
    sentences: list[str] = []
    for each in result["results"]:
        named = list(each["operators"].items())[:_OPERATORS]
        listed = ", ".join(f"`{name.removeprefix('aten::')}` {share:.0%}" for name, share in named)
        sentences.append(
            f"- {each['network']}, {each['steps']} steps of {each['milliseconds']['median']:.0f} ms on {each['batch']} "
            f"images. The operators that take most themselves (torch.profiler): {listed}."
        )
    return Shown({}, [table(["part of a step, % of it", *networks], rows), "\n".join(sentences)])
