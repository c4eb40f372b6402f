"""The tree drawn in docs/architecture.md is the tree there is, in both directions."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/emabank", "tests", "benchmarks", "docs", "examples")


def drawn(text: str) -> dict[str, str]:
    """The files in the first block of the text that draws folders, each with what is said of it."""
    block = re.search(r"^```\n(src/.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block, "docs/architecture.md has no block that begins with src/"
    files: dict[str, str] = {}
    folders: list[str] = []
    for line in block[1].splitlines():
        name, _, words = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], name]
        if not name.endswith("/"):
            assert "".join(folders) not in files, f"{name} is drawn twice"
            files["".join(folders)] = words.strip()
    return files


def there_are(root: Path) -> set[str]:
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    names = {path.relative_to(root).as_posix() for path in paths}
    return {name for name in names if not re.search(r"(^|/)(__pycache__|\.)", name)}  # caches, hidden files


def test_every_file_is_drawn_and_every_drawn_file_is_there():
    tree, files = set(drawn((ROOT / "docs/architecture.md").read_text())), there_are(ROOT)
    assert sorted(files - tree) == [], "not drawn in docs/architecture.md"
    assert sorted(tree - files) == [], "drawn in docs/architecture.md and not there"


def test_every_file_is_explained():
    tree = drawn((ROOT / "docs/architecture.md").read_text())
    assert [name for name, words in tree.items() if not words] == []


def test_control_a_wrong_tree_is_seen(tmp_path):
    text = (
        "```\nsrc/emabank/\n  bank.py   the bank\n  study/\n    demo.py  the demo\ntests/\n  test_bank.py  tests\n```\n"
    )
    assert drawn(text) == {
        "src/emabank/bank.py": "the bank",
        "src/emabank/study/demo.py": "the demo",
        "tests/test_bank.py": "tests",
    }
    (tmp_path / "src/emabank/study").mkdir(parents=True)
    (tmp_path / "src/emabank/bank.py").touch()
    (tmp_path / "src/emabank/study/other.py").touch()
    assert there_are(tmp_path) == {"src/emabank/bank.py", "src/emabank/study/other.py"}
    with pytest.raises(AssertionError, match="drawn twice"):
        drawn("```\nsrc/emabank/\n  bank.py a\n  bank.py b\n```\n")
