"""Results of folders with damaged, foreign or unfinished parts: these are skipped, with a reason."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emabank.study.report.results import (
    LIVE,
    Curve,
    Results,
    Setting,
    Skipped,
    read_results,
    read_run,
    read_studies,
)
from emabank.study.runs.locks import locked
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.writer import mark_failed
from tests.study.report.spoiling import DAMAGES, content, forget_sizes, put
from tests.study.small_folder import COMMAND, NAMES
from tests.study.small_folder import bare as bare
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs

MANIFESTS = {name: f"study-demo-{name}.json" for name in NAMES}


@pytest.fixture(scope="module")
def results(finished: Path) -> Results:
    return read_results(finished)


@pytest.fixture(scope="module")
def setting(results: Results) -> Setting:
    (setting,) = results.settings
    return setting


# Skipped parts -------------------------------------------------------------------------------------------------------


def skipped_in(runs: Path) -> dict[str, str]:
    return skipped_of(read_results(runs), runs)


def skipped_of(results: Results, runs: Path) -> dict[str, str]:
    """What was skipped, with the reason."""
    assert len(dict(results.skipped)) == len(results.skipped)
    for name, reason in results.skipped:
        assert name and reason and str(runs) not in reason, "a report must not contain private paths"
        f"{name}{reason}".encode()
    return dict(results.skipped)


def test_foreign_files_are_named(runs: Path):
    (runs / "notes.txt").write_text("mine")
    (runs / "study-notes.txt").write_text("mine")
    (runs / "other").mkdir()
    (runs / "other" / "weights.pt").write_bytes(b"")
    assert skipped_in(runs) == {"notes.txt, other, study-notes.txt": "not a run of emabank"}
    (runs / "zoo").mkdir()
    assert skipped_in(runs) == {"notes.txt, other, study-notes.txt and 1 more": "not a run of emabank"}


def test_reports_caches_and_files_of_slurm_jobs_are_not_named(runs: Path):
    (runs / "report").mkdir()
    (runs / "slurm").mkdir()
    (runs / ".emabank-cache").mkdir()
    (runs / "elsewhere").mkdir()
    (runs / "elsewhere" / "files.json").write_text("[]")  # a report, as from `--out runs/elsewhere`
    assert skipped_in(runs) == {}


def test_a_file_name_that_is_not_utf_8_can_be_printed(runs: Path):
    os.mkdir(os.fsencode(runs) + b"/\xff")
    assert skipped_in(runs) == {"?": "not a run of emabank"}


def test_runs_and_protocols_that_no_study_uses_are_named(setting: Setting, runs: Path):
    (runs / MANIFESTS["step-decay"]).unlink()
    names = ", ".join(sorted(run.id for run in setting.variants["step"]))
    assert skipped_in(runs) == {names: "not used by any study in this folder"}
    for name in MANIFESTS.values():
        (runs / name).unlink(missing_ok=True)
    found = skipped_in(runs)
    assert found[setting.protocol].startswith("a protocol of no study (from `emabank protocol`, ")
    (rest,) = (name for name in found if name != setting.protocol)
    assert rest.endswith("and 21 more") and found[rest].startswith("not used by any study")


def test_unfinished_runs_are_named_with_the_reason(runs: Path):
    for name in ("failed", "running", "waiting"):
        (runs / name).mkdir()
        put(runs / name / "config.json", {"format": 1, "config": {}})
    mark_failed(runs / "failed", "killed by SIGKILL")
    with locked(runs / "running" / "lock", what="the run"):
        assert skipped_in(runs) == {
            "failed": "failed: killed by SIGKILL",
            "running": "running now",
            "waiting": "interrupted before its end; the same command resumes",
        }


def test_a_failed_study_gives_its_reason_and_keeps_finished_runs(runs: Path):
    manifest = content(runs, MANIFESTS["step-decay"])
    pairs = [*manifest["pairs"], {"pair": "cifar10-resnet18", "title": "never", "protocol": None, "arms": {}}]
    reason = f"cifar10-resnet18: 1 of 2 runs failed; see {runs}/0123/log.txt"
    put(runs / MANIFESTS["step-decay"], {**manifest, "state": "failed", "reason": reason, "pairs": pairs})
    message = "cifar10-resnet18: 1 of 2 runs failed; see 0123/log.txt"
    assert skipped_in(runs) == {"study step-decay, demo": f"failed: {message}"}
    results = read_results(runs)
    assert len(results.settings) == 1 and "step" in results.settings[0].variants
    assert [study.reason for study in results.studies if study.state == "failed"] == [message]


def test_an_interrupted_study_names_the_command_that_resumes_it(setting: Setting, runs: Path):
    manifest = content(runs, MANIFESTS["step-decay"])
    pairs = [{**manifest["pairs"][0], "protocol": None, "arms": {}}]
    put(runs / MANIFESTS["step-decay"], {**manifest, "state": "running", "pairs": pairs})
    assert skipped_in(runs) == {
        "study step-decay, demo": f"interrupted; `{COMMAND}` resumes",
        ", ".join(sorted(run.id for run in setting.variants["step"])): "used by no finished study in this folder",
    }


def test_a_pair_without_a_protocol_is_named(runs: Path):
    manifest = content(runs, MANIFESTS["generalization"])
    pair = {"pair": "cifar10-resnet18", "title": "digits, something", "protocol": None, "arms": {}}
    put(runs / MANIFESTS["generalization"], {**manifest, "pairs": [*manifest["pairs"], pair]})
    assert skipped_in(runs) == {"digits, something (demo)": "its protocol was not finished"}


def test_a_missing_run_removes_only_its_arm(setting: Setting, runs: Path):
    gone = setting.variants["step"][1].id
    shutil.rmtree(runs / gone)
    assert skipped_in(runs) == {f"{setting.title}: step": f"run {gone}: it is not there"}
    after = read_results(runs).settings[0]
    assert set(after.variants) == set(setting.variants) - {"step"} and after.columns == setting.columns


def test_a_setting_without_tuning_runs_keeps_the_columns_of_its_refits(setting: Setting, runs: Path):
    gone = setting.variants["tune"][0]
    shutil.rmtree(runs / gone.id)
    reason = f"run {gone.id}: it is not there"
    assert skipped_in(runs) == {f"{setting.title}: tune": reason, f"{setting.title}: tune at {gone.rate:g}": reason}
    after = read_results(runs).settings[0]
    assert after.columns == [column for column in setting.columns if column.trained_on == "100%"]
    assert "refit" in after.variants and "tune" not in after.variants


@pytest.mark.parametrize(("key", "value"), [("scale", "huge"), ("state", "sleeping")])
def test_a_manifest_of_another_shape_is_skipped(key: str, value: Any, bare: Path):
    put(bare / MANIFESTS["step-decay"], {**content(bare, MANIFESTS["step-decay"]), key: value})
    results = read_results(bare)
    reason = "its scale 'huge' is unknown" if value == "huge" else f"{MANIFESTS['step-decay']} is not what"
    assert skipped_of(results, bare)[MANIFESTS["step-decay"]].startswith(reason)
    assert {study.study for study in results.studies} == set(NAMES) - {"step-decay"}
    studies, skipped = read_studies(bare)
    assert studies == results.studies and [line.what for line in skipped] == [MANIFESTS["step-decay"]]


@pytest.mark.parametrize("variant", ["every", "every x", "every 0", "tune", "tune at x", "refit", "another", ""])
def test_an_unknown_variant_is_skipped(variant: str, setting: Setting, bare: Path):
    before = skipped_in(bare)
    manifest = content(bare, MANIFESTS["step-decay"])
    manifest["pairs"][0]["arms"][variant] = [setting.variants["step"][0].id]
    put(bare / MANIFESTS["step-decay"], manifest)
    results = read_results(bare)
    reason = "runs of a kind unknown to this version of emabank"
    assert Skipped(f"{setting.title}: {variant}", reason) in results.skipped
    assert len(results.skipped) == len(before) + 1


def test_runs_and_protocols_outside_the_folder_are_not_read(setting: Setting, runs: Path):
    first, *rest = (run.id for run in setting.variants["step"])
    shutil.move(runs / first, runs.parent / "outside" / first)
    manifest = content(runs, MANIFESTS["step-decay"])
    manifest["pairs"][0]["arms"]["step"] = [f"../outside/{first}", *rest]
    shutil.copytree(runs / setting.protocol, runs.parent / "outside" / setting.protocol)
    manifest["pairs"].append({**manifest["pairs"][0], "protocol": f"../outside/{setting.protocol}", "title": "away"})
    put(runs / MANIFESTS["step-decay"], manifest)
    assert list(skipped_in(runs)) == [f"{setting.title}: step", "away (demo)"]


@pytest.mark.parametrize(
    "change", [{"step_seconds": 3}, {"step_seconds": ["a"]}, {"every": 0}, {"network": None}, {"seconds": 3}]
)
def test_overheads_of_another_shape_are_skipped(change: dict[str, Any], bare: Path):
    assert read_results(bare).overheads
    manifest = content(bare, MANIFESTS["sampling-period"])
    manifest["overheads"] = [{**manifest["overheads"][0], **change}]
    put(bare / MANIFESTS["sampling-period"], manifest)
    reason = "its cost of averages is not what this emabank writes; run the study again"
    results = read_results(bare)
    assert skipped_of(results, bare)["study sampling-period, demo"] == reason and results.overheads == ()


# Damaged files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["summary.json", "rows.jsonl"])
def test_a_setting_with_a_damaged_protocol_is_skipped(file: str, damage: str, setting: Setting, bare: Path):
    DAMAGES[damage](bare / setting.protocol / file)
    results = read_results(bare)
    assert results.settings == () and len(results.studies) == len(NAMES)
    found = skipped_of(results, bare)
    reason = found[f"{setting.title} (demo)"]
    assert file in reason
    if file == "summary.json":
        assert reason.startswith(f"{setting.protocol}/summary.json is ") and reason.endswith("; run the study again")
    assert not any(setting.protocol in name for name in found)


def test_reading_does_not_change_the_folder(finished: Path):
    def files() -> dict[str, tuple[float, int]]:
        return {str(path): (path.stat().st_mtime, path.stat().st_size) for path in finished.rglob("*")}

    before = files()
    read_results(finished)
    assert files() == before


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("choices", lambda choices: choices[1:]),
        ("choices", lambda choices: [{**choice, "rate": 99.0} for choice in choices]),
        ("choices", lambda choices: [{**choice, "live_epoch": 0} for choice in choices]),
        ("choices", lambda choices: [{**choice, "averages": {}} for choice in choices]),
        ("choices", lambda choices: 3),
        ("runs", lambda runs: {**runs, "tuning": runs["tuning"][1:]}),
        ("runs", lambda runs: {**runs, "refit": [3, 4]}),
        ("has_batchnorm", lambda found: "yes"),
        ("config", lambda config: {**config, "seeds": 0}),
    ],
)
def test_a_summary_of_another_shape_is_skipped(part: str, change: Callable[[Any], Any], setting: Setting, bare: Path):
    path = bare / setting.protocol / "summary.json"
    put(path, {**content(path), part: change(content(path)[part])})
    results = read_results(bare)
    assert results.settings == ()
    assert "damaged or of another emabank" in skipped_of(results, bare)[f"{setting.title} (demo)"]


# One run -------------------------------------------------------------------------------------------------------------

FILES = (
    "config.json", "done.json", "environment.json", "history.json", "rows.jsonl", "test_curves.jsonl",
    "predictions/live-last.npz", "snapshots/live-last.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(finished: Path) -> Path:
    """A refit, with curves on test and saved weights."""
    return finished / read_results(finished).settings[0].variants["refit"][0].id


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> RunFolder:
    """A copy of the run."""
    return RunFolder(shutil.copytree(whole, tmp_path / "runs" / whole.name))


def error_of(folder: RunFolder) -> str:
    with pytest.raises(ValueError, match=".") as caught:
        read_run(folder)
    message = str(caught.value)
    assert message and "\n" not in message and str(folder.path.parent) not in message
    return message


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change each row of a file, drop those that become None, and let the run accept the new size."""
    forget_sizes(path.parent, path.name)
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def test_null_and_missing_rows_are_nan(folder: RunFolder):
    curve = Curve(LIVE, "own", "test", "loss")
    before = read_run(folder).curves[curve]

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        epoch = row["epoch"] if (row["weights"], row["metric"]) == (LIVE, "loss") else 0
        return None if epoch == 1 else {**row, "value": None} if epoch == 2 else row

    rewrite(folder.path / "test_curves.jsonl", change)
    np.testing.assert_array_equal(read_run(folder).curves[curve], [np.nan, np.nan, before[2]])


