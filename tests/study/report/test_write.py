"""The report as files: all of it in every form, the same bytes each time, nothing of an earlier report, no torch."""

import csv
import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest

from emabank.study.report import write
from emabank.study.report.figures import Figure
from emabank.study.report.render import latex, markdown, table_csv
from emabank.study.report.results import Results, Setting, Skipped
from emabank.study.report.write import PAGE, Report, build_report, try_next
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
    report = build_report(made_results(*(each for pair in PAIRS for each in twice(pair, "demo"))), tmp_path)
    names = [each.name for each in (*report.tables, *report.figures)]
    tables, drawn = names[: len(report.tables)], names[len(report.tables) :]
    assert len(set(tables)) == len(tables) and len(set(drawn)) == len(drawn)
    assert there(tmp_path) == expected(report)


def test_from_nothing_there_are_claims_that_were_not_run_and_a_page(tmp_path: Path):
    report = build_report(Results(), tmp_path / "deep" / "report")
    assert there(tmp_path / "deep" / "report") == expected(report)
    assert [table.name for table in report.tables] == ["sampling-period/equivalence"] and not report.figures
    assert {claim.verdict for claim in report.claims} == {"not run"}


# The page ------------------------------------------------------------------------------------------------------------


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
