"""One run's folder: what is read of it, and for whatever may have happened to its files, why it cannot be used."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emabank.study.locks import locked
from emabank.study.report.evidence import LIVE, Curve, Run
from emabank.study.report.load import load_evidence
from emabank.study.report.read_run import in_words, read_run, renamed, why_not_done, without_place
from emabank.study.runs.folder import RunFolder
from emabank.study.runs.opened import mark_failed
from tests.study.report.made_evidence import made_runs
from tests.study.report.spoiling import SPOILT, content, forget_sizes, put
from tests.study.small_folder import finished as finished

FILES = (
    "config.json", "done.json", "environment.json", "history.json", "rows.jsonl", "test_curves.jsonl",
    "predictions/live-last.npz", "snapshots/live-last.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(finished: Path) -> Path:
    """A refit: it has curves on test, and kept weights."""
    return finished / load_evidence(finished).settings[0].arms["refit"][0].id


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(shutil.copytree(whole, tmp_path / "runs" / whole.name))


def why_not(folder: RunFolder) -> str:
    with pytest.raises(ValueError, match=".") as caught:
        read_run(folder)
    words = str(caught.value)
    assert words and "\n" not in words and str(folder.path.parent) not in words
    return words


# What it holds -------------------------------------------------------------------------------------------------------


def test_conditions_are_those_of_the_last_session(folder: RunFolder):
    sessions = content(folder.path, "environment.json")["sessions"]
    assert read_run(folder).conditions == sessions[-1]
    forget_sizes(folder.path, "environment.json")
    put(folder.path / "environment.json", {"sessions": [*sessions, {"cpu": "another"}]})
    assert read_run(folder).conditions == {"cpu": "another"}
    put(folder.path / "environment.json", {"sessions": []})
    assert read_run(folder).conditions == {}


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write a file of rows again, each as it is changed, without those that are None, and let the run forget theirs."""
    forget_sizes(path.parent, path.name)
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def test_what_is_null_or_missing_in_the_rows_is_not_a_number(folder: RunFolder):
    curve = Curve(LIVE, "own", "test", "loss")
    before = read_run(folder).curves[curve]

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        mine = (row["weights"], row["metric"]) == (LIVE, "loss")
        return None if mine and row["epoch"] == 1 else {**row, "value": None} if mine and row["epoch"] == 2 else row

    rewritten(folder.path / "test_curves.jsonl", change)
    np.testing.assert_array_equal(read_run(folder).curves[curve], [np.nan, np.nan, before[2]])


def test_what_was_chosen_is_no_point_of_a_curve(folder: RunFolder):
    before = read_run(folder).curves
    rewritten(folder.path / "rows.jsonl", lambda row: {**row, "value": 77.0} if row["selected_by"] else row)
    after = read_run(folder).curves
    assert before.keys() == after.keys() and not any(77.0 in found for found in after.values())


def test_an_epoch_that_the_run_does_not_have_is_no_point_of_a_curve(folder: RunFolder):
    before = read_run(folder).curves
    rewritten(folder.path / "test_curves.jsonl", lambda row: {**row, "epoch": row["epoch"] - 1})
    after = read_run(folder).curves
    for curve, found in before.items():
        if curve.split == "test":
            np.testing.assert_array_equal(after[curve], [*found[1:], np.nan])


def test_a_run_that_diverged_has_as_many_epochs_as_it_came_to(folder: RunFolder):
    forget_sizes(folder.path, "history.json")
    put(folder.path / "history.json", content(folder.path, "history.json")[:1])
    found = read_run(folder)
    assert found.epochs == 1 and all(len(curve) == 1 for curve in found.curves.values())


def rows(folder: Path, name: str = "rows.jsonl") -> Path:
    """A file of rows that the run has no checksum of, as those of an earlier emabank."""
    forget_sizes(folder, name)
    return folder / name