def test_rows_of_epochs_outside_the_run_are_ignored(folder: RunFolder):
    before = read_run(folder).curves
    rewrite(folder.path / "test_curves.jsonl", lambda row: {**row, "epoch": row["epoch"] - 1})
    after = read_run(folder).curves
    for key, curve in before.items():
        if key.split == "test":
            np.testing.assert_array_equal(after[key], [*curve[1:], np.nan])


def test_a_diverged_run_has_only_the_epochs_in_its_history(folder: RunFolder):
    forget_sizes(folder.path, "history.json")
    put(folder.path / "history.json", content(folder.path, "history.json")[:1])
    run = read_run(folder)
    assert run.epochs == 1 and all(len(curve) == 1 for curve in run.curves.values())


def rows(folder: Path, name: str = "rows.jsonl") -> Path:
    """A file of rows without a known size, as in runs of an earlier emabank."""
    forget_sizes(folder, name)
    return folder / name


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "done.json").unlink(), "interrupted before its end; the same command resumes"),
        (lambda path: (path / "done.json").write_text("{"), "damaged: done.json is not what this emabank writes"),
        (lambda path: (path / "rows.jsonl").write_text(""), "damaged: rows.jsonl has 0 bytes instead of "),
        (lambda path: rows(path).write_text(""), "rows.jsonl is empty; measure that run again"),
        (lambda path: rows(path).write_text('{"run": "a"}\n'), "rows.jsonl, line 1 is not a row"),
        (lambda path: rows(path, "test_curves.jsonl").write_text(""), "test_curves.jsonl is empty; measure that run "),
        (lambda path: shutil.rmtree(path), "it is not there"),
        (lambda path: (shutil.rmtree(path), path.write_text("")), "it is no folder"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_a_clear_error(damage: Callable[[Path], object], message: str, folder: RunFolder):
    damage(folder.path)
    assert error_of(folder).startswith(message)


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damaged_file_is_a_clear_error(damage: str, whole: Path, tmp_path: Path):
    for index, file in enumerate(FILES):
        folder = RunFolder(shutil.copytree(whole, tmp_path / str(index)))
        DAMAGES[damage](folder.path / file)
        assert error_of(folder), file


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda old: {**old, "config": {**old["config"], "seed": "0"}}),
        ("config.json", lambda old: {**old, "config": {**old["config"], "rate": -1.0}}),
        ("config.json", lambda old: {**old, "config": {**old["config"], "another": 1}}),
        ("history.json", lambda old: [*old, *old]),
        ("history.json", lambda old: [{**old[0], "rate": None}, *old[1:]]),
        ("history.json", lambda old: [{**old[0], "rate": "high"}, *old[1:]]),
        ("history.json", lambda old: [{"epoch": 1}]),
        ("environment.json", lambda old: {"sessions": [3]}),
        ("environment.json", lambda old: {"sessions": {"a": 1}}),
        ("environment.json", lambda old: {"sessions": [{"cpu": "\ud800"}]}),
    ],
)
def test_json_of_another_shape_is_a_clear_error(file: str, change: Callable[[Any], Any], folder: RunFolder):
    forget_sizes(folder.path, file)
    put(folder.path / file, change(content(folder.path, file)))
    assert error_of(folder)


def test_damaged_predictions_are_refused_when_read(folder: RunFolder):
    path = folder.path / "predictions" / "live-last.npz"
    path.write_bytes(b"x" * path.stat().st_size)
    run = read_run(folder)
    with pytest.raises(ValueError, match="does not match its checksum") as caught:
        run.predictions("live-last")
    assert str(caught.value).startswith(f"{folder.id}/predictions/live-last.npz is damaged")
    assert str(folder.path.parent) not in str(caught.value)
    with pytest.raises(ValueError, match=r"none\.npz is not there; the run has "):
        run.predictions("none")
