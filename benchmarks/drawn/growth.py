"""growth.json: how the cost grows with runs, seeds, averages and parameters, with the line fitted through each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drawn.curves import CurvePlot, Curves, Points, curve_plot
from drawn.look import Picture
from drawn.page import Shown, table
from emabank.bench.interleave import Spread
from emabank.bench.tables import number, with_spread

_WORDS = (
    "Time against the number of runs, seeds, averages and parameters, each with a straight line through the medians"
)


def show(result: Mapping[str, Any]) -> Shown:
    """A panel and a line of the table for each series."""
    series = result["series"]
    plot = CurvePlot(tuple(map(_panel, series)), columns=3)
    header = ["what", "grows with", "from", "to", "time grows by", "exponent p", "R² of the line", "rounds"]
    return Shown({"growth": (Picture(plot, curve_plot), _WORDS)}, [table(header, list(map(_cells, series)))])


def _panel(series: Mapping[str, Any]) -> Curves:
    values = [Spread(**point["seconds"]) for point in series["points"]]
    fit = series["fit"]
    unit, factor = ("ms", 1e3) if max(value.median for value in values) < 1 else ("seconds", 1.0)
    points = Points(
        series["name"],
        tuple(point["x"] for point in series["points"]),
        tuple(Spread(*(factor * part for part in (v.median, v.low, v.high, v.mean))) for v in values),
        fit=(factor * fit["slope"], factor * fit["intercept"]),
    )
    return Curves(series["title"], series["unit"], unit, (points,), note=f"p = {fit['exponent']:.2f}")


def _cells(series: Mapping[str, Any]) -> list[str]:
    points, fit = series["points"], series["fit"]
    return [
        series["title"],
        series["unit"],
        number(points[0]["x"]),
        number(points[-1]["x"]),
        f"{with_spread(Spread(**series['growth']))} ×",
        f"{fit['exponent']:.2f}",
        f"{fit['r_squared']:.4f}",
        str(series["rounds"]),
    ]
