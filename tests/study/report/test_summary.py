"""A protocol's summary at the door: what was written passes, anything else is refused in a sentence or does no harm."""

import copy
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emabank.study.report.claims.all import claims
from emabank.study.report.figures.all import figures
from emabank.study.report.load import load_evidence
from emabank.study.report.page.page import page
from emabank.study.report.pairs import MAIN
from emabank.study.report.summary import is_count, is_number, is_text, read_summary
from emabank.study.report.tables.all import sheets
from emabank.study.studies.scales import protocol_of
from tests.study.report.spoiling import SPOILT, content, put
from tests.study.small_folder import finished as finished
from tests.study.small_folder import small


@pytest.fixture(scope="module")
def whole(finished: Path) -> Path:
    return next(finished.glob("protocol-*"))


@pytest.fixture(scope="module")
def bare(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder without its runs, for many looks at it."""
    runs = tmp_path_factory.mktemp("bare") / "runs"
    shutil.copytree(finished, runs, ignore=lambda at, names: [name for name in names if name[0] not in "ps"])
    return runs


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / whole.name))


def refused(folder: Path) -> str:
    with pytest.raises(ValueError, match="; run the study again$") as caught:
        read_summary(folder)
    words = str(caught.value)
    assert words.startswith(f"{folder.name}/summary.json is ") and "\n" not in words
    return words


def test_what_was_written_is_read_with_its_configuration(whole: Path):
    summary, config = read_summary(whole)
    assert summary == content(whole, "summary.json")
    demo = protocol_of(MAIN, "demo")
    assert demo is not None
    expected = small(demo).completed()
    assert (config.training, config.data, config.rates) == (expected.training, expected.data, expected.rates)
    assert (config.averages, config.seeds) == (expected.averages, expected.seeds)


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_file_is_refused(how: str, folder: Path):
    SPOILT[how](folder / "summary.json")
    said = "is not there" if how in ("deleted", "folder") else "is damaged or of another emabank ("
    assert said in refused(folder)


def a_table(**change: Any) -> Callable[[dict[str, Any]], object]:
    return lambda summary: summary["tables"][0].update(change)


def a_choice(**change: Any) -> Callable[[dict[str, Any]], object]:
    return lambda summary: summary["choices"][1].update(change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda summary: summary.pop("tables"), "KeyError: 'tables'"),
        (lambda summary: summary.pop("config"), "KeyError: 'config'"),
        (lambda summary: summary.update(config=[]), "AttributeError"),
        (lambda summary: summary["config"].update(seeds="2"), "config: seeds is '2'; give a whole number"),
        (lambda summary: summary["config"].update(colour="red"), "config: unknown key 'colour'"),
        (lambda summary: summary["config"]["training"].update(epochs=0), "config, training: epochs is 0"),
        (lambda summary: summary.update(has_batchnorm="yes"), "see has_batchnorm there"),
        (lambda summary: summary.update(runs=[]), "TypeError"),
        (lambda summary: summary["runs"].update(tuning=[]), "see runs there"),
        (lambda summary: summary["runs"].update(refit=summary["runs"]["refit"][:1]), "see runs there"),
        (lambda summary: summary["runs"].update(swa=[3, 4]), "see runs there"),
        (lambda summary: summary.update(choices=summary["choices"][:1]), "see choices there"),
        (lambda summary: summary.update(choices=summary["choices"][::-1]), "see choices there"),
        (a_choice(rate=0.7), "see choices there"),
        (a_choice(rate="0.05"), "see choices there"),
        (a_choice(run=None), "see choices there"),
        (a_choice(live_epoch=4), "see choices there"),
        (a_choice(averages={"accuracy": ["ema-0.7", 1]}), "see choices there"),
        (a_choice(averages={"accuracy": ["ema-0.5", 1], "loss": ["ema-0.7", 1]}), "see choices there"),
        (a_choice(averages={"accuracy": ["ema-0.7", 1.5], "loss": ["ema-0.7", 1]}), "see choices there"),
        (a_choice(averages={"accuracy": "ema", "loss": ["ema-0.7", 1]}), "too many values"),
        (lambda summary: summary.update(tables={}), "see tables there"),
        (lambda summary: summary.update(tables=[3]), "TypeError"),
        (a_table(trained_on="50%"), "see tables there"),
        (a_table(split="train"), "see tables there"),
        (a_table(column=3), "see tables there"),
        (a_table(column="\ud800"), "see tables there"),
        (a_table(epochs=[1]), "see tables there"),
        (a_table(epochs=[0, 1]), "see tables there"),
        (a_table(weights=["live", "dead"]), "see tables there"),
        (a_table(values=[]), "AttributeError"),
        (a_table(values={"accuracy": [0.5]}), "see tables there"),
        (a_table(values={"accuracy": [0.5, "high"]}), "see tables there"),
        (a_table(values={"churn": [0.5, 0.5]}), "see tables there"),
        (a_table(mean={"accuracy": math.inf}), "see tables there"),
        (a_table(std={"accuracy": None}), "see tables there"),
    ],
)
def test_what_is_wrong_in_it_is_said(change: Callable[[dict[str, Any]], object], said: str, folder: Path):
    summary = content(folder, "summary.json")
    change(summary)
    put(folder / "summary.json", summary)
    assert said in refused(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda summary: summary["runs"].update(refit=[], swa=[]),  # a study of tuning alone
        lambda summary: summary["tables"][0]["values"].update(accuracy=[None, 0.5]),
        lambda summary: summary["tables"][0]["values"].update({"transfer:elsewhere": [0.5, 1]}),
        lambda summary: summary.update(tables=[]),
        lambda summary: summary.update(more="of a later version"),
    ],
)
def test_what_can_be_so_is_read(change: Callable[[dict[str, Any]], object], folder: Path):
    summary = content(folder, "summary.json")
    change(summary)
    put(folder / "summary.json", summary)
    assert read_summary(folder)[0] == summary


# Anything ------------------------------------------------------------------------------------------------------------

ANY = st.sampled_from([
    None, True, 0, 1, 2, -1, 10**400, 0.5, -2.5, math.nan, math.inf, "", "x", "\ud800", "../..", "ema-0.9", "live",
    "every x", "100%", [], {}, [[]], [{}], {"a": 1}, [1, 2], ["a", "b"], [None, None],
])  # fmt: skip
HOW = st.sampled_from(["set", "set", "set", "removed", "renamed", "doubled"])


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every key and index in a value, with the table or list that has it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield value, key
        yield from places(each)


def changed(value: Any, number: int, how: str, new: Any) -> Any:
    """The value with something in it changed."""
    value = copy.deepcopy(value)
    there = list(places(value))
    holder, key = there[number % len(there)]
    if how == "removed":
        del holder[key]
    elif how == "renamed" and isinstance(holder, dict):
        holder[str(new)] = holder.pop(key)
    elif how == "doubled" and isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[key] = new
    return value


@settings(max_examples=40, derandomize=True)
@given(st.integers(0, 10**6), HOW, ANY)
def test_whatever_it_holds_a_report_comes_out(bare: Path, number: int, how: str, new: Any):
    (path,) = bare.glob("protocol-*/summary.json")
    before = content(path)
    put(path, changed(before, number, how, new))
    try:
        evidence = load_evidence(bare)
        assert evidence.settings or any("summary.json is damaged" in why for _, why in evidence.left_out)
        made, drawn, found = sheets(evidence), figures(evidence), claims(evidence)
        page(evidence, made, drawn, found).encode()
    finally:
        put(path, before)


# Values --------------------------------------------------------------------------------------------------------------


@given(st.text())
def test_a_text_is_one_that_can_be_written(text: str):
    assert is_text(text) and not is_text(text + "\udfff")


@given(st.one_of(st.integers(-(10**300) + 1, 10**300 - 1), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_number_is_one_that_can_be_computed_with(number: float):
    assert is_number(number) and math.isfinite(float(number))
    assert is_count(number) == (isinstance(number, int) and number >= 0)


@pytest.mark.parametrize("value", [None, True, False, "3", [3], math.nan, math.inf, 10**301])
def test_other_things_are_no_numbers(value: Any):
    assert not is_number(value)
