"""Figures as JSON: nothing is lost but digits that nobody sees, and nothing can break out of the page."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.figures import Figure, Line, Panel
from emabank.study.report.page import figure_json

EPOCHS = np.arange(1, 201)


def line(label="live weights", y=None, **more) -> Line:
    return Line(**{"label": label, "x": EPOCHS, "y": 70 + 10 * np.sin(EPOCHS / 9) if y is None else y, **more})


def read(*panels: Panel, **more) -> dict:
    return json.loads(figure_json(Figure(name="study/figure", title="A figure", panels=panels, **more)))


def x_of(found: dict, which: int) -> list[float]:
    """The places of a line's points, as the script makes them."""
    x = found["xs"][which]
    return x if isinstance(x, list) else [x["from"] + place * x["step"] for place in range(x["count"])]


def test_every_value_is_there_to_a_digit_more_than_is_shown():
    y, std = 100 * np.random.default_rng(0).random(200), np.random.default_rng(1).random(200)
    found = read(Panel(title="a", lines=[line(y=y, std=std, n=3)]))
    panel = found["panels"][0]
    made = panel["lines"][0]
    half = 0.5 * 10.0 ** -(panel["digits"] + 1)
    assert panel["digits"] == 2  # as the tables print percentages
    assert np.abs(np.array(made["y"]) - y).max() <= half + 1e-12
    assert np.abs(np.array(made["std"]) - std).max() <= half + 1e-12
    assert x_of(found, made["x"]) == EPOCHS.tolist()
    assert made["n"] == 3


def test_a_value_that_is_missing_stays_missing():
    y = np.where(EPOCHS % 5 == 0, 70.0, np.nan)
    made = read(Panel(title="a", lines=[line(y=y, std=None)]))["panels"][0]["lines"][0]
    assert [value is None for value in made["y"]] == np.isnan(y).tolist()
    assert "std" not in made


@pytest.mark.parametrize("x", [[1, 2, 4, 8], [0.1, 0.25, 0.3], [5], [3, 4], [0.05, 0.1, 0.15, 0.2]])
def test_points_may_lie_anywhere(x):
    made = Line(label="a", x=np.array(x), y=np.ones(len(x)))
    found = read(Panel(title="a", lines=[made]))
    assert x_of(found, found["panels"][0]["lines"][0]["x"]) == pytest.approx(x)


def test_the_longer_the_memory_the_longer_the_dash():
    lines = [line("live weights", kind="live")] + [line(f"ema {order}", order=order) for order in range(5)]
    entries = read(Panel(title="a", lines=lines))["legend"]
    lengths = [float(entry["dash"].split()[0]) if entry["dash"] else np.inf for entry in entries[1:]]
    assert all(shorter < longer for shorter, longer in pairwise(lengths))
    assert [entry["colour"] for entry in entries] == ["live", "a0", "a1", "a2", "a3", "a4"]


def test_dashes_that_mean_something_keep_their_meaning():
    lines = [line(f"{words} {order}", order=order, dashed=words == "averaged")
             for words in ("averaged", "recomputed") for order in (0, 4)]  # fmt: skip
    entries = read(Panel(title="a", lines=lines))["legend"]
    assert [bool(entry["dash"]) for entry in entries] == [True, True, False, False]
    assert entries[0]["colour"] == entries[2]["colour"] != entries[1]["colour"]


def test_no_two_lines_look_the_same():
    kinds = ["live", "live", "best", "swa", "something", "else", *["average"] * 6]
    lines = [line(f"line {number}", kind=kind, order=number) for number, kind in enumerate(kinds)]
    entries = read(Panel(title="a", lines=lines))["legend"]
    looks = {(entry["colour"], entry["dash"]) for entry in entries}
    assert len(looks) == len(lines)


@given(st.text(max_size=40))
def test_no_text_breaks_out_of_its_element(text):
    made = figure_json(Figure(name="a", title="a", panels=[Panel(title=text, y_label=text, lines=[line(text)])]))
    assert not set(made) & set("<>&\u2028\u2029")
    found = json.loads(made)
    assert found["panels"][0]["title"] == found["legend"][0]["label"] == text


@pytest.mark.parametrize(
    ("values", "wanted"), [([97.1, 98.2], 2), ([0.4, 0.8], 4), ([1.02, 1.5, 40.0], 3), ([0.0], 2), ([5e5], 0)]
)
def test_digits_follow_the_size_of_the_values(values, wanted):
    y = np.array([*values, float("nan")])
    made = Line(label="a", x=np.arange(len(y)), y=y)
    assert read(Panel(title="a", lines=[made]))["panels"][0]["digits"] == wanted
