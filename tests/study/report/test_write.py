"""The report as files: every format, deterministic bytes, no stale files, no torch."""

import csv
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emabank.study.report import write
from emabank.study.report.figures import Figure
from emabank.study.report.render import latex, markdown, table_csv
from emabank.study.report.results import REPORT_FILES, Results, Skipped
from emabank.study.report.write import PAGE, Report, build_report, try_next, write_files
from emabank.study.runs.manifest import Manifest
from emabank.study.studies.catalogue import STUDIES
from emabank.study.studies.scales import Scale
from tests.study.report.example_results import PAIRS, make_results, make_setting
from tests.support.processes import run

ALWAYS = {"claims.md", "claims.csv", "claims.json", PAGE, "files.json"}


def write_name(figure: Figure, path: Path, *, file_format: str) -> None:
    path.write_text(f"{figure.name} as {file_format}")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the name of a figure instead of drawing it."""
    monkeypatch.setattr(write, "draw", write_name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of everything, without drawings."""
    skipped = (Skipped("notes.txt", "no run of emabank"),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "draw", write_name)
        return build_report(replace(make_results(), skipped=skipped), tmp_path_factory.mktemp("whole"))


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def expected(report: Report) -> set[str]:
    tables = {f"tables/{table.name}.{ending}" for table in report.tables for ending in ("md", "csv", "tex")}
    return tables | {f"figures/{figure.name}.{kind}" for figure in report.figures for kind in ("pdf", "svg")} | ALWAYS


def digest(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names_in(folder)}


def few(*variants: str) -> Results:
    """Results for a table or two and a few small figures."""
    setting = make_setting()
    return make_results(replace(setting, variants={variant: setting.variants[variant] for variant in variants}))


# The whole report ----------------------------------------------------------------------------------------------------


def test_every_table_figure_and_claim_is_written_in_each_format(whole: Report):
    report, folder = whole, whole.page.parent
    assert names_in(folder) == expected(report) and report.page.name == PAGE
    assert len(report.claims) == 21 and len(report.tables) > 30 and len(report.figures) > 15
    for table in report.tables:
        for ending, render in (("md", markdown), ("csv", table_csv), ("tex", latex)):
            assert (folder / f"tables/{table.name}.{ending}").read_text(encoding="utf-8") == render(table)
    for figure in report.figures:
        assert (folder / f"figures/{figure.name}.svg").read_text() == f"{figure.name} as svg"
    rows = list(csv.DictReader(io.StringIO((folder / "claims.csv").read_text(encoding="utf-8"))))
    assert {row["claim"] for row in rows} == {claim.number for claim in report.claims}


def test_file_names_are_unique_when_a_pair_was_run_in_two_ways(tmp_path: Path, quick: None):
    settings = [make_setting(PAIRS[0]), make_setting(PAIRS[5])]
    again = [replace(setting, protocol="protocol-other") for setting in settings]
    report = build_report(make_results(*settings, *again), tmp_path)
    for parts in (report.tables, report.figures):
        assert len({part.name for part in parts}) == len(parts)
    assert names_in(tmp_path) == expected(report)


# Deterministic bytes -------------------------------------------------------------------------------------------------


MAKE = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.study.report.example_results import make_results, make_setting
from dataclasses import replace
from emabank.study.report.write import build_report
setting = make_setting()
results = make_results(replace(setting, variants={{"step": setting.variants["step"]}}))
build_report(results, Path({out!r}))
assert "torch" not in sys.modules
"""


def test_another_process_writes_the_same_bytes_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build_report(few("step"), tmp_path / "here")
    monkeypatch.setenv("PYTHONHASHSEED", "1")  # another order of sets
    tests = str(Path(__file__).parents[3])
    finished = run(MAKE.format(tests=tests, out=str(tmp_path / "there")), blocked=("torch",))
    assert finished.returncode == 0, finished.stderr
    assert digest(tmp_path / "there") == digest(tmp_path / "here")


# The suggested command -----------------------------------------------------------------------------------------------


def manifests(scale: Scale, *names: str, state: str = "done") -> list[Manifest]:
    return [Manifest(study=name, scale=scale, command=f"emabank run {name}", state=state) for name in names]


@pytest.mark.parametrize(
    ("studies", "command"),
    [
        ([], "emabank run all --scale demo"),
        (manifests("demo", "dynamics"), "emabank run all --scale demo"),
        (manifests("demo", *STUDIES), "emabank run all --scale small"),
        (manifests("demo", *STUDIES) + manifests("small", "dynamics"), "emabank run all --scale small"),
        (manifests("small", *STUDIES), "emabank run all --scale paper"),
        (manifests("demo", *STUDIES) + manifests("small", *STUDIES), "emabank run all --scale paper"),
        (manifests("paper", "transfer"), "emabank run all --scale paper"),
        (manifests("demo", *STUDIES) + manifests("small", "dynamics", state="running"), "emabank run dynamics"),
        (manifests("demo", "transfer", state="failed") + manifests("demo", "dynamics"), "emabank run transfer"),
    ],
)
def test_the_suggested_command_runs_what_is_missing(studies: list[Manifest], command: str):
    assert try_next(Results(studies=studies)) == command


def test_the_suggested_command_uses_the_same_folder():
    assert try_next(Results(), runs=Path("my runs")) == "emabank run all --scale demo --runs 'my runs'"
    running = Results(studies=manifests("demo", "dynamics", state="running"))
    assert try_next(running, runs=Path("mine")) == "emabank run dynamics", "a manifest has the full command"


# Writing files -------------------------------------------------------------------------------------------------------


def files(**texts: str) -> dict[str, Callable[[Path], object]]:
    """Writers of these texts by file name; two underscores are a slash, one is a dot."""
    return {
        name.replace("__", "/").replace("_", "."): lambda path, text=text: path.write_text(text)
        for name, text in texts.items()
    }


def contents(folder: Path) -> dict[str, str]:
    """All files by name, hidden ones too, without the list."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if name != REPORT_FILES}


