"""Cells against numpy, a dash rather than a mean of what is left, paired differences, and the builder of tables."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.series import REFIT, TUNED
from emabank.study.report.tables import (
    REFERENCE,
    Cell,
    ColumnSpec,
    column_cells,
    difference_cell,
    label_of,
    labels_of,
    ratio_cell,
    reference_note,
    selection_note,
    setting_table,
    settings_for,
    value_cell,
    with_best,
)
from emabank.study.studies.scales import CLEAN
from tests.study.report.looking import complete, is_mean_of
from tests.study.report.made_results import distinct_setting, made_results, the_papers, with_values

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.sampled_from([1.0, 100.0, 1000.0]))
def test_a_cell_has_numpys_mean_and_standard_deviation_of_a_sample(values: list[float], scale: float):
    cell = Cell.of(values, scale=scale, digits=3, paper="78.55")
    assert cell.mean == pytest.approx(np.mean(np.multiply(values, scale)), rel=1e-9, abs=1e-9)
    assert cell.n == len(values) and cell.digits == 3 and cell.paper == "78.55" and cell.text == ""
    if len(values) == 1:
        assert cell.std is None, "one value has no spread"
    else:
        assert cell.std == pytest.approx(np.std(np.multiply(values, scale), ddof=1), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_where_one_value_is_missing_there_is_no_mean_of_the_others(missing: float | None, place: int):
    values: list[float | None] = [0.5, 0.25]
    values.insert(place, missing)
    assert Cell.of(values, scale=100, paper="78.55") == Cell(text="–", paper="78.55")


def test_without_values_there_is_a_dash():
    assert Cell.of([]) == Cell(text="–")


# From columns ---------------------------------------------------------------------------------------------------------


def test_a_cell_is_of_the_column_the_metric_and_the_stage():
    one = with_values(distinct_setting(), {"accuracy": [0.7, 0.8, 0.75]}, "SWA")
    assert is_mean_of(value_cell(one, "SWA", "accuracy", REFIT), [0.7, 0.8, 0.75])
    assert value_cell(one, "SWA", "accuracy", TUNED).text == "–"
    assert value_cell(one, "SWA", "unknown", REFIT).text == "–"


def test_differences_and_ratios_are_paired_so_what_seeds_share_does_not_spread():
    sgd, swa = [0.5, 0.6, 0.7], [0.52, 0.63, 0.71]
    one = with_values(with_values(distinct_setting(), {"accuracy": swa}, "SWA"), {"accuracy": sgd}, "SGD")
    found = difference_cell(one, "SWA", "accuracy", REFIT)
    assert is_mean_of(found, np.subtract(swa, sgd))
    assert found.std is not None and found.std < 1.5 < 100 * np.std(sgd)
    assert is_mean_of(ratio_cell(one, "SWA", "accuracy", REFIT), np.divide(swa, sgd), scale=1)
    assert ratio_cell(with_values(one, {"accuracy": [0.5, 0.0, 0.7]}, "SGD"), "SWA", "accuracy", REFIT).text == "–"


def test_values_that_are_no_pairs_have_no_difference():
    one = with_values(distinct_setting(), {"accuracy": [0.5, 0.6]}, "SWA")
    assert difference_cell(one, "SWA", "accuracy", REFIT).text == "–"


def test_a_row_of_columns_has_the_papers_values_beside_it_and_its_best_marked():
    specs = [
        ColumnSpec("SGD", "SGD", "accuracy"),
        ColumnSpec("EMA", "slowest (acc.)", "accuracy"),
        ColumnSpec("gain", "slowest (acc.)", "accuracy", "minus"),
        ColumnSpec("loss", "SGD", "loss"),
    ]
    one = distinct_setting()
    sgd, ema, gain, loss = column_cells(one, specs, REFIT, source="Table 1")
    assert (sgd.paper, ema.paper, gain.paper, loss.paper) == ("77.63 ± 0.14", "78.55 ± 0.28", "0.92", "1.02")
    assert (sgd.best, ema.best, gain.best, loss.best) == (False, True, False, False), "a loss alone is not the best"


def test_the_best_is_marked_by_what_is_shown_and_only_among_the_places_given():
    cells = [Cell(mean=1.004, n=1), Cell(mean=1.001, n=1), Cell(mean=0.9, n=1), Cell(mean=5.0, n=1), Cell(text="–")]
    assert [cell.best for cell in with_best(cells, (0, 1, 2, 4))] == [True, True, False, False, False]
    assert [cell.best for cell in with_best(cells, (0, 1, 2), lower=True)] == [False, False, True, False, False]
    assert not any(cell.best for cell in with_best(cells, (0, 4)))


# Settings -------------------------------------------------------------------------------------------------------------


def test_settings_come_in_the_order_of_the_pairs_and_all_of_a_pair_are_there():
    one, other = distinct_setting("cifar10-resnet18"), distinct_setting("cifar100-resnet18")
    again = replace(other, title="again")
    results = made_results(one, again, other)
    assert settings_for(results, "demo", CLEAN) == [again, other, one]
    assert settings_for(results, "paper") == []


@pytest.mark.parametrize("data", [{"subset": 1000}, {"test_subset": 100}, {"noise": 0.4}, {"labels": "aggregate"}])
def test_only_the_papers_own_data_in_full_compares(data):
    real = the_papers("cifar10n-resnet34", config={"data": {"subset": None, "labels": "worse", "noise": 0.0}})
    assert real.compares and reference_note([real]) == ()
    changed = replace(real, config={"data": data})
    assert not changed.compares and reference_note([real, changed]) == (REFERENCE,)


def test_another_network_or_data_set_does_not_compare_and_the_label_says_what_it_stands_for():
    real = the_papers("cifar10-resnet18")
    assert label_of(real) == "cifar10-resnet18"
    assert not replace(real, network="resnet8").compares and not replace(real, dataset="digits").compares
    assert label_of(replace(real, network="resnet8", title="x")) == "x (for CIFAR-10, ResNet-18)"
    assert len({*labels_of([real, replace(real, protocol="protocol-2")])}) == 2


def test_where_some_settings_alone_have_wrong_labels_the_caption_names_these():
    clean, noisy, as_given = (
        replace(distinct_setting(), title=title, config={"data": data})
        for title, data in (
            ("clean one", {"noise": 0.0, "validation_labels": "clean"}),
            ("noisy one", {"noise": 0.2, "validation_labels": "clean"}),
            ("other one", {"labels": "worse", "validation_labels": "noisy"}),
        )
    )
    assert selection_note([clean]) == ""
    assert "labels are wrong; rates" in selection_note([noisy]) and "clean labels" in selection_note([noisy])
    assert "wrong (noisy one); rates" in selection_note([clean, noisy])
    both = selection_note([noisy, as_given])
    assert "wrong (noisy one)" in both and "wrong (other one)" in both and "the labels as given" in both


# The builder ----------------------------------------------------------------------------------------------------------


def build(*settings, lines=lambda setting: {"a": [Cell.of([1.0])], "b": [Cell.of([])]}, **more):
    return setting_table("study/name", "What", settings, lines, scale="demo", columns=["", "x"], caption="C.", **more)


def test_a_setting_alone_is_named_in_the_title_and_several_are_groups_with_a_rule_between():
    one, other = distinct_setting(), distinct_setting("cifar10-resnet18")
    (alone,) = build(one)
    assert alone.title == f"What: {label_of(one)}" and [row.group for row in alone.rows] == [""]
    (both,) = build(one, other)
    assert both.title == "What" and [row.group for row in both.rows] == [label_of(one), label_of(other)]
    assert both.breaks == [1] and complete([alone, both]) and both.study == "study"


def test_rows_without_values_are_dropped_unless_they_are_wanted_and_a_setting_without_any_always():
    one, other = distinct_setting(), distinct_setting("cifar10-resnet18")
    assert [row.label for row in build(one)[0].rows] == ["a"]
    assert [row.label for row in build(one, keep_empty=True)[0].rows] == ["a", "b"]
    bare = build(one, other, lines=lambda setting: {"a": [Cell.of([1.0] if setting is one else [])]}, keep_empty=True)
    assert len(bare[0].rows) == 1 and bare[0].breaks == []
    assert build(one, lines=lambda setting: {"a": [Cell.of([])]}) == [] == build()


def test_notes_about_the_paper_stand_where_it_prints_something():
    one = distinct_setting()
    printed = build(one, lines=lambda setting: {"": [Cell.of([1.0], paper="2")]}, paper_notes=["P."], notes=["N."])
    assert printed[0].notes == ("N.", "P.") and build(one, paper_notes=["P."])[0].notes == ()
