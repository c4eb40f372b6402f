"""Reads a run's folder: its state, configuration and results. Defines the names of all files in it.

Needs no lock and writes nothing. torch and numpy are imported by the functions that need them.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from emabank.study.runs.locks import is_locked
from emabank.study.runs.rows import Row, read_rows
from emabank.study.runs.storage import (
    Predictions,
    file_checksum,
    read_any,
    read_json,
    read_predictions,
    read_weights,
)
from emabank.study.serialize import from_dict, run_id

if TYPE_CHECKING:
    from torch import Tensor

State = Literal["waiting", "running", "done", "failed"]
CONFIG, ENVIRONMENT, HISTORY, PROGRESS = "config.json", "environment.json", "history.json", "progress.json"
DONE, FAILED, LOCK, LOG = "done.json", "failed.json", "lock", "log.txt"
ROWS, TEST_CURVES, POSTHOC_ROWS = "rows.jsonl", "test_curves.jsonl", "posthoc.jsonl"
SNAPSHOTS, PREDICTIONS, FORKS, POSTHOC = "snapshots", "predictions", "forks", "posthoc"

REPORTED = (CONFIG, ENVIRONMENT, HISTORY, ROWS, TEST_CURVES, POSTHOC_ROWS)
"""The files of a finished run that the report reads."""
ROWS_ONLY = "rows_only"
"""In done.json: marks a run restored from an archive, which has only the files above."""

PROTOCOL, SUMMARY, ROWS_CHECKSUM = "protocol-", "summary.json", "rows_checksum"
"""The prefix of a protocol's folder, the file with its summary, and the key there for the checksum of its rows."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%@+=-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run, as last written."""

    epoch: int
    epochs: int
    words: str
    seconds_left: float | None
    time: str
    """When it was written, in UTC."""

    def __post_init__(self) -> None:
        if not all(0 <= number < 2**53 for number in (self.epoch, self.epochs, self.seconds_left or 0)):
            raise ValueError("a number of it is negative or far too large")  # it comes from a file


