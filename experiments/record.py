"""The results of an experiment: one folder, one set of settings, one row per finished unit of work."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from emabank.atomic import write_atomically
from emabank.study.bench import conditions
from emabank.study.report.claims import interval
from emabank.study.report.draw import RC


class Record:
    """A folder of results: `settings.json`, and `rows.jsonl` with a JSON object per line.

    Several processes may append to one record. A folder with other settings is refused, so that all its rows have the
    same settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._rows = folder / "rows.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        if not path.exists():
            content = {"settings": settings, "conditions": conditions()}
            self.write("settings.json", json.dumps(content, indent=2) + "\n")
        known = json.loads(path.read_text(encoding="utf-8"))["settings"]
        current = json.loads(json.dumps(settings))
        changed = [key for key in {**known, **current} if known.get(key) != current.get(key)]
        if changed:
            texts = [f"{key} {known.get(key)!r}, now {current.get(key)!r}" for key in changed]
            raise ValueError(f"{folder} has results of other settings ({'; '.join(texts)}): use another --out.")

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order in which they were written."""
        if not self._rows.exists():
            return []
        return [json.loads(line) for line in self._rows.read_text(encoding="utf-8").splitlines()]

    def append(self, row: Mapping[str, Any]) -> None:
        with open(self._rows, "ab", buffering=0) as file:  # one write per row, so that processes do not mix their rows
            file.write(f"{json.dumps(row)}\n".encode())

    def write(self, name: str, text: str) -> None:
        write_atomically(self.folder / name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def draw(self, name: str, draw: Callable[[Figure], None], *, size: tuple[float, float]) -> None:
        """Write a figure as SVG; the same rows give the same bytes."""
        with rc_context(RC):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            write_atomically(
                self.folder / name, lambda temporary: figure.savefig(temporary, format="svg", metadata={"Date": None})
            )


def interval_text(values: Sequence[float], *, digits: int = 4) -> str:
    """The mean of values, one per seed, and its 95 % t-interval."""
    estimate = interval(values)
    if estimate.low is None:
        return f"{estimate.mean:.{digits}f}"
    return f"{estimate.mean:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def parse_seeds(text: str) -> list[int]:
    """Seeds such as "10-19" or "900,902"."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise argparse.ArgumentTypeError(f"must be numbers and ranges, such as 10-19 or 900,902; got {text!r}")
        seeds.update(dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1)))
    return list(seeds)


def parse_options(
    doc: str | None, *, seeds: str, rate: float, out: str, steps: int | None = None, data: bool = False
) -> argparse.Namespace:
    """The command line of an experiment, with these defaults."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seeds", type=parse_seeds, default=seeds, help="numbers and ranges, such as 10-19 or 900,902")
    if steps is not None:
        parser.add_argument("--steps", type=int, default=steps, help="optimizer steps per seed, a multiple of 100")
    if data:
        parser.add_argument("--data", type=Path, default="data", help="folder with the data sets")
    parser.add_argument("--rate", type=float, default=rate, help="learning rate")
    parser.add_argument("--out", type=Path, default=out, help="folder of the results")
    options = parser.parse_args()
    if steps is not None and (options.steps < 100 or options.steps % 100):
        parser.error(f"argument --steps: must be a positive multiple of 100; got {options.steps}")
    if not options.rate > 0.0:
        parser.error(f"argument --rate: must be positive; got {options.rate}")
    return options


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_command(main: Callable[[], None]) -> None:
    """Run a script on one thread, so that its numbers are reproducible. Errors and Ctrl-C print one sentence."""
    torch.set_num_threads(1)
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        log("Interrupted. The same command resumes.")
        sys.exit(130)
