"""Numbers against numbers: each rule finds made-up disagreements, and nothing where numbers agree."""

import pytest

from emabank.study.report.paper.disagreements import (
    agree,
    carried_over,
    mean_epochs,
    misplaced_marks,
    mixed_columns,
    printed_twice,
    sgd_epochs,
)
from emabank.study.report.paper.numbers import everything
from tests.study.report.paper.made_values import changed, made, without

PAIR = {"pair": "cifar100-resnet18", "ours": "slowest (acc.)", "trained_on": "100%", "split": "test"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("78.55", "78.55", True),
        ("78.55", "78.54", False),
        ("78.5", "78.54", True),
        ("78.5", "78.56", False),
        ("0.32", "0.325", True),  # 0.3249 rounds to both
        ("0.67", "0.676", False),
        ("78.55 ± 0.28", "78.55", True),
        ("78.55 ± 0.28", "78.55 ± 0.29", False),
        ("78.55 ± 0.3", "78.55 ± 0.29", True),
        ("[143, 139, 156]", "[143, 139, 156]", True),
        ("[143, 139, 156]", "[143, 139, 155]", False),
        ("WideResNet", "WideResNet", True),
        ("WideResNet", "ResNet", False),
    ],
)
def test_values_agree_when_one_number_rounds_to_both(one, other, same):
    assert agree(made(one), made(other)) is same
    assert agree(made(other), made(one)) is same


def test_full_tables_drop_zeros_at_the_end():
    short, full = made("0.013", metric="js"), made("0.01", item="Table 14", metric="js")
    assert not agree(short, full), "0.010 there"
    assert agree(made("0.9", item="Table 7", metric="loss"), made("0.90", metric="loss"))
    assert not agree(made("0.9", item="Table 7", metric="loss"), made("0.91", metric="loss"))


def test_one_quantity_with_two_values_is_found_with_both_places():
    one, other = made("78.55 ± 0.28", **PAIR), made("78.54 ± 0.28", item="Table 8", **PAIR)
    (conflict,) = printed_twice([one, made("1", metric="loss", **PAIR), other])
    assert conflict.printed == (one, other) and conflict.kind == "number"
    assert conflict.places == "78.55 ± 0.28 (Table 1); 78.54 ± 0.28 (Table 8)"
    assert "differ by 0.01" in conflict.sentence
    assert list(printed_twice([one, made("78.55 ± 0.28", item="Table 8", **PAIR)])) == []


@pytest.mark.parametrize("field", ["pair", "ours", "trained_on", "split", "metric"])
def test_values_of_other_quantities_are_not_compared(field):
    one, other = made("1", **PAIR), made("2", **{**PAIR, "metric": "accuracy", field: "another"})
    assert list(printed_twice([one, other])) == []


def test_things_said_in_several_places_are_compared_by_their_name():
    (conflict,) = printed_twice([made("16", quantity="period"), made("8", quantity="period", place="caption")])
    assert conflict.about == "period" and "caption of Table 1" in conflict.places


def test_a_value_that_stands_under_another_heading_is_traced():
    (conflict,) = printed_twice(
        [
            made("73.64", **PAIR),
            made("73.62", item="Table 8", **PAIR),
            made("73.64", item="Table 8", **{**PAIR, "ours": "EMA (acc.)"}, column="EMA (acc.)"),
        ]
    )
    assert conflict.sentence.endswith("73.64 is what Table 8 has under EMA (acc.).")


def test_an_accuracy_and_a_loss_of_two_columns_under_one_heading_are_found():
    full = [
        made(text, item="Table 8", column=ours, metric=metric, **{**PAIR, "ours": ours})
        for ours, *texts in (("EMA (acc.)", "73.64", "1.17"), ("slowest (acc.)", "73.62", "1.13"))
        for metric, text in zip(("accuracy", "loss"), texts, strict=True)
    ]
    right = [made("73.62", **PAIR), made("1.13", metric="loss", **PAIR)]
    mixed = [made("73.64", **PAIR), made("1.13", metric="loss", **PAIR)]
    assert list(mixed_columns([*right, *full])) == []
    (conflict,) = mixed_columns([*mixed, *full])
    assert conflict.sentence == "The accuracy is that of EMA (acc.) in Table 8, the loss that of slowest (acc.)."


@pytest.mark.parametrize("metric", ["epochs", "decay", "rate"])
def test_refits_that_do_not_have_what_was_chosen_are_found(metric):
    tuned = made("[1, 2, 3]", pair="a", ours="EMA (acc.)", metric=metric, trained_on="80%")
    used = made("[1, 2, 4]", pair="a", ours="EMA (acc.)", metric=metric, trained_on="100%", item="Table 8")
    (conflict,) = carried_over([used, tuned])
    assert conflict.printed == (tuned, used) and "seed 3 3, then 4" in conflict.sentence
    same = made("[1, 2, 3]", pair="a", ours="EMA (acc.)", metric=metric, trained_on="100%")
    assert list(carried_over([same, tuned])) == []


def test_sgd_at_the_last_epoch_in_tuning_and_earlier_in_the_refit_is_found():
    def lists(tuned, used):
        fields = {"column": "SGD", "metric": "epochs", "pair": "a"}
        return [made(tuned, trained_on="80%", **fields), made(used, trained_on="100%", **fields)]

    assert len(list(sgd_epochs(lists("[200, 200, 200]", "[111, 118, 113]")))) == 1
    assert list(sgd_epochs(lists("[187, 184, 196]", "[200, 200, 200]"))) == []
    assert list(carried_over(lists("[187, 184, 196]", "[200, 200, 200]"))) == []


@pytest.mark.parametrize(
    ("mean", "found"), [("198", True), ("198.6", True), ("198.7", False), ("199", False), ("198.67", False)]
)
def test_a_mean_to_which_its_list_does_not_round_is_found(mean, found):
    short = made(mean, item="Table 6", metric="epoch", ours="slowest (acc.)", pair="a")
    full = made("[200, 197, 199]", metric="epochs", ours="EMA (acc.)", pair="a", trained_on="80%", split="val")
    assert bool(list(mean_epochs([short, full]))) is found


@pytest.mark.parametrize(("marked", "found"), [("second", False), ("third", True)])
def test_an_underline_that_is_not_on_the_second_best_is_found(marked, found):
    texts = {"best": "73.64", "second": "73.28", "third": "72.3"}
    row = [
        made(text, pair="a", column=name, mark="underline" if name == marked else "") for name, text in texts.items()
    ]
    assert [each.printed[0].column for each in misplaced_marks(row)] == (["third"] if found else [])


def test_bold_is_held_against_the_lowest_where_lower_is_better():
    for bold, found in (("3.13", False), ("4.67", True)):
        row = [made(text, item="Table 5", metric="ece_ts", pair="a", mark="bold" if text == bold else "")
               for text in ("4.67", "3.13")]  # fmt: skip
        assert bool(list(misplaced_marks(row))) is found


def test_rules_see_changes_of_the_papers_own_numbers():
    def is_swa(each):
        return each.item == "Table 1" and each.ours == "SWA" and each.pair == "cifar10-resnet18"

    assert len(list(misplaced_marks(everything()))) == 1
    assert len(list(misplaced_marks(changed(is_swa, mean=90.0)))) > 1
    assert len(list(printed_twice(without(lambda each: each.item == "Table 3")))) < len(
        list(printed_twice(everything()))
    )
