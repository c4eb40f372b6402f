"""The page about frameworks and migration is run: its Python blocks in order."""

import re
from pathlib import Path

import pytest
from pages import run_python

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "integrations.md").read_text()
FRAMEWORKS = ("lightning", "transformers", "accelerate")


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`")
@pytest.mark.filterwarnings("ignore:.*pin_memory. argument is set as true")
def test_the_python_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for framework in FRAMEWORKS:
        pytest.importorskip(framework, reason=f"the extra {framework} is not installed")
    monkeypatch.chdir(tmp_path)
    assert run_python(PAGE, "integrations.md") == 6
    said = capsys.readouterr().out
    assert said.count("Best(criterion=") == 3
    assert (tmp_path / "run" / "checkpoint-24" / "emabank.pt").is_file()


def test_every_extra_that_it_names_is_there() -> None:
    asked = set(re.findall(r"emabank\[(\w+)\]", PAGE))
    assert asked == set(FRAMEWORKS)
    assert asked <= set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
