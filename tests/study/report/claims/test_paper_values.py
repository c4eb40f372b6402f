"""The paper's values: as typed from the paper once more, every difference that of the two numbers beside it."""

import re

import numpy as np
import pytest

from emabank.study.report.claims.paper_values import _VALUES, LEADERBOARD, paper_value
from emabank.study.report.pairs import PAIRS
from tests.support.processes import run

# Typed from the paper, without numbers.json: claim, statistic, pair and target, text. Every statistic with a number.
TYPED = """
2 when | cifar100-resnet18 | 73.0% (143, 139, 156 of 200, Table 7)
2 when | tiny-imagenet-resnet18 | 67.3% (103, 99, 101 of 150, Table 15)
2 when | cifar10n-resnet34 | 58.3% (124, 109, 117 of 200, Table 19)
2 afterwards | cifar100n-resnet34 | −9.65 (65.15 → 55.50, Section 4.3)
3 end | cifar100n-resnet34 | +0.03 (55.47 → 55.50, Table 18 and Section 4.3)
5 choice | cifar100-resnet18 | +0.55 (77.99 → 78.54, Table 8, EMA (acc.) → α = 0.998 recomputed; 78.55 in Table 1)
5 choice | cifar10n-resnet34 | +0.31 (86.40 → 86.71, Table 20, EMA (acc.) → α = 0.998 recomputed)
5 later | cifar100-resnet18 | +3.7% (epochs 137, 140, 152, 156, 166 of 200, Table 24)
5 higher | cifar100-resnet18 | +0.264 (78.04, 78.42, 78.81, 79.02, 79.06, Table 24)
6 ahead | cifar100n-resnet34 | +9.68 (55.47 → 65.15, Table 18; 9.65 in Figure 2)
6 ahead | cifar10n-resnet34 | +8.62 (78.09 → 86.71, Table 20)
6 memorised | cifar100n-resnet34 | −39.4 (68.2 → 28.8, Appendix E.1)
8 churn | cifar100-vgg16 | −3.63 (23.70 → 20.07, Table 3)
8 churn | tiny-imagenet-resnet18 | −14.04 (29.36 → 15.32, Table 3; 15.35 in Table 16)
8 js | cifar100-resnet18 | −72% (0.32 → 0.09, Table 3)
8 js | cifar100-vgg16 | −81% (0.67 → 0.13, Table 3; 0.676 in Table 12)
8 js | cifar100-wrn-28-10 | −45% (0.10 → 0.055, Table 3)
8 js | cifar10-resnet18 | −24% (0.017 → 0.013, Table 3; 0.010 at α = 0.998 in Table 14)
9 ece | cifar100-wrn-28-10 | −0.18 (6.38 → 6.20, Table 5)
9 ece_ts | tiny-imagenet-resnet18 | +0.22 (3.35 → 3.57, Table 5)
9 scaled | cifar100-vgg16 | −4.48 (8.12 → 3.64, Table 5)
10 acc | cifar10-resnet18 cifar100 | +3.37 (33.72 → 37.09, Table 4)
10 loss | cifar100-resnet18 cifar10 | +2.92 (82.10 → 85.02, Table 4)
11 live | cifar100-resnet18 | −1.36 (75.83 → 74.47, Appendix C)
12 rate | cifar100-resnet18 | 0.0 (76.1 at 1.2, best for SGD; 76.1 at 0.8 and 76.1 at 1.2, best for EMA; Table 21)
12 rate | cifar100-wrn-28-10 | 0.0 (80.0 at 0.1 and 79.8 at 0.2, best for SGD; 80.0 at 0.1, best for EMA; Table 21)
14 swa | cifar100-resnet18 | −0.14 (78.69 → 78.55, Table 1; 78.54 in Table 8)
14 swa | cifar10-resnet18 | −0.13 (95.75 → 95.62, Table 1)
16 accuracy | cifar100-vgg16 | +0.82 (72.82 → 73.64, Table 1; 73.62 at α = 0.998 in Table 12)
16 accuracy | cifar100-wrn-28-10 | +1.65 (81.07 → 82.72, Table 1; 82.73 in Table 10)
16 loss | cifar10-resnet18 | −0.07 (0.22 → 0.15, Table 1; 0.17 in Table 14)
16 loss | tiny-imagenet-resnet18 | −0.25 (1.60 → 1.35, Table 1)
16 swa | tiny-imagenet-resnet18 | +2.08 (66.03 → 68.11, Table 1)
17 epochs | cifar100-wrn-28-10 | −44.7 of 200 (−56, −47, −31, Table 9)
17 epochs | tiny-imagenet-resnet18 | −9.7 of 150 (−11, −9, −9, Table 15)
18 ece | cifar10-resnet18 | −0.63 (2.33 → 1.70, Table 14)
18 churn | tiny-imagenet-resnet18 | −1.32 (16.67 → 15.35, Table 16; 15.32 in Table 3)
18 transfer | cifar10-resnet18 cifar100 | −1.00 (37.09 → 36.09, Table 4)
19 place | cifar10n-resnet34 | +1.35 (85.36 → 86.71, Table 2)
19 place | cifar100n-resnet34 | +3.42 (61.73 → 65.15, Table 2)
"""
# How many pairs have a number, by claim and statistic: those of the table that it is taken from.
PAIRS_WITH_A_NUMBER = {
    (2, "when"): 7, (2, "afterwards"): 1, (3, "end"): 1, (5, "choice"): 6, (5, "later"): 1, (5, "higher"): 1,
    (6, "ahead"): 2, (6, "memorised"): 1, (8, "churn"): 5, (8, "js"): 5, (9, "ece"): 5, (9, "ece_ts"): 5,
    (9, "scaled"): 5, (10, "acc"): 4, (10, "loss"): 4, (11, "live"): 1, (12, "rate"): 2, (14, "swa"): 5,
    (16, "accuracy"): 5, (16, "loss"): 5, (16, "swa"): 5, (17, "epochs"): 7, (18, "ece"): 5, (18, "churn"): 5,
    (18, "transfer"): 4, (19, "place"): 2,
}  # fmt: skip

