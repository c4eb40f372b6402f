"""The blocks of docs/speed.md: what stands between two markers, and how results are put into words and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gate import is_disturbed

from drawn.look import Picture

MADE, END = "<!-- made by benchmarks/draw.py: {} -->", "<!-- end -->"
NOT_MEASURED = "Not measured yet."
FIGURES = "speed"  # the folder of the figures, beside the page
_BLOCK = re.compile(r"<!-- made by benchmarks/draw\.py: ([\w-]+) -->\n(.*?)<!-- end -->", re.S)
_CELL = re.compile(r"([\\`*_<|~$])")  # what would begin emphasis, code or HTML, or end the cell


@dataclass(frozen=True)
class Shown:
    """What a result becomes: figures by name with what they show in words, and tables and sentences in their order."""

    figures: Mapping[str, tuple[Picture, str]] = field(default_factory=dict)
    parts: Sequence[str] = ()


def block(shown: Shown, result: Mapping[str, Any]) -> str:
    """All that stands between the markers: figures, tables, the goals, and under which conditions it was measured."""
    images = [f"![{words}]({FIGURES}/{name}.svg)" for name, (_, words) in shown.figures.items()]
    return "\n\n".join(part for part in [*images, *shown.parts, goals(result), conditions(result)] if part)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = [header, *rows]
    cells = [[_CELL.sub(r"\\\1", cell) for cell in line] for line in lines]
    made = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([made[0], "|" + "|".join([":---", *["---:"] * (len(header) - 1)]) + "|", *made[1:]])


def goals(result: Mapping[str, Any]) -> str:
    """How many goals were met, and each that was not, with what was found."""
    verdicts = result.get("verdicts", ())
    if not verdicts:
        return ""
    met = sum(verdict["passed"] is True for verdict in verdicts)
    lines = [f"Goals met: {met} of {len(verdicts)}."]
    for verdict in verdicts:
        if verdict["passed"] is not True:
            word = "open, other processes disturbed it" if verdict["passed"] is None else "not met"
            lines.append(f"- {verdict['goal']}: **{word}** ({verdict['found']})")
    return "\n".join(lines)


def conditions(result: Mapping[str, Any]) -> str:
    """Where, when and by which command; and that it was disturbed, if it was."""
    known = result["conditions"]
    words = [f"Measured {str(known.get('date', 'some day'))[:10]} on {known.get('cpu', 'an unknown CPU')}"]
    for name in ("core", "thread"):
        count = str(known.get(f"{name}s", "unknown"))
        words.append(f"{count} {name}" + "s" * (count != "1"))
    words.append(f"torch {known.get('torch', 'unknown')}")
    sentence = f"{', '.join(words)}: `{plain_command(result['command'])}`."
    if is_disturbed(result):
        sentence += " **Other processes were at work meanwhile: these numbers decide nothing.**"
    return sentence


def plain_command(command: str) -> str:
    """The command as others would type it: without where the result was kept, and without folders of our machine.

    >>> plain_command("python benchmarks/training.py --data /home/me/data --json out.json --seconds 40")
    'python benchmarks/training.py --data DIR --seconds 40'
    """
    without = re.sub(r" --json[ =]\S+", "", command)
    return re.sub(r"(?<= )/\S+", "DIR", without)


def blocks_in(text: str) -> dict[str, str]:
    """What stands between the markers of a page, by name."""
    found = _BLOCK.findall(text)
    names = [name for name, _ in found]
    if len(set(names)) < len(names) or len(names) != text.count("<!-- made by "):
        raise ValueError(f"the page has markers that are not whole, or two of one name; found {names}")
    return {name: content.strip("\n") for name, content in found}


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """The page with new contents between its markers."""
    if unknown := set(blocks_in(text)) ^ set(blocks):
        raise ValueError(f"the page and benchmarks/draw.py do not know the same blocks: {', '.join(sorted(unknown))}")
    return _BLOCK.sub(lambda found: f"{MADE.format(found[1])}\n{blocks[found[1]]}\n{END}", text)