class RunFolder:
    """One run, read from its folder. `emabank.study.runs.writer.open_run` writes it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, root: str | os.PathLike[str], config: Mapping[str, Any]) -> "RunFolder":
        """The folder, below `root`, of the run with this configuration; it need not exist."""
        return cls(Path(root, run_id(config)))

    @property
    def id(self) -> str:
        return self.path.name

    # Its state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Waiting means never started or interrupted; the next start resumes from what is there."""
        if self.is_done():
            return "done"
        if is_locked(self.path / LOCK):
            return "running"
        return "failed" if (self.path / FAILED).exists() else "waiting"

    def is_done(self, *, contents: bool = False) -> bool:
        """Whether the run is done and its files are complete; with `contents`, their checksums are compared too."""
        return self._listed_files() is not None and self.find_damage(contents=contents) is None

    def find_damage(self, *, contents: bool = False) -> str | None:
        """What is missing or damaged in a finished run; None if nothing is."""
        for name, (size, checksum) in (self._listed_files() or {}).items():
            path = self.path / name
            try:
                status = path.stat()
            except OSError:
                return f"{path} is missing"
            if not stat.S_ISREG(status.st_mode):
                return f"{path} is no regular file"
            if status.st_size != size:
                return f"{path} has {status.st_size} bytes instead of {size}"
            if contents and file_checksum(path) != checksum:
                return f"{path} is damaged: its content does not match its checksum"
        return None

    def is_rows_only(self) -> bool:
        """Whether the run was restored from an archive, without weights, predictions and forks."""
        return read_json(self.path / DONE).get(ROWS_ONLY) is True

    def summary(self) -> dict[str, Any]:
        """The summary written when the run ended; empty before."""
        summary = read_json(self.path / DONE).get("summary")
        return summary if isinstance(summary, dict) else {}

    def failure(self) -> str | None:
        """Why the run failed, in a sentence; None if it did not."""
        message = read_json(self.path / FAILED).get("message")
        return None if message is None else str(message)

    def progress(self) -> Progress | None:
        """The progress of the run; None before its first epoch."""
        try:
            return from_dict(Progress, read_json(self.path / PROGRESS), where=PROGRESS)
        except ValueError:  # missing, damaged, or written by another version of emabank
            return None

    # Its configuration and results ------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        content = self._json(CONFIG)
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise ValueError(f"{self.path / CONFIG} is damaged: it holds no configuration; {self._retrain_hint()}")
        return content["config"]

    def environment(self) -> list[dict[str, Any]]:
        """The environment of the training, once per start or resume."""
        content = self._json(ENVIRONMENT)
        if not isinstance(content, dict) or not isinstance(content.get("sessions"), list):
            raise ValueError(f"{self.path / ENVIRONMENT} is damaged: it holds no sessions; {self._retrain_hint()}")
        return content["sessions"]

    def history(self) -> Any:
        """The training history, one record per epoch."""
        return self._json(HISTORY)

    def rows(self) -> list[Row]:
        """The measurements, without the test curves, so that no selection can see those."""
        return self._rows(ROWS)

    def test_curves(self) -> list[Row]:
        """The test measurements of every epoch, in a file that no selection reads."""
        return self._rows(TEST_CURVES)

    def posthoc(self) -> list[Row]:
        """The validation results of the averaging windows and stopping epochs tried after training."""
        return self._rows(POSTHOC_ROWS)

    def fork_path(self, epoch: int) -> Path:
        """The file with the state after an epoch, for other runs to start from."""
        return self.path / FORKS / f"epoch-{epoch}.pt"

    def snapshots(self) -> list[str]:
        return self._names(SNAPSHOTS, ".safetensors")

    def snapshot_path(self, name: str) -> Path:
        return self.path / SNAPSHOTS / f"{check_name(name)}.safetensors"

    def load_snapshot(self, name: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
        """Saved weights as a state dict on the CPU, and their metadata."""
        return read_weights(self._existing_file(f"{SNAPSHOTS}/{check_name(name)}.safetensors"))

    def predictions(self) -> list[str]:
        """The names of the weights whose predictions were saved."""
        return self._names(PREDICTIONS, ".npz")

    def load_predictions(self, name: str) -> dict[str, Predictions]:
        """The predictions of saved weights, by part of the data."""
        return read_predictions(self._existing_file(f"{PREDICTIONS}/{check_name(name)}.npz"))

    def _listed_files(self) -> dict[str, tuple[int, int]] | None:
        """The size and checksum of each file that done.json lists; None if it is missing or damaged."""
        try:
            done = read_json(self.path / DONE)
            files = {name: (size, checksum) for name, (size, checksum) in done["files"].items()}
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
        return files if isinstance(done.get("summary", {}), dict) and all(map(_is_inside, files)) else None

    def _existing_file(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            if self.is_rows_only():
                reason = "the run was restored from an archive, which keeps neither weights nor predictions"
                raise FileNotFoundError(f"{path} is not there: {reason}; {self._retrain_hint()}")
            names = sorted(other.stem for other in path.parent.glob("[!.]*"))
            raise FileNotFoundError(f"{path} is not there; the run has {', '.join(names) or 'none'} in that folder")
        return self.intact(name)

    def intact(self, name: str) -> Path:
        """The path of a file of the run; `ValueError` if the file does not match its checksum in done.json."""
        path = self.path / name
        if not stat.S_ISREG(path.stat().st_mode):  # a missing or unreadable file raises its own error
            raise ValueError(f"{path} is no regular file; {self._retrain_hint()}")
        listed = (self._listed_files() or {}).get(name)
        if listed is not None and file_checksum(path) != listed[1]:
            raise ValueError(f"{path} is damaged: its content does not match its checksum; {self._retrain_hint()}")
        return path

    def _rows(self, name: str) -> list[Row]:
        return read_rows(self.intact(name)) if (self.path / name).exists() else []

    def _names(self, folder: str, suffix: str) -> list[str]:
        return sorted(path.name.removesuffix(suffix) for path in (self.path / folder).glob(f"[!.]*{suffix}"))

    def _json(self, name: str) -> Any:
        path = self.intact(name)
        try:
            return read_any(path)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}; {self._retrain_hint()}") from error

    def _retrain_hint(self) -> str:
        return f"remove the folder {self.path} to train the run again"


def _is_inside(name: str) -> bool:
    """Whether a file name stays inside the run's folder: done.json may come from elsewhere."""
    return not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


def check_name(name: str) -> str:
    """The name, unchanged; `ValueError` unless it can name a file on every system."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a file of a run; give up to 100 letters, digits and . _ % @ + = -, beginning with a "
            "letter or digit"
        )
    return name