DIFFERENCE = re.compile(r"^([+−]\d+\.\d+) \((\d+\.\d+) → (\d+\.\d+)")
RELATIVE = re.compile(r"^−(\d+)% \((\d+\.\d+) → (\d+\.\d+)")
OVER_EPOCHS = re.compile(r"^(\d+\.\d)% \((\d+), (\d+), (\d+) of (\d+)")
MEAN = re.compile(r"^−(\d+\.\d) of \d+ \(−(\d+), −(\d+), −(\d+)")


def texts():
    """All that the paper has, by claim and statistic, then by pair and target."""
    for (number, key), by_pair in _VALUES.items():
        for where in by_pair:
            pair, _, target = where.partition(" ")
            yield (number, key), where, paper_value(number, key, pair, target)


def found(pattern):
    return [(text, match) for _, _, text in texts() if (match := pattern.match(text))]


@pytest.mark.parametrize("line", TYPED.strip().splitlines())
def test_values_are_those_of_the_paper(line):
    statistic, where, text = line.split(" | ")
    number, key = statistic.split()
    pair, _, target = where.partition(" ")
    assert paper_value(int(number), key, pair, target) == f"{text}, {PAIRS[pair]}"


def test_every_statistic_has_a_number_for_the_pairs_that_the_paper_has():
    counted = {}
    for statistic, _, text in texts():
        if "no number" not in text:
            counted[statistic] = counted.get(statistic, 0) + 1
    assert counted == PAIRS_WITH_A_NUMBER
    typed = {(int(line.split()[0]), line.split()[1]) for line in TYPED.strip().splitlines()}
    assert typed == set(PAIRS_WITH_A_NUMBER)


def test_differences_are_those_of_the_numbers_beside_them():
    differences = found(DIFFERENCE)
    assert len(differences) > 50
    for text, match in differences:
        difference, before, after = (float(number.replace("−", "-")) for number in match.groups())
        assert difference == pytest.approx(after - before, abs=1e-6), text


def test_changes_are_those_of_the_numbers_beside_them():
    changes = found(RELATIVE)
    assert len(changes) == 5
    for text, match in changes:
        change, before, after = map(float, match.groups())
        assert change == round(100 * (1 - after / before)), text


