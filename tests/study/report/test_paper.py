"""The numbers of the paper: as compared with its source, found by our titles, and used by the claims."""

import hashlib
import json
import re
from importlib.resources import files

import pytest

from emabank.study.report.claim_specs import CLAIMS, OVERHEAD
from emabank.study.report.paper import claim_value, difference, lookup, lookup_full, printed, ratio, rows_of
from emabank.study.studies.scales import PAIRS
from tests.support.processes import run

ASSETS = files("emabank.study.report") / "assets"

# The hash of all numbers, each compared with the source of the paper; compare a changed number again.
COMPARED = "6dfb571c12512a4644348c97f3c5fafa440b16fe09e55d0b6f71f36e04f26a9d"


def test_numbers_have_not_changed_since_they_were_compared_with_the_paper():
    known = [f"{cell.item} | {cell.place} | {cell.row} | {cell.column} | {cell.metric} | {cell.text} | {cell.mean} | "
             f"{cell.mark}" for cell in printed()]  # fmt: skip
    assert hashlib.sha256("\n".join(known).encode()).hexdigest() == COMPARED


def test_numbers_match_their_printed_text():
    for cell in printed(place="table"):
        known = [*cell.by_seed, *cell.series] or [number for number in (cell.mean, cell.std) if number is not None]
        text = cell.text.replace("T = ", "")
        assert known == [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)], cell
        assert ("±" in text) == (cell.std is not None), cell


def test_our_titles_find_the_matching_column_of_the_paper():
    pair = "cifar100-resnet18"
    assert lookup_full(pair, "EMA (acc.)", "accuracy", trained_on="100%") == "77.99 ± 0.04"
    assert lookup_full(pair, "slowest (acc.)", "accuracy", trained_on="100%") == "78.54 ± 0.28"
    assert lookup("Table 1", pair=pair, ours="slowest (acc.)", metric="accuracy") == "78.55 ± 0.28"
    assert lookup_full("tiny-imagenet-resnet18", "SWA", "accuracy", trained_on="100%") == "68.11 ± 0.2"
    assert lookup_full(pair, "slowest (loss)", "decay", trained_on="80%") == "0.998"
    assert list(rows_of("Table 24")) == ["0.968", "0.984", "0.992", "0.996", "0.998"]


def test_sgd_columns_of_cifar_10n_are_found_by_their_epochs():
    noisy = "cifar10n-resnet34"
    assert lookup_full(noisy, "SGD (best)", "epochs", trained_on="100%") == "[111, 118, 113]"
    assert lookup_full(noisy, "SGD (last)", "epochs", trained_on="80%") == "[200, 200, 200]"
    for trained_on in ("80%", "100%"):
        assert lookup_full(noisy, "SGD", "accuracy", trained_on=trained_on) == ""


def test_an_ambiguous_or_unknown_lookup_is_empty():
    assert lookup("Table 1", ours="SGD", metric="accuracy") == lookup("Table 99") == lookup("") == ""
    assert lookup_full("my-data", "SGD", "accuracy", trained_on="100%") == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "apart", "share"),
    [("78.55 ± 0.28", "77.63 ± 0.14", "0.92", "1.01"), ("0.82", "1.02", "-0.20", "0.80"),
     ("28.8%", "68.2%", "-39.4", "0.42"), ("", "1", "", ""), ("1", "0.0", "1.0", ""), ("[1, 2]", "1", "", "")],
)  # fmt: skip
def test_differences_and_ratios_are_those_of_the_printed_means(ours, theirs, apart, share):
    assert (difference(ours, theirs), ratio(ours, theirs)) == (apart, share)


def test_paper_numbers_need_neither_torch_nor_numpy():
    code = "from emabank.study.report.paper import lookup; print(lookup('Table 8', ours='SGD', metric='loss'))"
    finished = run(code, blocked=("torch", "numpy"))
    assert (finished.returncode, finished.stdout) == (0, "1.02 ± 0.03\n"), finished.stderr


# Values for the claims ------------------------------------------------------------------------------------------------

