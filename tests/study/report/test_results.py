"""Results of a folder of runs match its files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emabank.study import load_results
from emabank.study.report.results import (
    LIVE,
    OF_PAIRS,
    ON_TRAIN,
    Curve,
    Setting,
    Skipped,
    read_results,
    read_setting,
)
from emabank.study.runs.manifest import Manifest, SettingRuns, write_manifest
from tests.study.report.spoiling import content
from tests.study.small_folder import ALL, COMMAND, EPOCHS, RATES, run_studies, small
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs

VARIANTS = ("step", "constant", "bootstrap", "bootstrap every 5", "posthoc", "every 1", "every 2", "every 4", "every 8")


@pytest.fixture(scope="module")
def setting(finished: Path) -> Setting:
    results = read_results(finished)
    (setting,) = results.settings
    assert results.skipped == () and results.scales == ["demo"]
    return setting


def own_names(folder: Path) -> dict[str, str]:
    """The names in the setting of a run's own averages, shortest memory first."""
    decays = sorted(content(folder, "config.json")["config"]["recipe"]["averages"]["decays"])
    return dict(zip((f"ema-{decay:g}" for decay in decays), ("ema-0.7", "ema-0.8", "ema-0.9"), strict=True))


def test_curves_match_the_rows_of_each_epoch(setting: Setting, finished: Path):
    """Against pandas, for every run of every variant."""
    frame = load_results(finished)
    frame = frame[frame.selected_by.isna() & frame.epoch.notna()]
    kinds: set[tuple[str, str]] = set()
    for variant, runs_of_variant in setting.variants.items():
        for run in runs_of_variant:
            mine = frame[frame.run == run.id]
            names = own_names(finished / run.id)
            expected: dict[Curve, list[float]] = {}
            for key, rows in mine.groupby(["weights", "batchnorm", "split", "metric"]):
                weights, *rest = key  # type: ignore[misc]
                by_epoch = dict(zip(rows.epoch, rows.value, strict=True))
                assert len(by_epoch) == EPOCHS or weights == "swa", "only SWA is not measured in every epoch"
                values = [by_epoch.get(epoch, np.nan) for epoch in range(1, EPOCHS + 1)]
                expected[Curve(names.get(weights, weights), *rest)] = values
            assert run.curves.keys() == expected.keys()
            for curve, values in expected.items():
                np.testing.assert_array_equal(run.curves[curve], values)
            assert {curve.weights for curve in run.curves} >= {"live", *setting.averages}, variant
            kinds |= {(curve.split, curve.metric) for curve in run.curves}
    assert kinds >= {("val", "accuracy"), ("test", "loss")}


# Several settings ----------------------------------------------------------------------------------------------------


def test_another_configuration_of_a_pair_is_a_separate_setting(setting: Setting, runs: Path):
    study = next(study for study in ALL if study.name == "bootstrap")
    run_studies(runs, [study], lambda config: replace(small(config), seeds=1))
    results = read_results(runs)
    other, same = sorted(results.settings, key=lambda setting: len(setting.seeds))
    bootstraps = ("bootstrap", "bootstrap every 5")
    assert same.protocol == setting.protocol and set(same.variants) == set(setting.variants) - set(bootstraps)
    assert other.protocol != setting.protocol and other.pair == same.pair and len(other.seeds) == 1
    assert [run.id for run in other.variants["bootstrap"]] == [setting.variants["bootstrap"][0].id]
    unused = sorted(setting.variants[variant][1].id for variant in bootstraps)
    assert results.skipped == (Skipped(", ".join(unused), "not used by any study in this folder"),)


def test_one_protocol_for_two_pairs_makes_two_settings(setting: Setting, runs: Path):
    ran = SettingRuns(pair="cifar100n-resnet34", title="the other", protocol=setting.protocol)
    write_manifest(Manifest(study="label-noise", scale="demo", command=COMMAND, state="done", pairs=(ran,)), runs)
    first, second = read_results(runs).settings
    assert (first.pair, first.title) == (setting.pair, setting.title)
    assert (second.pair, second.title) == ("cifar100n-resnet34", "the other")
    assert second.protocol == first.protocol and set(second.variants) == set(first.variants) - set(VARIANTS)


# Columns --------------------------------------------------------------------------------------------------------------


def test_columns_match_the_rows_that_each_seed_chose(setting: Setting, finished: Path):
    """Run, weights, epoch and every metric, against pandas."""
    frame = load_results(finished)
    frame = frame[frame.selected_by.notna()]
    stages = {"80%": "tune", "100%": "refit"}
    averages = ("EMA (acc.)", "EMA (loss)", "slowest (acc.)", "slowest (loss)",
                "EMA (acc., noisy)", "EMA (loss, noisy)", "SGD (best, noisy)")  # fmt: skip
    assert [(column.trained_on, column.split, column.title) for column in setting.columns] == [
        *(("80%", split, title) for split in ("val", "test") for title in ("SGD", "SGD (last)", *averages)),
        *(("100%", "test", title) for title in ("SGD", "SGD (best)", *averages, "SWA")),
    ]  # fmt: skip
    for column in setting.columns:
        runs = setting.variants["swa" if column.title == "SWA" else stages[column.trained_on]]
        assert {"accuracy", "loss", "churn", "js", "ece", "memorised"} <= set(column.values)
        for seed, run in enumerate(runs):
            choice = setting.choices[seed]
            expected = {
                "SGD": (LIVE, "own", "accuracy" if column.trained_on == "80%" else "last"),
                "SGD (last)": (LIVE, "own", "last"),
                "SGD (best)": (LIVE, "own", "accuracy"),
                "EMA (acc.)": (choice["averages"]["accuracy"][0], "averaged", "accuracy"),
                "EMA (loss)": (choice["averages"]["loss"][0], "averaged", "loss"),
                "slowest (acc.)": ("ema-0.9", "recomputed", "accuracy"),
                "slowest (loss)": ("ema-0.9", "recomputed", "loss"),
                "EMA (acc., noisy)": (choice["averages"]["noisy-accuracy"][0], "averaged", "noisy-accuracy"),
                "EMA (loss, noisy)": (choice["averages"]["noisy-loss"][0], "averaged", "noisy-loss"),
                "SGD (best, noisy)": (LIVE, "own", "noisy-accuracy"),
                "SWA": ("swa", "recomputed", "last"),
            }[column.title]
            mine = frame[(frame.run == run.id) & frame.other.isna()]
            mine = mine[(mine.weights == expected[0]) & (mine.batchnorm == expected[1])]
            mine = mine[mine.selected_by == expected[2]]
            assert column.weights[seed] == expected[0] and set(mine.epoch) == {column.epochs[seed]}
            for metric, values in column.values.items():
                if metric not in OF_PAIRS:
                    split = "train" if metric in ON_TRAIN else column.split
                    (value,) = mine[(mine.split == split) & (mine.metric == metric)].value
                    assert values[seed] == value, metric


def test_a_setting_can_be_read_from_its_protocol_folder(setting: Setting, finished: Path):
    alone = read_setting(finished / setting.protocol)
    assert alone.columns == setting.columns and alone.choices == setting.choices
    assert set(alone.variants) == {"tune", "refit", "swa", *(f"tune at {rate:g}" for rate in RATES)}
