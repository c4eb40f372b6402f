"""The report as files: all of it in every form, the same bytes each time, those of an earlier report gone, no torch."""

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
from emabank.study.report.results import REPORT_FILES, Results, Setting, Skipped
from emabank.study.report.write import PAGE, Report, build_report, try_next, write_files
from emabank.study.runs.manifest import Manifest
from emabank.study.studies.catalogue import STUDIES
from emabank.study.studies.scales import Scale
from tests.study.report.made_results import PAIRS, made_results, made_setting
from tests.support.processes import run

OF_NO_SCALE = ("sampling-period/equivalence", "sampling-period/overhead")
ALWAYS = {"claims.md", "claims.csv", "claims.json", PAGE, "files.json"}


def name_of(figure: Figure, path: Path, *, file_format: str) -> None:
    path.write_text(f"{figure.name} as {file_format}")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn: a picture is the name of its figure."""
    monkeypatch.setattr(write, "draw", name_of)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of everything, with such pictures."""
    left_out = (Skipped("notes.txt", "no run of emabank"),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "draw", name_of)
        return build_report(replace(made_results(), skipped=left_out), tmp_path_factory.mktemp("whole"))


def there(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def expected(report: Report) -> set[str]:
    tables = {f"tables/{table.name}.{ending}" for table in report.tables for ending in ("md", "csv", "tex")}
    return tables | {f"figures/{figure.name}.{kind}" for figure in report.figures for kind in ("pdf", "svg")} | ALWAYS


def digest(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in there(folder)}


def few(*variants: str) -> Results:
    """Results for a table or two and a few small figures."""
    setting = made_setting()
    return made_results(replace(setting, variants={variant: setting.variants[variant] for variant in variants}))


# All of it -----------------------------------------------------------------------------------------------------------


def test_every_table_figure_and_claim_is_a_file_in_each_of_its_forms(whole: Report):
    report, folder = whole, whole.page.parent
    assert there(folder) == expected(report) and report.page.name == PAGE
    assert len(report.claims) == 21 and len(report.tables) > 30 and len(report.figures) > 15
    for table in report.tables:
        for ending, form in (("md", markdown), ("csv", table_csv), ("tex", latex)):
            assert (folder / f"tables/{table.name}.{ending}").read_text(encoding="utf-8") == form(table)
    for figure in report.figures:
        assert (folder / f"figures/{figure.name}.svg").read_text() == f"{figure.name} as svg"
    rows = list(csv.DictReader(io.StringIO((folder / "claims.csv").read_text(encoding="utf-8"))))
    assert {row["claim"] for row in rows} == {claim.number for claim in report.claims}


def twice(pair: str, scale: Scale) -> list[Setting]:
    return [made_setting(pair, scale=scale), replace(made_setting(pair, scale=scale), protocol="protocol-other")]


def test_no_two_files_have_one_name_though_a_pair_was_run_in_two_ways(tmp_path: Path, quick: None):
    report = build_report(
        made_results(*(each for pair in (PAIRS[0], PAIRS[5]) for each in twice(pair, "demo"))), tmp_path
    )
    names = [each.name for each in (*report.tables, *report.figures)]
    tables, drawn = names[: len(report.tables)], names[len(report.tables) :]
    assert len(set(tables)) == len(tables) and len(set(drawn)) == len(drawn)
    assert there(tmp_path) == expected(report)


def test_from_nothing_there_are_claims_that_were_not_run_and_a_page(tmp_path: Path):
    report = build_report(Results(), tmp_path / "deep" / "report")
    assert there(tmp_path / "deep" / "report") == expected(report)
    assert [table.name for table in report.tables] == ["sampling-period/equivalence"] and not report.figures
    assert {claim.verdict for claim in report.claims} == {"not run"}


# The same each time --------------------------------------------------------------------------------------------------


MAKE = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.study.report.made_results import made_results, made_setting
from dataclasses import replace
from emabank.study.report.write import build_report
setting = made_setting()
build_report({results}, Path({out!r}))
assert "torch" not in sys.modules
"""
FEW = 'made_results(replace(setting, variants={variant: setting.variants[variant] for variant in ("step",)}))'


def in_another_process(out: Path, results: str, seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a report with another order of sets."""
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    tests = str(Path(__file__).parents[3])
    done = run(MAKE.format(tests=tests, results=results, out=str(out)), blocked=("torch",))
    assert done.returncode == 0, done.stderr


def test_in_another_process_it_is_the_same_bytes_and_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build_report(few("step"), tmp_path / "here")
    in_another_process(tmp_path / "there", FEW, "1", monkeypatch)
    assert digest(tmp_path / "there") == digest(tmp_path / "here")


# Over an earlier report ----------------------------------------------------------------------------------------------


def test_nothing_of_an_earlier_report_misleads(tmp_path: Path, quick: None):
    both = made_results(made_setting(), made_setting(scale="paper"))
    build_report(both, tmp_path)
    (tmp_path / "tables" / "paper" / "mine.md").write_text("mine")
    report = build_report(few("refit"), tmp_path)
    assert there(tmp_path) == expected(report) | {"tables/paper/mine.md"}
    build_report(Results(), tmp_path / "fresh")
    build_report(Results(), tmp_path)
    assert there(tmp_path) - {f"fresh/{name}" for name in there(tmp_path / "fresh")} == {
        "tables/paper/mine.md", *there(tmp_path / "fresh"),
    }  # fmt: skip


# What to try next ----------------------------------------------------------------------------------------------------


def asked(scale: Scale, *names: str, state: str = "done") -> list[Manifest]:
    return [Manifest(study=name, scale=scale, command=f"emabank run {name}", state=state) for name in names]


@pytest.mark.parametrize(
    ("studies", "words"),
    [
        ([], "emabank run all --scale demo"),
        (asked("demo", "dynamics"), "emabank run all --scale demo"),
        (asked("demo", *STUDIES), "emabank run all --scale small"),
        (asked("demo", *STUDIES) + asked("small", "dynamics"), "emabank run all --scale small"),
        (asked("small", *STUDIES), "emabank run all --scale paper"),
        (asked("demo", *STUDIES) + asked("small", *STUDIES), "emabank run all --scale paper"),
        (asked("paper", "transfer"), "emabank run all --scale paper"),
        (asked("demo", *STUDIES) + asked("small", "dynamics", state="running"), "emabank run dynamics"),
        (asked("demo", "transfer", state="failed") + asked("demo", "dynamics"), "emabank run transfer"),
    ],
)
def test_what_to_try_next_shows_more_than_is_there(studies: list[Manifest], words: str):
    assert try_next(Results(studies=studies)) == words


def test_what_to_try_next_goes_on_in_the_same_folder():
    assert try_next(Results(), runs=Path("my runs")) == "emabank run all --scale demo --runs 'my runs'"
    running = Results(studies=asked("demo", "dynamics", state="running"))
    assert try_next(running, runs=Path("mine")) == "emabank run dynamics", "its own command knows where"


# Files, whole or not there --------------------------------------------------------------------------------------------


def files(**given: str) -> dict[str, Callable[[Path], object]]:
    """What writes these texts, by name; two underscores are a slash, one is a point."""
    return {
        name.replace("__", "/").replace("_", "."): lambda path, text=text: path.write_text(text)
        for name, text in given.items()
    }


def contents(folder: Path) -> dict[str, str]:
    """What the folder holds, hidden files too, but for the list."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if name != REPORT_FILES}


def listed(folder: Path) -> list[str]:
    return json.loads((folder / REPORT_FILES).read_text())


# Written -------------------------------------------------------------------------------------------------------------


def test_it_tells_how_many_are_done(tmp_path: Path):
    heard: list[tuple[int, int, int]] = []
    write_files(
        tmp_path,
        files(a_md="", b_md="", c_md=""),
        progress=lambda done, of: heard.append((done, of, len(contents(tmp_path)))),
    )
    assert heard == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]


# Removed -------------------------------------------------------------------------------------------------------------


def test_what_only_an_earlier_report_had_is_removed_with_its_empty_folders(tmp_path: Path):
    write_files(tmp_path, files(index_html="1", tables__demo__a_md="1", tables__small__b_md="1", figures__x__y_png="1"))
    write_files(tmp_path, files(index_html="2", tables__demo__a_md="2"))
    assert contents(tmp_path) == {"index.html": "2", "tables/demo/a.md": "2"}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["demo", "tables"]
    assert listed(tmp_path) == ["index.html", "tables/demo/a.md"]


def test_what_the_report_did_not_write_stays(tmp_path: Path):
    write_files(tmp_path, files(tables__a_md="1", tables__b_md="1"))
    (tmp_path / "tables" / "mine.md").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    write_files(tmp_path, files(tables__b_md="2"))
    write_files(tmp_path, {})
    assert contents(tmp_path) == {"tables/mine.md": "mine", "notes.txt": "mine"}


@pytest.mark.parametrize(
    "name", ["../precious.txt", "tables/../../precious.txt", "/{}/precious.txt", "away/precious.txt"]
)
def test_no_list_makes_it_remove_what_is_elsewhere(name: str, tmp_path: Path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    folder = tmp_path / "report"
    (folder / "tables").mkdir(parents=True)
    (folder / "away").symlink_to(tmp_path)
    (folder / REPORT_FILES).write_text(json.dumps([name.format(str(tmp_path).lstrip("/"))]))
    write_files(folder, files(a_md="1"))
    assert precious.read_text() == "mine" and listed(folder) == ["a.md"]


def test_a_folder_in_the_place_of_a_file_is_left_alone(tmp_path: Path):
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


# When something goes wrong -------------------------------------------------------------------------------------------


def fails(error: BaseException) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        path.write_text("half")
        raise error

    return write


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_finished_leaves_the_old_one_whole(error: BaseException, tmp_path: Path):
    write_files(tmp_path, files(a_md="old", b_md="old", c_md="old"))
    with pytest.raises(type(error)):
        write_files(tmp_path, {**files(a_md="new"), "b.md": fails(error), **files(d_md="new")})
    assert contents(tmp_path) == {"a.md": "new", "b.md": "old", "c.md": "old"}
    assert listed(tmp_path) == ["a.md", "b.md", "c.md", "d.md"], "what was about to be written is known as ours"
    write_files(tmp_path, files(d_md="new"))
    assert contents(tmp_path) == {"d.md": "new"}


def test_what_a_killed_process_was_about_to_write_goes(tmp_path: Path):
    write_files(tmp_path, files(a_md="1", b_md="1"))
    (tmp_path / f".{'0f' * 8}.tmp").write_text("half")
    (tmp_path / ".mine.tmp").write_text("mine")
    write_files(tmp_path, files(a_md="2"))
    assert contents(tmp_path) == {"a.md": "2", ".mine.tmp": "mine"}
