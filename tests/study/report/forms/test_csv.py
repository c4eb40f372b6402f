"""CSV: everything comes back through Python's own reader and through pandas, in full precision."""

import csv as reader
import io

import numpy as np
import pandas as pd
import pytest

from emabank.study.report.forms.csv import HEAD, csv, printed_numbers
from emabank.study.report.sheet import Cell, Sheet
from tests.study.report.forms.made_sheets import NASTY, everything, of, single, uneven


def records(sheet: Sheet) -> list[dict[str, str]]:
    return list(reader.DictReader(io.StringIO(csv(sheet))))


def test_there_is_one_line_for_each_cell_with_something_in_it():
    found = [(each["row"], each["group"], each["column"]) for each in records(everything())]
    expected = [
        (label, group, column)
        for label, cells in everything().rows
        for group, column, cell in zip(("SGD", "SGD", "EMA_1 & co"), ("acc., %", "loss", "acc., %"), cells, strict=True)
        if cell != Cell()
    ]
    assert found == expected


def test_numbers_come_back_in_full_precision():
    values = [0.1234567890123, 0.2, 0.7]
    sheet = Sheet(name="t", title="", columns=["", "a"], rows=[("x", [of(*values, scale=100)])])
    (found,) = records(sheet)
    assert float(found["mean"]) == pytest.approx(np.mean(values) * 100, rel=1e-14)
    assert float(found["std"]) == pytest.approx(np.std(values, ddof=1) * 100, rel=1e-14)
    assert found["n"] == "3"


def test_a_single_value_has_no_spread_and_a_dash_is_nothing():
    found = records(uneven())
    assert [(each["mean"], each["std"], each["n"], each["text"]) for each in found] == [
        ("2.0", "1.0", "3", ""), ("2.0", str(np.std([1, 3], ddof=1)), "2", ""), ("5.0", "", "1", ""), ("", "", "", ""),
    ]  # fmt: skip


def test_text_with_quotes_commas_and_signs_comes_back_as_it_was():
    found = [each for each in records(everything()) if each["row"] == NASTY]
    assert found[0]["text"] == NASTY
    assert {each["title"] for each in found} == {f"Title {NASTY}"}
    assert {(each["table"], each["scale"], each["item"]) for each in found} == {("study/table-1", "demo", "Table 1")}


def test_pandas_reads_numbers_as_numbers_and_files_of_two_sheets_make_one_frame():
    frame = pd.concat([pd.read_csv(io.StringIO(csv(sheet))) for sheet in (everything(), single())], ignore_index=True)
    assert tuple(frame.columns) == HEAD
    assert frame["mean"].dtype == float and frame["paper_mean"].dtype == float
    ours = frame[frame["row"] == "data: accuracy"].iloc[0]
    assert ours["mean"] == pytest.approx(77.6) and (ours["paper_mean"], ours["paper_std"]) == (77.63, 0.14)
    assert frame.loc[frame["table"] == "study/single", "mean"].tolist() == [5.0, 6.25]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("78.54 ± 0.28", ("78.54", "0.28")), ("198", ("198", "")), ("-0.18", ("-0.18", "")), ("−0.18", ("-0.18", "")),
     ("[1, 2]", ("", "")), ("T = 16", ("", "")), ("", ("", "")), ("23.7M", ("", ""))],
)  # fmt: skip
def test_what_the_paper_prints_becomes_numbers_where_it_is_one(text, expected):
    assert printed_numbers(text) == expected
