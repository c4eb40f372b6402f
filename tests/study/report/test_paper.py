"""The paper's numbers: complete, as typed a second time, found by our titles; and what the claims make of them."""

import hashlib
import json
import re
from importlib.resources import files

import pytest

from emabank.study.report.claim_specs import CLAIMS, OVERHEAD
from emabank.study.report.paper import Printed, claim_value, difference, lookup, lookup_full, printed, ratio, rows_of
from emabank.study.studies.scales import PAIRS
from tests.support.processes import run

ASSETS = files("emabank.study.report") / "assets"

# Of all that is printed, once each number had been compared with the paper's source; a changed one is compared again.
COMPARED = "6dfb571c12512a4644348c97f3c5fafa440b16fe09e55d0b6f71f36e04f26a9d"


def value(item: str, **fields: str) -> Printed:
    (found,) = printed(item, **fields)
    return found


def test_all_numbers_are_as_they_were_compared_with_the_paper():
    known = [f"{each.item} | {each.place} | {each.row} | {each.column} | {each.metric} | {each.text} | {each.mean} | "
             f"{each.mark}" for each in printed()]  # fmt: skip
    assert hashlib.sha256("\n".join(known).encode()).hexdigest() == COMPARED


def test_numbers_are_those_of_their_texts():
    for each in printed(place="table"):
        known = [*each.by_seed, *each.series] or [number for number in (each.mean, each.std) if number is not None]
        text = each.text.replace("T = ", "")
        assert known == [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)], each
        assert ("±" in text) == (each.std is not None), each


def test_our_titles_find_the_column_that_means_the_same():
    pair = "cifar100-resnet18"
    assert lookup_full(pair, "EMA (acc.)", "accuracy", trained_on="100%") == "77.99 ± 0.04"
    assert lookup_full(pair, "slowest (acc.)", "accuracy", trained_on="100%") == "78.54 ± 0.28"
    assert lookup("Table 1", pair=pair, ours="slowest (acc.)", metric="accuracy") == "78.55 ± 0.28"
    assert lookup_full("tiny-imagenet-resnet18", "SWA", "accuracy", trained_on="100%") == "68.11 ± 0.2"
    assert lookup_full(pair, "slowest (loss)", "decay", trained_on="80%") == "0.998"
    assert list(rows_of("Table 24")) == ["0.968", "0.984", "0.992", "0.996", "0.998"]


def test_the_sgd_columns_of_cifar_10n_are_found_by_the_epochs_they_stand_at():
    noisy = "cifar10n-resnet34"
    assert lookup_full(noisy, "SGD (best)", "epochs", trained_on="100%") == "[111, 118, 113]"
    assert lookup_full(noisy, "SGD (last)", "epochs", trained_on="80%") == "[200, 200, 200]"
    for trained_on in ("80%", "100%"):
        assert lookup_full(noisy, "SGD", "accuracy", trained_on=trained_on) == ""


def test_a_place_with_no_value_or_several_gives_nothing():
    assert lookup("Table 1", ours="SGD", metric="accuracy") == lookup("Table 99") == lookup("") == ""
    assert lookup_full("my-data", "SGD", "accuracy", trained_on="100%") == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "apart", "share"),
    [("78.55 ± 0.28", "77.63 ± 0.14", "0.92", "1.01"), ("0.82", "1.02", "-0.20", "0.80"),
     ("28.8%", "68.2%", "-39.4", "0.42"), ("", "1", "", ""), ("1", "0.0", "1.0", ""), ("[1, 2]", "1", "", "")],
)  # fmt: skip
def test_differences_and_ratios_are_those_of_the_printed_means(ours, theirs, apart, share):
    assert (difference(ours, theirs), ratio(ours, theirs)) == (apart, share)


def test_the_numbers_are_read_without_torch_and_numpy():
    code = "from emabank.study.report.paper import lookup; print(lookup('Table 8', ours='SGD', metric='loss'))"
    finished = run(code, blocked=("torch", "numpy"))
    assert (finished.returncode, finished.stdout) == (0, "1.02 ± 0.03\n"), finished.stderr


# What the claims have -------------------------------------------------------------------------------------------------

