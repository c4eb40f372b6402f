"""The site builds strictly, every public name is described, and nothing is loaded from elsewhere."""

import gc
import re
import subprocess
import sys
import warnings
from pathlib import Path

import griffe
import pytest

from docs.gather import GATHERED, ROOT, SiteError, gather, missing, shown_names, undocumented

pytest.importorskip("mkdocs", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # mkdocs.yml names the folder that is gathered; two builds at once would be in each other's way.
    commands = (
        [sys.executable, "docs/gather.py"],
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
    )
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_of_docs_is_there(site: Path):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    assert GATHERED.is_dir()


def test_nothing_is_loaded_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert [address for address in loaded if "//" in address and not address.startswith("data:")] == [], page.name


# Gathering ------------------------------------------------------------------------------------------------------------


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


def test_a_public_name_that_no_page_shows_is_found(loose: griffe.Module):
    assert missing(loose, shown_names("# API\n\n::: loose.Told\n    options:\n")) == ["loose.forgotten"]
