"""All rows below a folder, in one frame with the right types; without torch."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from emabank.study import load_results
from emabank.study.runs.rows import COLUMNS, Row, rows_text
from tests.support.processes import run

COMMON: dict[str, Any] = {"dataset": "digits", "network": "resnet8", "trained_on": "80%", "batchnorm": "own"}


def row(run: str, **given: Any) -> Row:
    defaults: dict[str, Any] = {
        "seed": 0, "weights": "live", "selected_by": None, "epoch": 1, "split": "val", "metric": "accuracy",
        "value": 0.5, "other": None,
    }  # fmt: skip
    return Row(run=run, **COMMON, **(defaults | given))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    files = {
        "b/rows.jsonl": [row("b", epoch=2), row("b", epoch=None, value=None, metric="churn", other="a")],
        "a/rows.jsonl": [row("a", selected_by="loss", seed=3, value=1)],
        "a/test_curves.jsonl": [row("a", split="test", value=0.25)],
        "study/pairs/rows.jsonl": [row("c")],
        "a/other.jsonl": [row("d")],
    }
    for name, rows in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(rows_text(rows))
    return tmp_path


def test_every_row_is_there_with_its_values(runs: Path):
    frame = load_results(runs)
    lines: list[dict[str, Any]] = []
    for name in ("a/rows.jsonl", "a/test_curves.jsonl", "b/rows.jsonl", "study/pairs/rows.jsonl"):
        lines += [json.loads(line) for line in (runs / name).read_text().splitlines()]
    assert len(frame) == len(lines) == 5
    for record, line in zip(frame.to_dict("records"), lines, strict=True):
        assert {key: None if pd.isna(value) else value for key, value in record.items()} == line


def test_one_runs_folder_gives_its_rows_alone(runs: Path):
    assert load_results(runs / "b")["run"].tolist() == ["b", "b"]


def test_the_types_are_the_same_with_and_without_rows(runs: Path):
    (runs / "empty").mkdir()
    full, empty = load_results(runs), load_results(str(runs / "empty"))
    assert list(full.columns) == list(empty.columns) == list(COLUMNS)
    assert empty.shape == (0, 13)
    assert full.dtypes.tolist() == empty.dtypes.tolist()
    assert str(full["epoch"].dtype) == "Int64"
    assert str(full["value"].dtype) == "float64"
    assert str(full["seed"].dtype) == "int64"
    assert all(isinstance(full[name].dtype, pd.StringDtype) for name in {*COLUMNS} - {"epoch", "value", "seed"})


def test_the_frame_can_be_asked_as_usual(runs: Path):
    frame = load_results(runs)
    assert frame[frame["selected_by"] == "loss"]["seed"].tolist() == [3]
    assert frame[frame["epoch"] == 2]["run"].tolist() == ["b"]
    assert frame.groupby("run")["value"].mean()["a"] == 0.625


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none is not there; give the folder that holds the runs"):
        load_results(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="file is not a folder; give"):
        load_results(tmp_path / "file")


def test_a_damaged_file_is_named(runs: Path):
    with open(runs / "a" / "test_curves.jsonl", "a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"test_curves.jsonl, line 2 is damaged"):
        load_results(runs)


def test_reading_results_loads_no_torch(runs: Path):
    look = f"import sys\nfrom emabank.study import load_results\nprint(len(load_results({str(runs)!r})))"
    finished = run(
        f"{look}\nprint('torch' in sys.modules, 'emabank.study.runs.reader' in sys.modules)", blocked=("torch",)
    )
    assert finished.stdout.split() == ["5", "False", "True"], finished.stderr


def test_the_names_of_the_study_resolve_when_used():
    finished = run(
        "import sys, emabank.study as study\n"
        "print('emabank.study.runs.reader' in sys.modules, 'load_results' in dir(study))\n"
        "assert all(callable(getattr(study, name)) for name in study.__all__ if name == 'load_results')\n"
        "study.nothing"
    )
    assert finished.stdout.split() == ["False", "True"]
    assert "AttributeError: module 'emabank.study' has no attribute 'nothing'" in finished.stderr
