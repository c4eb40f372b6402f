"""What the pages show of the results is what was kept."""

import json
from pathlib import Path

import pytest
from shown import KEPT, PAGES, claims, verdicts, with_blocks


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


def test_a_claim_that_was_not_run_at_first_has_the_verdict_of_the_repetition_and_says_so(tmp_path: Path):
    header, first, again = "claim,title,claim_verdict,verdict\n", tmp_path / "first", tmp_path / "repeated"
    for folder in (first, again):
        folder.mkdir()
    (first / "claims.csv").write_text(header + "1,Now,inconclusive,inconclusive\n2,Later,not run,\n3,Never,not run,\n")
    (again / "claims.csv").write_text(
        header + "1,Now,reproduced,reproduced\n2,Later,reproduced,reproduced\n3,Never,not run,\n"
    )
    shown = claims(first)
    assert "| 1 | Now | inconclusive | 0, 0, 1 |" in shown
    assert "| 2 | Later | **reproduced** (repeated) | 1, 0, 0 |" in shown
    assert "| 3 | Never | not run | – |" in shown
    assert verdicts(first) == "1 inconclusive, 1 reproduced, 1 not run."


def test_a_block_of_the_repetition_is_made_from_its_folder(tmp_path: Path):
    about = json.loads((KEPT / "about.json").read_text())
    again = tmp_path / "repeated"
    again.mkdir()
    (again / "about.json").write_text(json.dumps({**about, "runs": 987}))
    page = "<!-- made by results/shown.py: runs repeated -->\n<!-- end -->\n"
    made = with_blocks(page, tmp_path / "first")
    assert "987 runs" in made and with_blocks(made, tmp_path / "first") == made
