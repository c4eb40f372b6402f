"""The numbers of the paper: as compared with its source, found by our titles, and used by the claims."""

import hashlib
import json
from importlib.resources import files
from typing import Any

import pytest

from emabank.study.report.claim_specs import CLAIMS, OVERHEAD
from emabank.study.report.paper import claim_value, difference, lookup, lookup_full, ratio, rows_of
from tests.support.processes import run

# Hashes of what was compared with the source of the paper, number by number, and among each other: each difference with
# its two ends, each end with the table that it cites, each mean with its seeds. Compare whatever changes again.
COMPARED = {
    "numbers.json": "3824a587df46291e8c9f7eacf2358fd905b8ba6ae0b582ac3e6ebcfd63d63c3b",
    "claim_values.json": "2ac9a9945ccfc4a074a04bbb19654aeaadaa38ec5404144263ae38be4104d05d",
}


@pytest.mark.parametrize("name", COMPARED)
def test_numbers_have_not_changed_since_they_were_compared_with_the_paper(name):
    content = json.dumps(read_asset(name), sort_keys=True, ensure_ascii=False)
    assert hashlib.sha256(content.encode()).hexdigest() == COMPARED[name]


def read_asset(name: str) -> Any:
    return json.loads((files("emabank.study.report") / "assets" / name).read_text(encoding="utf-8"))


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


def test_every_claim_of_the_paper_has_values_and_each_belongs_to_a_statistic():
    specs = {
        spec.number: {statistic.key for statistic in spec.statistics} for spec in (*CLAIMS, OVERHEAD) if not spec.beyond
    }
    values = read_asset("claim_values.json")
    assert set(values) == set(specs)
    for number, keys in values.items():
        assert {*keys} <= specs[number], number


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
