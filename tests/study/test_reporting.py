"""What `emabank report`, `claims` and `status` print: what is worth a look, what was left out, how it goes on."""

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from emabank.study.commands import main
from emabank.study.report import write
from emabank.study.report.write import Report
from emabank.study.reporting import make_report, show_claims
from emabank.study.runs.locks import locked
from emabank.study.runs.manifest import Manifest, write_manifest
from emabank.study.runs.writer import mark_failed
from emabank.study.status import show_status
from tests.study.report.spoiling import content, put
from tests.study.small_folder import COMMAND, NAMES
from tests.study.small_folder import bare as bare
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs
from tests.support.processes import run

MANIFEST = "study-demo-step-decay.json"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn."""
    monkeypatch.setattr(write, "draw", lambda figure, path, *, file_format: path.write_text(figure.name))


def printed(show: Callable[..., object], *given: Any, width: int = 100, **more: Any) -> list[str]:
    """The lines that are printed where there is no terminal."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(*given, console=console, **more)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


# The report ----------------------------------------------------------------------------------------------------------


def test_a_report_prints_the_headline_and_says_what_to_open_and_to_try(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs.parent)
    lines = printed(make_report, runs, None)
    titles = [line for line in lines if line.startswith("Test accuracy and loss of SGD, its averages, and SWA")]
    assert len(titles) == 1 and any("paper" in line for line in lines)
    assert "Skipped:" not in lines
    verdicts, counts, last = lines[-3:]
    assert sum(int(each.split()[0]) for each in verdicts.split(", ")) == 19
    page = (runs / "report" / "index.html").resolve().as_uri()
    assert last == f"Open {page} in a browser; next: `emabank run all --scale demo --runs {runs}`."
    tables = list((runs / "report" / "tables").rglob("*.md"))
    figures = list((runs / "report" / "figures").rglob("*.pdf"))
    assert counts == f"{len(tables)} tables and {len(figures)} figures are in runs/report."
    assert len(tables) > 8 and len(figures) > 5 and (runs / "report" / "index.html").exists()


def test_a_report_can_be_written_elsewhere(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    lines = printed(make_report, bare, tmp_path / "else" / "where")
    page = (tmp_path / "else" / "where" / "index.html").resolve().as_uri()
    assert lines[-1].startswith(f"Open {page} in a browser; ")
    assert (tmp_path / "else" / "where" / "index.html").exists() and not (bare / "report").exists()


def test_in_the_folder_that_is_looked_into_by_default_no_place_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(bare.parent)
    assert printed(make_report, Path("runs"), None)[-1].endswith("; next: `emabank run all --scale demo`.")


def test_a_study_that_is_not_finished_is_what_to_try_next(bare: Path):
    put(bare / MANIFEST, {**content(bare, MANIFEST), "state": "running"})
    lines = printed(make_report, bare, None)
    assert lines[-1].endswith(f"; next: `{COMMAND}`.")
    assert f"  study step-decay, demo: interrupted; `{COMMAND}` resumes" in lines
    with locked(bare / f".{MANIFEST.removesuffix('.json')}.lock", what="the study"):
        assert "  study step-decay, demo: running" in printed(make_report, bare, None)


def test_what_was_left_out_is_printed_and_on_the_page_a_line_each(bare: Path):
    (bare / "[bold]notes.txt").touch()  # no markup
    lines = printed(make_report, bare, None, width=40)
    at = lines.index("Skipped:")
    left = lines[at + 1 : -2]
    assert left[-1] == "  [bold]notes.txt: not a run of emabank"
    assert len(left) == len(content(bare, "study-demo-sampling-period.json")["pairs"][0]["arms"]) + 11
    assert all(line.startswith("  ") and ": " in line for line in left)
    page = (bare / "report" / "index.html").read_text(encoding="utf-8")
    assert "[bold]notes.txt" in page and page.count("it is not there") == len(left) - 1


def test_an_empty_folder_makes_a_report_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    lines = printed(make_report, Path("runs"), None)
    assert lines[-3:] == [
        "19 not run",
        "There is nothing to report in runs yet; `emabank run all --scale demo` makes runs.",
        f"Open {(tmp_path / 'runs/report/index.html').resolve().as_uri()} in a browser; "
        "next: `emabank run all --scale demo`.",
    ]


def titles(lines: list[str], report: Report) -> set[str]:
    """The names of the tables that were printed."""
    text = " ".join(" ".join(lines).split())
    return {table.name for table in report.tables if " ".join(table.title.split()) in text}


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("", lambda name: name == "demo/generalization/headline"),
        ("all", lambda name: True),
        ("batchnorm", lambda name: "batchnorm" in name),
        ("full-", lambda name: "full-" in name),
        ("sampling-period/equivalence", lambda name: name == "sampling-period/equivalence"),
    ],
)
def test_the_tables_that_are_asked_for_are_printed(asked: str, shown: Callable[[str], bool], runs: Path):
    reports: list[Report] = []
    lines = printed(lambda *given, **more: reports.append(make_report(*given, **more)), runs, None, tables=asked)
    names = {table.name for table in reports[0].tables if shown(table.name)}
    assert titles(lines, reports[0]) == names and names