def test_means_over_seeds_are_those_of_the_lists_beside_them():
    shares, means = found(OVER_EPOCHS), found(MEAN)
    assert (len(shares), len(means)) == (7, 7)
    for text, match in shares:
        share, *epochs, budget = map(float, match.groups())
        assert share == pytest.approx(100 * sum(epochs) / 3 / budget, abs=0.0501), text
    for text, match in means:
        mean, *epochs = map(float, match.groups())
        assert mean == pytest.approx(sum(epochs) / 3, abs=0.0501), text


def test_slopes_are_those_of_least_squares():
    epochs, accuracies = [137, 140, 152, 156, 166], [78.04, 78.42, 78.81, 79.02, 79.06]
    assert np.polyfit(range(5), epochs, 1)[0] / 2 == pytest.approx(3.7)
    assert np.polyfit(range(5), accuracies, 1)[0] == pytest.approx(0.264)
    assert paper_value(5, "later", "cifar100-resnet18").startswith("+3.7% ")
    assert paper_value(5, "higher", "cifar100-resnet18").startswith("+0.264 ")


def test_every_value_says_where_it_stands_and_for_which_pair():
    for _, where, text in texts():
        assert re.search(r"(Table|Figure|Section|Appendix) [0-9A-G]", text), text
        assert not where or text.endswith(f"), {PAIRS[where.partition(' ')[0]]}"), text


def test_words_stand_where_the_paper_only_draws():
    assert paper_value(1, "share", "cifar100-resnet18") == "throughout, no number (Figure 1a), CIFAR-100, ResNet-18"
    assert paper_value(2, "afterwards", "cifar10n-resnet34") == "no number (Figure 4), CIFAR-10N, ResNet-34"
    assert paper_value(15, "share", "") == "much less than the step, no number (Section 3.1)"


@pytest.mark.parametrize(
    ("pair", "ours", "others"),
    [
        ("cifar10n-resnet34", 86.71, "92.56 92.68 91.09 85.36 83.60 83.83 83.37 83.58 82.99 83.26 91.66 77.69"),
        ("cifar100n-resnet34", 65.15, "71.13 70.36 66.70 61.73 61.15 60.30 59.97 58.94 58.59 57.88 55.72 55.50"),
    ],
)
def test_the_leaderboard_is_the_papers_with_the_place_of_its_average(pair, ours, others):
    others = tuple(map(float, others.split()))
    published = LEADERBOARD[pair]
    assert published.others == others
    assert published.place == 1 + sum(other > ours for other in others)
    assert published.next_below == max(other for other in others if other < ours)


def test_the_leaderboard_has_the_two_pairs_with_noisy_labels():
    assert set(LEADERBOARD) == {"cifar10n-resnet34", "cifar100n-resnet34"}


def test_what_the_paper_does_not_have_is_empty():
    assert paper_value(16, "accuracy", "cifar100n-resnet18") == ""
    assert paper_value(99, "accuracy", "cifar100-resnet18") == ""
    assert paper_value(10, "acc", "cifar100-vgg16", "cifar10") == ""
    assert paper_value(16, "accuracy", "a pair of one's own") == ""
    assert paper_value(5, "choice", "cifar100-vgg16") == "", "the network has no batch norm"


def test_a_transfer_has_the_value_of_its_own_target_and_else_all_of_its_pair():
    assert paper_value(10, "acc", "tiny-imagenet-resnet18", "cifar100") == (
        "+4.53 (52.77 → 57.30, Table 4), Tiny-ImageNet, ResNet-18"
    )
    assert paper_value(10, "acc", "tiny-imagenet-resnet18", "digits-5-9") == (
        "+4.09 (74.61 → 78.70, Table 4), +4.53 (52.77 → 57.30, Table 4), Tiny-ImageNet, ResNet-18"
    )


def test_claims_do_not_load_the_search_for_all_conflicts():
    code = """
import sys
from emabank.study.report.claims.all import claims
from emabank.study.report.claims.paper_values import paper_value
assert "78.54 in Table 8" in paper_value(16, "accuracy", "cifar100-resnet18")
print("emabank.study.report.paper.conflicts" in sys.modules)
"""
    done = run(code, blocked=("torch",))
    assert (done.stdout, done.stderr) == ("False\n", "")
