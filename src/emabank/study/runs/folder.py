"""A run's folder, read: how the run stands, what it was told and what it left. Needs no lock and writes nothing.

torch and numpy come with the functions that hand out their arrays.
"""

import os
import re
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from emabank.study.locks import is_locked
from emabank.study.rows import Row, read_rows
from emabank.study.runs import arrays, checkpoints
from emabank.study.runs.identity import run_id
from emabank.study.runs.sealed import read_any, read_sealed

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

    def is_sound(self) -> bool:
        """Whether all of it is of the kind that it should be: it comes from a file.

        >>> Progress(epoch=1, epochs=2, words="", seconds_left=None, time="").is_sound()
        True
        """
        numbers = (self.epoch, self.epochs, 0 if self.seconds_left is None else self.seconds_left)
        return (
            type(self.epoch) is type(self.epochs) is int
            and all(type(number) in (int, float) and 0 <= number < 2**53 for number in numbers)
            and isinstance(self.words, str)
            and isinstance(self.time, str)
        )


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
                found = path.stat()
            except OSError:
                return f"{path} is missing"
            if not stat.S_ISREG(found.st_mode):
                return f"{path} is no regular file"
            if size is not None and found.st_size != size:
                return f"{path} has {found.st_size} bytes instead of {size}"
            if contents and checksum is not None and file_checksum(path) != checksum:
                return f"{path} is damaged: its content does not match its checksum"
        return None

    def summary(self) -> dict[str, Any]:
        """What was said when the run ended; empty before."""
        found = read_json(self.path / DONE).get("summary")
        return found if isinstance(found, dict) else {}

    def failure(self) -> str | None:
        """Why the run failed, in a sentence; None when it did not."""
        message = read_json(self.path / FAILED).get("message")
        return None if message is None else str(message)

    def progress(self) -> Progress | None:
        """How far the run says that it is; None before it has said so."""
        try:
            told = Progress(**read_json(self.path / PROGRESS))
        except TypeError:  # not there, or written by another emabank
            return None
        return told if told.is_sound() else None

    # What it was told and what it left -------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The complete configuration."""
        found = self._json(CONFIG)
        if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
            raise ValueError(f"{self.path / CONFIG} is damaged: it holds no configuration; {self._again()}")
        return found["config"]

    def environment(self) -> list[dict[str, Any]]:
        """The conditions of the training, once for each time that it was started or resumed."""
        found = self._json(ENVIRONMENT)
        if not isinstance(found, dict) or not isinstance(found.get("sessions"), list):
            raise ValueError(f"{self.path / ENVIRONMENT} is damaged: it holds no sessions; {self._again()}")
        return found["sessions"]

    def history(self) -> Any:
        """What the training kept of each epoch."""
        return self._json(HISTORY)

    def rows(self) -> list[Row]:
        """The measurements; those of the test curves are not among them, so that no selection can see them."""
        return self._rows(ROWS)

    def test_curves(self) -> list[Row]:
        """The test measurements of every epoch, which lie apart from all that a selection reads."""
        return self._rows(TEST_CURVES)

    def posthoc(self) -> list[Row]:
        """What windows and stopping epochs that were tried after the training gave on validation images."""
        return self._rows(POSTHOC_ROWS)

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
            done = read_json(self.path / DONE)
            files = {name: (size, checksum) for name, (size, checksum) in done["files"].items()}
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
        return files if isinstance(done.get("summary", {}), dict) and all(map(_is_inside, files)) else None

    def _kept(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            there = sorted(other.stem for other in path.parent.glob("[!.]*"))
            raise FileNotFoundError(f"{path} is not there; the run has {', '.join(there) or 'none'} in that folder")
        return self._whole(name)

    def _whole(self, name: str) -> Path:
        """The path of a file of the run, once it has been seen to be as the run left it."""
        path = self.path / name
        if not stat.S_ISREG(path.stat().st_mode):  # what is missing or not readable says so itself
            raise ValueError(f"{path} is no regular file; {self._again()}")
        checksum = (self._left() or {}).get(name, (None, None))[1]
        if checksum is not None and file_checksum(path) != checksum:
            raise ValueError(f"{path} is damaged: its content does not match its checksum; {self._again()}")
        return path

    def _rows(self, name: str) -> list[Row]:
        return read_rows(self._whole(name)) if (self.path / name).exists() else []

    def _names(self, folder: str, suffix: str) -> list[str]:
        return sorted(path.name.removesuffix(suffix) for path in (self.path / folder).glob(f"[!.]*{suffix}"))

    def _json(self, name: str) -> Any:
        path = self._whole(name)
        try:
            return read_any(path)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}; {self._again()}") from error

    def _again(self) -> str:
        return f"remove the folder {self.path} to train the run again"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; empty when there is none, or it does not match its checksum.

    >>> read_json(Path("no/such/file"))
    {}
    """
    try:
        return read_sealed(path)
    except (OSError, ValueError):
        return {}


def _is_inside(name: str) -> bool:
    """Whether a name of a file leads to a place in the run's own folder: the list may come from elsewhere."""
    return not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


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
