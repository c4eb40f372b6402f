"""evaluation.json: evaluating and recalibrating all averages one by one, over doing it in one shared pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drawn.look import DotPlot, Picture, aligned
from drawn.page import Shown, table
from emabank.bench.evaluation import SHARED
from emabank.bench.interleave import Spread
from emabank.bench.tables import with_spread

_WORDS = "Time of evaluating and of recalibrating every average by itself, over the time of one shared pass"
_ALONE = "each alone, "


def show(result: Mapping[str, Any]) -> Shown:
    """A line of panels for each task, one panel for each network and number of threads."""
    tasks: dict[str, dict[str, dict[str, Spread]]] = {}
    rows: list[list[str]] = []
    for passes in result["results"]:
        task, what, source = passes["task"], _title(passes), passes["source"]
        (shared,) = (way for way in passes["ways"] if way["name"] == SHARED)
        others = {way["name"]: Spread(**way["over_shared"]) for way in passes["ways"] if way is not shared}
        panel = tasks.setdefault(task, {}).setdefault(f"{what}: {task}", {})
        panel |= {f"{source}: {name.removeprefix(_ALONE)}": ratio for name, ratio in others.items()}
        fastest = min(others, key=lambda name: others[name].median)
        ratio, rounds = with_spread(others[fastest]), str(passes["case"]["rounds"])
        rows.append([task, what, source, with_spread(Spread(**shared["milliseconds"])), fastest, ratio, rounds])
    lines = tuple(tuple(aligned(panels, ours="")) for panels in tasks.values())
    plot = DotPlot(
        lines, "time of each alone, × that of one shared pass", of_one=SHARED, labelled_once=True, scale="linear"
    )
    header = ["task", "network", "data", "shared pass, ms", "fastest other way", "× shared pass", "rounds"]
    return Shown({"evaluation": (Picture(plot), _WORDS)}, [table(header, rows)])


def _title(passes: Mapping[str, Any]) -> str:
    threads = passes["threads"]
    order = "" if passes["channels_last"] else ", contiguous"
    return f"{passes['case']['model']}, {threads} thread{'s' if threads > 1 else ''}{order}"
