"""The output of `emabank report`, `claims` and `status`."""

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
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "draw", lambda figure, path, *, file_format: path.write_text(figure.name))


def lines_of(show: Callable[..., object], *args: Any, width: int = 100, **options: Any) -> list[str]:
    """The lines printed where there is no terminal."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(*args, console=console, **options)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


# The report ----------------------------------------------------------------------------------------------------------


def test_a_report_prints_the_headline_the_page_and_the_next_command(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs.parent)
    lines = lines_of(make_report, runs, None)
    titles = [line for line in lines if line.startswith("Test accuracy and loss of SGD, its averages, and SWA")]
    assert len(titles) == 1 and any("paper" in line for line in lines)
    assert "Skipped:" not in lines
    verdicts, counts, last = lines[-3:]
    assert sum(int(count.split()[0]) for count in verdicts.split(", ")) == 19
    page = (runs / "report" / "index.html").resolve().as_uri()
    assert last == f"Open {page} in a browser; next: `emabank run all --scale demo --runs {runs}`."
    tables = list((runs / "report" / "tables").rglob("*.md"))
    figures = list((runs / "report" / "figures").rglob("*.pdf"))
    assert counts == f"{len(tables)} tables and {len(figures)} figures are in runs/report."
    assert len(tables) > 8 and len(figures) > 5 and (runs / "report" / "index.html").exists()


def test_a_report_can_be_written_to_another_folder(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    lines = lines_of(make_report, bare, tmp_path / "else" / "where")
    page = (tmp_path / "else" / "where" / "index.html").resolve().as_uri()
    assert lines[-1].startswith(f"Open {page} in a browser; ")
    assert (tmp_path / "else" / "where" / "index.html").exists() and not (bare / "report").exists()


def test_the_next_command_resumes_an_unfinished_study(bare: Path):
    put(bare / MANIFEST, {**content(bare, MANIFEST), "state": "running"})
    lines = lines_of(make_report, bare, None)
    assert lines[-1].endswith(f"; next: `{COMMAND}`.")
    assert f"  study step-decay, demo: interrupted; `{COMMAND}` resumes" in lines
    with locked(bare / f".{MANIFEST.removesuffix('.json')}.lock", what="the study"):
        assert "  study step-decay, demo: running" in lines_of(make_report, bare, None)


def test_skipped_parts_are_printed_and_shown_on_the_page(bare: Path):
    (bare / "[bold]notes.txt").touch()  # no markup
    lines = lines_of(make_report, bare, None, width=40)
    skipped = lines[lines.index("Skipped:") + 1 : -2]
    assert skipped[-1] == "  [bold]notes.txt: not a run of emabank"
    assert len(skipped) == len(content(bare, "study-demo-sampling-period.json")["pairs"][0]["arms"]) + 11
    assert all(line.startswith("  ") and ": " in line for line in skipped)
    page = (bare / "report" / "index.html").read_text(encoding="utf-8")
    assert "[bold]notes.txt" in page and page.count("it is not there") == len(skipped) - 1


def test_the_report_of_an_empty_folder_has_the_command_to_begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    lines = lines_of(make_report, Path("runs"), None)
    assert lines[-3:] == [
        "19 not run",
        "There is nothing to report in runs yet.",
        f"Open {(tmp_path / 'runs/report/index.html').resolve().as_uri()} in a browser; "
        "next: `emabank run all --scale demo`.",
    ]


@pytest.mark.parametrize(
    ("asked", "is_shown"),
    [
        ("", lambda name: name == "demo/generalization/headline"),
        ("all", lambda name: True),
        ("batchnorm", lambda name: "batchnorm" in name),
    ],
)
def test_the_tables_asked_for_are_printed(asked: str, is_shown: Callable[[str], bool], runs: Path):
    reports: list[Report] = []
    lines = lines_of(lambda *args, **options: reports.append(make_report(*args, **options)), runs, None, tables=asked)
    output = " ".join(" ".join(lines).split())
    printed = {table.name for table in reports[0].tables if " ".join(table.title.split()) in output}
    assert printed == {table.name for table in reports[0].tables if is_shown(table.name)} != set()


def test_an_unknown_table_name_prints_all_names(bare: Path):
    lines = lines_of(make_report, bare, None, tables="nonsense")
    (message,) = (line for line in lines if line.startswith("No table has 'nonsense' in its name"))
    assert "demo/setup/hyperparameters, " in message and "sampling-period/overhead" in message


def test_a_missing_folder_is_refused_and_nothing_is_written(tmp_path: Path):
    for show in (lambda *args, **options: make_report(*args, None, **options), show_claims, show_status):
        with pytest.raises(FileNotFoundError, match="does not exist; pass the folder that `emabank run` wrote"):
            lines_of(show, tmp_path / "runs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").touch()
    with pytest.raises(FileNotFoundError, match="is not a folder; pass the folder"):
        lines_of(show_claims, tmp_path / "runs")


# The claims ----------------------------------------------------------------------------------------------------------


def test_every_claim_is_in_the_table_or_named_as_not_run(runs: Path):
    whole, short = lines_of(show_claims, runs, secondary=True), lines_of(show_claims, runs)
    for lines in (whole, short):
        numbers = [number[1] for line in lines if (number := re.match(r"(\d+|b|c) {2,}\S", line))]
        not_run = re.search(r"Not run: ([^.]*)\.", " ".join(lines))[1].split(", ")
        assert sorted([*numbers, *not_run]) == sorted([*map(str, range(1, 20)), "b", "c"])
    assert len(whole) > 3 * len(short)
    assert any("of 2" in line for line in short) and "Skipped:" not in [*whole, *short]


@pytest.mark.parametrize("words", [["claims", "--all"], ["report", "--tables", "all"], ["status"]])
def test_output_fits_an_ascii_terminal_of_60_columns(words: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main([*words, str(runs)]) == 0
    terminal.flush()
    lines = terminal.buffer.getvalue().decode("ascii").splitlines()  # type: ignore[attr-defined]
    assert max(len(line) for line in lines if "|" in line) <= 60  # the terminal itself wraps sentences


def test_claims_of_an_empty_folder_say_so(tmp_path: Path):
    assert lines_of(show_claims, tmp_path)[-1] == f"There is nothing to check in {tmp_path} yet."


def test_claims_name_what_was_skipped(bare: Path):
    lines = lines_of(show_claims, bare)
    skipped = lines[lines.index("Skipped:") + 1 :]
    assert len(skipped) == 14 and all(line.startswith("  digits, ") for line in skipped)


# The status ----------------------------------------------------------------------------------------------------------


def test_the_status_lists_studies_and_counts_runs(finished: Path):
    lines = lines_of(show_status, finished)
    assert [line.split() for line in lines[2:-1]] == [[name, "demo", "done"] for name in sorted(NAMES)]
    assert lines[-1] == "24 runs: 24 done"


def test_the_status_names_an_interrupted_run_by_setting_rate_and_seed(finished: Path, tmp_path: Path):
    run = next(path.parent for path in finished.glob("*/config.json"))
    shutil.copytree(run, tmp_path / run.name)
    (tmp_path / run.name / "done.json").unlink()
    config = content(run, "config.json")["config"]
    line = lines_of(show_status, tmp_path, width=60)[-1]
    assert line.startswith("  digits, ")
    assert f", rate {config['rate']:g}, seed {config['seed']} ({run.name}) interrupted" in line


def new_run(folder: Path, progress: Any = None) -> Path:
    folder.mkdir()
    put(folder / "config.json", {"format": 1, "config": {}})
    if progress is not None:
        put(folder / "progress.json", progress)
    return folder


def test_the_status_of_unfinished_runs(bare: Path):
    progress = {"epoch": 3, "epochs": 60, "words": "live [red]81%[/red]", "seconds_left": 200.0, "time": ""}
    running = new_run(bare / "running", progress)
    new_run(bare / "waiting", progress)
    new_run(bare / "unstarted")
    mark_failed(new_run(bare / "failed"), "ValueError: no luck")
    with locked(running / "lock", what="the run"):
        lines = lines_of(show_status, bare)
    assert lines[-5:] == [
        "4 runs: 0 done, 1 running, 2 interrupted, 1 failed",
        "  failed failed: ValueError: no luck",
        "  running running: epoch 3/60, 3 min left: live [red]81%[/red]",
        "  unstarted interrupted",
        "  waiting interrupted: epoch 3/60: live [red]81%[/red]",
    ]


def test_the_status_has_the_reason_of_a_failure_and_unreadable_files(tmp_path: Path):
    reason = f"cifar100-resnet18: 1 of 2 runs failed; see {tmp_path}/0123/log.txt [bold]"
    manifest = Manifest(study="dynamics", scale="small", command="emabank run dynamics", state="failed", reason=reason)
    write_manifest(manifest, tmp_path)
    (tmp_path / "study-demo-transfer.json").write_text("{")
    lines = lines_of(show_status, tmp_path, width=160)
    assert lines[2].split(maxsplit=2) == [
        "dynamics", "small", "failed: cifar100-resnet18: 1 of 2 runs failed; see 0123/log.txt [bold]",
    ]  # fmt: skip
    assert lines[3:5] == ["This folder contains no runs; `emabank run` makes some.", "Skipped:"]
    assert lines[5].startswith("  study-demo-transfer.json: ") and lines[5].endswith("; run the study again")


def test_the_status_reads_no_rows(finished: Path, monkeypatch: pytest.MonkeyPatch):
    """At paper scale there are millions."""

    def refuse(path: object) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("emabank.study.runs.reader.read_rows", refuse)
    assert lines_of(show_status, finished)[-1].startswith("24 runs: 24 done")
    with pytest.raises(AssertionError, match="was read"):
        lines_of(show_claims, finished)


# Without torch -------------------------------------------------------------------------------------------------------


def test_report_claims_and_status_do_not_need_torch(bare: Path):
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