def listed(folder: Path) -> list[str]:
    return json.loads((folder / REPORT_FILES).read_text())


def test_progress_counts_written_files(tmp_path: Path):
    calls: list[tuple[int, int, int]] = []
    write_files(
        tmp_path,
        files(a_md="", b_md="", c_md=""),
        progress=lambda done, total: calls.append((done, total, len(contents(tmp_path)))),
    )
    assert calls == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]


# Stale files ---------------------------------------------------------------------------------------------------------


def test_stale_files_are_removed_with_their_empty_folders(tmp_path: Path):
    write_files(tmp_path, files(index_html="1", tables__demo__a_md="1", tables__small__b_md="1", figures__x__y_png="1"))
    write_files(tmp_path, files(index_html="2", tables__demo__a_md="2"))
    assert contents(tmp_path) == {"index.html": "2", "tables/demo/a.md": "2"}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["demo", "tables"]
    assert listed(tmp_path) == ["index.html", "tables/demo/a.md"]


def test_foreign_files_stay(tmp_path: Path):
    write_files(tmp_path, files(tables__a_md="1", tables__b_md="1"))
    (tmp_path / "tables" / "mine.md").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    write_files(tmp_path, files(tables__b_md="2"))
    write_files(tmp_path, {})
    assert contents(tmp_path) == {"tables/mine.md": "mine", "notes.txt": "mine"}


@pytest.mark.parametrize(
    "name", ["../precious.txt", "tables/../../precious.txt", "/{}/precious.txt", "away/precious.txt"]
)
def test_files_outside_the_report_are_never_removed(name: str, tmp_path: Path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    folder = tmp_path / "report"
    (folder / "tables").mkdir(parents=True)
    (folder / "away").symlink_to(tmp_path)
    (folder / REPORT_FILES).write_text(json.dumps([name.format(str(tmp_path).lstrip("/"))]))
    write_files(folder, files(a_md="1"))
    assert precious.read_text() == "mine" and listed(folder) == ["a.md"]


def test_a_folder_with_the_name_of_a_file_stays(tmp_path: Path):
    (tmp_path / "a.md").mkdir()
    (tmp_path / REPORT_FILES).write_text('["a.md"]')
    write_files(tmp_path, files(b_md="1"))
    assert (tmp_path / "a.md").is_dir()


@pytest.mark.parametrize("text", ["", "{", "3", '{"a.md": 1}', "[3, null]", "[" * 100_000, "\udcff"])
def test_a_damaged_list_removes_nothing(text: str, tmp_path: Path):
    (tmp_path / "a.md").write_text("mine")
    (tmp_path / REPORT_FILES).write_bytes(text.encode("utf-8", "surrogateescape"))
    write_files(tmp_path, files(b_md="1"))
    assert contents(tmp_path) == {"a.md": "mine", "b.md": "1"} and listed(tmp_path) == ["b.md"]


# Errors --------------------------------------------------------------------------------------------------------------


def failing_writer(error: BaseException) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        path.write_text("half")
        raise error

    return write


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no"), KeyboardInterrupt()])
def test_a_failed_write_keeps_the_old_file(error: BaseException, tmp_path: Path):
    write_files(tmp_path, files(a_md="old", b_md="old", c_md="old"))
    with pytest.raises(type(error)):
        write_files(tmp_path, {**files(a_md="new"), "b.md": failing_writer(error), **files(d_md="new")})
    assert contents(tmp_path) == {"a.md": "new", "b.md": "old", "c.md": "old"}
    assert listed(tmp_path) == ["a.md", "b.md", "c.md", "d.md"], "files about to be written are listed"
    write_files(tmp_path, files(d_md="new"))
    assert contents(tmp_path) == {"d.md": "new"}


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path):
    write_files(tmp_path, files(a_md="1", b_md="1"))
    (tmp_path / f".{'0f' * 8}.tmp").write_text("half")
    (tmp_path / ".mine.tmp").write_text("mine")
    write_files(tmp_path, files(a_md="2"))
    assert contents(tmp_path) == {"a.md": "2", ".mine.tmp": "mine"}
