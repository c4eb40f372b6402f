"""Evidence: values and columns by name, curves of all seeds or none, the best average by a plain loop, and scales."""

import json
from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import LIVE, Curve, Evidence, Run, Setting
from tests.study.report.made_evidence import (
    AVERAGES,
    COLUMNS,
    EPOCHS,
    PAIRS,
    SEEDS,
    made_evidence,
    made_runs,
    made_setting,
)
from tests.support.processes import run

SETTING = made_setting()
ACCURACY = Curve(LIVE, "own", "test", "accuracy")


def shorter(run: Run, epochs: int) -> Run:
    """The run as if it had diverged after so many epochs."""
    return replace(run, rates=run.rates[:epochs], curves={curve: found[:epochs] for curve, found in run.curves.items()})


# Tables --------------------------------------------------------------------------------------------------------------


def test_values_and_columns_are_those_of_the_table_with_all_three_names():
    for table in SETTING.tables:
        stage = {"trained_on": table["trained_on"], "split": table["split"]}
        assert SETTING.column(table["column"], **stage) is table
        for metric, values in table["values"].items():
            assert SETTING.values(table["column"], metric, **stage) is values
    assert len(SETTING.tables) == 3 * len(COLUMNS) - 2


@pytest.mark.parametrize(
    ("column", "metric", "trained_on", "split"),
    [
        ("SGD", "accuracy", "100%", "val"),  # a refit has no validation images
        ("SGD", "accuracy", "50%", "test"),
        ("SWA", "accuracy", "80%", "test"),
        ("SGD (worst)", "accuracy", "100%", "test"),
        ("SGD", "transfer:other", "80%", "test"),
        ("SGD", "speed", "100%", "test"),
    ],
)
def test_what_no_table_has_is_none(column: str, metric: str, trained_on: str, split: str):
    assert SETTING.values(column, metric, trained_on=trained_on, split=split) is None


def test_a_column_that_no_table_has_is_none():
    assert SETTING.column("SWA", trained_on="80%", split="val") is None


def test_seeds_are_those_that_chose_and_the_slowest_average_is_the_last():
    assert SETTING.seeds == tuple(range(SEEDS))
    assert SETTING.slowest == AVERAGES[-1]


# Curves --------------------------------------------------------------------------------------------------------------


def test_curves_are_a_line_for_each_run_in_their_order():
    found = SETTING.curves("refit", ACCURACY)
    assert found is not None and found.shape == (SEEDS, EPOCHS)
    for row, each in zip(found, SETTING.arms["refit"], strict=True):
        assert row.tolist() == each.curves[ACCURACY].tolist()


def test_a_curve_that_one_run_does_not_have_is_no_curve_of_the_arm():
    runs = SETTING.arms["refit"]
    bare = replace(runs[1], curves={curve: v for curve, v in runs[1].curves.items() if curve != ACCURACY})
    setting = replace(SETTING, arms={"refit": (runs[0], bare, runs[2])})
    assert setting.curves("refit", ACCURACY) is None
    assert setting.curves("refit", ACCURACY._replace(metric="loss")) is not None


def test_runs_of_different_length_have_no_curve_together():
    """One of them has diverged."""
    runs = SETTING.arms["tune"]
    setting = replace(SETTING, arms={"tune": (runs[0], shorter(runs[1], 3), runs[2])})
    assert setting.curves("tune", ACCURACY) is None and setting.best_average("tune", "val") is None


@pytest.mark.parametrize("arms", [{}, {"refit": ()}])
def test_an_arm_without_runs_has_no_curves(arms: dict[str, tuple[Run, ...]]):
    setting = replace(SETTING, arms=arms)
    assert setting.curves("refit", ACCURACY) is None and setting.best_average("refit", "test") is None


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("batchnorm", ["averaged", "recomputed"])
def test_the_best_average_is_the_best_of_all_at_each_epoch(metric: str, batchnorm: str):
    random = np.random.default_rng(0)
    runs = [
        replace(each, curves={curve: random.random(EPOCHS) for curve in each.curves}) for each in made_runs("refit")
    ]
    found = replace(SETTING, arms={"refit": tuple(runs)}).best_average("refit", "test", metric, batchnorm=batchnorm)
    assert found is not None and found.shape == (SEEDS, EPOCHS)
    better = min if metric == "loss" else max
    for row, each in zip(found, runs, strict=True):
        for epoch in range(EPOCHS):
            assert row[epoch] == better(each.curves[Curve(name, batchnorm, "test", metric)][epoch] for name in AVERAGES)


def with_curve(runs: tuple[Run, ...], curve: Curve, values: np.ndarray) -> tuple[Run, ...]:
    return tuple(replace(each, curves={**each.curves, curve: values}) for each in runs)


def test_of_the_best_average_an_epoch_that_one_did_not_measure_is_that_of_the_others():
    curve = Curve(AVERAGES[0], "averaged", "test", "accuracy")
    values = np.full(EPOCHS, 2.0)
    values[5] = np.nan
    setting = replace(SETTING, arms={"refit": with_curve(SETTING.arms["refit"], curve, values)})
    found = setting.best_average("refit", "test")
    assert found is not None and (np.delete(found, 5, axis=1) == 2.0).all()
    assert np.isfinite(found[:, 5]).all() and (found[:, 5] < 1).all()


def test_without_a_curve_of_every_average_there_is_no_best_one():
    assert replace(SETTING, averages=(*AVERAGES, "ema-60%")).best_average("refit", "test") is None
    assert replace(SETTING, averages=()).best_average("refit", "test") is None


def test_a_run_has_as_many_epochs_as_rates():
    one = made_runs("tune")[0]
    assert one.epochs == EPOCHS and shorter(one, 3).epochs == 3


def test_a_run_that_kept_nothing_has_no_predictions():
    assert Run(id="", seed=0, rate=0.1, rates=np.ones(2), curves={}).predictions("live-last") == {}


# All of it -----------------------------------------------------------------------------------------------------------


def test_settings_are_found_by_pair_and_by_scale():
    both: list[Setting] = [made_setting(pair, scale=scale) for scale in ("demo", "paper") for pair in PAIRS[:3]]
    evidence = made_evidence(*both)
    assert evidence.of() == both
    assert evidence.of(scale="paper") == both[3:]
    assert evidence.of(PAIRS[1], PAIRS[0]) == [both[0], both[1], both[3], both[4]]
    assert evidence.of(PAIRS[2], scale="demo") == [both[2]]
    assert evidence.of("svhn-resnet18") == evidence.of(scale="small") == []


def test_scales_are_those_that_there_are_the_largest_first():
    settings = [replace(SETTING, scale=scale) for scale in ("demo", "paper", "demo", "small")]
    assert made_evidence(*settings).scales == ["paper", "small", "demo"]
    assert made_evidence(*settings[:1]).scales == ["demo"]
    assert Evidence().scales == []


def test_numpy_is_all_that_it_loads():
    finished = run("import json, sys, emabank.study.report.evidence\nprint(json.dumps(sorted(sys.modules)))")
    assert finished.returncode == 0, finished.stderr
    loaded = set(json.loads(finished.stdout))
    assert "numpy" in loaded and not loaded & {"torch", "matplotlib", "rich", "pandas"}
