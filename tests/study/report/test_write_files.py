"""The report's files: whole or not there, those of an earlier report gone, those of anyone else left alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from emabank.study.report.results import REPORT_FILES
from emabank.study.report.write import write_files


def files(**given: str) -> dict[str, Callable[[Path], object]]:
    """What writes these texts, by name; two underscores are a slash, one is a point."""
    return {
        name.replace("__", "/").replace("_", "."): lambda path, text=text: path.write_text(text)
        for name, text in given.items()
    }


def there(folder: Path) -> dict[str, str]:
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
        progress=lambda done, of: heard.append((done, of, len(there(tmp_path)))),
    )
    assert heard == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]


# Removed -------------------------------------------------------------------------------------------------------------


def test_what_only_an_earlier_report_had_is_removed_with_its_empty_folders(tmp_path: Path):
    write_files(tmp_path, files(index_html="1", tables__demo__a_md="1", tables__small__b_md="1", figures__x__y_png="1"))
    write_files(tmp_path, files(index_html="2", tables__demo__a_md="2"))
    assert there(tmp_path) == {"index.html": "2", "tables/demo/a.md": "2"}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["demo", "tables"]
    assert listed(tmp_path) == ["index.html", "tables/demo/a.md"]


def test_what_the_report_did_not_write_stays(tmp_path: Path):
    write_files(tmp_path, files(tables__a_md="1", tables__b_md="1"))
    (tmp_path / "tables" / "mine.md").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    write_files(tmp_path, files(tables__b_md="2"))
    write_files(tmp_path, {})
    assert there(tmp_path) == {"tables/mine.md": "mine", "notes.txt": "mine"}


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
    assert there(tmp_path) == {"a.md": "mine", "b.md": "1"} and listed(tmp_path) == ["b.md"]


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
    assert there(tmp_path) == {"a.md": "new", "b.md": "old", "c.md": "old"}
    assert listed(tmp_path) == ["a.md", "b.md", "c.md", "d.md"], "what was about to be written is known as ours"
    write_files(tmp_path, files(d_md="new"))
    assert there(tmp_path) == {"d.md": "new"}


def test_what_a_killed_process_was_about_to_write_goes(tmp_path: Path):
    write_files(tmp_path, files(a_md="1", b_md="1"))
    (tmp_path / f".{'0f' * 8}.tmp").write_text("half")
    (tmp_path / ".mine.tmp").write_text("mine")
    write_files(tmp_path, files(a_md="2"))
    assert there(tmp_path) == {"a.md": "2", ".mine.tmp": "mine"}