VALUES = json.loads((ASSETS / "claim_values.json").read_text(encoding="utf-8"))
TEXTS = [(text, pair) for keys in VALUES.values() for by_pair in keys.values() for pair, text in by_pair.items()]


def numbers_in(pattern: str) -> list[tuple[str, list[float]]]:
    matches = [(text, re.match(pattern, text)) for text, _ in TEXTS]
    return [(text, [float(number.replace("−", "-")) for number in match.groups()]) for text, match in matches if match]


def test_every_claim_of_the_paper_has_values_and_each_belongs_to_a_statistic():
    specs = {
        spec.number: {statistic.key for statistic in spec.statistics} for spec in (*CLAIMS, OVERHEAD) if not spec.beyond
    }
    assert set(VALUES) == set(specs)
    for number, keys in VALUES.items():
        assert {*keys} <= specs[number], number


def test_differences_match_the_numbers_in_parentheses():
    differences = numbers_in(r"([+−]\d+\.\d+) \((\d+\.\d+) → (\d+\.\d+)")
    assert len(differences) > 50
    for text, (apart, before, after) in differences:
        assert apart == pytest.approx(after - before, abs=1e-6), text
    for text, (change, before, after) in numbers_in(r"(−\d+)% \((\d+\.\d+) → (\d+\.\d+)"):
        assert change == round(100 * (after / before - 1)), text


def test_means_over_seeds_match_the_lists_in_parentheses():
    shares = numbers_in(r"(\d+\.\d)% \((\d+), (\d+), (\d+) of (\d+)")
    means = numbers_in(r"−(\d+\.\d) of \d+ \(−(\d+), −(\d+), −(\d+)")
    assert (len(shares), len(means)) == (7, 7)
    for text, (share, *epochs, budget) in shares:
        assert share == pytest.approx(100 * sum(epochs) / 3 / budget, abs=0.0501), text
    for text, (mean, *epochs) in means:
        assert mean == pytest.approx(sum(epochs) / 3, abs=0.0501), text


def test_numbers_in_a_value_are_printed_in_the_tables_that_it_cites():
    """Both ends of a difference, and other values with their own table."""
    checked = 0
    for text, where in TEXTS:
        pair = where.partition(" ")[0]
        ends = re.search(r"\((\d+\.\d+) → (\d+\.\d+), ([^;,)]+)", text)
        cited = re.findall(r"; (\d+\.\d+)(?: at α = 0\.998)? in ((?:Table|Figure) \d+)", text)
        places = [*((number, ends[3]) for number in ends.groups()[:2]), *cited] if ends else cited
        for number, items in places:
            means = {cell.mean for item in items.split(" and ") for cell in printed(item) if cell.pair in ("", pair)}
            assert float(number) in means, f"{number} is not printed in {items}: {text}"
            checked += 1
    assert checked > 150


def test_every_value_cites_its_source_and_its_pair():
    for number, keys in VALUES.items():
        for key, by_pair in keys.items():
            for where in by_pair:
                pair, _, target = where.partition(" ")
                text = claim_value(number, key, pair, target)
                assert re.search(r"(Table|Figure|Section|Appendix) [0-9A-G]", text), text
                assert not where or text.endswith(f"), {PAIRS[pair]}"), text


def test_values_that_the_paper_lacks_are_empty():
    assert claim_value("16", "accuracy", "cifar100n-resnet18") == ""
    assert claim_value("99", "accuracy", "cifar100-resnet18") == ""
    assert claim_value("10", "acc", "cifar100-vgg16", "cifar10") == ""
    assert claim_value("5", "choice", "cifar100-vgg16") == "", "the network has no batch norm"


def test_a_transfer_has_the_value_of_its_target_or_all_values_of_its_pair():
    first, second = "+4.09 (74.61 → 78.70, Table 4)", "+4.53 (52.77 → 57.30, Table 4)"
    pair = "tiny-imagenet-resnet18"
    assert claim_value("10", "acc", pair, "cifar100") == f"{second}, Tiny-ImageNet, ResNet-18"
    assert claim_value("10", "acc", pair, "digits-5-9") == f"{first}, {second}, Tiny-ImageNet, ResNet-18"
