"""What the pages show of the results is what was kept."""

from pathlib import Path

import pytest
from shown import KEPT, PAGES, verdicts, with_blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_show_what_was_kept(page: Path):
    text = page.read_text()
    assert "<!-- made by results/shown.py: claims -->" in text
    assert with_blocks(text) == text, "run `python results/shown.py`"


def test_every_claim_is_counted_once():
    assert sum(int(part.split()[0]) for part in verdicts(KEPT).rstrip(".").split(", ")) == 19


def test_control_a_number_that_was_changed_by_hand_is_seen(tmp_path: Path):
    header = "claim,title,claim_verdict,verdict\n"
    (tmp_path / "claims.csv").write_text(header + "2,Later,reproduced,reproduced\n1,Now,inconclusive,inconclusive\n")
    page = "<!-- made by results/shown.py: claims -->\nby hand\n<!-- end -->\n"
    made = with_blocks(page, tmp_path)
    assert "| 1 | Now | inconclusive | 0, 0, 1 |\n| 2 | Later | **reproduced** | 1, 0, 0 |" in made
    assert with_blocks(made, tmp_path) == made != page
