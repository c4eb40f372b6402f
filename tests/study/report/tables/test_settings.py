"""Which settings a table shows, what they are called, and when the paper's numbers can be held against them."""

from dataclasses import replace

import pytest

from emabank.study.report.pairs import CLEAN
from emabank.study.report.tables.settings import (
    FOR_ORIENTATION,
    compares,
    label,
    labels,
    orientation,
    standing_for,
    titled,
)
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import setting, the_papers


def test_settings_come_in_the_order_of_the_pairs_and_all_of_a_pair_are_there():
    one, other = setting("cifar10-resnet18"), setting("cifar100-resnet18")
    again = replace(other, title="again")
    evidence = made_evidence(one, again, other)
    assert standing_for(evidence, "demo", CLEAN) == [again, other, one]
    assert standing_for(evidence, "paper") == []


@pytest.mark.parametrize(
    "data",
    [{"subset": 1000}, {"test_subset": 100}, {"noise": 0.4}, {"labels": "aggregate"}],
    ids=lambda data: next(iter(data)),
)
def test_only_the_papers_own_data_in_full_compares(data):
    real = the_papers("cifar10n-resnet34", config={"data": {"subset": None, "labels": "worse", "noise": 0.0}})
    assert compares(real) and orientation([real]) == ()
    changed = replace(real, config={"data": data})
    assert not compares(changed) and orientation([real, changed]) == (FOR_ORIENTATION,)


def test_another_network_or_data_set_does_not_compare_and_the_label_says_what_it_stands_for():
    real = the_papers("cifar10-resnet18")
    assert label(real) == "cifar10-resnet18"
    assert not compares(replace(real, network="resnet8")) and not compares(replace(real, dataset="digits"))
    assert label(replace(real, network="resnet8", title="x")) == "x (for CIFAR-10, ResNet-18)"


def test_two_settings_with_one_title_are_told_apart():
    one = setting()
    found = labels([one, replace(one, protocol="protocol-2")])
    assert len(set(found)) == 2 and found[1].endswith("protocol-2")


def test_a_setting_alone_is_named_in_the_title_and_several_in_their_rows():
    one, other = setting(), setting("cifar10-resnet18")
    assert titled("What", [one]) == (f"What: {label(one)}", [""])
    assert titled("What", [one, other]) == ("What", [f"{label(one)}: ", f"{label(other)}: "])
