"""Draws the figures of docs/speed.md and writes its tables, from benchmarks/results. Nothing is measured.

Run `python benchmarks/plot.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/plot.py`

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import HERE, RESULTS, Case, count_of, is_peer, read_case, read_json
from benchmarks.models import BF16
from benchmarks.overhead import PERIOD, STEP
from benchmarks.peers import EXACT
from emabank.study.bench import BANK, LIMIT, Spread

PAGE = HERE.parent / "docs" / "speed.md"
FIGURES = PAGE.parent / "speed"
OURS, OTHERS, GRID = "#b5480c", "#5a6b7b", "#dddddd"
SERIES = ("#b5480c", "#e0a050")
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",  # an image cannot adapt to the page's dark mode
    "svg.hashsalt": "emabank",
    "svg.fonttype": "none",
}
BLOCK = re.compile(r"(<!-- made by benchmarks/plot\.py: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Panels = Mapping[str, Mapping[str, Spread]]
"""Panels by title; each has its rows by name."""


# Figures --------------------------------------------------------------------------------------------------------------


def dot_plot(panels: Panels, columns: int, label: str, *, percent: bool = False, log: bool = True) -> Figure:
    """Medians with 10–90 % whiskers. Panels side by side share their rows: emabank first, the others by speed."""
    lines = [list(panels.items())[at : at + columns] for at in range(0, len(panels), columns)]
    names = [_row_names([panel for _, panel in line]) for line in lines]
    heights = [len(rows) + 2.5 for rows in names]
    figure = Figure(figsize=(9.0, 0.21 * sum(heights) + 0.3), layout="constrained")
    grid: Any = figure.subplots(
        len(lines), columns, sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for rows, line, line_axes in zip(names, lines, grid, strict=True):
        for axes, (title, panel) in zip(line_axes, line, strict=True):
            for row, name in enumerate(rows):
                if name in panel:
                    value, colour = panel[name], OURS if name == BANK else OTHERS
                    axes.hlines(row, value.low, value.high, color=colour, linewidth=1.4)
                    axes.plot(value.median, row, "o", color=colour, markersize=6 if name == BANK else 4.5)
            axes.set_title(title, loc="left")
            axes.set_yticks(range(len(rows)), rows)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            _draw_number_axis(axes, percent=percent, log=log)
        line_axes[0].set_ylim(len(rows) - 0.4, -0.7)
    figure.supxlabel(label, fontsize=STYLE["font.size"])
    return figure


def _row_names(panels: Sequence[Mapping[str, Spread]]) -> list[str]:
    values = {name: median(p[name].median for p in panels if name in p) for panel in panels for name in panel}
    return sorted(values, key=lambda name: (name != BANK, values[name]))


def _draw_number_axis(axes: Axes, *, percent: bool, log: bool) -> None:
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    if not percent:
        axes.axvline(1, color="black", linewidth=1, zorder=1)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(numticks=9))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value if percent else value:g}")


def curve_plot(curves: Sequence[Mapping[str, Any]], enough: Mapping[bool, int | None]) -> Figure:
    """Points of accuracy against the number of images, a panel per stage and kind of images."""
    keys = list(dict.fromkeys((curve["stage"], curve["augmented"]) for curve in curves))
    figure = Figure(figsize=(9.0, 3.0 * -(-len(keys) // 2)), layout="constrained")
    grid: Any = figure.subplots(-(-len(keys) // 2), 2, sharex=True, sharey=True, squeeze=False)
    for axes, (stage, augmented) in zip(grid.flat, keys, strict=False):
        axes.axhspan(-0.1, 0.1, color=GRID, alpha=0.6, linewidth=0)
        axes.axhline(0, color="black", linewidth=1)
        panel = [curve for curve in curves if (curve["stage"], curve["augmented"]) == (stage, augmented)]
        for shift, colour, marker, curve in zip((0.96, 1.04), SERIES, "os", panel, strict=False):
            xs = [shift * point["images"] for point in curve["points"]]  # apart, so that whiskers stay visible
            ys = [point["accuracy"] for point in curve["points"]]
            axes.vlines(xs, [100 * y["low"] for y in ys], [100 * y["high"] for y in ys], color=colour, linewidth=1.2)
            means = [100 * y["mean"] for y in ys]
            axes.plot(xs, means, marker=marker, color=colour, markersize=4.5, label=curve["weights"])
        if size := enough[augmented]:
            axes.axvline(size, color=OTHERS, linewidth=1.2, dashes=(4, 2), label=f"enough: {size:,}")
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_xscale("log", base=4)
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(f"{stage}, {_images(augmented)}", loc="left")
        axes.legend(loc="lower right", frameon=False, fontsize=8.5)
    figure.supxlabel("images that the statistics are computed on", fontsize=STYLE["font.size"])
    figure.supylabel("points of accuracy, relative to all images", fontsize=STYLE["font.size"])
    return figure


def _images(augmented: bool) -> str:
    return "with crops and flips" if augmented else "plain images"


# Blocks of the page --------------------------------------------------------------------------------------------------

Block = tuple[dict[str, tuple[str, Figure]], str]
"""Captions and figures by name, and the Markdown below them."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cell.replace("_", "\\_") for cell in line) + " |" for line in [header, *rows]]
    return "\n".join([lines[0], "|:---" + "|---:" * (len(header) - 1) + "|", *lines[1:]])


