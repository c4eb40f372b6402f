"""The paper's numbers: complete, related as arithmetic demands, found by our titles, and read without torch."""

import hashlib
import json
import re
import statistics
from importlib.resources import files

import pytest

from emabank.study.report.paper.numbers import FULL, Printed, among, beside, everything, printed, refit, tuning, value
from tests.support.processes import run

# Cells that have a number in them, counted in the paper: rows times columns, less the empty ones.
CELLS = {
    1: 5 * 7, 2: 13 * 2, 3: 5 * 6 + 2 * 4, 4: 3 * 4 + 2, 5: 5 * 3 * 2, 6: 5 * 9,
    7: 9 * 5, 8: 9 * 5, 9: 8 * 5 + 2, 10: 8 * 5 + 4, 11: 9 * 3, 12: 8 * 5, 13: 9 * 5, 14: 9 * 5,
    15: 8 * 5, 16: 8 * 5, 17: 8 * 5, 18: 8 * 5, 19: 8 * 5, 20: 8 * 5,
    21: 8 * 3, 22: 9 + 2, 23: 5 * 2, 24: 5 * 3,
}  # fmt: skip

# Typed from the paper once more, a few of every table: item, row, column, text.
TYPED = """
Table 1 | CIFAR-100, WRN-28-10 | SWA, Acc. | 82.71 ± 0.19
Table 1 | TinyImageNet, ResNet-18 | EMA (loss), Loss | 1.36
Table 2 | CE (standard) | CIFAR-100N | 55.50 ± 0.66
Table 2 | EMA (acc.) | CIFAR-10N | 86.71 ± 0.17
Table 2 | CORES* | CIFAR-10N | 91.66 ± 0.09
Table 3 | EMA (lowest loss): CIFAR-100, VGG-16 | Churn, Method | 20.07 ± 0.21
Table 3 | Co-distillation KL: CIFAR-100, ResNet-56 | Churn, Method | 17.09 ± 0.3
Table 3 | Co-distillation KL: CIFAR-10, ResNet-56 | Test Acc., Baseline | 93.97
Table 4 | Baseline | Pretraining on: CIFAR-10, Linear eval on: CIFAR-100 | 33.72 ± 1.67
Table 4 | EMA (lowest loss) | Pretraining on: CIFAR-100, Linear eval on: CIFAR-10 | 85.02 ± 0.03
Table 4 | Supervised | Linear eval on: CIFAR-100 | 77.63 ± 0.14
Table 5 | VGG-16 CIFAR-100, ECE | EMA | 8.12 ± 2.1
Table 5 | ResNet-18 Tiny-ImageNet, ECE w/ TS | Baseline | 3.35 ± 0.11
Table 6 | VGG-16, C-100 | Baseline, Epoch | 191.6
Table 6 | ResNet-18, TinyIN | EMA (lowest loss), Loss | 1.45
Table 7 | epochs | EMA (acc.) (BN) | [143, 139, 156]
Table 8 | EMA decay | EMA (loss) | [0.992, 0.984, 0.992]
Table 9 | ECE | EMA (loss) (BN) | 6.2 ± 0.53
Table 10 | Pred JS div | EMA (loss) (BN) | 0.055 ± 0.002
Table 11 | EMA decay | EMA (loss) | [0.996, 0.984, 0.998]
Table 12 | Test Accuracy | EMA (loss) (BN) | 72.08 ± 0.06
Table 13 | LR | SGD | [0.4, 0.8, 0.4]
Table 14 | Pred JS div | EMA (loss) (BN) | 0.01 ± 0.0
Table 15 | epochs | SGD | [147, 150, 148]
Table 16 | Pred Disagr. | EMA (loss) (BN) | 15.35 ± 0.13
Table 17 | ECE with TS | EMA (loss) | 16.43 ± 0.25
Table 18 | Test Accuracy | SGD | 55.47 ± 0.35
Table 19 | Val Accuracy | SGD | 66.22 ± 0.47
Table 20 | epochs | SGD | [111, 118, 113]
Table 21 | ResNet-18, 1.2 | SGD Acc. | 75.9
Table 21 | WideResNet-28-10, 0.4 | EMA Acc. | 77.5
Table 22 | Weight Decay | WideResNet, VGG-16 | 5e-4
Table 23 | 0.996 | T=1 | 0.99975
Table 24 | 0.998 | Best test accuracy | 79.06 ± 0.14
Table 24 | 0.998 | Epoch | 166
"""


# Of all cells of all tables, once each had been compared with the paper's source; a changed number is compared again.
COMPARED = "940069abd39e4be98197b075ee3c11ff64bf6f336d15d983373bdfef9f435b55"


def full(pair: str, trained_on: str, ours: str, metric: str) -> Printed:
    return value(item=FULL[pair, trained_on], place="table", ours=ours, metric=metric)


def numbers_of(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)]


