"""What printed numbers give: each kind of text against made-up tables, worked out by hand."""

import pytest

from emabank.study.report.paper import derived
from emabank.study.report.paper.derived import (
    at,
    at_the_others_best,
    budget,
    change,
    difference,
    epochs_between,
    full,
    number,
    share_of_budget,
    slope,
    slope_of_budget,
)
from emabank.study.report.paper.numbers import among
from tests.study.report.paper.made_values import made

PAIR = "cifar100-resnet18"
SGD, AVERAGE = at("Table 1", ours="SGD", metric="accuracy"), at("Table 1", ours="slowest (acc.)", metric="accuracy")
REFIT = {"trained_on": "100%", "split": "test"}
BUDGETS = (
    made("200", item="Table 22", metric="budget", column="CIFAR-10/100"),
    made("150", item="Table 22", metric="budget", column="Tiny-ImageNet"),
)


@pytest.fixture
def paper(monkeypatch):
    """A paper that prints other values, and the budgets."""
    cached = (derived._of_item, derived._printed_twice)

    def prints(*values):
        monkeypatch.setattr(derived, "printed", lambda **wanted: among([*values, *BUDGETS], **wanted))
        for each in cached:
            each.cache_clear()

    yield prints
    for each in cached:
        each.cache_clear()


def of(text, column="", **fields):
    """A value of the pair, under one of our columns."""
    return made(text, **{"pair": PAIR, "ours": column, "column": column, **fields})


# Which value ----------------------------------------------------------------------------------------------------------


def test_a_value_must_be_the_only_one(paper):
    paper(of("70.0", "SGD"), of("71.0", "SGD"))
    with pytest.raises(ValueError, match="^2 values of Table 1 have .*'ours': 'SGD'.*; name fields of Printed"):
        SGD(PAIR)
    with pytest.raises(ValueError, match="^0 values of Table 1 have"):
        AVERAGE(PAIR)


def test_a_full_table_is_found_by_pair_and_share(paper):
    paper(of("75.0", "SGD", item="Table 7"), of("77.0", "SGD", item="Table 8"))
    assert full("80%", metric="accuracy")(PAIR).text == "75.0"
    assert full("100%", metric="accuracy")(PAIR).text == "77.0"
    with pytest.raises(ValueError, match="^0 values of the full tables have"):
        full("100%", metric="accuracy")("a pair of one's own")


def test_the_budget_is_that_of_the_data_set(paper):
    paper()
    assert [budget(pair) for pair in (PAIR, "cifar10n-resnet34", "tiny-imagenet-resnet18")] == [200, 200, 150]


def test_a_list_is_no_single_number():
    with pytest.raises(ValueError, match=r"^'\[1, 2, 3\]' of Table 1 is no single number; take a value with a mean$"):
        number(made("[1, 2, 3]"))


# Differences and changes ----------------------------------------------------------------------------------------------


def test_a_difference_has_the_digits_of_the_longer_number(paper):
    paper(of("70.5 ± 0.125", "SGD"), of("69.25 ± 0.1", "slowest (acc.)"))
    assert difference(SGD, AVERAGE)(PAIR) == "−1.25 (70.50 → 69.25, Table 1)"
    assert difference(AVERAGE, SGD)(PAIR) == "+1.25 (69.25 → 70.50, Table 1)"


def test_percent_signs_do_not_count_as_digits(paper):
    paper(of("68.2%", item="Appendix E.1", metric="one"), of("28.8%", item="Appendix E.1", metric="other"))
    text = difference(at("Appendix E.1", metric="one"), at("Appendix E.1", metric="other"))(PAIR)
    assert text == "−39.4 (68.2 → 28.8, Appendix E.1)"


def test_both_places_and_a_note_are_told(paper):
    paper(of("70.0", "SGD"), of("70.5", item="Section 4.3"))
    text = difference(SGD, at("Section 4.3"), note=lambda pair: f"of {pair}")(PAIR)
    assert text == f"+0.5 (70.0 → 70.5, Table 1 and Section 4.3, of {PAIR})"


def test_a_difference_said_elsewhere_is_told_only_if_it_is_another(paper):
    values = of("55.47", "SGD"), of("65.15", "slowest (acc.)")
    said = difference(SGD, AVERAGE, said=at("Figure 2", metric="gain"))
    paper(*values, of("+9.65 pp", item="Figure 2", metric="gain"))
    assert said(PAIR) == "+9.68 (55.47 → 65.15, Table 1; 9.65 in Figure 2)"
    paper(*values, of("+9.68 pp", item="Figure 2", metric="gain"))
    assert said(PAIR) == "+9.68 (55.47 → 65.15, Table 1)"


