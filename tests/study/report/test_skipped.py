"""Whatever lies in a folder of runs: results of the rest, and a line for what was skipped, with the reason."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emabank.study.report.results import Results, Setting, Skipped, read_results, read_studies
from emabank.study.runs.locks import locked
from emabank.study.runs.writer import mark_failed
from tests.study.report.spoiling import SPOILT, content, put
from tests.study.small_folder import COMMAND, NAMES, SEEDS
from tests.study.small_folder import bare as bare
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs

MANIFESTS = {name: f"study-demo-{name}.json" for name in NAMES}
VARIANTS = ("step", "constant", "bootstrap", "every 1", "every 2", "every 4", "every 8")


@pytest.fixture(scope="module")
def results(finished: Path) -> Results:
    return read_results(finished)


@pytest.fixture(scope="module")
def setting(results: Results) -> Setting:
    (only,) = results.settings
    return only


# What was left out ---------------------------------------------------------------------------------------------------


def lines(runs: Path) -> dict[str, str]:
    """What was left out and why; however broken the folder, there is results."""
    return lines_of(read_results(runs), runs)


def lines_of(results: Results, runs: Path) -> dict[str, str]:
    assert len(dict(results.skipped)) == len(results.skipped)
    for what, why in results.skipped:
        assert what and why and str(runs) not in why, "a report tells nobody where it was made"
        f"{what}{why}".encode()
    return dict(results.skipped)


def test_an_empty_folder_has_nothing_to_tell(tmp_path: Path):
    assert read_results(tmp_path) == Results()


def test_what_is_no_run_of_ours_is_named(runs: Path):
    (runs / "notes.txt").write_text("mine")
    (runs / "study-notes.txt").write_text("mine")
    (runs / "other").mkdir()
    (runs / "other" / "weights.pt").write_bytes(b"")
    assert lines(runs) == {"notes.txt, other, study-notes.txt": "not a run of emabank"}
    (runs / "zoo").mkdir()
    assert lines(runs) == {"notes.txt, other, study-notes.txt and 1 more": "not a run of emabank"}


def test_what_the_commands_themselves_leave_there_is_not_named(runs: Path):
    (runs / "report").mkdir()
    (runs / ".emabank-cache").mkdir()
    (runs / "elsewhere").mkdir()
    (runs / "elsewhere" / "files.json").write_text("[]")  # a report, as `--out runs/elsewhere` has it
    assert lines(runs) == {}


def test_a_name_that_is_no_text_can_be_printed(runs: Path):
    os.mkdir(os.fsencode(runs) + b"/\xff")
    assert lines(runs) == {"?": "not a run of emabank"}


def test_runs_and_protocols_that_no_study_asks_for_are_named(setting: Setting, runs: Path):
    (runs / MANIFESTS["step-decay"]).unlink()
    names = ", ".join(sorted(each.id for each in setting.variants["step"]))
    assert lines(runs) == {names: "not used by any study in this folder"}
    for name in MANIFESTS.values():
        (runs / name).unlink(missing_ok=True)
    found = lines(runs)
    assert found[setting.protocol].startswith("a protocol of no study (from `emabank protocol`, ")
    (rest,) = (what for what in found if what != setting.protocol)
    assert rest.endswith("and 21 more") and found[rest].startswith("not used by any study")


def test_runs_that_failed_run_or_wait_are_named_with_the_reason(runs: Path):
    for name in ("failed", "running", "waiting"):
        (runs / name).mkdir()
        put(runs / name / "config.json", {"format": 1, "config": {}})
    mark_failed(runs / "failed", "killed by SIGKILL")
    with locked(runs / "running" / "lock", what="the run"):
        assert lines(runs) == {
            "failed": "failed: killed by SIGKILL",
            "running": "running now",
            "waiting": "interrupted before its end; the same command resumes",
        }


def test_a_study_that_failed_says_why_and_leaves_what_it_has(runs: Path):
    manifest = content(runs, MANIFESTS["step-decay"])
    pairs = [*manifest["pairs"], {"pair": "cifar10-resnet18", "title": "never", "protocol": None, "arms": {}}]
    reason = f"cifar10-resnet18: 1 of 2 runs failed; see {runs}/0123/log.txt"
    put(runs / MANIFESTS["step-decay"], {**manifest, "state": "failed", "reason": reason, "pairs": pairs})
    words = "cifar10-resnet18: 1 of 2 runs failed; see 0123/log.txt"
    assert lines(runs) == {"study step-decay, demo": f"failed: {words}"}
    results = read_results(runs)
    assert len(results.settings) == 1 and "step" in results.settings[0].variants
    assert [each.reason for each in results.studies if each.state == "failed"] == [words]


def test_a_study_that_is_not_finished_says_how_it_goes_on_and_that_its_runs_wait_for_it(setting: Setting, runs: Path):
    manifest = content(runs, MANIFESTS["step-decay"])
    pairs = [{**manifest["pairs"][0], "protocol": None, "arms": {}}]
    put(runs / MANIFESTS["step-decay"], {**manifest, "state": "running", "pairs": pairs})
    assert lines(runs) == {
        "study step-decay, demo": f"interrupted; `{COMMAND}` resumes",
        ", ".join(sorted(each.id for each in setting.variants["step"])): ("used by no finished study in this folder"),
    }


def test_a_pair_without_a_protocol_is_named(runs: Path):
    manifest = content(runs, MANIFESTS["generalization"])
    pair = {"pair": "cifar10-resnet18", "title": "digits, something", "protocol": None, "arms": {}}
    put(runs / MANIFESTS["generalization"], {**manifest, "pairs": [*manifest["pairs"], pair]})
    assert lines(runs) == {"digits, something (demo)": "its protocol was not finished"}


def test_a_run_that_is_missing_costs_its_arms_and_no_others(setting: Setting, runs: Path):
    gone = setting.variants["step"][1].id
    shutil.rmtree(runs / gone)
    assert lines(runs) == {f"{setting.title}: step": f"run {gone}: it is not there"}
    after = read_results(runs).settings[0]
    assert set(after.variants) == set(setting.variants) - {"step"} and after.columns == setting.columns


def test_without_its_tuning_runs_a_setting_still_has_the_columns_of_its_refits(setting: Setting, runs: Path):
    gone = setting.variants["tune"][0]
    shutil.rmtree(runs / gone.id)
    why = f"run {gone.id}: it is not there"
    assert lines(runs) == {f"{setting.title}: tune": why, f"{setting.title}: tune at {gone.rate:g}": why}
    after = read_results(runs).settings[0]
    assert after.columns == [column for column in setting.columns if column.trained_on == "100%"]
    assert "refit" in after.variants and "tune" not in after.variants


@pytest.mark.parametrize(("key", "value"), [("scale", "huge"), ("state", "sleeping")])
def test_a_manifest_of_another_shape_is_left_out(key: str, value: Any, bare: Path):
    put(bare / MANIFESTS["step-decay"], {**content(bare, MANIFESTS["step-decay"]), key: value})
    results = read_results(bare)
    why = "its scale 'huge' is unknown" if value == "huge" else f"{MANIFESTS['step-decay']} is not what"
    assert lines_of(results, bare)[MANIFESTS["step-decay"]].startswith(why)
    assert {each.study for each in results.studies} == set(NAMES) - {"step-decay"}
    studies, skipped = read_studies(bare)
    assert studies == results.studies and [line.what for line in skipped] == [MANIFESTS["step-decay"]]


@pytest.mark.parametrize("variant", ["every", "every x", "every 0", "tune", "tune at x", "refit", "another", ""])
def test_a_variant_of_another_kind_is_skipped(variant: str, setting: Setting, bare: Path):
    before = lines(bare)
    manifest = content(bare, MANIFESTS["step-decay"])
    manifest["pairs"][0]["arms"][variant] = [setting.variants["step"][0].id]
    put(bare / MANIFESTS["step-decay"], manifest)
    results = read_results(bare)
    assert (
        Skipped(f"{setting.title}: {variant}", "runs of a kind unknown to this version of emabank") in results.skipped
    )
    assert len(results.skipped) == len(before) + 1


@pytest.mark.parametrize("name", ["..", "../runs", "/etc", ".", "", "a/b", "a\0b"])
def test_names_that_lead_elsewhere_lead_nowhere(name: str, setting: Setting, bare: Path):
    manifest = content(bare, MANIFESTS["step-decay"])
    manifest["pairs"][0]["arms"]["step"] = [name] * SEEDS
    put(bare / MANIFESTS["step-decay"], manifest)
    assert lines(bare)[f"{setting.title}: step"].startswith(f"run {name}: ")
    manifest["pairs"][0] |= {"protocol": name, "title": "elsewhere"}
    put(bare / MANIFESTS["step-decay"], manifest)
    assert "elsewhere (demo)" in lines(bare)


def test_a_run_outside_of_the_folder_is_not_read(setting: Setting, runs: Path):
    first, *others = (run.id for run in setting.variants["step"])
    shutil.move(runs / first, runs.parent / "outside" / first)
    manifest = content(runs, MANIFESTS["step-decay"])
    manifest["pairs"][0]["arms"]["step"] = [f"../outside/{first}", *others]
    put(runs / MANIFESTS["step-decay"], manifest)
    assert list(lines(runs)) == [f"{setting.title}: step"]


@pytest.mark.parametrize(
    "change", [{"step_seconds": 3}, {"step_seconds": ["a"]}, {"every": 0}, {"network": None}, {"seconds": 3}]
)
def test_costs_of_another_shape_are_left_out(change: dict[str, Any], bare: Path):
    assert read_results(bare).overheads
    manifest = content(bare, MANIFESTS["sampling-period"])
    manifest["overheads"] = [{**manifest["overheads"][0], **change}]
    put(bare / MANIFESTS["sampling-period"], manifest)
    why = "its cost of averages is not what this emabank writes; run the study again"
    results = read_results(bare)
    assert lines_of(results, bare)["study sampling-period, demo"] == why and results.overheads == ()


# Spoilt in every way -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", SPOILT)
def test_whatever_happens_to_a_run_its_arms_are_left_out_and_no_others(how: str, setting: Setting, runs: Path):
    """One run in each variant, another file in each; what a run's file can be is tested with `read_run`."""
    files = {"step": "rows.jsonl", "constant": "done.json", "bootstrap": "config.json", "swa": "history.json",
             "every 1": "environment.json", "every 8": "predictions/live-last.npz"}  # fmt: skip
    for variant, file in files.items():
        SPOILT[how](runs / setting.variants[variant][1].id / file)
    results = read_results(runs)
    found = lines_of(results, runs)
    assert set(found) == {f"{setting.title}: {variant}" for variant in files}
    for variant in files:
        assert found[f"{setting.title}: {variant}"].startswith(f"run {setting.variants[variant][1].id}: ")
    assert set(results.settings[0].variants) == set(setting.variants) - set(files)
    kept = [column for column in setting.columns if column.title != "SWA"]
    assert results.settings[0].columns == kept


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("file", ["summary.json", "rows.jsonl"])
def test_whatever_happens_to_a_protocol_the_setting_is_left_out(file: str, how: str, setting: Setting, bare: Path):
    SPOILT[how](bare / setting.protocol / file)
    results = read_results(bare)
    assert results.settings == () and len(results.studies) == len(NAMES)
    found = lines_of(results, bare)
    why = found[f"{setting.title} (demo)"]
    assert file in why
    if file == "summary.json":
        assert why.startswith(f"{setting.protocol}/summary.json is ") and why.endswith("; run the study again"), why
    assert not any(setting.protocol in what for what in found)


def test_a_folder_is_left_as_it_was(finished: Path):
    def seen() -> dict[str, tuple[float, int]]:
        return {str(path): (path.stat().st_mtime, path.stat().st_size) for path in finished.rglob("*")}

    before = seen()
    read_results(finished)
    assert seen() == before


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
    assert "damaged or of another emabank" in lines_of(results, bare)[f"{setting.title} (demo)"]
