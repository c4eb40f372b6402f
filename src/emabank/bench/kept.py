"""How a result is kept: one JSON file with its command, its conditions, its ratios and verdicts; whole or not there.

The ratios are what a later measurement is held against (benchmarks/gate.py), so each has a name that stays.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from emabank.bench.cases import Verdict
from emabank.bench.interleave import Spread

FORMAT = 1


@dataclass(frozen=True)
class Ratio:
    """One time over another, taken in one interleaved run.

    Args:
        name: what over what, such as `update/resnet18/5/of-limit`: a path from the benchmark to the number.
        value: over the rounds.
        rounds: how many there were.
        better: which way is faster.
    """

    name: str
    value: Spread
    rounds: int
    better: Literal["lower", "higher"] = "lower"


def keep_result(
    path: Path,
    script: str,
    conditions: Mapping[str, object],
    *,
    ratios: Iterable[Ratio] = (),
    verdicts: Sequence[Verdict] = (),
    **rest: object,
) -> None:
    """Write all of a measurement. What was there before stays whole until the new file is."""
    found = list(ratios)
    if len({ratio.name for ratio in found}) < len(found):
        raise ValueError(f"ratios need different names; given {[ratio.name for ratio in found]}")
    write_json(
        path,
        {
            "format": FORMAT,
            "command": " ".join([script, *sys.argv[1:]]),
            "conditions": dict(conditions),
            "ratios": {ratio.name: {k: v for k, v in asdict(ratio).items() if k != "name"} for ratio in found},
            "verdicts": [asdict(verdict) for verdict in verdicts],
            **rest,
        },
    )


def read_result(path: Path) -> dict[str, Any]:
    """What `keep_result` wrote, with its ratios as such."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT or "ratios" not in found:
        raise ValueError(f"{path} is no result of format {FORMAT}: measure it again")
    found["ratios"] = {
        name: Ratio(name, Spread(**kept["value"]), kept["rounds"], kept["better"])
        for name, kept in found["ratios"].items()
    }
    return found


def write_json(path: Path, result: Mapping[str, object]) -> None:
    """Write the result beside `path` first and move it there: a run that is cut short leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
