"""The gathering of the site's pages: links follow their files, and what is not described is found."""

import gc
import warnings
from pathlib import Path

import griffe
import pytest
from gather import SiteError, gather, missing, shown_names, undocumented

PACKAGE = '''
"""A package."""
from loose.inner import Told as Told
__all__ = ["Told", "forgotten"]
def forgotten():
    """Described, and on no page."""
'''
INNER = '''
"""A module."""
LIMIT = 3
class Base:
    """Described."""
    def silent(self): ...
class Told(Base):
    """Described.

    Attributes:
        listed: in the class.
    """
    listed: int
    below: int
    """Below it."""
    bare: int
    other: "Told"
    _private: int
    def method(self):
        """Described."""
'''


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_links_follow_the_files_that_they_name(tmp_path: Path):
    root = written(
        tmp_path / "project",
        {
            "docs/page.md": "[a](other.md#there) ![b](images/b.svg) [c](../more/read.md) [d](https://a.org) [e](..)",
            "docs/other.md": "# There\n```\n[not](a-link.md)\n```\n",
            "docs/images/b.svg": "<svg/>",
            "docs/gather.py": "",
            "more/read.md": "[home](../docs/page.md) [beside](table.csv)",
            "more/table.csv": "1,2\n",
            "more/unread.md": "",
        },
    )
    taken = gather(root, tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"page.md", "other.md", "images/b.svg", "files/more/read.md", "files/more/table.csv"}
    assert len(taken) == 5
    page = (tmp_path / "out/page.md").read_text()
    assert page == ("[a](other.md#there) ![b](images/b.svg) [c](files/more/read.md) [d](https://a.org) e")
    assert (tmp_path / "out/files/more/read.md").read_text() == "[home](../../page.md) [beside](table.csv)"
    assert "[not](a-link.md)" in (tmp_path / "out/other.md").read_text()


def test_what_an_earlier_gathering_left_is_gone(tmp_path: Path):
    root = written(tmp_path / "project", {"docs/page.md": ""})
    written(tmp_path / "out", {"old.md": ""})
    gather(root, tmp_path / "out")
    assert not (tmp_path / "out/old.md").exists()


@pytest.mark.parametrize("link", ["nowhere.md", "../nowhere.md", "../../outside.md"])
def test_a_link_to_nothing_is_refused_by_name(tmp_path: Path, link: str):
    written(tmp_path, {"outside.md": ""})
    root = written(tmp_path / "project", {"docs/page.md": f"[x]({link})"})
    with pytest.raises(SiteError, match=f"docs/page.md links to {link}, which is not there"):
        gather(root, tmp_path / "out")


@pytest.fixture
def loose(tmp_path: Path) -> griffe.Module:
    files = {f"loose/{name}/__init__.py": '"""Empty."""' for name in ("study", "averaging")}
    written(tmp_path, {**files, "loose/__init__.py": PACKAGE, "loose/inner.py": INNER})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # griffe leaves the listing of a folder open
        package = griffe.load("loose", search_paths=[tmp_path], resolve_aliases=True)
        gc.collect()
    assert isinstance(package, griffe.Module)
    return package


def test_every_name_without_a_description_is_found_inherited_ones_as_well(loose: griffe.Module):
    assert sorted(undocumented(loose, ["loose.Told"])) == ["loose.inner.Told.bare", "loose.inner.Told.silent"]


def test_a_module_is_looked_through(loose: griffe.Module):
    found = set(undocumented(loose, ["loose.inner"]))
    assert {"loose.inner.Base.silent", "loose.inner.Told.bare"} <= found
    assert "loose.inner.LIMIT" not in found


def test_a_public_name_that_no_page_shows_is_found(loose: griffe.Module):
    assert missing(loose, shown_names("# API\n\n::: loose.Told\n    options:\n")) == ["loose.forgotten"]