# Why it cannot be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: (path / "history.json").unlink(), "damaged: history.json is missing"),
        (lambda path: (path / "done.json").unlink(), "interrupted before its end; the same command goes on"),
        (lambda path: (path / "done.json").write_text("{"), "damaged: done.json is not what this emabank writes"),
        (lambda path: (path / "rows.jsonl").unlink(), "damaged: rows.jsonl is missing"),
        (lambda path: (path / "rows.jsonl").write_text(""), "damaged: rows.jsonl has 0 bytes instead of "),
        (lambda path: rows(path).write_text(""), "rows.jsonl is empty; measure that run again"),
        (lambda path: rows(path, "test_curves.jsonl").write_text(""), "test_curves.jsonl is empty; measure that run "),
        (lambda path: rows(path).write_text('{"run": "a"}\n'), "rows.jsonl, line 1 lacks dataset, "),
        (lambda path: rows(path).write_bytes(b"\xff"), "rows.jsonl is damaged: it is not UTF-8 text; "),
        (
            lambda path: (path / "predictions" / "live-last.npz").write_bytes(b"short"),
            "damaged: predictions/live-last.npz has 5 bytes instead of ",
        ),
        (lambda path: shutil.rmtree(path), "it is not there"),
        (lambda path: (shutil.rmtree(path), path.write_text("")), "it is no folder"),
    ],
)  # fmt: skip
def test_a_damaged_run_says_what_is_wrong_with_it(spoil: Callable[[Path], object], why: str, folder: RunFolder):
    spoil(folder.path)
    assert why_not(folder).startswith(why)


def test_a_run_that_is_not_done_says_how_it_stands(folder: RunFolder):
    assert why_not_done(folder) == ""
    (folder.path / "done.json").unlink()
    with locked(folder.path / "lock", what="the run"):
        assert why_not(folder) == why_not_done(folder) == "running now"
    assert why_not(folder) == "interrupted before its end; the same command goes on"
    mark_failed(folder.path, "ValueError: no luck")
    assert why_not(folder) == why_not_done(folder) == "failed: ValueError: no luck"


@pytest.mark.parametrize("how", SPOILT)
def test_whatever_happens_to_a_file_there_is_a_reason(how: str, whole: Path, tmp_path: Path):
    for place, file in enumerate(FILES):
        folder = RunFolder(shutil.copytree(whole, tmp_path / str(place)))
        SPOILT[how](folder.path / file)
        assert why_not(folder), file


@pytest.mark.parametrize("how", SPOILT)
def test_whatever_a_file_of_the_right_size_holds_there_is_a_reason(how: str, whole: Path, tmp_path: Path):
    """As if the mark of the end knew nothing of its files."""
    for file in ("config.json", "environment.json", "history.json"):
        folder = RunFolder(shutil.copytree(whole, tmp_path / file))
        forget_sizes(folder.path, file)
        SPOILT[how](folder.path / file)
        assert why_not(folder), file


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda found: {**found, "config": {**found["config"], "seed": "0"}}),
        ("config.json", lambda found: {**found, "config": {**found["config"], "rate": -1.0}}),
        ("config.json", lambda found: {**found, "config": {**found["config"], "another": 1}}),
        ("history.json", lambda found: [*found, *found]),
        ("history.json", lambda found: [{**found[0], "rate": None}, *found[1:]]),
        ("history.json", lambda found: [{**found[0], "rate": "high"}, *found[1:]]),
        ("history.json", lambda found: [{"epoch": 1}]),
        ("environment.json", lambda found: {"sessions": [3]}),
        ("environment.json", lambda found: {"sessions": {"a": 1}}),
        ("environment.json", lambda found: {"sessions": [{"cpu": "\ud800"}]}),
    ],
)
def test_json_of_another_shape_is_a_reason(file: str, change: Callable[[Any], Any], folder: RunFolder):
    forget_sizes(folder.path, file)
    put(folder.path / file, change(content(folder.path, file)))
    assert why_not(folder)


