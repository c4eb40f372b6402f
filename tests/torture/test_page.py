"""The page about trust: its figures are those of the run that is kept beside it."""

import json

from tests.torture.page import DOCS, with_table


def test_the_table_is_made_of_the_figures_of_a_real_run() -> None:
    page, results = (DOCS / "trust.md").read_text(), json.loads((DOCS / "torture.json").read_text())
    assert with_table(page, results) == page
    assert results and all(figures["seconds"] > 0 for figures in results.values())


def test_nothing_was_lost_and_nothing_ran() -> None:
    for name, figures in json.loads((DOCS / "torture.json").read_text()).items():
        assert not figures.get("lost") and not figures.get("ran") and not figures.get("other_errors"), name


def test_control_other_figures_make_another_page() -> None:
    page = (DOCS / "trust.md").read_text()
    assert with_table(page, {"made up": {"faults": 1, "seconds": 1.0, "seed": 0}}) != page
