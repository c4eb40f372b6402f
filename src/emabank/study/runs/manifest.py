"""What a folder of runs knows of the studies that were asked for: which runs belong to which, and how far each got.

One small JSON file a study and scale; the report finds its way by them. Standard library and the run's folder alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from emabank.study.runs.storage import read_checked, with_checksum, write_json

FORMAT = 1
PREFIX = "study-"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One pair of a study: the protocol over it, and the runs beside that."""

    pair: str
    title: str
    protocol: str | None = None
    """The name of the protocol's folder; None before it has one."""
    arms: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Ids of runs in the order of the seeds, by arm."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A study as it was asked for, and how far it got."""

    study: str
    scale: str
    command: str
    state: Literal["running", "done", "failed"]
    reason: str = ""
    """Why it failed."""
    pairs: Sequence[Ran] = ()
    overheads: Sequence[Mapping[str, Any]] = ()
    """What averages cost, as `emabank.study.studies.overhead` measured it."""


def write_manifest(manifest: Manifest, runs: Path) -> Path:
    """Write it into the folder of runs, in place of an earlier one of the same study and scale."""
    path = runs / f"{PREFIX}{manifest.scale}-{manifest.study}.json"
    write_json(path, with_checksum({"format": FORMAT, **asdict(manifest)}))
    return path


def manifest_lock(study: str, scale: str, runs: Path) -> Path:
    """The lock (`emabank.study.runs.locks`) of a study at a scale: one process at a time runs it.

    >>> manifest_lock("dynamics", "demo", Path("runs")).as_posix()
    'runs/.study-demo-dynamics.lock'
    """
    return runs / f".{PREFIX}{scale}-{study}.lock"


def read_manifest(path: Path) -> Manifest:
    """What such a file holds; `ValueError` in one sentence where it holds something else.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = Manifest(study="dynamics", scale="demo", command="emabank run dynamics", state="running")
    ...     read_manifest(write_manifest(manifest, Path(folder))) == manifest
    True
    """
    try:
        content = read_checked(path)
        json.dumps(content, ensure_ascii=False).encode()  # JSON can have half a character, which no report can print
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        pairs = tuple(Ran(**ran) for ran in content.pop("pairs"))
        overheads = tuple(content.pop("overheads"))
        manifest = Manifest(**content, pairs=pairs, overheads=overheads)
        if not _is_whole(manifest):
            raise ValueError("another shape")
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} is not what this emabank writes of a study; run the study again") from error


def _is_whole(manifest: Manifest) -> bool:
    """Whether everything in it is of the kind that it should be."""
    runs = [runs for ran in manifest.pairs for runs in ran.arms.values()]
    texts = [manifest.study, manifest.scale, manifest.command, manifest.reason]
    texts += [
        text
        for ran in manifest.pairs
        for text in (ran.pair, ran.title, "" if ran.protocol is None else ran.protocol, *ran.arms)
    ]
    return (
        manifest.state in ("running", "done", "failed")
        and all(isinstance(ids, list) for ids in runs)
        and all(isinstance(text, str) for text in [*texts, *(run for some in runs for run in some)])
        and all(isinstance(overhead, dict) for overhead in manifest.overheads)
    )
