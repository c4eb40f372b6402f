"""Headline, summary and full tables against the raw values, the paper's beside them, and whatever is missing a dash."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import Setting
from emabank.study.report.forms.words import common_n
from emabank.study.report.pairs import CLEAN
from emabank.study.report.sheet import Sheet
from emabank.study.report.tables.generalization import FULL, full, headline, summary
from emabank.study.report.tables.settings import label
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import (
    at,
    first_seeds,
    is_mean_of,
    named,
    setting,
    the_papers,
    whole,
    with_values,
)

TITLES = {
    "SGD (best)": "SGD (best)",
    "SGD (last)": "SGD",
    "EMA (acc.)": "slowest (acc.)",
    "EMA (loss)": "slowest (loss)",
    "SWA": "SWA",
}


def values(one: Setting, column: str, metric: str, trained_on: str = "100%", split: str = "test") -> list[float | None]:
    (found,) = [
        table["values"][metric]
        for table in one.tables
        if (table["trained_on"], table["split"], table["column"]) == (trained_on, split, column)
    ]
    return found


@pytest.fixture(scope="module")
def short() -> list[Sheet]:
    return headline(made_evidence(*map(setting, CLEAN)), "demo")


def test_the_headline_has_the_five_pairs_with_the_means_of_the_refits(short: list[Sheet]):
    sheet = named(short, "generalization/headline")
    assert [row for row, _ in sheet.rows] == [label(setting(pair)) for pair in CLEAN] and whole(short)
    for pair in CLEAN:
        for title, column in TITLES.items():
            cell = at(sheet, label(setting(pair)), "acc., %", title)
            assert is_mean_of(cell, values(setting(pair), column, "accuracy"))
            if title != "SWA":
                loss = at(sheet, label(setting(pair)), "loss", title)
                assert is_mean_of(loss, values(setting(pair), column, "loss"), scale=1)


def test_the_headline_has_the_papers_own_numbers_also_where_another_table_prints_others(short: list[Sheet]):
    sheet = named(short, "generalization/headline")
    row = label(setting("cifar100-resnet18"))
    assert at(sheet, row, "acc., %", "EMA (acc.)").paper == "78.55 ± 0.28"
    assert (
        at(sheet, row, "acc., %", "SWA").paper == "78.69 ± 0.25"
        and at(sheet, row, "loss", "SGD (last)").paper == "1.02"
    )
    (refit,) = [each for each in full(made_evidence(setting()), "demo") if each.name.endswith("-100")]
    assert at(refit, "accuracy, %", "EMA (acc.) (BN)").paper == "78.54 ± 0.28"


def test_the_best_accuracy_and_the_lowest_loss_of_a_row_are_bold(short: list[Sheet]):
    _, cells = named(short, "generalization/headline").rows[0]
    assert [cell.best for cell in cells] == [False] * 7 + [True] * 2


def test_differences_to_sgd_are_paired_by_seed(short: list[Sheet]):
    sheet = named(short, "generalization/differences")
    one, row = setting("cifar10-resnet18"), label(setting("cifar10-resnet18"))
    for short, baseline in (("SGD (best)", "SGD (best)"), ("SGD (last)", "SGD")):
        for title, column in list(TITLES.items())[2:]:
            expected = np.subtract(values(one, column, "accuracy"), values(one, baseline, "accuracy")).tolist()
            assert is_mean_of(at(sheet, f"{row}: minus {short}", "acc., points", title), expected)
    assert at(sheet, f"{row}: minus SGD (last)", "acc., points", "SWA").paper == "0.50"
    assert at(sheet, f"{row}: minus SGD (best)", "acc., points", "SWA").paper == ""


def test_the_fair_baseline_stands_before_the_last_epoch(short: list[Sheet]):
    assert [title for title, _ in named(short, "generalization/headline").groups][1:3] == ["SGD (best)", "SGD (last)"]
    rows = [row.rpartition(": ")[2] for row, _ in named(short, "generalization/differences").rows]
    assert rows[:2] == ["minus SGD (best)", "minus SGD (last)"]


def test_a_missing_value_is_a_dash_and_a_setting_without_refits_is_no_row():
    broken = with_values(setting(), {("100%", "test", "SWA", "accuracy"): [0.7, None, 0.8]})
    unfinished = replace(setting("cifar10-resnet18"), tables=[])
    sheet = named(headline(made_evidence(broken, unfinished), "demo"), "generalization/headline")
    assert len(sheet.rows) == 1 and at(sheet, label(broken), "acc., %", "SWA").text == "–"
    assert headline(made_evidence(unfinished), "demo") == []


def test_a_note_says_that_the_papers_numbers_are_of_something_else_unless_they_are_not(short: list[Sheet]):
    assert any("orientation" in note for note in short[0].notes)
    real = headline(made_evidence(the_papers("cifar10-resnet18")), "paper")
    assert not any("orientation" in note for note in real[0].notes) and real[0].rows[0][0] == "cifar10-resnet18"


def test_the_summary_has_validation_and_mean_epochs():
    tables = [
        {**table, "epochs": [20, 25, 31]} if (table["column"], table["split"]) == ("slowest (acc.)", "val") else table
        for table in setting().tables
    ]
    (sheet,) = summary(made_evidence(replace(setting(), tables=tables)), "demo")
    row = label(setting())
    assert is_mean_of(at(sheet, row, "epoch", "EMA (acc.)"), [20, 25, 31], scale=1)
    assert is_mean_of(
        at(sheet, row, "acc., %", "EMA (acc.)"), values(setting(), "slowest (acc.)", "accuracy", "80%", "val")
    )
    assert at(sheet, row, "epoch", "EMA (acc.)").paper == "146" and whole([sheet])


def test_there_are_fourteen_full_tables_by_the_names_and_tables_of_the_paper():
    made = full(made_evidence(*map(setting, FULL)), "demo")
    assert {sheet.name for sheet in made} == {
        f"generalization/full-{pair}-{share}" for pair in FULL for share in (80, 100)
    }
    assert {sheet.item for sheet in made} == {f"Table {number}" for number in range(7, 21)} and whole(made)


def test_a_full_table_has_every_measure_and_what_was_chosen():
    calibrated = {("100%", "test", column, "ece_if_calibrated"): [0.01, 0.012, 0.014] for column in ("SGD", "SWA")}
    one = with_values(setting(), calibrated)
    sheet = named(full(made_evidence(one), "demo"), "generalization/full-cifar100-resnet18-100")
    assert [row for row, _ in sheet.rows] == [
        "accuracy, %", "loss", "churn, %", "JS", "ECE, %", "ECE if calibrated, %", "ECE with TS, %", "epochs",
        "decay (average)", "learning rate",
    ]  # fmt: skip
    assert sheet.columns[1:] == [
        "SGD", "SGD (best)", "EMA (acc.)", "EMA (loss)", "EMA (acc.) (BN)", "EMA (loss) (BN)", "SWA",
    ]  # fmt: skip
    assert is_mean_of(at(sheet, "JS", "EMA (loss) (BN)"), values(one, "slowest (loss)", "js"), scale=1)
    assert is_mean_of(at(sheet, "ECE if calibrated, %", "SWA"), [0.01, 0.012, 0.014])
    assert at(sheet, "ECE if calibrated, %", "EMA (acc.)").text == "–"
    assert at(sheet, "epochs", "EMA (acc.)").text == "[25, 25, 25]"
    assert at(sheet, "epochs", "EMA (acc.)").paper == "[143, 139, 155]"
    assert at(sheet, "decay (average)", "EMA (acc.)").text == "1.8%" and at(sheet, "learning rate", "SGD").text == "0.8"


def test_what_seeds_chose_differently_is_a_list():
    choices = [{**choice, "rate": rate} for choice, rate in zip(setting().choices, (0.4, 0.8, 0.4), strict=True)]
    tables = [{**table, "weights": ["ema-0.998", "live", "swa"]} for table in setting().tables]
    sheet = full(made_evidence(replace(setting(), choices=choices, tables=tables)), "demo")[0]
    assert at(sheet, "learning rate", "SGD").text == "[0.4, 0.8, 0.4]"
    assert at(sheet, "decay (average)", "SGD").text == "[0.998, none, uniform]"


def test_noisy_tuning_shows_the_last_epoch_too_and_the_paper_stands_where_its_epochs_are():
    one = setting("cifar10n-resnet34")
    tables = [
        {**t, "column": t["column"].replace("(best)", "(last)")} if t["trained_on"] == "80%" else t for t in one.tables
    ]
    tuned, refit = full(made_evidence(replace(one, tables=tables)), "demo")
    assert (at(tuned, "accuracy, %", "SGD").paper, at(tuned, "accuracy, %", "SGD (last)").paper) == ("", "66.22 ± 0.47")
    assert (at(refit, "accuracy, %", "SGD").paper, at(refit, "accuracy, %", "SGD (best)").paper) == ("", "78.09 ± 0.23")


def test_with_two_seeds_churn_is_one_value_and_every_number_says_its_n():
    sheet = full(made_evidence(first_seeds(setting(), 2)), "demo")[0]
    churn = at(sheet, "churn, %", "SGD")
    assert (churn.n, churn.std) == (1, None) and at(sheet, "accuracy, %", "SGD").n == 2 and common_n(sheet) is None


def test_two_settings_for_one_pair_have_full_tables_of_their_own_and_both_stand_in_the_headline():
    other = replace(setting(), title="another try", protocol="protocol-2")
    evidence = made_evidence(setting(), other)
    made = full(evidence, "demo")
    assert len({sheet.name for sheet in made}) == 4 and sum("another try" in sheet.title for sheet in made) == 2
    assert len(headline(evidence, "demo")[0].rows) == 2
