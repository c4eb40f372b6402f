"""choices.json: how fast the study trains in each way that it knows, over the plain way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from choices import CHOSEN, PLAIN

from drawn.look import DotPlot, Picture, aligned, in_lines
from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import number, with_spread

_WORDS = "Images a second in each way to train over those of the plain way: memory order, fused optimizer, threads"


def show(result: Mapping[str, Any]) -> Shown:
    """A panel for each network."""
    panels: dict[str, dict[str, Spread]] = {}
    rows: list[list[str]] = []
    words: list[str] = []
    for each in result["results"]:
        network = each["case"]["model"]
        panels[network] = {speed["way"]: Spread(**speed["over_plain"]) for speed in each["speeds"]}
        rows += [
            [
                network,
                speed["way"],
                with_spread(Spread(**speed["images_a_second"])),
                with_spread(Spread(**speed["over_plain"])),
                number(speed["first_step"]),
            ]
            for speed in each["speeds"]
        ]
        if each["at_once"]:
            ratio = with_spread(Spread(**each["at_once"]))
            words.append(f"- {network}: two runs at once, one thread each, over one run with two threads: {ratio} ×.")
    header = ["network", "way", "images a second", f"× {PLAIN}", "first step, s"]
    lines = in_lines(aligned(panels, ours=str(CHOSEN)), 2)
    plot = DotPlot(
        lines,
        f"images a second, × {PLAIN} (dark: what is chosen)",
        of_one=str(PLAIN),
        labelled_once=True,
        scale="linear",
    )
    return Shown({"choices": (Picture(plot), _WORDS)}, [table(header, rows), "\n".join(words)])
