"""Writes a run's folder, by one process at a time and every file atomically. The entry point is `open_run`.

torch is imported only by the functions that need it.
"""

import math
import os
import time
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from emabank.atomic import remove_temporary
from emabank.study.runs import storage
from emabank.study.runs.environment import environment, now
from emabank.study.runs.locks import LockedError, locked
from emabank.study.runs.reader import (
    CONFIG,
    DONE,
    ENVIRONMENT,
    FAILED,
    FORKS,
    HISTORY,
    LOCK,
    POSTHOC,
    POSTHOC_ROWS,
    PREDICTIONS,
    PROGRESS,
    REPORTED,
    ROWS,
    SNAPSHOTS,
    TEST_CURVES,
    RunFolder,
    check_name,
)
from emabank.study.runs.rows import Row, rows_text
from emabank.study.runs.storage import file_checksum, read_json, with_checksum, write_json, write_text
from emabank.study.serialize import FORMAT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

_BETWEEN_PROGRESS = 1.0  # seconds


@contextmanager
def open_run(
    root: str | os.PathLike[str], config: Mapping[str, Any], *, threads: int, also: Mapping[str, Any] | None = None
) -> Generator["RunWriter"]:
    """Open the run of a configuration for writing. Its folder, below `root`, is created if missing.

    While it is open, no other process can open it. An exception inside marks the run as failed; Ctrl-C does not. The
    next `open_run` resumes from the files there. `also` is added to environment.json.
    """
    run = RunWriter(RunFolder.of(root, config).path)
    run.path.mkdir(parents=True, exist_ok=True)
    with locked(run.path / LOCK, what=f"run {run.id}"):
        _check_config(run, config)
        _clean_up(run.path)
        _begin_session(run, environment(threads=threads, also=also))
        try:
            yield run
        except Exception as error:
            with suppress(OSError):  # a full disk, for example; the exception is still raised
                run.fail(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            raise


class RunWriter(RunFolder):
    """A run that only this process may write, until the block of its `open_run` ends."""

    # During training -------------------------------------------------------------------------------------------------

    _last_progress = -math.inf

    def write_progress(self, epoch: int, epochs: int, words: str, *, seconds_left: float | None = None) -> None:
        """Write the progress of the training, at most once a second, and at the end."""
        if time.monotonic() - self._last_progress < _BETWEEN_PROGRESS and epoch < epochs:
            return
        self._last_progress = time.monotonic()
        progress = {"epoch": epoch, "epochs": epochs, "words": words, "seconds_left": seconds_left, "time": now()}
        with suppress(OSError):  # progress is not essential; a full disk fails at the next important file
            write_json(self.path / PROGRESS, progress)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save a state to resume from: nested dicts, lists and tuples of plain values and tensors."""
        self._refuse_when_done()
        storage.save_checkpoint(self.path, state)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The newest intact state, with tensors on the CPU; None: train from the beginning."""
        return storage.load_checkpoint(self.path)

    def save_fork(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Save the state after an epoch, for other runs to start from."""
        self._refuse_when_done()
        storage.write_state(self.fork_path(epoch), state)

    # Results ---------------------------------------------------------------------------------------------------------

    def save_history(self, history: Any) -> None:
        """Save the training history, one record per epoch; numbers that are not finite become null."""
        self._refuse_when_done()
        write_json(self.path / HISTORY, _plain(history))

    def save_snapshot(
        self, name: str, tensors: "Mapping[str, Tensor]", *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Save weights as a safetensors file, which other programs can read, with plain values as its metadata."""
        self._refuse_when_done()
        storage.write_weights(self.snapshot_path(name), tensors, metadata or {})

    def save_predictions(self, name: str, parts: "Mapping[str, tuple[ArrayLike, ArrayLike]]") -> None:
        """Save predictions: logits and labels for each part of the data, "train", "val" or "test"."""
        self._refuse_when_done()
        storage.write_predictions(self.path / PREDICTIONS / f"{check_name(name)}.npz", parts)

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Write all measurements of the run, replacing earlier ones."""
        self._write_rows(ROWS, rows)

    def write_test_curves(self, rows: Iterable[Row]) -> None:
        """Write the test measurements of every epoch, to a file that no selection reads."""
        self._write_rows(TEST_CURVES, rows)

    def write_posthoc(self, rows: Iterable[Row]) -> None:
        """Write the validation results of the averaging windows and stopping epochs tried after training."""
        self._write_rows(POSTHOC_ROWS, rows)

    def mark_done(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the run as done: list its files with sizes and checksums, and remove its checkpoints."""
        names = [name for name in REPORTED if (self.path / name).exists()]
        for folder in (SNAPSHOTS, PREDICTIONS, FORKS):
            names += [f"{folder}/{path.name}" for path in sorted((self.path / folder).glob("[!.]*"))]
        files = {name: ((self.path / name).stat().st_size, file_checksum(self.path / name)) for name in names}
        done = {"time": now(), "summary": _plain(dict(summary or {})), "files": files}
        write_json(self.path / DONE, with_checksum(done))
        storage.remove_checkpoints(self.path)

    def fail(self, message: str) -> None:
        """Mark the run as failed; the next `open_run` removes the mark."""
        write_json(self.path / FAILED, {"time": now(), "message": message})

    def _write_rows(self, name: str, rows: Iterable[Row]) -> None:
        self._refuse_when_done()
        write_text(self.path / name, rows_text(rows))

    def _refuse_when_done(self) -> None:
        if (self.path / DONE).exists():
            raise ValueError(f"run {self.id} is done, and nothing can be written to it; {self._retrain_hint()}")


def mark_failed(path: Path, message: str) -> None:
    """Mark a run as failed for a process that could not; do nothing if another process has the run open."""
    run = RunWriter(path)
    with suppress(LockedError), locked(path / LOCK, what=f"run {run.id}"):
        run.fail(message)


# Opening -------------------------------------------------------------------------------------------------------------


def _check_config(run: RunWriter, config: Mapping[str, Any]) -> None:
    path, content = run.path / CONFIG, {"format": FORMAT, "config": _plain(config)}
    if not path.exists():
        write_json(path, content)
    elif read_json(path) != content:
        raise ValueError(
            f"{path} is damaged or was edited: it is not the configuration of run {run.id}; restore it, or remove the "
            "folder to train the run again"
        )


def _clean_up(path: Path) -> None:
    """Remove the temporary files of a killed process, and finish its renaming of a checkpoint."""
    for folder in (path, path / SNAPSHOTS, path / PREDICTIONS, path / FORKS, path / POSTHOC):
        remove_temporary(folder)
    storage.finish_checkpoint(path)


def _begin_session(run: RunWriter, session: dict[str, Any]) -> None:
    (run.path / FAILED).unlink(missing_ok=True)
    if (run.path / DONE).exists():
        if run.is_done():
            return
        wrong = run.find_damage() or f"{run.path / DONE} is damaged"
        (run.path / DONE).unlink()
        warnings.warn(f"run {run.id} was done, but {wrong}; it is trained again", RuntimeWarning, stacklevel=4)
    sessions: Any = read_json(run.path / ENVIRONMENT).get("sessions")
    sessions = sessions if isinstance(sessions, list) else []  # damaged: not essential, so the training continues
    write_json(run.path / ENVIRONMENT, {"sessions": [*sessions, session]})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value
