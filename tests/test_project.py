"""What pyproject.toml, the two files of constraints and CITATION.cff say of each other."""

import re
from importlib import metadata
from pathlib import Path

import pytest

import emabank

ROOT = Path(__file__).parents[1]
REQUIREMENTS = metadata.requires("emabank") or []


def normal(name: str) -> str:
    """A distribution's name as the packaging standard compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pinned}


def direct() -> set[str]:
    return {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in REQUIREMENTS}  # pyright: ignore[reportOptionalSubscript]


def test_every_direct_dependency_is_pinned_and_nothing_else():
    assert set(pins()) == direct()


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_dependency_has_an_honest_lower_bound_and_no_upper_one(requirement):
    assert re.match(r"[\w.-]+(\[\w+\])?>=[\d.]+(;|$)", requirement.replace(" ", ""))


def test_the_library_depends_on_torch_alone():
    assert [normal(r.split(">")[0]) for r in REQUIREMENTS if "extra ==" not in r] == ["torch"]


# Lower bounds --------------------------------------------------------------------------------------------------------


def numbers(version: str) -> list[int]:
    """A version to compare: 2.6 and 2.6.0 are one."""
    parts = [int(part) for part in version.split(".")]
    return parts + [0] * (4 - len(parts))


def wrong_lowest(lowest: dict[str, str]) -> set[str]:
    """The packages that would be tested with another version than their lower bound, or have none."""
    bounds = {name: bound for name, (_, bound) in required().items()}
    return {name for name, version in lowest.items() if numbers(bounds.get(name, "0")) != numbers(version)}


def test_the_lowest_versions_that_are_tested_are_the_lower_bounds():
    assert wrong_lowest(pins("constraints-lowest.txt")) == set()


def test_the_lowest_versions_of_the_library_and_the_study_are_tested():
    ours = {name for name, (extras, _) in required().items() if not extras or extras & {"safetensors", "study"}}
    assert {"torch", "safetensors", "pandas"} <= ours <= set(pins("constraints-lowest.txt"))


def test_every_other_lower_bound_is_of_the_release_that_is_pinned():
    others = {name: bound for name, (_, bound) in required().items() if name not in pins("constraints-lowest.txt")}
    assert {"lightning", "transformers", "ray"} <= set(others)
    for name, bound in others.items():
        assert "." in bound and f"{pins()[name]}.".startswith(f"{bound}."), name


@pytest.mark.parametrize(
    ("name", "version"), [("torch", "2.6.1"), ("torch", "2.7.0"), ("rich", "13"), ("nothing", "1.0")]
)
def test_control_a_lowest_version_that_differs_is_seen(name: str, version: str):
    assert wrong_lowest(pins("constraints-lowest.txt") | {name: version}) == {name}


# The bill ------------------------------------------------------------------------------------------------------------


def test_the_bill_of_dependencies_is_that_of_the_project():
    bill = bill_of(read_bill())
    assert set(bill) == direct()
    for name, (extras, lowest, pinned, reason) in bill.items():
        assert pinned == pins()[name], name
        assert (extras, lowest) == required()[name], name
        assert len(reason) > 3, name


def read_bill() -> str:
    return (ROOT / "docs/dependencies.md").read_text()


def bill_of(text: str) -> dict[str, tuple[set[str], str, str, str]]:
    """Extras, lowest version, pinned version and reason by package, as the table has them."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {
        normal(name): (set(extras.split(", ")) - {"(always)"}, lowest, pinned, reason)
        for name, extras, lowest, pinned, reason in cells[2:]
    }


def required() -> dict[str, tuple[set[str], str]]:
    """Extras and lowest version by package, as pyproject.toml has them."""
    found: dict[str, tuple[set[str], str]] = {}
    for requirement in REQUIREMENTS:
        name, lowest = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement.replace(" ", "")).groups()  # pyright: ignore
        extras, known = found.setdefault(normal(name), (set(), lowest))
        assert known == lowest, f"{name} has two lower bounds"
        extras.update(re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement))
    return found


@pytest.mark.parametrize(
    ("before", "after"), [("| 3.1.6 |", "| 3.1.5 |"), ("| rich | study", "| rich | dev"), ("| scipy |", "| scypi |")]
)
def test_control_a_bill_that_differs_is_seen(before: str, after: str):
    right, wrong = bill_of(read_bill()), bill_of(read_bill().replace(before, after))
    assert right != wrong and read_bill().count(before) == 1


def test_the_version_stands_in_one_place_and_is_cited():
    assert metadata.version("emabank") == emabank.__version__
    assert f"\nversion: {emabank.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_package_carries_its_types_and_its_licences():
    assert (ROOT / "src/emabank/py.typed").exists()
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "CC BY 4.0" in (ROOT / "src/emabank/study/data/digits.txt").read_text()


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 60
