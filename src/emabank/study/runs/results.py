"""All rows below a folder as one pandas frame. Without torch; pandas is imported when the frame is made.

May import the run's folder, which knows whether its files are as they were left.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from emabank.study.rows import COLUMNS, Row, read_rows
from emabank.study.runs.folder import ROWS, TEST_CURVES, RunFolder, file_checksum, read_json

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs]

FILES = (ROWS, TEST_CURVES)
SUMMARY, ROWS_CHECKSUM = "summary.json", "rows_checksum"
"""Where a protocol keeps the checksum of the rows beside it."""

# Nullable where a row may hold None; a value that is None becomes NaN.
_DTYPES = {**dict.fromkeys(COLUMNS, "string"), "seed": "int64", "epoch": "Int64", "value": "float64"}


def load_results(folder: str | os.PathLike[str]) -> "pandas.DataFrame":
    """Every row of every run below a folder (that of all runs, or that of one), a column for each field of `Row`.

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
    for path in sorted(path for name in FILES for path in folder.rglob(name)):
        rows += _read(path)
    columns = {name: pandas.Series([getattr(row, name) for row in rows], dtype=_DTYPES[name]) for name in COLUMNS}
    # Two protocols that share runs both have the rows that compare these.
    return pandas.DataFrame(columns).drop_duplicates(ignore_index=True)


def _read(path: Path) -> list[Row]:
    """The rows of a file of a run or a protocol; `ValueError` where they are not those that it left."""
    expected = read_json(path.parent / SUMMARY).get(ROWS_CHECKSUM)
    if expected is not None:
        if file_checksum(path) != expected:
            raise ValueError(f"{path} is damaged: its content does not match its checksum; run the study again")
        return read_rows(path)
    folder = RunFolder(path.parent)
    return folder.rows() if path.name == ROWS else folder.test_curves()
