"""All tables together: their names, one set for each scale, every form of each, and evidence with holes in it."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from emabank.study.report.evidence import Evidence, Setting
from emabank.study.report.forms.csv import csv
from emabank.study.report.forms.latex import latex
from emabank.study.report.forms.markdown import markdown
from emabank.study.report.forms.terminal import terminal
from emabank.study.report.sheet import Sheet
from emabank.study.report.tables.all import sheets
from tests.study.report.made_evidence import ARMS, PAIRS, made_evidence
from tests.study.report.tables.looking import first_seeds, setting, whole
from tests.support.processes import run

NAMES = {
    "generalization/headline", "generalization/differences", "generalization/summary-80", "label-noise/test-accuracy",
    "label-noise/memorisation", "constant-lr/peak", "consistency/agreement", "consistency/differences",
    "transfer/linear",
    "calibration/ece", "lr-search/rates", "batchnorm/sensitivity", "sampling-period/accuracy", "step-decay/end",
    "bootstrap/accuracy", "posthoc/windows", "setup/hyperparameters",
    *(f"generalization/full-{pair}-{share}" for pair in PAIRS[:7] for share in (80, 100)),
}  # fmt: skip
OF_NO_SCALE = {"sampling-period/equivalence", "sampling-period/overhead"}


@pytest.fixture(scope="module")
def everything() -> list[Sheet]:
    return sheets(made_evidence(*map(setting, PAIRS)))


def test_every_table_is_there_under_its_name_and_whole(everything: list[Sheet]):
    names = [sheet.name for sheet in everything]
    assert (
        set(names) == {f"demo/{name}" for name in NAMES} | OF_NO_SCALE
        and len(names) == len(set(names))
        and whole(everything)
    )


def test_every_table_knows_its_study_and_its_scale(everything: list[Sheet]):
    begins = {
        sheet.name: f"{sheet.study}/" if sheet.name in OF_NO_SCALE else f"demo/{sheet.study}/" for sheet in everything
    }
    assert all(sheet.study and sheet.name.startswith(begins[sheet.name]) for sheet in everything)
    assert all(sheet.scale == ("" if sheet.name in OF_NO_SCALE else "demo") for sheet in everything)


def test_the_same_evidence_gives_the_same_sheets(everything: list[Sheet]):
    assert sheets(made_evidence(*map(setting, PAIRS))) == everything


def test_names_begin_with_the_scale_and_arithmetic_is_there_once():
    both = made_evidence(setting(), replace(setting(), scale="paper"))
    names = [sheet.name for sheet in sheets(both)]
    assert len(names) == len(set(names)) and {"demo/generalization/headline", "paper/transfer/linear"} <= set(names)
    assert {name for name in names if not name.startswith(("demo/", "paper/"))} == OF_NO_SCALE
    assert names.index("paper/generalization/headline") < names.index("demo/generalization/headline")


def test_every_sheet_has_all_its_forms(everything: list[Sheet]):
    for sheet in everything:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(terminal(sheet))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) <= 80, sheet.name
        assert sheet.title.split()[0] in markdown(sheet)
        assert latex(sheet).count(r"\\" + "\n") >= len(sheet.rows)
        assert csv(sheet).count(f"\n{sheet.name},") >= len(sheet.rows)


def holes() -> list[Setting]:
    """Settings in which something is missing."""
    one = setting()
    bare = tuple(replace(run, curves={}) for run in one.arms["refit"])
    return [
        replace(one, tables=[]), replace(one, arms={}), replace(one, choices=[]), replace(one, averages=()),
        replace(one, config={}), replace(one, tables=[], arms={}, choices=[], config={}, averages=()),
        replace(one, pair="something-else"), replace(one, arms=dict.fromkeys(ARMS, ())),
        replace(one, arms=dict.fromkeys(ARMS, bare)), first_seeds(one, 1), first_seeds(one, 2),
        replace(one, tables=[{**table, "values": {}} for table in one.tables]),
        replace(one, tables=[{**table, "values": dict.fromkeys(table["values"], [None] * 3)} for table in one.tables]),
        replace(one, tables=[table for table in one.tables if table["trained_on"] == "80%"]),
    ]  # fmt: skip


@pytest.mark.parametrize("place", range(len(holes())))
def test_whatever_is_missing_tables_come_out_whole_or_not_at_all(place: int):
    made = sheets(made_evidence(holes()[place]))
    assert {sheet.name for sheet in made} >= OF_NO_SCALE and whole(made) and all(sheet.rows for sheet in made)
    for sheet in made:
        for form in (markdown, latex, csv, terminal):
            form(sheet)


def test_a_single_seed_never_has_a_spread():
    for sheet in sheets(made_evidence(first_seeds(setting(), 1))):
        if sheet.name not in OF_NO_SCALE:
            assert all(cell.std is None and cell.n in (0, 1) for _, cells in sheet.rows for cell in cells), sheet.name


def test_with_nothing_there_is_the_arithmetic_alone():
    assert [sheet.name for sheet in sheets(Evidence())] == ["sampling-period/equivalence"]


def test_tables_and_forms_are_made_without_torch():
    code = """
import sys
from emabank.study.report.evidence import Evidence
from emabank.study.report.forms import csv, latex, markdown, terminal
from emabank.study.report.tables.all import sheets
for sheet in sheets(Evidence()):
    print(len(csv.csv(sheet)), len(latex.latex(sheet)), len(markdown.markdown(sheet)), terminal.terminal(sheet))
assert "torch" not in sys.modules
"""
    done = run(code, blocked=("torch",))
    assert done.returncode == 0, done.stderr