def test_a_table_that_there_is_not_is_said_with_those_that_there_are(bare: Path):
    lines = printed(make_report, bare, None, tables="nonsense")
    (said,) = (line for line in lines if line.startswith("No table has"))
    assert said.startswith("No table has 'nonsense' in its name; there are demo/setup/hyperparameters, ")
    assert said.endswith("sampling-period/equivalence, sampling-period/overhead.")


def test_a_missing_folder_writes_nothing(tmp_path: Path):
    for show in (lambda *given, **more: make_report(*given, None, **more), show_claims, show_status):
        with pytest.raises(FileNotFoundError, match="does not exist; pass the folder that `emabank run` wrote"):
            printed(show, tmp_path / "runs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").touch()
    with pytest.raises(FileNotFoundError, match="is not a folder; pass the folder"):
        printed(show_claims, tmp_path / "runs")


# The claims ----------------------------------------------------------------------------------------------------------


def test_claims_are_a_table_and_with_all_their_findings(runs: Path):
    whole, short = printed(show_claims, runs, secondary=True), printed(show_claims, runs)
    for lines in (whole, short):
        shown = [number[1] for line in lines if (number := re.match(r"(\d+|b|c) {2,}\S", line))]
        left = re.search(r"Not run: ([^.]*)\.", " ".join(lines))[1].split(", ")
        assert sorted([*shown, *left]) == sorted([*map(str, range(1, 20)), "b", "c"])
    assert len(whole) > 3 * len(short)
    assert any("of 2" in line for line in short) and "Skipped:" not in [*whole, *short]


