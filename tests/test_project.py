"""What protects a user who installs the package: its one dependency, its version and its lower bounds."""

import re
from importlib import metadata
from pathlib import Path

import emabank

ROOT = Path(__file__).parents[1]
REQUIREMENTS = [requirement.replace(" ", "") for requirement in metadata.requires("emabank") or []]


def pins(file: str) -> dict[str, str]:
    lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
    return dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))


def test_the_library_depends_on_torch_alone() -> None:
    assert [re.split("[>=]", name)[0] for name in REQUIREMENTS if "extra==" not in name] == ["torch"]


def test_the_lowest_versions_that_are_tested_are_the_lower_bounds() -> None:
    bounds = dict(
        re.findall(r"^([\w.-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(REQUIREMENTS).lower().replace("_", "-"), re.M)
    )
    lowest = pins("constraints-lowest.txt")
    assert {"torch", "safetensors", "pandas"} <= set(lowest)
    for name, version in lowest.items():
        assert re.sub(r"(\.0)+$", "", version) == re.sub(r"(\.0)+$", "", bounds[name]), name


def test_the_version_stands_in_one_place_and_is_cited() -> None:
    assert metadata.version("emabank") == emabank.__version__
    assert f"\nversion: {emabank.__version__}\n" in (ROOT / "CITATION.cff").read_text()
