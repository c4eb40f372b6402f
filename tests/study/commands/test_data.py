"""The command `data`: the state of every file, and whether the data set is complete."""

import hashlib
from pathlib import Path

import pytest

from emabank.study.commands.studies import DataArguments
from emabank.study.data import download
from emabank.study.data.catalogue import DATASETS, DatasetInfo, Download, File
from tests.study.data.made_up import write_files

FILES = {"one": b"first", "two": b"second"}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = tuple(
        Download(f"http://127.0.0.1:9/{name}", File(name, len(content), f"md5:{hashlib.md5(content).hexdigest()}"))
        for name, content in FILES.items()
    )
    monkeypatch.setitem(DATASETS, "made-up", DatasetInfo("made-up", "Made up", "we", "none", downloads))


def run_data(action: str, name: str, folder: Path) -> int:
    return DataArguments(action=action, name=name, data=folder).run([])  # type: ignore[arg-type]


def test_check_of_complete_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_files(tmp_path, FILES)
    assert run_data("check", "made-up", tmp_path) == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "Made up: published by we; terms: none"
    assert [line.split()[:2] for line in lines] == [["ok", f"{tmp_path}/one"], ["ok", f"{tmp_path}/two"]]
    assert last == "made-up: complete"


def test_check_lists_damaged_and_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "data [of mine]"  # rich must not read it as markup
    write_files(folder, {"one": b"fist"})
    assert run_data("check", "made-up", folder) == 1
    _, one, two, last = capsys.readouterr().out.splitlines()
    assert one.startswith(f"damaged         {folder}/one is damaged: 4 bytes, where 5 belong; ")
    assert two == f"missing         {folder}/two is missing; it comes from http://127.0.0.1:9/two"
    assert last == (
        f"made-up: not complete; `emabank data fetch made-up --data {folder}` downloads what is missing or wrong"
    )


def test_fetch_prints_its_progress_and_the_state_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fetch(name: str, folder: Path, *, progress):
        for done in (0, 5, 11):
            progress(done, 11)
        write_files(folder, FILES)
        return download.check(name, folder)

    monkeypatch.setattr(download, "fetch", fetch)
    assert run_data("fetch", "made-up", tmp_path) == 0
    output = capsys.readouterr()
    assert output.err.splitlines() == ["bytes: 5 of 11", "bytes: 11 of 11"]
    lines = output.out.splitlines()
    assert lines[-1] == "made-up: complete" and len(lines) == 4
