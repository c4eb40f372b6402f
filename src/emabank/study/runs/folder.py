"""A run's folder, read: how the run stands, what it was told and what it left. Needs no lock and writes nothing.

torch and numpy come with the functions that hand out their arrays.
"""

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from emabank.study.locks import is_locked
from emabank.study.rows import Row, read_rows
from emabank.study.runs import arrays, checkpoints
from emabank.study.runs.identity import run_id

if TYPE_CHECKING:
    from torch import Tensor

State = Literal["waiting", "running", "done", "failed"]
CONFIG, ENVIRONMENT, HISTORY, PROGRESS = "config.json", "environment.json", "history.json", "progress.json"
DONE, FAILED, LOCK, LOG = "done.json", "failed.json", "lock", "log.txt"
ROWS, TEST_CURVES, POSTHOC_ROWS = "rows.jsonl", "test_curves.jsonl", "posthoc.jsonl"
SNAPSHOTS, PREDICTIONS, FORKS, POSTHOC = "snapshots", "predictions", "forks", "posthoc"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%@+=-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, as it last said."""

    epoch: int
    epochs: int
    words: str
    seconds_left: float | None
    time: str
    """When this was said, in UTC."""


class RunFolder:
    """One run as it lies in its folder. Whoever wants to write to it uses `emabank.study.runs.open_run`.

    >>> RunFolder.of("runs", {"network": "resnet8", "epochs": 60}).path.as_posix()
    'runs/d8cb8c03b3709a2a'
    >>> RunFolder("runs/d8cb8c03b3709a2a").state()
    'waiting'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, root: str | os.PathLike[str], config: Mapping[str, Any]) -> "RunFolder":
        """The folder of the run that a configuration describes, below the folder of all runs; there or not."""
        return cls(Path(root, run_id(config)))

    @property
    def id(self) -> str:
        return self.path.name

    # How it stands ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Waiting means never started, or interrupted: either way the next start goes on from what is there."""
        if self.is_done():
            return "done"
        if is_locked(self.path / LOCK):
            return "running"
        return "failed" if (self.path / FAILED).exists() else "waiting"

    def is_done(self, *, contents: bool = False) -> bool:
        """Whether the run has ended well and all it left is there; with `contents`, every byte is checked too."""
        return self._left() is not None and self.what_is_wrong(contents=contents) is None

    def what_is_wrong(self, *, contents: bool = False) -> str | None:
        """What a run that has once ended well no longer has, in words; None: nothing is wrong."""
        for name, (size, checksum) in (self._left() or {}).items():
            path = self.path / name
            try:
                found = path.stat().st_size
            except OSError:
                return f"{path} is missing"
            # Rows may be measured again after the training, so their size is not held against them.
            if size is not None and found != size:
                return f"{path} has {found} bytes instead of {size}"
            if contents and checksum is not None and file_checksum(path) != checksum:
                return f"{path} is damaged: its content does not match its checksum"
        return None

    def summary(self) -> dict[str, Any]:
        """What was said when the run ended; empty before."""
        return read_json(self.path / DONE).get("summary", {})

    def failure(self) -> str | None:
        """Why the run failed, in a sentence; None when it did not."""
        return read_json(self.path / FAILED).get("message")

    def progress(self) -> Progress | None:
        """How far the run says that it is; None before it has said so."""
        try:
            return Progress(**read_json(self.path / PROGRESS))
        except TypeError:  # not there, or written by another emabank
            return None

    # What it was told and what it left -------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The complete configuration."""
        return self._json(CONFIG)["config"]

    def environment(self) -> list[dict[str, Any]]:
        """The conditions of the training, once for each time that it was started or resumed."""
        return self._json(ENVIRONMENT)["sessions"]

    def history(self) -> Any:
        """What the training kept of each epoch."""
        return self._json(HISTORY)

    def rows(self) -> list[Row]:
        """The measurements; those of the test curves are not among them, so that no selection can see them."""
        return read_rows(self.path / ROWS) if (self.path / ROWS).exists() else []

    def load_fork(self, epoch: int) -> dict[str, Any]:
        """The state after an epoch, kept for other runs to start from."""
        return checkpoints.read(self._kept(f"{FORKS}/epoch-{epoch}.pt"))

    def snapshots(self) -> list[str]:
        """The names of the kept weights."""
        return self._names(SNAPSHOTS, ".safetensors")

    def load_snapshot(self, name: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
        """Kept weights as a state dict on the CPU, and what was noted beside them."""
        return arrays.read_weights(self._kept(f"{SNAPSHOTS}/{checked_name(name)}.safetensors"))

    def predictions(self) -> list[str]:
        """The names of the weights whose predictions were kept."""
        return self._names(PREDICTIONS, ".npz")

    def load_predictions(self, name: str) -> dict[str, arrays.Predictions]:
        """What kept weights say, by part of the data."""
        return arrays.read_predictions(self._kept(f"{PREDICTIONS}/{checked_name(name)}.npz"))

    def _left(self) -> dict[str, tuple[int | None, int | None]] | None:
        """What the run left when it ended well: size and checksum by name; None: it has not, or the mark is damaged."""
        try:
            files = read_json(self.path / DONE)["files"].items()
            return {name: (size, checksum) for name, (size, checksum) in files}
        except (TypeError, KeyError, ValueError, AttributeError):
            return None

    def _kept(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            there = sorted(other.stem for other in path.parent.glob("[!.]*"))
            raise FileNotFoundError(f"{path} is not there; the run has {', '.join(there) or 'none'} in that folder")
        checksum = (self._left() or {}).get(name, (None, None))[1]
        if checksum is not None and file_checksum(path) != checksum:
            raise ValueError(f"{path} is damaged: its content does not match its checksum; {self._again()}")
        return path

    def _names(self, folder: str, suffix: str) -> list[str]:
        return sorted(path.name.removesuffix(suffix) for path in (self.path / folder).glob(f"[!.]*{suffix}"))

    def _json(self, name: str) -> Any:
        path = self.path / name
        content = path.read_text(encoding="utf-8")  # what is missing or not readable says so itself
        try:
            return json.loads(content)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: it is not JSON; {self._again()}") from error

    def _again(self) -> str:
        return f"remove the folder {self.path} to train the run again"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; empty when there is none.

    >>> read_json(Path("no/such/file"))
    {}
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def file_checksum(path: Path) -> int:
    """CRC-32 of a file.

    >>> file_checksum(Path(__file__)) == zlib.crc32(Path(__file__).read_bytes())
    True
    """
    total = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def checked_name(name: str) -> str:
    """A name that can be a file's on every system, as it was given.

    >>> checked_name("ema-0.998")
    'ema-0.998'
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a file of a run; give up to 100 letters, digits and . _ % @ + = -, beginning with a "
            "letter or digit"
        )
    return name
