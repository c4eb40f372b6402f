"""The package's one dependency, its version and its lower bounds."""

import re
from importlib import metadata
from pathlib import Path

import emabank

ROOT = Path(__file__).parents[1]
REQUIREMENTS = [requirement.replace(" ", "") for requirement in metadata.requires("emabank") or []]


def test_the_library_depends_on_torch_alone() -> None:
    assert [re.split("[>=]", name)[0] for name in REQUIREMENTS if "extra==" not in name] == ["torch"]


def test_the_lowest_tested_versions_are_the_lower_bounds() -> None:
    bounds = dict(
        re.findall(r"^([\w.-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(REQUIREMENTS).lower().replace("_", "-"), re.M)
    )
    lines = (ROOT / "constraints-lowest.txt").read_text().lower().replace("_", "-").split("\n")
    lowest = dict(line.strip().split("==") for line in lines if line.strip() and not line.startswith("#"))
    assert {"torch", "safetensors", "pandas"} <= set(lowest)
    for name, version in lowest.items():
        assert re.sub(r"(\.0)+$", "", version) == re.sub(r"(\.0)+$", "", bounds[name]), name


def test_installed_and_cited_versions_match() -> None:
    assert metadata.version("emabank") == emabank.__version__
    assert f"\nversion: {emabank.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_description_on_a_package_index_has_no_links_that_lead_nowhere() -> None:
    description = metadata.metadata("emabank").get_payload()
    links = re.findall(r"\]\(([^)]*)\)", str(description))
    assert links
    assert all(link.startswith("https://") for link in links), links
