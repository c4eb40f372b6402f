"""The manifest of a study: its state, and the runs that belong to it.

One small JSON file per study and scale, in the folder of runs; the report starts from these. Without torch and numpy.
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
class SettingRuns:
    """One pair (data set and network) of a study: its protocol, and the runs of its variants."""

    pair: str
    title: str
    protocol: str | None = None
    """The name of the protocol's folder; None until it has one."""
    arms: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Run ids by variant (arm), in the order of the seeds."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A study as requested, and its state."""

    study: str
    scale: str
    command: str
    state: Literal["running", "done", "failed"]
    reason: str = ""
    """Why it failed."""
    pairs: tuple[SettingRuns, ...] = ()
    overheads: tuple[dict[str, Any], ...] = ()
    """The costs of averaging, as measured by `emabank.study.studies.cost`."""


def write_manifest(manifest: Manifest, runs: Path) -> Path:
    """Write the manifest into the folder of runs, replacing an earlier one of the same study and scale."""
    path = manifest_path(manifest.study, manifest.scale, runs)
    write_json(path, with_checksum({"format": FORMAT, **asdict(manifest)}))
    return path


def manifest_path(study: str, scale: str, runs: Path) -> Path:
    return runs / f"{PREFIX}{scale}-{study}.json"


def manifest_lock(study: str, scale: str, runs: Path) -> Path:
    """The lock (`emabank.study.runs.locks`) of a study at a scale: one process at a time runs it."""
    return runs / f".{PREFIX}{scale}-{study}.lock"


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; `ValueError` if the file holds anything else."""
    try:
        content = read_checked(path)
        json.dumps(content, ensure_ascii=False).encode()  # JSON can have lone surrogates, which no report can print
        if content.pop("format", None) != FORMAT:
            raise ValueError("another format")
        return from_dict(Manifest, content, where=path.name)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not what this emabank writes of a study; run the study again") from error