def update_block(result: Mapping[str, Any]) -> Block:
    cases = [read_case(entry) for entry in result["cases"]]
    cases.sort(key=lambda case: (case.about["model"].endswith(BF16), case.about["elements"], case.about["averages"]))
    figures: dict[str, tuple[str, Figure]] = {}
    for name, bf16, caption in (("update", False, "in float32"), ("update-bf16", True, "in bfloat16")):
        panels = {
            f"{case.about['model']}, M = {averages}": {
                row.name: row.over[LIMIT] for row in case.rows if row.name == BANK or is_peer(row)
            }
            for averages in (1, 5)
            for case in cases
            if case.about["model"].endswith(BF16) is bf16 and case.about["averages"] == averages
        }
        figure = dot_plot(panels, len(panels) // 2 or 1, "time of one update, × the memory limit")
        figures[name] = (f"One update of 1 and 5 averages of models {caption}, relative to the memory limit", figure)
    sentence = (
        f"A step on which no average is due takes {result['not_due']['nanoseconds']:.0f} ns and allocates nothing."
    )
    other = "fastest other library"
    header = ["model", "averages", "ms", "× limit", "with the NaN check", other, "its time over emabank's"]
    return figures, table(header, [_update_row(case) for case in cases]) + "\n\n" + sentence


def _update_row(case: Case) -> list[str]:
    by_name = {row.name: row for row in case.rows}
    bank, exact = by_name[BANK], by_name[EXACT]
    cells = [case.about["model"], str(case.about["averages"]), f"{bank.ms.median:.3g}"]
    cells += [str(row.over[LIMIT]) for row in (bank, exact)]
    fastest = min(filter(is_peer, case.rows), key=lambda row: row.over[BANK].median)
    return [*cells, fastest.name, str(fastest.over[BANK])]


def overhead_block(result: Mapping[str, Any]) -> Block:
    panels: dict[str, dict[str, Spread]] = {}
    rows: list[list[str]] = []
    for case in map(read_case, result["cases"]):
        title = f"{case.about['model']}, {count_of(case.about['averages'], 'average')}"
        panels[title] = {row.name: row.over[STEP] for row in case.rows if row.name != STEP}
        own, *peers = sorted(panels[title].items(), key=lambda item: (item[0] != BANK, item[1].median))
        name, least = peers[0]
        cells = [_percent(own[1]), _percent(own[1], PERIOD), f"{_percent(least)}, {name} (of {len(peers)})"]
        rows.append([title, case.about["step"], *cells])
    figure = dot_plot(panels, 2, "an update at every step, % of a training step", percent=True)
    every = f"every {PERIOD} steps"
    header = ["", "a step on", "emabank, every step", every, "cheapest of the others measured, every step"]
    return {"overhead": ("Cost of an update relative to a training step", figure)}, table(header, rows)


def _percent(share: Spread, divisor: int = 1) -> str:
    median, low, high = (f"{100 * value / divisor:.2g}" for value in (share.median, share.low, share.high))
    return f"{median} % ({low}–{high})"


def evaluation_block(result: Mapping[str, Any]) -> Block:
    panels: dict[str, dict[str, Spread]] = {}
    rows: list[list[str]] = []
    for case in map(read_case, result["cases"]):
        about, (shared, *others) = case.about, case.rows
        ratios = {row.name: row.over[shared.name] for row in others}
        panels[f"{about['task']}, {about['source']}"] = ratios
        fastest = min(ratios, key=lambda name: ratios[name].median)
        what = f"{about['task']}, {about['model']}, {about['source']}"
        rows.append([what, str(shared.ms), fastest, str(ratios[fastest]), str(case.rounds)])
    figure = dot_plot(panels, 2, "time of one pass per average, × that of one shared pass", log=False)
    header = ["", "shared pass, ms", "fastest other way", "its time over the shared pass", "rounds"]
    return {"evaluation": ("Time of one pass per average, relative to one shared pass", figure)}, table(header, rows)


def recalibration_block(result: Mapping[str, Any]) -> Block:
    curves, enough = result["curves"], dict(result["enough"])
    sizes = [point["images"] for point in curves[0]["points"]][::2]
    rows: list[list[str]] = []
    for curve in curves:
        means = {point["images"]: f"{100 * point['accuracy']['mean']:+.2f}" for point in curve["points"]}
        name = f"{curve['weights']}, {curve['stage']}, {_images(curve['augmented'])}"
        first = [name, f"{curve['accuracy']:.2%}", f"{100 * curve['without']:+.2f}"]
        rows.append([*first, *(means[size] for size in sizes)])
    header = ["average", "accuracy, all images", "not recalibrated", *(f"{size:,}" for size in sizes)]
    figure = curve_plot(curves, enough)
    caption = "Accuracy after recalibrating on n images, relative to all images"
    sentences = [
        f"- {_images(augmented)}: {f'{size:,} are enough' if size else 'all are needed'} for every average to be "
        "within 0.1 points of all images, and every draw within one standard error."
        for augmented, size in enough.items()
    ]
    return {"recalibration": (caption, figure)}, table(header, rows) + "\n\n" + "\n".join(sentences)


def memory_block(result: Mapping[str, Any]) -> Block:
    rows: list[list[str]] = []
    for cost in result["costs"]:
        sizes = (cost["averages"] * 4 * cost["parameters"], cost["tensors"], cost["resident"], cost["peak"])
        name = f"{cost['model']}, {count_of(cost['averages'], 'average')}"
        rows.append([name, *(f"{size / 2**20:.2f}" for size in sizes)])
    return {}, table(["MiB", "averages alone", "tensors", "resident", "peak resident"], rows)


def large_block(result: Mapping[str, Any]) -> Block:
    cases = [read_case(entry) for entry in result["cases"]]
    stages = [{stage["name"]: stage for stage in case.about["stages"]} for case in cases]
    rows = [
        [name, *(f"{stage[name]['seconds']:.3g} s, {stage[name]['peak'] / 2**30:.1f} GiB" for stage in stages)]
        for name in stages[0]
    ]
    rows.append(["one update, × the memory limit", *(str(case.rows[-1].over[LIMIT]) for case in cases)])
    return {}, table(["time and peak memory of", *(case.about["dtype"] for case in cases)], rows)


BLOCKS = {
    "update": update_block,
    "overhead": overhead_block,
    "memory": memory_block,
    "evaluation": evaluation_block,
    "recalibration": recalibration_block,
    "large": large_block,
}


def measured(result: Mapping[str, Any]) -> str:
    """When, where and how a result was measured."""
    known = result["conditions"]
    cores, threads = (count_of(known[f"{noun}s"], noun) for noun in ("core", "thread"))
    where = f"{known['cpu']}, {cores}, {threads}, torch {known['torch']}"
    link = f"[command and versions](../benchmarks/results/{result['benchmark']}.json)"
    disturbed = [case.name for case in map(read_case, result["cases"]) if case.disturbed]
    warning = f" Disturbed by other processes: {'; '.join(disturbed)}." if disturbed else ""
    return f"Measured {known['date'][:10]} on {where} ({link}).{warning}"


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    blocks: dict[str, str] = {}
    FIGURES.mkdir(exist_ok=True)
    for name in [match[1] for match in BLOCK.findall(text)]:
        result = read_json(RESULTS / f"{name}.json")
        with rc_context(STYLE):
            figures, markdown = BLOCKS[name](result)
            for figure_name, (_, figure) in figures.items():
                figure.savefig(FIGURES / f"{figure_name}.svg", metadata={"Date": None})
        images = [f"![{caption}](speed/{figure_name}.svg)" for figure_name, (caption, _) in figures.items()]
        blocks[name] = "\n\n".join([*images, markdown, measured(result)])
    PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}\n{match[3]}", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