def test_every_table_has_all_its_cells_each_once():
    assert {item: len(printed(item=f"Table {item}", place="table")) for item in CELLS} == CELLS
    cells = [(each.item, each.row, each.column) for each in everything() if each.place == "table"]
    assert len(set(cells)) == len(cells) == sum(CELLS.values())


@pytest.mark.parametrize("line", TYPED.strip().splitlines())
def test_values_typed_a_second_time_are_the_same(line):
    item, row, column, text = line.split(" | ")
    assert value(item=item, place="table", row=row, column=column).text == text


def test_the_tables_are_as_they_were_compared_with_the_paper():
    cells = [
        f"{each.item} | {each.row} | {each.column} | {each.text} | {each.mark}"
        for each in everything()
        if each.place == "table"
    ]
    assert hashlib.sha256("\n".join(cells).encode()).hexdigest() == COMPARED


def test_numbers_are_those_of_their_texts():
    for each in everything():
        if each.place != "table":
            continue
        if each.by_seed or each.series:
            held = [*each.by_seed, *each.series]
        else:
            held = [number for number in (each.mean, each.std) if number is not None]
        text = each.text.replace("T = ", "")
        assert held == numbers_of(text), each
        assert ("±" in text) == (each.std is not None), each


@pytest.mark.parametrize(
    ("item", "metric", "column", "mean"),
    [
        ("Section 3.1", "parameters", "", 23.7e6),
        ("Section 3.1", "megabytes", "", 90.43),
        ("Section 3.2", "peak_epoch", "", 150),
        ("Section 3.2", "share_of_budget", "", 0.75),
        ("Figure 2", "gain", "", 9.65),
        ("Figure 2", "peak_epoch", "", 100),
        ("Section 4.3", "accuracy", "", 65.15),
        ("Section 4.3", "final_accuracy", "", 55.5),
        ("Section 4.6", "bins", "", 100),
        ("Appendix C", "bootstrapped_accuracy", "", 74.47),
        ("Appendix C", "accuracy", "", 75.83),
        ("Appendix E.1", "memorised", "EMA", 28.8),
        ("Appendix E.1", "memorised", "SGD", 68.2),
        ("Appendix E.1", "epoch", "EMA", 99),
        ("Appendix E.1", "epoch", "SGD", 142),
        ("Appendix E.1", "clean_accuracy", "", 90),
    ],
)
def test_numbers_of_text_and_captions_are_there(item, metric, column, mean):
    assert value(item=item, metric=metric, column=column).mean == mean


def test_numbers_that_follow_from_others_do():
    for row in printed(item="Table 23", column="T=1"):
        digits = len(row.text.split(".")[1])
        assert round(float(row.row) ** (1 / 16), digits) == row.mean, "the decay of one step of sixteen"
    peak, baseline = value(item="Section 4.3", metric="accuracy"), value(row="CE (standard)", column="CIFAR-100N")
    assert peak.mean - baseline.mean == pytest.approx(value(metric="gain").mean)
    memory = 4 * value(metric="parameters").mean / 2**20
    assert memory == pytest.approx(value(metric="megabytes").mean, abs=4 * 0.05e6 / 2**20)


def test_mean_epochs_of_the_summary_are_those_of_the_lists_up_to_cut_digits():
    checked = 0
    for short in printed(item="Table 6", metric="epoch"):
        column = short.ours.replace("slowest", "EMA")
        mean = statistics.fmean(full(short.pair, "80%", column, "epochs").by_seed)
        step = 0.1 if "." in short.text else 1
        assert short.mean <= mean + 1e-9 < short.mean + step, short
        checked += 1
    assert checked == 15


def test_headline_and_full_tables_have_the_same_numbers_but_for_the_known_exceptions():
    different = set()
    for each in printed(item="Table 1"):
        if each.ours != "SWA":
            other = full(each.pair, "100%", each.ours, each.metric)
            if (each.mean, each.std or other.std) != (other.mean, other.std):
                different.add((each.pair, each.ours, each.metric))
    assert different == {
        ("cifar100-resnet18", "slowest (acc.)", "accuracy"),
        ("cifar100-vgg16", "slowest (acc.)", "accuracy"),
        ("cifar100-vgg16", "slowest (loss)", "accuracy"),
        ("cifar100-wrn-28-10", "slowest (acc.)", "accuracy"),
        ("cifar100-wrn-28-10", "slowest (loss)", "accuracy"),
        ("cifar10-resnet18", "slowest (acc.)", "loss"),
    }


