"""Draws what was measured: the figures and tables of docs/speed.md from benchmarks/results, and whether they agree.

Run `python benchmarks/draw.py --help`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gate
from drawn import (
    choices,
    evaluation,
    growth,
    hotspots,
    large,
    overhead,
    ratios,
    recalibration,
    startup,
    study,
    training,
    update,
)
from drawn.look import same_picture
from drawn.page import FIGURES, NOT_MEASURED, Shown, block, blocks_in, filled

from emabank.bench.kept import read_result

ROOT = Path(__file__).parents[1]

# A block of the page is named after the result that it is made of.
KINDS: Mapping[str, Callable[[Mapping[str, Any]], Shown]] = {
    "update": update.show,
    "overhead": overhead.show,
    "evaluation": evaluation.show,
    "recalibration": recalibration.show,
    "training": training.show,
    "hotspots": hotspots.show,
    "choices": choices.show,
    "study": study.show,
    "growth": growth.show,
    "startup": startup.show,
    "large": large.show,
}


@dataclass(frozen=True)
class Made:
    """What the results become: blocks of the page and figures by name, and what was left out, in words."""

    blocks: Mapping[str, str]
    figures: Mapping[str, bytes]
    remarks: Sequence[str]


def make(results: Path, kept: Path) -> Made:
    """Everything that the results in a folder and the kept ratios give."""
    blocks: dict[str, str] = {}
    figures: dict[str, bytes] = {}
    remarks: list[str] = []
    for name, show in KINDS.items():
        path = results / f"{name}.json"
        blocks[name] = NOT_MEASURED
        if not path.exists():
            continue
        try:
            result = read_result(path)
        except ValueError as error:
            remarks.append(str(error))
            continue
        try:
            shown = show(result)
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise ValueError(f"{path} is not of the form that benchmarks/drawn/{name}.py reads: {error!r}") from error
        blocks[name] = block(shown, result)
        figures |= {figure: picture.svg() for figure, (picture, _) in shown.figures.items()}
    blocks["ratios"] = ratios.block_of(gate.read_kept(kept)) or NOT_MEASURED
    return Made(blocks, figures, remarks)


def write(made: Made, page: Path) -> list[str]:
    """Bring the page and its figures up to date; says what was changed."""
    changed: list[str] = []
    before = page.read_text(encoding="utf-8")
    after = filled(before, made.blocks)
    if after != before:
        page.write_text(after, encoding="utf-8")
        changed.append(f"wrote {page.name}")
    folder = page.parent / FIGURES
    for name, picture in made.figures.items():
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.svg"
        if not path.exists() or not same_picture(path.read_bytes(), picture):
            path.write_bytes(picture)
            changed.append(f"drew {FIGURES}/{path.name}")
    for path in _strangers(made, folder):
        path.unlink()
        changed.append(f"removed {FIGURES}/{path.name}, whose result is not there")
    return changed


def faults(made: Made, page: Path) -> list[str]:
    """Where the page and its figures are not what the results say."""
    there = blocks_in(page.read_text(encoding="utf-8"))
    found = [f"{page.name}: the block {name} has no counterpart" for name in sorted(set(there) ^ set(made.blocks))]
    found += [
        f"{page.name}: {name} is not what its result says"
        for name, content in made.blocks.items()
        if name in there and there[name] != content
    ]
    folder = page.parent / FIGURES
    for name, picture in made.figures.items():
        path = folder / f"{name}.svg"
        if not path.exists():
            found.append(f"{FIGURES}/{path.name} is missing")
        elif not same_picture(path.read_bytes(), picture):
            found.append(f"{FIGURES}/{path.name} is not drawn from the result that is there")
    return found + [f"{FIGURES}/{path.name} belongs to no result" for path in _strangers(made, folder)]


def _strangers(made: Made, folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.svg")) if path.stem not in made.figures]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Fill in the numbers of docs/speed.md and draw its figures, from benchmarks/results/*.json and "
        "benchmarks/ratios.json. A few seconds; nothing is measured.",
        epilog="A result that is not there leaves 'not measured yet' in its place.",
    )
    add = parser.add_argument
    add("--check", action="store_true", help="change nothing; exit with 1 when page and results do not agree")
    add("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR", help="(benchmarks/results)")
    add("--ratios", type=Path, default=gate.RATIOS, metavar="FILE", help="kept ratios (benchmarks/ratios.json)")
    add("--page", type=Path, default=ROOT / "docs" / "speed.md", metavar="FILE",
        help="the page; its figures are in the folder speed beside it (docs/speed.md)")  # fmt: skip
    asked = parser.parse_args(argv)
    try:
        made = make(asked.results, asked.ratios)
        lines = faults(made, asked.page) if asked.check else write(made, asked.page)
    except (OSError, ValueError) as error:
        print(f"draw.py: {error}", file=sys.stderr)
        return 1
    for remark in made.remarks:
        print(f"left out: {remark}", file=sys.stderr)
    print("\n".join(lines) or f"{asked.page.name} says what the results say")
    if asked.check and lines:
        print("run `python benchmarks/draw.py` to bring the page up to date")
    return int(asked.check and bool(lines))


if __name__ == "__main__":
    sys.exit(main())
