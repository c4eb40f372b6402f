"""Cells against numpy, paired differences, and tables with missing parts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.render import latex, markdown, table_csv, terminal
from emabank.study.report.results import Results, Setting
from emabank.study.report.series import REFIT
from emabank.study.report.table_specs import make_tables, protocol_tables
from emabank.study.report.tables import (
    Cell,
    Table,
    TableSpec,
    difference_cell,
    label_of,
    labels_of,
    ratio_cell,
    selection_note,
    settings_for,
    with_best,
)
from emabank.study.studies.scales import CLEAN
from tests.study.report.example_results import (
    VARIANTS,
    are_complete,
    cell_at,
    config_with,
    fewer_averages,
    first_seeds,
    make_results,
    make_setting,
    paper_setting,
    table_named,
    with_values,
)

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)
OF_NO_SCALE = {"sampling-period/equivalence", "sampling-period/overhead"}


def table_of(name: str, *settings: Setting, scale: str = "demo") -> Table:
    return table_named(make_tables(make_results(*settings)), f"{scale}/{name}")


# Cells ----------------------------------------------------------------------------------------------------------------


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.sampled_from([1.0, 100.0, 1000.0]))
def test_a_cell_matches_the_mean_and_sample_standard_deviation_of_numpy(values: list[float], scale: float):
    cell = Cell.of(values, scale=scale, digits=3, paper="78.55")
    assert cell.mean == pytest.approx(np.mean(np.multiply(values, scale)), rel=1e-9, abs=1e-9)
    assert cell.n == len(values) and cell.digits == 3 and cell.paper == "78.55" and cell.text == ""
    if len(values) == 1:
        assert cell.std is None, "one value has no spread"
    else:
        assert cell.std == pytest.approx(np.std(np.multiply(values, scale), ddof=1), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_missing_value_makes_the_cell_a_dash(missing: float | None, index: int):
    values: list[float | None] = [0.5, 0.25]
    values.insert(index, missing)
    assert Cell.of(values, scale=100, paper="78.55") == Cell(text="–", paper="78.55")
    assert Cell.of([]) == Cell(text="–")


def test_differences_and_ratios_of_what_cannot_be_paired_or_divided_are_dashes():
    one = with_values(make_setting(), {"accuracy": [0.5, 0.0, 0.7]}, "SGD")
    assert ratio_cell(one, "SWA", "accuracy", REFIT).text == "–" != difference_cell(one, "SWA", "accuracy", REFIT).text
    unpaired = with_values(one, {"accuracy": [0.5, 0.6]}, "SWA")
    assert difference_cell(unpaired, "SWA", "accuracy", REFIT).text == "–"


def test_the_best_of_the_listed_cells_is_marked_by_rounded_value():
    cells = [Cell(mean=1.004, n=1), Cell(mean=1.001, n=1), Cell(mean=0.9, n=1), Cell(mean=5.0, n=1), Cell(text="–")]
    assert [cell.best for cell in with_best(cells, (0, 1, 2, 4))] == [True, True, False, False, False]
    assert [cell.best for cell in with_best(cells, (0, 1, 2), lower=True)] == [False, False, True, False, False]
    assert not any(cell.best for cell in with_best(cells, (0, 4)))
    assert not any(cell.best for cell in with_best(cells, (0, 1, 2), lower=None))


# Settings and the builder ---------------------------------------------------------------------------------------------


def test_settings_are_sorted_by_pair_and_none_is_missing():
    one, other = make_setting("cifar10-resnet18"), make_setting("cifar100-resnet18")
    again = replace(other, title="again")
    assert settings_for(make_results(one, again, other), "demo", CLEAN) == [again, other, one]
    assert settings_for(make_results(one, again, other), "paper") == []


@pytest.mark.parametrize(
    "data",
    [
        {"subset": 1000},
        {"test_subset": 100},
        {"size": 16},
        {"noise": 0.4},
        {"dataset": "cifar10n", "labels": "random1"},
    ],
)
def test_only_the_full_data_of_the_paper_compares(data):
    real = paper_setting("cifar10n-resnet34", config=config_with(dataset="cifar10n", labels="worse"))
    assert real.compares and not replace(real, config=config_with(**data)).compares


def test_another_network_or_data_set_does_not_compare_and_is_labelled():
    real = paper_setting("cifar10-resnet18")
    assert label_of(real) == "cifar10-resnet18"
    assert not replace(real, network="resnet8").compares and not replace(real, dataset="digits").compares
    assert label_of(replace(real, network="resnet8", title="x")) == "x (for CIFAR-10, ResNet-18)"
    assert len({*labels_of([real, replace(real, protocol="protocol-2")])}) == 2


def test_the_caption_names_settings_with_noisy_labels():
    clean, noisy, as_given = (
        replace(make_setting(), title=title, config=config_with(**data))
        for title, data in (
            ("clean one", {"noise": 0.0, "validation_labels": "clean"}),
            ("noisy one", {"noise": 0.2, "validation_labels": "clean"}),
            ("other one", {"dataset": "cifar10n", "labels": "worse", "validation_labels": "noisy"}),
        )
    )
    assert selection_note([clean]) == "" and "noisy one" not in selection_note([noisy])
    assert "(noisy one)" in selection_note([clean, noisy]) and "(clean one)" not in selection_note([clean, noisy])
    both = selection_note([noisy, as_given])
    assert "(noisy one)" in both and "(other one)" in both


def build(*settings, lines=lambda setting: {"a": [Cell.of([1.0], paper="2")], "b": [Cell.of([])]}) -> list[Table]:
    spec = TableSpec(name="study/name", title="What", lines=lines, columns=["", "x"], notes=["N."], paper_notes=["P."])
    return spec(make_results(*settings), "demo")


def test_one_setting_is_in_the_title_and_several_are_groups_with_rules_between():
    one, other = make_setting(), make_setting("cifar10-resnet18")
    (alone,) = build(one)
    assert alone.title == f"What: {label_of(one)}" and [row.full_label for row in alone.rows] == ["a", "b"]
    (both,) = build(one, other)
    assert both.title == "What" and [row.group for row in both.rows[::2]] == [label_of(one), label_of(other)]
    assert both.breaks == [2] and are_complete([alone, both]) and both.study == "study"


def test_a_setting_without_values_has_no_rows_and_no_notes_on_the_paper():
    one, other = make_setting(), make_setting("cifar10-resnet18")
    (alone,) = build(one, other, lines=lambda setting: {"a": [Cell.of([1.0] if setting is one else [])]})
    assert len(alone.rows) == 1 and alone.breaks == [] and list(alone.notes) == ["N."]
    assert list(build(one)[0].notes)[:2] == ["N.", "P."]
    assert build(one, lines=lambda setting: {"a": [Cell.of([])]}) == []
    assert [table.name for table in make_tables(Results())] == ["sampling-period/equivalence"]


# All tables -----------------------------------------------------------------------------------------------------------


def incomplete_settings() -> list[Setting]:
    """Settings with missing parts, or with fewer seeds and averages."""
    one = make_setting()
    bare = tuple(replace(run, curves={}) for run in one.variants["refit"])
    return [
        replace(one, columns=[]), replace(one, variants={}), replace(one, choices=[]), replace(one, averages=()),
        replace(one, columns=[], variants={}, choices=[], averages=()),
        replace(one, pair="something-else"), replace(one, variants=dict.fromkeys(VARIANTS, ())),
        replace(one, variants=dict.fromkeys(VARIANTS, bare)), first_seeds(one, 1), first_seeds(one, 2),
        fewer_averages(one, 1), fewer_averages(first_seeds(one, 2), 3),
        replace(one, columns=[replace(column, values={}) for column in one.columns]),
        replace(one, columns=[replace(column, values=dict.fromkeys(column.values, [None] * 3))
                              for column in one.columns]),
        replace(one, columns=[column for column in one.columns if column.trained_on == "80%"]),
    ]  # fmt: skip


@pytest.mark.parametrize("index", range(len(incomplete_settings())))
def test_tables_with_missing_parts_are_complete_or_absent(index: int):
    setting = incomplete_settings()[index]
    tables = [*make_tables(make_results(setting)), *protocol_tables(setting)]
    assert {table.name for table in tables} >= OF_NO_SCALE and are_complete(tables)
    assert all(table.rows for table in tables)
    for table in tables:
        for render in (markdown, latex, table_csv, terminal):
            render(table)


# Tables against the raw values ----------------------------------------------------------------------------------------


def transferred(pair: str, *targets: str) -> Setting:
    """A setting of the paper with these transfer targets."""
    setting = paper_setting(pair)
    columns = [
        replace(column, values={
            **{metric: values for metric, values in column.values.items() if not metric.startswith("transfer:")},
            **({f"transfer:{target}": column.values["transfer:other"] for target in targets}
               if "transfer:other" in column.values else {}),
        })
        for column in setting.columns
    ]  # fmt: skip
    return replace(setting, columns=columns)


@pytest.mark.parametrize(
    ("pair", "target", "expected"),
    [
        ("cifar100-resnet18", "digits-5-9", "82.10 ± 0.21"),  # the paper has one target for this pair
        ("tiny-imagenet-resnet18", "digits-5-9", ""),  # and two targets for this one
        ("cifar100-resnet18", "cifar100", ""),  # the paper has this target only for another pair
        ("cifar10-resnet18", "cifar100-test-halves", "33.72 ± 1.67"),
    ],
)
def test_the_paper_value_is_that_of_the_matching_transfer(pair: str, target: str, expected: str):
    table = table_of("transfer/linear", transferred(pair, target), scale="paper")
    assert table.rows[0].cells[0].paper == expected


BOTH = ("cifar10n-resnet34", "cifar100n-resnet34")


def with_accuracies(setting: Setting, sgd: float, best: float, ema: float) -> Setting:
    for title, value in {"SGD": sgd, "SGD (best)": best, "slowest (acc.)": ema}.items():
        setting = with_values(setting, {"accuracy": [value - 0.01, value, value + 0.01]}, title)
    return setting


def test_our_results_are_ranked_among_the_published_methods():
    ten, hundred = (paper_setting(pair) for pair in BOTH)
    settings = with_accuracies(ten, 0.7, 0.78, 0.85), with_accuracies(hundred, 0.5, 0.56, 0.63)
    table = table_of("label-noise/leaderboard", *settings, scale="paper")
    assert [row.full_label for row in table.rows] == [
        "DivideMix", "PES(semi)", "ELR+", "EMA (acc.), paper", "EMA (acc.), ours", "CAL", "CORES",
        "Co-Teaching", "JoCor", "ELR", "Negative-LS", "Co-Teaching+", "SGD (best), ours", "CORES*", "CE (standard)",
        "SGD (last), ours",
    ]  # fmt: skip
    assert cell_at(table, "EMA (acc.), ours", "cifar10n-resnet34, %").mean == pytest.approx(85)
    assert cell_at(table, "DivideMix", "cifar100n-resnet34, %").text == "71.13 ± 0.48" and table.item == "Table 2"
