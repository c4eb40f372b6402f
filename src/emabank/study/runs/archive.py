"""Many runs at once: finished ones packed into small archives and restored, and all rows as one pandas frame.

An archive has what the report reads of a run: no weights, no predictions, no checkpoints. There is one `runs.tar.gz`
per data set and network, with the same bytes for the same runs, and the manifests of the studies are beside them.
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
_LARGEST = 2**28  # bytes of one file; the rows of a long run have some megabytes

Contents = dict[str, dict[str, bytes]]
"""Files by name, by the run or protocol that they belong to."""


def pack_runs(runs: Path, out: Path) -> list[Path]:
    """Write the finished runs, the protocols and the manifests of a folder into another; returns the archives there.

    What these hold already stays, unless `runs` has it too. What is damaged is not packed; a warning names it.
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
        # Paths of the machine do not belong in an archive.
        short = {key: re.sub(r"(?<!\S)/\S*/", "", getattr(manifest, key)) for key in ("command", "reason")}
        write_manifest(replace(manifest, **short), out)
    return sorted(out.glob(f"*/{ARCHIVE}"))


def _pack_run(run: RunFolder) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """Its files as they are, but for the list of them, which names only those that are packed."""
    files = {name: run.intact(name).read_bytes() for name in REPORTED if (run.path / name).exists()}
    listed = {name: (len(content), zlib.crc32(content)) for name, content in files.items()}
    done = {**read_json(run.path / DONE), "files": listed, ROWS_ONLY: True}
    return run.config()["recipe"], {**files, DONE: json_text(with_checksum(done)).encode()}


def _pack_protocol(path: Path) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    return _summary(path)["config"], {name: (path / name).read_bytes() for name in (ROWS, SUMMARY)}


def _summary(path: Path) -> dict[str, Any]:
    """The summary of a protocol; `ValueError` where the rows beside it are not those that it left."""
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
    """Unpack archives and manifests into a folder of runs, except for what that has; returns the names of the runs.

    They count as done. What needs predictions or weights cannot be had from them: new rows about pairs of seeds,
    reliability diagrams, advice, and states from which other runs start, which are then trained from their beginning.
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
    """A folder of runs as it is; of a folder with archives, a temporary folder that has their runs."""
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
    """Every row of every run below a folder (of all runs, of one, or of archives), a column for each field of `Row`.

    Rows of one file stay in their order, files come in the order of their paths. Without any rows the frame is empty
    and has its columns and types all the same.

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
    # Two protocols that share runs both have the rows that compare these.
    return pandas.DataFrame(columns).drop_duplicates(ignore_index=True)


def _rows_of(path: Path) -> list[Row]:
    """The rows of a file of a run or a protocol; `ValueError` where they are not those that it left."""
    if path.parent.name.startswith(PROTOCOL):
        _summary(path.parent)
        return read_rows(path)
    folder = RunFolder(path.parent)
    return folder.rows() if path.name == ROWS else folder.test_curves()