def test_what_is_printed_elsewhere_with_another_mean_is_told(paper):
    paper(
        of("70.00 ± 0.1", "SGD", **REFIT),
        of("69.9 ± 0.1", "SGD", item="Table 8", **REFIT),
        of("71.00 ± 0.1", "slowest (acc.)", **REFIT),
        of("71.00 ± 0.3", "slowest (acc.)", item="Table 8", **REFIT),  # another spread alone
    )
    assert difference(SGD, AVERAGE)(PAIR) == "+1.00 (70.00 → 71.00, Table 1; 69.90 in Table 8)"


@pytest.mark.parametrize(("decay", "told"), [("[0.9, 0.9, 0.9]", " at α = 0.998"), ("0.998", "")])
def test_the_decay_tells_two_columns_of_the_other_table_apart(paper, decay, told):
    paper(
        of("70.00", "SGD", **REFIT),
        of("71.00", "slowest (acc.)", **REFIT),
        of("71.5", "slowest (acc.)", item="Table 8", **REFIT),
        of("71.0", "EMA (acc.)", item="Table 8", **REFIT),
        of("0.998", "slowest (acc.)", item="Table 8", metric="decay"),
        of(decay, "EMA (acc.)", item="Table 8", metric="decay"),
    )
    assert difference(SGD, AVERAGE)(PAIR) == f"+1.00 (70.00 → 71.00, Table 1; 71.50{told} in Table 8)"


def test_a_change_is_a_share_of_the_first_value_and_shows_both_as_printed(paper):
    paper(
        of("0.10 ± 0.0", "SGD", **REFIT),
        of("0.055 ± 0.0", "slowest (acc.)", **REFIT),
        of("0.07 ± 0.0", "slowest (acc.)", item="Table 8", **REFIT),
    )
    assert change(SGD, AVERAGE)(PAIR) == "−45% (0.10 → 0.055, Table 1; 0.070 in Table 8)"
    assert change(AVERAGE, SGD)(PAIR) == "+82% (0.055 → 0.10, Table 1; 0.070 in Table 8)"


# Lists ----------------------------------------------------------------------------------------------------------------


def test_epochs_are_a_share_of_the_budget(paper):
    epochs = [100, 101, 120]
    paper(made(str(epochs), pair="tiny-imagenet-resnet18", metric="epochs"))
    text = share_of_budget(at("Table 1", metric="epochs"))("tiny-imagenet-resnet18")
    assert text == f"{100 * sum(epochs) / 3 / 150:.1f}% (100, 101, 120 of 150, Table 1)"
    assert text.startswith("71.3% ")


def test_epochs_are_compared_seed_by_seed(paper):
    paper(of("[100, 90, 80]", "SGD", metric="epochs"), of("[90, 95, 60]", "slowest (acc.)", metric="epochs"))
    one, other = (at("Table 1", ours=column) for column in ("SGD", "slowest (acc.)"))
    assert epochs_between(one, other)(PAIR) == "−8.3 of 200 (−10, +5, −20, Table 1)"
    assert epochs_between(other, one)(PAIR) == "+8.3 of 200 (+10, −5, +20, Table 1)"


def test_a_slope_is_that_of_least_squares(paper):
    paper(*(of(text, metric="peak") for text in ("70.0", "72.0", "71.0")))
    assert slope("Table 1", "peak")(PAIR) == "+0.50 (70.0, 72.0, 71.0, Table 1)"  # (71 - 70) / 2
    paper(*(of(text, metric="peak") for text in ("100", "80", "90", "60")))
    assert slope_of_budget("Table 1", "peak")(PAIR) == "−5.5% (epochs 100, 80, 90, 60 of 200, Table 1)"  # -11 / 200


def test_a_slope_needs_a_column(paper):
    paper(of("70.0", metric="peak"))
    with pytest.raises(ValueError, match="^1 values of Table 1 have .*; name fields of Printed that fit a column$"):
        slope("Table 1", "peak")(PAIR)


def rates(*rows):
    """A table of a learning-rate search: rate, accuracy of the live weights, accuracy of the average."""
    for rate, live, average in rows:
        yield of(rate, metric="rate", column="η")
        yield of(live, column="SGD Acc.")
        yield of(average, column="EMA Acc.")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [("0.1", "70.0", "71.0"), ("0.2", "72.0", "72.5"), ("0.4", "71.0", "73.0")],
            "0.5 (72.5 at 0.2, best for SGD; 73.0 at 0.4, best for EMA; Table 1)",
        ),
        (
            [("0.1", "72.0", "71.0"), ("0.2", "72.0", "73.0"), ("0.4", "71.0", "73.0")],
            "2.0 (71.0 at 0.1 and 73.0 at 0.2, best for SGD; 73.0 at 0.2 and 73.0 at 0.4, best for EMA; Table 1)",
        ),
    ],
)
def test_the_best_is_held_against_the_row_where_the_other_is_best(paper, rows, text):
    paper(*rates(*rows))
    assert at_the_others_best("Table 1", one="EMA Acc.", other="SGD Acc.", by="rate")(PAIR) == text
