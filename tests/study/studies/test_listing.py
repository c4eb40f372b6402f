"""The command `emabank list` at its real scales: every study with its runs and its time, quickly and in few words."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from emabank.study.studies.catalogue import STUDIES, wanted
from emabank.study.studies.cost import CORES, Speed
from emabank.study.studies.listing import list_studies
from emabank.study.studies.scales import SCALES


def said(scale: Any, width: int = 300) -> str:
    file = io.StringIO()
    list_studies(scale, Console(file=file, width=width, color_system=None))
    return file.getvalue()


def rows(scale: Any) -> dict[str, list[str]]:
    """The rows of the table by study: pairs, runs, time."""
    split = [re.split(r"\s{2,}", line.strip()) for line in said(scale).splitlines()]
    return {row[0]: row[2:] for row in split if row[0] in (*STUDIES, "all")}


@pytest.mark.parametrize("scale", SCALES)
def test_every_study_has_its_runs_and_its_time(scale: Any):
    found = rows(scale)
    assert list(found) == [*STUDIES, "all"]
    for name, row in found.items():
        assert re.fullmatch(r"\d+(\.\d)? (s|min|h|days)", row[-1]), name
        assert int(row[-2]) > 0
    runs = {name: int(row[-2]) for name, row in found.items()}
    assert max(runs[name] for name in STUDIES) < runs["all"] < sum(runs[name] for name in STUDIES)


def test_the_runs_of_the_demo_scale():
    assert {name: rows("demo")[name][-2] for name in ("batchnorm", "generalization", "all")} == {
        "batchnorm": "15",
        "generalization": "75",
        "all": "96",
    }


@pytest.mark.parametrize("scale", SCALES)
def test_it_says_what_the_time_stands_for_and_where_to_have_it_measured(scale: Any):
    words = said(scale).splitlines()[-1]
    assert words.startswith(f"Scale {scale}, 3 seeds, networks of ")
    assert f"Time: about, for everything from nothing, on {CORES} cores like ours" in words
    assert "`emabank run STUDY --dry-run` measures this machine" in words
    sizes = {"demo": "18,370 to 42,430", "small": "299,908 to 497,802", "paper": "11,173,962 to 36,536,884"}
    assert f"networks of {sizes[scale]} parameters" in words


@pytest.mark.parametrize("scale", SCALES)
def test_every_letter_is_explained(scale: Any):
    explained = re.findall(r"^  ([a-z])  .*, for (\S+)$", said(scale), re.MULTILINE)
    assert [pair for _, pair in explained] == [pair.name for pair in wanted(STUDIES.values(), scale)]
    letters = {letter for letter, _ in explained}
    assert {letter for name, row in rows(scale).items() if name != "all" for letter in row[0]} == letters


def test_the_time_is_that_of_the_yardstick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.studies.listing.usual_speed", lambda run: Speed(1.0, 0.0, 0.0))
    # 18 runs on 480 of 600 images, 25 epochs each; 2 cores.
    assert rows("demo")["lr-search"][1:] == ["18", "30.0 h"]


@pytest.mark.parametrize("scale", SCALES)
def test_it_is_whole_in_80_columns(scale: Any):
    lines = said(scale, width=80).splitlines()
    assert all(len(line) <= 80 for line in lines) and "…" not in "".join(lines)
    assert {line.split()[0] for line in lines if line and not line.startswith(" ")} >= {*STUDIES, "all"}
