"""Packs finished runs into small archives, restores them, and loads all rows as one pandas frame.

An archive has only what the report reads: no weights, no predictions, no checkpoints. There is one `runs.tar.gz` per
data set and network, with the same bytes for the same runs; the manifests of the studies are next to these folders.
"""

import gzip
import io
import os
import re
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from emabank.atomic import write_atomically
from emabank.study.runs.manifest import PREFIX, read_manifest, write_manifest
from emabank.study.runs.reader import (
    DONE,
    PROTOCOL,
    REPORTED,
    ROWS,
    ROWS_CHECKSUM,
    ROWS_ONLY,
    SUMMARY,
    TEST_CURVES,
    RunFolder,
)
from emabank.study.runs.rows import COLUMNS, Row, read_rows
from emabank.study.runs.storage import file_checksum, json_text, read_checked, read_json, with_checksum

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs]

ARCHIVE = "runs.tar.gz"
_MEMBER = re.compile(rf"(?:{PROTOCOL})?[0-9a-f]{{16}}/({'|'.join(map(re.escape, (*REPORTED, DONE, SUMMARY)))})")
_LARGEST = 2**28  # bytes per file; the rows of a long run take some megabytes

Contents = dict[str, dict[str, bytes]]
"""The content of each file, by run or protocol and file name."""


def pack_runs(runs: Path, out: Path) -> list[Path]:
    """Pack the finished runs and protocols below `runs` into archives below `out`, and copy the manifests.

    Runs already in an archive stay there; one that `runs` has too is replaced. A run with missing files counts as
    unfinished. One with damaged files is skipped, and a warning names the file. Returns all archives in `out`.
    """
    settings: dict[str, Contents] = {}
    for path in sorted(path for path in runs.iterdir() if path.is_dir()):
        try:
            if path.name.startswith(PROTOCOL) and (path / SUMMARY).is_file():
                recipe, files = _pack_protocol(path)
            elif RunFolder(path).is_done():
                recipe, files = _pack_run(RunFolder(path))
            else:
                continue
        except (ValueError, OSError) as error:
            warnings.warn(f"not packed: {error}", RuntimeWarning, stacklevel=2)
            continue
        name = f"{recipe['data']['dataset']}-{recipe['training']['network']}"
        settings.setdefault(name, {})[path.name] = files
    for name, contents in settings.items():
        archive = out / name / ARCHIVE
        _write_archive(archive, {**(_read_archive(archive) if archive.exists() else {}), **contents})
    for path in sorted(runs.glob(f"{PREFIX}*.json")):
        manifest = read_manifest(path)
        # A machine's paths do not belong in an archive: strip their folders.
        short = {key: re.sub(r"(?<!\S)/\S*/", "", getattr(manifest, key)) for key in ("command", "reason")}
        write_manifest(replace(manifest, **short), out)
    return sorted(out.glob(f"*/{ARCHIVE}"))


def _pack_run(run: RunFolder) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """A run's recipe and files. They are unchanged, except that done.json lists only the packed ones."""
    files = {name: run.intact(name).read_bytes() for name in REPORTED if (run.path / name).exists()}
    listed = {name: (len(content), zlib.crc32(content)) for name, content in files.items()}
    done = {**read_json(run.path / DONE), "files": listed, ROWS_ONLY: True}
    return run.config()["recipe"], {**files, DONE: json_text(with_checksum(done)).encode()}


def _pack_protocol(path: Path) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    return _summary(path)["config"], {name: (path / name).read_bytes() for name in (ROWS, SUMMARY)}


def _summary(path: Path) -> dict[str, Any]:
    """The summary of a protocol; `ValueError` if its rows do not match their checksum."""
    summary = read_checked(path / SUMMARY)
    if file_checksum(path / ROWS) != summary.get(ROWS_CHECKSUM):
        raise ValueError(f"{path / ROWS} is damaged: its content does not match its checksum; run the study again")
    return summary