def test_full_tables_are_whole():
    decays = set(value(item="Table 22", metric="decays").series)
    for (pair, trained_on), item in FULL.items():
        table = printed(item=item, place="table")
        assert {(each.pair, each.trained_on) for each in table} == {(pair, trained_on)}
        assert {each.split for each in table} == {"val" if trained_on == "80%" else "test"}
        columns = {each.ours for each in table}
        assert len(columns) == (3 if item == "Table 11" else 5)
        for column in columns:
            metrics = [each.metric for each in among(table, ours=column) if each.metric != "rate"]
            assert metrics == ["accuracy", "loss", "churn", "js", "ece", "ece_ts", "epochs", "decay"]
        for each in among(table, metric="epochs"):
            assert len(each.by_seed) == 3 and max(each.by_seed) <= (150 if pair.startswith("tiny") else 200)
        for each in among(table, metric="decay"):
            assert set(each.by_seed) | {each.mean} <= decays | {None, 0.0}


def test_what_the_paper_says_of_epochs_and_decays_holds_where_it_holds():
    for pair, trained_on in FULL:
        accuracy, loss = (full(pair, trained_on, f"EMA ({by})", "epochs").by_seed for by in ("acc.", "loss"))
        assert all(early < late for early, late in zip(loss, accuracy, strict=True)), "the lowest loss comes first"
        for by in ("acc.", "loss"):
            for slowest in printed(item=FULL[pair, trained_on], ours=f"slowest ({by})", metric="epochs"):
                assert slowest.by_seed == full(pair, trained_on, f"EMA ({by})", "epochs").by_seed
    for metric in ("peak_accuracy", "peak_epoch"):
        peaks = [each.mean for each in printed(item="Table 24", metric=metric)]
        assert peaks == sorted(peaks) and len(peaks) == 5, "slower decays peak later and higher"


def test_our_titles_find_the_column_that_means_the_same():
    assert refit("cifar100-resnet18", "EMA (acc.)", "accuracy") == "77.99 ± 0.04"
    assert refit("cifar100-resnet18", "slowest (acc.)", "accuracy") == "78.54 ± 0.28"
    assert beside("Table 1", "cifar100-resnet18", "slowest (acc.)", "accuracy") == "78.55 ± 0.28"
    assert refit("tiny-imagenet-resnet18", "SWA", "accuracy") == "68.11 ± 0.2"
    assert tuning("cifar100-resnet18", "slowest (loss)", "decay") == "0.998"
    assert tuning("cifar100-resnet18", "SGD", "rate") == "[1.2, 0.8, 1.2]"
    assert beside("Table 4", "cifar10-resnet18", "slowest (acc.)", "transfer:cifar100") == "37.09 ± 1.06"
    assert beside("Table 6", "cifar100-vgg16", "slowest (loss)", "accuracy") == "70.46"


def test_sgd_columns_are_found_by_the_epochs_they_stand_at():
    for pair in {pair for pair, _ in FULL} - {"cifar10n-resnet34"}:
        assert refit(pair, "SGD", "epochs") in ("[200, 200, 200]", "[150, 150, 150]")
        assert tuning(pair, "SGD", "accuracy") and not tuning(pair, "SGD (last)", "accuracy")
    assert refit("cifar10n-resnet34", "SGD (best)", "epochs") == "[111, 118, 113]"
    assert tuning("cifar10n-resnet34", "SGD (last)", "epochs") == "[200, 200, 200]"
    assert refit("cifar10n-resnet34", "SGD", "accuracy") == tuning("cifar10n-resnet34", "SGD", "accuracy") == ""


@pytest.mark.parametrize(
    ("pair", "column", "metric"),
    [
        ("cifar100n-resnet18", "SGD", "accuracy"),
        ("my-data", "SGD", "accuracy"),
        ("cifar100-resnet18", "SGD", "memorised"),
        ("cifar100-resnet18", "no such column", "accuracy"),
    ],
)
def test_what_the_paper_does_not_print_is_empty(pair, column, metric):
    assert refit(pair, column, metric) == tuning(pair, column, metric) == ""
    assert beside("Table 99", pair, column, metric) == ""


def test_a_value_that_is_not_one_is_refused():
    with pytest.raises(ValueError, match=r"^35 printed values have \{'item': 'Table 1'\}; name fields of Printed"):
        value(item="Table 1")
    with pytest.raises(ValueError, match="^0 printed values"):
        value(item="Table 99")


def test_the_file_has_one_value_a_line_for_people_to_check():
    lines = (files("emabank.study.report.paper") / "numbers.json").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line.rstrip(",")) for line in lines if line.startswith("  {")]
    assert len(values) == len(everything()) > sum(CELLS.values())
    assert [each["text"] for each in values] == [each.text for each in everything()]


def test_the_numbers_are_read_without_torch_and_numpy():
    code = (
        "from emabank.study.report.paper.numbers import refit; import emabank.study.report.paper.conflicts, "
        "emabank.study.report.paper.items; print(refit('cifar100-resnet18', 'SGD', 'loss'))"
    )
    finished = run(code, blocked=("torch", "numpy"))
    assert (finished.returncode, finished.stdout) == (0, "1.02 ± 0.03\n"), finished.stderr
