"""The command `data`: every file with how it stands, and whether all is well; fetching ends in the same."""

import hashlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study import datafiles
from emabank.study.data.catalogue import DATASETS, Download, File, Published
from emabank.study.datafiles import check_files, fetch_files
from tests.study.data.made_up import write_files

FILES = {"one": b"first", "two": b"second"}


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=40)


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = tuple(
        Download(f"http://127.0.0.1:9/{name}", File(name, len(content), f"md5:{hashlib.md5(content).hexdigest()}"))
        for name, content in FILES.items()
    )
    monkeypatch.setitem(DATASETS, "made-up", Published("made-up", "Made up", "we", "none", downloads))


def test_what_is_whole_is_complete(tmp_path: Path, console: Console):
    write_files(tmp_path, FILES)
    assert check_files("made-up", tmp_path, console=console)
    first, *lines, last = printed(console)
    assert first == "Made up: published by we; terms: none"
    assert [line.split()[:2] for line in lines] == [["ok", f"{tmp_path}/one"], ["ok", f"{tmp_path}/two"]]
    assert last == "made-up: complete"


def test_each_file_that_is_not_whole_has_a_line_of_its_own(tmp_path: Path, console: Console):
    folder = tmp_path / "data [of mine]"  # not markup
    write_files(folder, {"one": b"fist"})
    assert not check_files("made-up", folder, console=console)
    _, one, two, last = printed(console)
    assert one.startswith(f"damaged         {folder}/one is damaged: 4 bytes, where 5 belong; ")
    assert two == f"missing         {folder}/two is missing; it comes from http://127.0.0.1:9/two"
    assert last == (
        f"made-up: not complete; `emabank data fetch made-up --data {folder}` downloads what is missing or wrong"
    )


def test_fetching_shows_how_far_it_is_and_how_all_stands(tmp_path: Path, console: Console, monkeypatch):
    def fetch(name: str, folder: Path, *, tell):
        for done in (0, 5, 11):
            tell(done, 11)
        write_files(folder, FILES)
        return datafiles.check(name, folder)

    monkeypatch.setattr(datafiles, "fetch", fetch)
    assert fetch_files("made-up", tmp_path, console=console)
    lines = printed(console)
    assert lines[:2] == ["bytes: 5 of 11", "bytes: 11 of 11"]
    assert lines[-1] == "made-up: complete" and len(lines) == 6


def test_fetching_from_nowhere_raises_what_the_command_tells(tmp_path: Path, console: Console, monkeypatch):
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    with pytest.raises(ConnectionError, match="http://127.0.0.1:9/one could not be reached"):
        fetch_files("made-up", tmp_path, console=console)
    assert printed(console) == [] and not list(tmp_path.iterdir())


def test_another_name_lists_those_there_are(tmp_path: Path):
    for act in (check_files, fetch_files):
        with pytest.raises(ValueError, match="there is no data set 'cifar11'; there are digits, cifar10, "):
            act("cifar11", tmp_path, console=Console(quiet=True))
