"""The studies of a folder of runs: which runs belong to which study, and its state.

One small JSON file a study and scale; the report starts from them. Standard library and the run's folder alone.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from emabank.study.runs.storage import read_checked, with_checksum, write_json
from emabank.study.serialize import from_dict

FORMAT = 1
PREFIX = "study-"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One pair of a study: the protocol over it, and the runs beside that."""

    pair: str
    title: str
    protocol: str | None = None
    """The name of the protocol's folder; None before it has one."""
    arms: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Ids of runs in the order of the seeds, by arm."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A study as requested, and its state."""

    study: str
    scale: str
    command: str
    state: Literal["running", "done", "failed"]
    reason: str = ""
    """Why it failed."""
    pairs: tuple[Ran, ...] = ()
    overheads: tuple[dict[str, Any], ...] = ()
    """What averages cost, as `emabank.study.studies.cost` measured it."""


def write_manifest(manifest: Manifest, runs: Path) -> Path:
    """Write it into the folder of runs, in place of an earlier one of the same study and scale."""
    path = manifest_path(manifest.study, manifest.scale, runs)
    write_json(path, with_checksum({"format": FORMAT, **asdict(manifest)}))
    return path


def manifest_path(study: str, scale: str, runs: Path) -> Path:
    return runs / f"{PREFIX}{scale}-{study}.json"


def manifest_lock(study: str, scale: str, runs: Path) -> Path:
    """The lock (`emabank.study.runs.locks`) of a study at a scale: one process at a time runs it."""
    return runs / f".{PREFIX}{scale}-{study}.lock"


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; `ValueError` in one sentence where it holds something else."""
    try:
        content = read_checked(path)
        json.dumps(content, ensure_ascii=False).encode()  # JSON can have half a character, which no report can print
        if content.pop("format", None) != FORMAT:
            raise ValueError("another format")
        return from_dict(Manifest, content, where=path.name)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not what this emabank writes of a study; run the study again") from error
