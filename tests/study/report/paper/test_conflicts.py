"""Where the paper disagrees with itself: all known places are found, both values stay, and the docs list them."""

from collections import Counter
from pathlib import Path

import pytest

from emabank.study.report.paper.conflicts import CONFLICTS, KINDS, RULES, found_in, markdown
from emabank.study.report.paper.numbers import everything

DOCS = Path(__file__).parents[4] / "docs/paper.md"

# Seen by reading the paper, before there was a rule for any of them: two texts and the items they stand in.
READ = [
    ("78.55 ± 0.28", "Table 1", "78.54 ± 0.28", "Table 8"),
    ("73.64 ± 0.13", "Table 1", "73.62 ± 0.13", "Table 12"),
    ("72.3 ± 0.19", "Table 1", "72.08 ± 0.06", "Table 12"),
    ("73.64 ± 0.13", "Table 1", "1.13", "Table 1"),
    ("72.3 ± 0.19", "Table 1", "1.06", "Table 1"),
    ("82.72 ± 0.16", "Table 1", "82.73 ± 0.16", "Table 10"),
    ("81.90 ± 0.16", "Table 1", "81.91 ± 0.33", "Table 10"),
    ("0.15", "Table 1", "0.17 ± 0.02", "Table 14"),
    ("72.3 ± 0.19", "Table 1", "73.28 ± 0.19", "Table 1"),
    ("67.05", "Table 3", "67.06 ± 0.18", "Table 16"),
    ("15.32 ± 0.13", "Table 3", "15.35 ± 0.13", "Table 16"),
    ("0.013 ± 0.0", "Table 3", "0.01 ± 0.0", "Table 14"),
    ("0.67 ± 0.02", "Table 3", "0.676 ± 0.023", "Table 12"),
    ("0.09 ± 0.01", "Table 3", "0.087 ± 0.003", "Table 8"),
    ("[143, 139, 156]", "Table 7", "[143, 139, 155]", "Table 8"),
    ("[133, 112, 129]", "Table 7", "[133, 112, 147]", "Table 8"),
    ("[150, 146, 153]", "Table 11", "[149, 146, 149]", "Table 12"),
    ("[92, 90, 92]", "Table 15", "[92, 89, 92]", "Table 16"),
    ("[60, 63, 51]", "Table 17", "[61, 64, 52]", "Table 18"),
    ("[0.984, 0.984, 0.968]", "Table 7", "[0.992, 0.992, 0.992]", "Table 8"),
    ("[200, 200, 200]", "Table 19", "[111, 118, 113]", "Table 20"),
    ("198", "Table 6", "[200, 197, 199]", "Table 7"),
    ("< 3/4", "Section 3.2", "[150, 146, 153]", "Table 11"),
    ("< 3/4", "Section 3.2", "[160, 162, 126]", "Table 13"),
    ("test set", "Section 4.6", "75.83 ± 0.05", "Table 5"),
    ("WideResNet-18", "Appendix B", "WideResNet-28-10", "Table 9"),
    ("+9.65 pp", "Figure 2", "55.47 ± 0.35", "Table 18"),
    ("100", "Section 4.3", "[91, 82, 85]", "Table 18"),
]


@pytest.mark.parametrize(("one", "there", "other", "elsewhere"), READ)
def test_what_a_reader_saw_is_found(one, there, other, elsewhere):
    found = [
        conflict
        for conflict in CONFLICTS
        if {(one, there), (other, elsewhere)} <= {(each.text, each.item) for each in conflict.printed}
    ]
    assert found, f"{one} in {there} against {other} in {elsewhere}"


def test_every_rule_finds_something_and_every_conflict_is_whole():
    assert all(list(rule(everything())) for rule in RULES)
    assert {conflict.kind for conflict in CONFLICTS} == set(KINDS)
    for conflict in CONFLICTS:
        assert len(conflict.printed) >= 2 and set(conflict.printed) <= set(everything())
        assert conflict.sentence.endswith(".") and not conflict.sentence.endswith("..") and conflict.about
        assert all(each.where in conflict.places and each.text in conflict.places for each in conflict.printed)


def test_conflicts_are_found_once_each():
    times = Counter((conflict.kind, conflict.about, conflict.places) for conflict in CONFLICTS)
    assert max(times.values()) == 1
    assert list(CONFLICTS) == found_in(everything())


def test_refits_have_other_decays_in_thirteen_of_fourteen_columns():
    decays = [conflict for conflict in CONFLICTS if conflict.kind == "choice" and conflict.about.endswith("decay")]
    assert len(decays) == 13
    assert "tiny-imagenet-resnet18, EMA (acc.), decay" not in [conflict.about for conflict in decays]


def test_the_docs_list_all_of_them():
    text = DOCS.read_text(encoding="utf-8")
    assert f"\n\n{markdown().rstrip()}\n\n" in text
    assert markdown().count("\n| ") == len(CONFLICTS) + len(KINDS)
