"""How a result is kept: one JSON file with its command, its conditions, its ratios and verdicts; whole or not there.

The ratios are what a later measurement is held against (benchmarks/gate.py), so each has a name that stays.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import getitem
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


@dataclass(frozen=True)
class Among:
    """How entries of a result are told apart, so that some can be measured again and the others stay.

    Args:
        entries: where they are in the result.
        keys: what an entry is known by; `case.model` is the model of its case.
        same: the conditions that must be the same, or the numbers would not belong together.
    """

    entries: str
    keys: Sequence[str]
    same: Sequence[str] = ("cpu", "cores", "threads", "torch", "python", "system", "versions")


def keep_result(
    path: Path,
    script: str,
    conditions: Mapping[str, object],
    *,
    ratios: Iterable[Ratio] = (),
    verdicts: Sequence[Verdict] = (),
    among: Among | None = None,
    **rest: object,
) -> None:
    """Write all of a measurement. What was there before stays whole until the new file is.

    With `among`, entries that were kept before and are not measured now stay, with their ratios and verdicts.
    """
    found = list(ratios)
    if len({ratio.name for ratio in found}) < len(found):
        raise ValueError(f"ratios need different names; given {[ratio.name for ratio in found]}")
    result = {
        "format": FORMAT,
        "command": " ".join([script, *sys.argv[1:]]),
        "conditions": dict(conditions),
        "ratios": {ratio.name: {k: v for k, v in asdict(ratio).items() if k != "name"} for ratio in found},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        **rest,
    }
    if among is not None and path.exists():
        result = _joined(json.loads(path.read_text(encoding="utf-8")), result, among)
    write_json(path, result)


def _joined(before: dict[str, Any], now: dict[str, Any], among: Among) -> dict[str, Any]:
    differing = [key for key in among.same if before["conditions"].get(key) != now["conditions"].get(key)]
    if differing:
        raise ValueError(
            f"what was kept before was measured under other conditions ({', '.join(differing)}): keep this result in "
            "another file, or measure all of it again"
        )

    def identity(entry: Mapping[str, Any]) -> tuple[object, ...]:
        return tuple(reduce(getitem, key.split("."), entry) for key in among.keys)

    entries = {identity(entry): entry for entry in [*before[among.entries], *now[among.entries]]}
    verdicts = {verdict["goal"]: verdict for verdict in [*before["verdicts"], *now["verdicts"]]}
    return {
        **now,
        "command": f"{before['command']}; {now['command']}",
        "ratios": {**before["ratios"], **now["ratios"]},
        "verdicts": list(verdicts.values()),
        among.entries: list(entries.values()),
    }


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