@pytest.mark.parametrize("words", [["claims", "--all"], ["report", "--tables", "all"], ["status"]])
def test_an_ascii_terminal_of_60_columns_is_enough(words: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main([*words, str(runs)]) == 0
    terminal.flush()
    lines = terminal.buffer.getvalue().decode("ascii").splitlines()  # type: ignore[attr-defined]
    assert max(len(line) for line in lines if "|" in line) <= 60  # a sentence is wrapped by the terminal itself


def test_claims_say_what_was_left_out(bare: Path):
    lines = printed(show_claims, bare)
    at = lines.index("Skipped:")
    assert len(lines) - at - 1 == 14 and all(line.startswith("  digits, ") for line in lines[at + 1 :])


# The status ----------------------------------------------------------------------------------------------------------


def test_the_status_has_every_study_and_counts_the_runs(finished: Path):
    lines = printed(show_status, finished)
    assert [line.split() for line in lines[2:-1]] == [[name, "demo", "done"] for name in sorted(NAMES)]
    assert lines[-1] == "24 runs: 24 done"


def test_a_run_that_was_interrupted_is_named_by_its_setting_rate_and_seed(finished: Path, tmp_path: Path):
    run = next(path.parent for path in finished.glob("*/config.json"))
    shutil.copytree(run, tmp_path / run.name)
    (tmp_path / run.name / "done.json").unlink()
    config = content(run, "config.json")["config"]
    where = f", rate {config['rate']:g}, seed {config['seed']} ({run.name}) interrupted"
    line = printed(show_status, tmp_path, width=60)[-1]
    assert line.startswith("  digits, ") and where in line


def new_run(folder: Path, progress: Any = None) -> Path:
    folder.mkdir()
    put(folder / "config.json", {"format": 1, "config": {}})
    if progress is not None:
        put(folder / "progress.json", progress)
    return folder


def test_the_status_says_how_runs_stand_that_are_not_done(bare: Path):
    told = {"epoch": 3, "epochs": 60, "words": "live [red]81%[/red]", "seconds_left": 200.0, "time": ""}
    running = new_run(bare / "running", told)
    new_run(bare / "waiting", told)
    new_run(bare / "untold")
    mark_failed(new_run(bare / "failed"), "ValueError: no luck")
    with locked(running / "lock", what="the run"):
        lines = printed(show_status, bare)
    assert lines[-5:] == [
        "4 runs: 0 done, 1 running, 2 interrupted, 1 failed",
        "  failed failed: ValueError: no luck",
        "  running running: epoch 3/60, 3 min left: live [red]81%[/red]",
        "  untold interrupted",
        "  waiting interrupted: epoch 3/60: live [red]81%[/red]",
    ]


@pytest.mark.parametrize(
    "progress", [[], {}, {"epoch": 3}, {"epoch": 1, "epochs": 2, "words": "", "seconds_left": "long", "time": ""}]
)
def test_a_progress_that_is_none_is_left_out(progress: Any, tmp_path: Path):
    new_run(tmp_path / "waiting", progress)
    assert printed(show_status, tmp_path)[-1] == "  waiting interrupted"


def test_the_status_says_why_a_study_failed_and_what_cannot_be_read(tmp_path: Path):
    reason = f"cifar100-resnet18: 1 of 2 runs failed; see {tmp_path}/0123/log.txt [bold]"
    manifest = Manifest(study="dynamics", scale="small", command="emabank run dynamics", state="failed", reason=reason)
    write_manifest(manifest, tmp_path)
    (tmp_path / "study-demo-transfer.json").write_text("{")
    lines = printed(show_status, tmp_path, width=160)
    assert lines[2].split(maxsplit=2) == [
        "dynamics", "small", "failed: cifar100-resnet18: 1 of 2 runs failed; see 0123/log.txt [bold]",
    ]  # fmt: skip
    said = "study-demo-transfer.json is not what this emabank writes of a study; run the study again"
    assert lines[3:] == [
        "This folder contains no runs; `emabank run` makes some.", "Skipped:", f"  study-demo-transfer.json: {said}",
    ]  # fmt: skip


def test_the_status_of_an_empty_folder_is_one_line(tmp_path: Path):
    assert printed(show_status, tmp_path) == ["This folder contains no runs; `emabank run` makes some."]


def test_the_status_reads_no_rows(finished: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of the paper's size has millions."""

    def refuse(path: object) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("emabank.study.runs.reader.read_rows", refuse)
    assert printed(show_status, finished)[-1].startswith("24 runs: 24 done")
    with pytest.raises(AssertionError, match="was read"):
        printed(show_claims, finished)


# Without torch -------------------------------------------------------------------------------------------------------


def test_none_of_them_needs_torch(bare: Path):
    done = run(f"""
import json
from emabank.study.commands import main
codes = [main([*words, {str(bare)!r}]) for words in (["report"], ["claims", "--all"], ["status"])]
assert codes == [0, 0, 0], codes
loaded = {{"matplotlib.figure", "numpy", "rich"}}
assert loaded <= set(sys.modules) and not {{"torch", "matplotlib.pyplot"}} & set(sys.modules)
""", blocked=("torch",))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Open " in done.stdout and "files of the report" not in done.stdout
    assert (bare / "report" / "index.html").exists()
    assert json.loads((bare / "report" / "files.json").read_text()) and os.listdir(bare / "report" / "tables" / "demo")
