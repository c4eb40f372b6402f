"""The site builds strictly, every public name is described, and nothing is loaded from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.gather import GATHERED, ROOT

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