VALUES = json.loads((ASSETS / "claim_values.json").read_text(encoding="utf-8"))
TEXTS = [(text, pair) for keys in VALUES.values() for by_pair in keys.values() for pair, text in by_pair.items()]


def found(pattern: str) -> list[tuple[str, list[float]]]:
    matches = [(text, re.match(pattern, text)) for text, _ in TEXTS]
    return [(text, [float(number.replace("−", "-")) for number in match.groups()]) for text, match in matches if match]


def test_every_claim_of_the_paper_has_values_and_each_belongs_to_a_statistic():
    specs = {spec.number: {each.key for each in spec.statistics} for spec in (*CLAIMS, OVERHEAD) if not spec.beyond}
    assert set(VALUES) == set(specs)
    for number, keys in VALUES.items():
        assert {*keys} <= specs[number], number


def test_differences_are_those_of_the_numbers_beside_them():
    differences = found(r"([+−]\d+\.\d+) \((\d+\.\d+) → (\d+\.\d+)")
    assert len(differences) > 50
    for text, (apart, before, after) in differences:
        assert apart == pytest.approx(after - before, abs=1e-6), text
    for text, (change, before, after) in found(r"(−\d+)% \((\d+\.\d+) → (\d+\.\d+)"):
        assert change == round(100 * (after / before - 1)), text


def test_means_over_seeds_are_those_of_the_lists_beside_them():
    shares = found(r"(\d+\.\d)% \((\d+), (\d+), (\d+) of (\d+)")
    means = found(r"−(\d+\.\d) of \d+ \(−(\d+), −(\d+), −(\d+)")
    assert (len(shares), len(means)) == (7, 7)
    for text, (share, *epochs, budget) in shares:
        assert share == pytest.approx(100 * sum(epochs) / 3 / budget, abs=0.0501), text
    for text, (mean, *epochs) in means:
        assert mean == pytest.approx(sum(epochs) / 3, abs=0.0501), text


def test_the_numbers_beside_a_value_are_printed_in_the_places_that_it_names():
    """Both ends of a difference, and every other value of the same thing with its own table."""
    checked = 0
    for text, where in TEXTS:
        pair = where.partition(" ")[0]
        ends = re.search(r"\((\d+\.\d+) → (\d+\.\d+), ([^;,)]+)", text)
        others = re.findall(r"; (\d+\.\d+)(?: at α = 0\.998)? in ((?:Table|Figure) \d+)", text)
        places = [*((number, ends[3]) for number in ends.groups()[:2]), *others] if ends else others
        for number, items in places:
            means = {each.mean for item in items.split(" and ") for each in printed(item) if each.pair in ("", pair)}
            assert float(number) in means, f"{number} is not printed in {items}: {text}"
            checked += 1
    assert checked > 150


def test_every_value_says_where_it_stands_and_for_which_pair():
    for number, keys in VALUES.items():
        for key, by_pair in keys.items():
            for where in by_pair:
                pair, _, target = where.partition(" ")
                text = claim_value(number, key, pair, target)
                assert re.search(r"(Table|Figure|Section|Appendix) [0-9A-G]", text), text
                assert not where or text.endswith(f"), {PAIRS[pair]}"), text


def test_what_the_paper_does_not_have_is_empty():
    assert (
        claim_value("16", "accuracy", "cifar100n-resnet18") == claim_value("99", "accuracy", "cifar100-resnet18") == ""
    )
    assert claim_value("10", "acc", "cifar100-vgg16", "cifar10") == ""
    assert claim_value("5", "choice", "cifar100-vgg16") == "", "the network has no batch norm"


def test_a_transfer_has_the_value_of_its_own_target_and_else_all_of_its_pair():
    first, second = "+4.09 (74.61 → 78.70, Table 4)", "+4.53 (52.77 → 57.30, Table 4)"
    pair = "tiny-imagenet-resnet18"
    assert claim_value("10", "acc", pair, "cifar100") == f"{second}, Tiny-ImageNet, ResNet-18"
    assert claim_value("10", "acc", pair, "digits-5-9") == f"{first}, {second}, Tiny-ImageNet, ResNet-18"
