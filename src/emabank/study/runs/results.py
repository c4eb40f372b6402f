"""All rows below a folder as one pandas frame. Without torch; pandas is imported when the frame is made."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from emabank.study.rows import COLUMNS, Row, read_rows

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs]

FILES = ("rows.jsonl", "test_curves.jsonl")

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
        rows += read_rows(path)
    columns = {name: pandas.Series([getattr(row, name) for row in rows], dtype=_DTYPES[name]) for name in COLUMNS}
    # Two protocols that share runs both have the rows that compare these.
    return pandas.DataFrame(columns).drop_duplicates(ignore_index=True)
