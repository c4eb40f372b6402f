"""Every known trap of weight averaging (numbered 1 to 64) has a test that carries its number."""

import re
from pathlib import Path


def numbers_in(folder: Path) -> set[int]:
    """The numbers in the names of the test functions below a folder."""
    names = re.findall(r"^def (test_\w+)", "\n".join(p.read_text() for p in folder.rglob("test_*.py")), re.MULTILINE)
    return {int(number) for name in names for number in re.findall(r"trap(\d\d)", name)}


def test_every_trap_has_a_test() -> None:
    assert numbers_in(Path(__file__).parent) == set(range(1, 65))


def test_this_would_notice_a_missing_test(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_trap05_and_trap07_something():\n    ...\n")
    assert numbers_in(tmp_path) == {5, 7}