def test_what_may_not_be_read_is_named(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    readable = Path.read_text

    def refuse(path: Path, *given: Any, **more: Any) -> str:
        if path.name == "history.json":
            raise PermissionError(13, "Permission denied", str(path))
        return readable(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert why_not(folder) == "history.json: Permission denied"


def test_predictions_that_cannot_be_read_are_refused_when_asked_for(folder: RunFolder):
    path = folder.path / "predictions" / "live-last.npz"
    path.write_bytes(b"x" * path.stat().st_size)
    found = read_run(folder)
    with pytest.raises(ValueError, match="does not match its checksum") as caught:
        found.predictions("live-last")
    assert str(caught.value).startswith(f"{folder.id}/predictions/live-last.npz is damaged")
    assert str(folder.path.parent) not in str(caught.value)
    with pytest.raises(ValueError, match=r"none\.npz is not there; the run has "):
        found.predictions("none")


# Words ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("runs/a/rows.jsonl, line 3"), "rows.jsonl, line 3"),
        (ValueError("see runs/b"), "see b"),
        (OSError(13, "Permission denied", "runs/a/x"), "x: Permission denied"),
        (OSError(28, "No space left on device"), "a file: No space left on device"),
        (OSError("cannot be locked"), "cannot be locked"),
        (KeyError("rate"), "its files are not what this emabank writes (KeyError: 'rate')"),
    ],
)
def test_errors_are_told_in_words_without_the_place(error: Exception, said: str):
    assert in_words(error, Path("runs/a")) == said


def test_a_place_is_taken_out_however_it_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    for place in (Path("runs"), tmp_path / "runs"):
        assert without_place(f"see {tmp_path}/runs/a and {tmp_path}/other", place) == f"see a and {tmp_path}/other"
    assert without_place(f"../a and {tmp_path}/b", Path()) == "../a and b"


# Names of averages ---------------------------------------------------------------------------------------------------


def run_with(names: list[str]) -> Run:
    """A run whose curves hold the place of their average."""
    curves = {Curve(name, "averaged", "test", "loss"): np.full(2, place) for place, name in enumerate(names)}
    live = {Curve(LIVE, "own", "test", "loss"): np.full(2, -1.0), Curve("swa", "own", "test", "loss"): np.ones(2)}
    return replace(made_runs("refit")[0], curves={**live, **curves})


@settings(max_examples=50)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6, unique=True), st.randoms())
def test_averages_are_renamed_in_the_order_of_their_decays(numbers: list[int], random: Any):
    decays = sorted(f"{1 - 1 / (number + 1):g}" for number in numbers)
    own = [f"ema-{decay}" for decay in sorted(set(decays), key=float)]
    names = [f"ema-{share:g}%" for share in range(1, len(own) + 1)]
    shuffled = random.sample(own, len(own))
    found = renamed(run_with(shuffled), tuple(names)).curves
    assert {curve.weights for curve in found} == {LIVE, "swa", *names}
    for name, before in zip(names, own, strict=True):
        assert found[Curve(name, "averaged", "test", "loss")].tolist() == [shuffled.index(before)] * 2


def test_names_that_are_the_same_stay_though_they_come_in_another_order():
    names = ["ema-7.1%", "ema-0.44%", "ema-10%"]
    run = run_with(names)
    assert renamed(run, ("ema-0.44%", "ema-7.1%", "ema-10%")) is run


def test_names_that_others_have_are_exchanged_at_once():
    found = renamed(run_with(["ema-0.8", "ema-0.9"]), ("ema-0.9", "ema-0.99")).curves
    assert found[Curve("ema-0.9", "averaged", "test", "loss")].tolist() == [0, 0]
    assert found[Curve("ema-0.99", "averaged", "test", "loss")].tolist() == [1, 1]


@pytest.mark.parametrize("names", [[], ["ema-0.5"], ["ema-0.5", "ema-0.6", "ema-0.7"]])
def test_too_few_or_too_many_averages_are_refused(names: list[str]):
    with pytest.raises(ValueError, match=r"it has the averages .* for ema-0.8, ema-0.9"):
        renamed(run_with(names), ("ema-0.8", "ema-0.9"))


def test_names_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="fast"):
        renamed(run_with(["ema-fast"]), ("ema-0.8",))
