"""The list of the paper's tables and figures: complete, in order, with a counterpart each, and as the docs have it."""

from pathlib import Path

import pytest

from emabank.study.report.paper.items import ALL_STUDIES, ITEMS, OURS, STUDIES, answers_to, markdown
from emabank.study.report.paper.numbers import FULL, everything

DOCS = Path(__file__).parents[4] / "docs/paper.md"
PARTS = {"Figure 1": "ab", "Figure 4": "abcde", "Table 21": "ab"}


@pytest.mark.parametrize(("kind", "last"), [("Table", 24), ("Figure", 9)])
def test_every_table_and_figure_is_listed_once_in_order_with_its_parts_after_it(kind, last):
    wanted = []
    for number in range(1, last + 1):
        whole = f"{kind} {number}"
        wanted += [whole, *(whole + part for part in PARTS.get(whole, ""))]
    assert [item.number for item in ITEMS if item.number.startswith(kind)] == wanted
    assert all(item.kind == item.number.split()[0].lower() for item in ITEMS)


def test_labels_are_those_of_the_numbers():
    listed = {item.number: item.label for item in ITEMS}
    for each in everything():
        if each.item.startswith(("Table", "Figure")):
            assert listed[each.item] == each.label, each.item
    labels = [item.label for item in ITEMS if item.label]
    assert len(set(labels)) == len(labels)


def test_every_item_has_a_study_and_outputs_and_every_study_answers_to_an_item():
    for item in (*ITEMS, *OURS):
        assert item.study in ALL_STUDIES and item.outputs and item.shows, item
        for output in item.outputs:
            folder, _, name = output.partition("/")
            assert name and "." not in name and folder in (*ALL_STUDIES, "setup"), output
    assert {item.study for item in ITEMS} == set(STUDIES)
    assert {item.study for item in (*ITEMS, *OURS)} == set(ALL_STUDIES)


def test_full_tables_have_the_output_of_their_pair_and_share():
    for (pair, trained_on), number in FULL.items():
        output = f"generalization/full-{pair}-{trained_on.rstrip('%')}"
        assert [item.number for item in ITEMS if output in item.outputs] == [number]


def test_the_outputs_are_these():
    pairs = dict.fromkeys(pair for pair, _ in FULL)
    tables = {output for item in ITEMS if item.kind == "table" for output in item.outputs}
    figures = {output for item in ITEMS if item.kind == "figure" for output in item.outputs}
    assert tables == {
        "generalization/headline", "generalization/summary-80", "label-noise/leaderboard", "consistency/agreement",
        "transfer/linear", "calibration/ece", "lr-search/rates", "batchnorm/sensitivity",
        "sampling-period/equivalence", "setup/hyperparameters",
        *(f"generalization/full-{pair}-{share}" for pair in pairs for share in (80, 100)),
    }  # fmt: skip
    assert figures == {
        "batchnorm/decays", "label-noise/accuracy", "label-noise/memorisation", "constant-lr/accuracy",
        "step-decay/accuracy", "bootstrap/accuracy", "lr-search/curves",
        *(f"dynamics/{pair}" for pair in pairs if pair != "cifar100n-resnet34"),
    }  # fmt: skip
    assert {output for item in OURS for output in item.outputs} == {
        "calibration/reliability", "dynamics/early", "sampling-period/accuracy", "batchnorm/heatmap",
        "sampling-period/overhead", "label-noise/test-accuracy", "posthoc/heatmap", "posthoc/windows",
    }  # fmt: skip
    assert all(not item.number for item in OURS)


def test_an_output_knows_what_it_answers_to():
    assert answers_to("generalization/headline") == "Table 1"
    assert answers_to("dynamics/cifar100-resnet18") == "Figure 1a"
    assert answers_to("dynamics/cifar100-vgg16") == "Figure 4c"
    assert answers_to("batchnorm/decays") == "Figure 1b, Figure 9"
    assert answers_to("batchnorm/heatmap") == answers_to("no such output") == ""
    for item in ITEMS:
        for output in item.outputs:
            assert answers_to(output), output


def test_the_docs_have_both_lists_as_they_are():
    text = DOCS.read_text(encoding="utf-8")
    assert f"\n\n{markdown(ITEMS)}\n\n" in text
    assert f"\n\n{markdown(OURS)}\n\n" in text
