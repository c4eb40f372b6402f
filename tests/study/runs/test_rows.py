"""Rows of results: checked when made, read back from a file unchanged, refused if damaged."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.runs.rows import COLUMNS, Row, from_json_line, read_rows, rows_text, to_json_line

FIELDS: dict[str, Any] = {
    "run": "d8cb8c03b3709a2a",
    "dataset": "digits",
    "network": "resnet8",
    "trained_on": "80%",
    "seed": 0,
    "weights": "ema-0.998",
    "batchnorm": "averaged",
    "selected_by": "loss",
    "epoch": 12,
    "split": "val",
    "metric": "accuracy",
    "value": 0.964,
    "other": None,
}
TEXT = st.text(min_size=1, max_size=5)
ROWS = st.builds(
    Row,
    run=TEXT,
    dataset=TEXT,
    network=TEXT,
    trained_on=st.sampled_from(["80%", "100%"]),
    seed=st.integers(0, 2**40),
    weights=TEXT,
    batchnorm=st.sampled_from(["averaged", "recomputed", "own"]),
    selected_by=st.sampled_from(["accuracy", "loss", "last", None]),
    epoch=st.none() | st.integers(0, 1000),
    split=st.sampled_from(["train", "val", "test"]),
    metric=TEXT,
    value=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    other=st.none() | TEXT,
)


def test_columns_and_json_lines_have_the_fields_in_order():
    assert list(COLUMNS) == list(FIELDS)
    assert list(json.loads(to_json_line(Row(**FIELDS)))) == list(FIELDS)


@given(rows=st.lists(ROWS, max_size=5))
def test_rows_are_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes(rows_text(rows).encode())
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == list(map(dataclasses.asdict, rows))
    read = read_rows(path)
    assert read == rows
    assert [math.copysign(1, row.value or 0) for row in read] == [math.copysign(1, row.value or 0) for row in rows]


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("run", "", "a string with something in it"),
        ("metric", None, "a string with something in it"),
        ("trained_on", "90%", "'80%' or '100%'"),
        ("batchnorm", "live", "'averaged' or 'recomputed' or 'own'"),
        ("selected_by", "ece", "'accuracy' or 'loss' or 'noisy-accuracy' or 'noisy-loss' or 'last' or None"),
        ("split", "validation", "'train' or 'val' or 'test'"),
        ("seed", -1, "a whole number, 0 or more"),
        ("seed", True, "a whole number, 0 or more"),
        ("epoch", 1.0, "a whole number, 0 or more, or None"),
        ("value", float("nan"), "a finite number, or None"),
        ("value", float("inf"), "a finite number, or None"),
        ("value", True, "a finite number, or None"),
        ("value", "0.5", "a finite number, or None"),
        ("value", 10**400, "a finite number, or None"),
        ("other", "", "another run's id, or None"),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: object, allowed: str):
    with pytest.raises(ValueError, match="of a row is") as caught:
        Row(**{**FIELDS, field: value})
    assert str(caught.value).startswith(f"{field} of a row is ")
    assert str(caught.value).endswith(f"; give {allowed}")


def line_without(field: str) -> str:
    return json.dumps({key: value for key, value in FIELDS.items() if key != field})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (line_without("epoch"), " is not a row, which has exactly run, dataset, "),
        (json.dumps({**FIELDS, "note": "x"}), " is not a row"),
        (json.dumps({**FIELDS, "seed": "0"}), ": seed of a row is '0'; give"),
        (json.dumps({**FIELDS, "value": float("nan")}), ": value of a row is nan; give"),
        ('{"run": "a", ', " is damaged: it is not a line of JSON"),
        ("[1, 2]", " is not a row"),
        ("", " is damaged"),
    ],
)
def test_a_wrong_line_is_refused_with_its_file_and_number(tmp_path: Path, line: str, message: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{to_json_line(Row(**FIELDS))}\n{line}\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl") as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}, line 2{message}")
    with pytest.raises(ValueError, match="^the line"):
        from_json_line(line)


@pytest.mark.parametrize(
    ("content", "message"),
    [(rows_text([Row(**FIELDS)]).encode()[:-1], "its last line is cut short"), (b"\xff\xfe\n", "not UTF-8")],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"rows.jsonl is damaged: .*{message}"):
        read_rows(path)
