"""training.json: images a second of the study's loop and of its data pipeline, over those of what people write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drawn.look import Dot, DotPlot, Dots, Picture
from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import percent, with_spread


def show(result: Mapping[str, Any]) -> Shown:
    """Loops and pipelines as ratios; what an epoch consists of as a table."""
    lines: list[tuple[Dots, ...]] = []
    rows: list[list[str]] = []
    costs: list[list[str]] = []
    for each in result["results"]:
        case, threads = each["case"], each["threads"]
        what = f"{case['model']}, {threads} thread{'s' if threads > 1 else ''}"
        lines += [
            (Dots(f"{what}: training", _dots(each["loops"])),),
            (Dots(f"{what}: the data pipeline alone", _dots(each["pipelines"])),),
        ]
        rows += _speeds(what, [*each["loops"], *each["pipelines"]])
        costs += [
            [what, cost["name"], with_spread(Spread(**cost["seconds"])), percent(Spread(**cost["share"]))]
            for cost in each["costs"]
        ]
    words = "Images a second of the study's loop and data pipeline over those of a bare loop and of DataLoaders"
    plot = DotPlot(tuple(lines), "images a second, × those of the other", of_one="as fast")
    epoch = table(["network", "an epoch with five averages", "seconds", "share"], costs)
    speeds = table(["network", "who", "images a second", "× the other, at worst"], rows)
    return Shown({"training": (Picture(plot), words)}, [speeds, epoch])


def _ours(name: str) -> bool:
    return name.startswith("emabank") or name == "Loader"


def _dots(speeds: Sequence[Mapping[str, Any]]) -> tuple[Dot, ...]:
    """Our loops and our loader over everybody else."""
    return tuple(
        Dot(f"{speed['name']} / {other}", Spread(**ratio), ours=True)
        for speed in speeds
        if _ours(speed["name"])
        for other, ratio in speed["over"].items()
    )


def _speeds(what: str, speeds: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for speed in speeds:
        over = {other: Spread(**ratio) for other, ratio in speed["over"].items()} if _ours(speed["name"]) else {}
        worst = min(over, key=lambda other: over[other].median, default=None)
        ratio = f"{with_spread(over[worst])} × {worst}" if worst else ""
        rows.append([what, speed["name"], with_spread(Spread(**speed["images_a_second"])), ratio])
    return rows