def _write_archive(path: Path, contents: Contents) -> None:
    packed = io.BytesIO()
    # Without times and owners, the same files give the same bytes.
    with (
        gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for run, files in sorted(contents.items()):
            for name, content in sorted(files.items()):
                member = tarfile.TarInfo(f"{run}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    write_atomically(path, lambda temporary: temporary.write_bytes(packed.getbuffer()))


def _read_archive(path: Path) -> Contents:
    contents: Contents = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if not _MEMBER.fullmatch(member.name) or not member.isreg() or member.size > _LARGEST:
                    raise ValueError(f"{path} holds {member.name!r}, which is no file of a run; use another copy of it")
                run, _, name = member.name.partition("/")
                contents.setdefault(run, {})[name] = cast("IO[bytes]", archive.extractfile(member)).read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); use another copy of it") from error
    if not contents:
        raise ValueError(f"{path} holds no runs; use another copy of it")
    return contents


def restore_runs(folder: Path, runs: Path) -> list[str]:
    """Unpack archives and manifests into `runs`, without replacing anything; returns the names of the restored runs.

    Restored runs count as done, but have no weights, predictions or forks. So they give no new rows about pairs of
    seeds, no reliability diagrams and no advice, and runs that would start from their forks train from the beginning.
    """
    runs.mkdir(parents=True, exist_ok=True)
    restored: list[str] = []
    for archive in sorted(folder.glob(f"*/{ARCHIVE}")):
        for run, files in _read_archive(archive).items():
            if (runs / run).exists():
                continue
            with tempfile.TemporaryDirectory(dir=runs) as temporary:
                whole = Path(temporary, run)
                whole.mkdir()
                for name, content in files.items():
                    (whole / name).write_bytes(content)
                whole.rename(runs / run)
            restored.append(run)
    for manifest in folder.glob(f"{PREFIX}*.json"):
        if not (runs / manifest.name).exists():
            write_atomically(runs / manifest.name, lambda path, source=manifest: path.write_bytes(source.read_bytes()))
    return restored


@contextmanager
def unpacked(folder: str | os.PathLike[str]) -> Generator[Path]:
    """Yield the folder itself or, if it has archives, a temporary folder with their runs."""
    folder = Path(folder)
    if not any(folder.glob(f"*/{ARCHIVE}")):
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        restore_runs(folder, Path(temporary))
        yield Path(temporary)


# All rows below a folder ---------------------------------------------------------------------------------------------

# Nullable where a row may hold None; a value that is None becomes NaN.
_DTYPES = {**dict.fromkeys(COLUMNS, "string"), "seed": "int64", "epoch": "Int64", "value": "float64"}


def load_results(folder: str | os.PathLike[str]) -> "pandas.DataFrame":
    """Every row of every run below a folder (of all runs, of one, or of archives), with a column per field of `Row`.

    Files are sorted by path; the rows of a file keep their order. Without any rows the frame is empty, but has its
    columns and types.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_results(folder).shape
    (0, 13)
    """
    import pandas  # pyright: ignore[reportMissingTypeStubs]

    folder = Path(folder)
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "is not there"
        raise FileNotFoundError(f"the folder {folder} {reason}; give the folder that holds the runs, or one run's")
    rows: list[Row] = []
    with unpacked(folder) as runs:
        for path in sorted(path for name in (ROWS, TEST_CURVES) for path in runs.rglob(name)):
            rows += _rows_of(path)
    columns = {name: pandas.Series([getattr(row, name) for row in rows], dtype=_DTYPES[name]) for name in COLUMNS}
    # Two protocols that share runs both have the rows that compare those runs.
    return pandas.DataFrame(columns).drop_duplicates(ignore_index=True)


def _rows_of(path: Path) -> list[Row]:
    """The rows in a file of a run or a protocol; `ValueError` if the file is damaged."""
    if path.parent.name.startswith(PROTOCOL):
        _summary(path.parent)
        return read_rows(path)
    folder = RunFolder(path.parent)
    return folder.rows() if path.name == ROWS else folder.test_curves()
