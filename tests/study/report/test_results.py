"""From a folder of runs to results: everything is what the files hold."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emabank.study import load_results
from emabank.study.report.results import (
    LIVE,
    OF_PAIRS,
    ON_TRAIN,
    Curve,
    Results,
    Setting,
    Skipped,
    read_results,
    read_setting,
    read_studies,
)
from emabank.study.runs.manifest import Manifest, Ran, write_manifest
from emabank.study.serialize import to_dict
from emabank.study.studies.scales import MAIN
from tests.study.report.spoiling import content, put
from tests.study.small_folder import ALL, COMMAND, EPOCHS, NAMES, RATES, SEEDS, run_studies, small
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs

MANIFESTS = {name: f"study-demo-{name}.json" for name in NAMES}
VARIANTS = ("step", "constant", "bootstrap", "bootstrap every 5", "posthoc", "every 1", "every 2", "every 4", "every 8")


@pytest.fixture(scope="module")
def results(finished: Path) -> Results:
    return read_results(finished)


@pytest.fixture(scope="module")
def setting(results: Results) -> Setting:
    (only,) = results.settings
    return only


def told(runs: Path) -> dict[str, Any]:
    """What a run was told, without our own reader."""
    return content(runs, "config.json")["config"]


# What the files hold -------------------------------------------------------------------------------------------------


def test_nothing_of_a_finished_folder_is_left_out(results: Results):
    assert results.skipped == ()
    assert results.scales == ["demo"]


def test_studies_are_as_they_were_asked_for(results: Results, finished: Path):
    assert {study.study for study in results.studies} == set(NAMES)
    for study in results.studies:
        assert (study.scale, study.command, study.state, study.reason) == ("demo", COMMAND, "done", "")
    assert read_studies(finished) == (results.studies, ())


def test_a_setting_is_what_its_protocol_wrote(setting: Setting, finished: Path):
    summary = content(finished, setting.protocol, "summary.json")
    assert setting.choices == summary["choices"]
    assert to_dict(setting.config) == summary["config"] and setting.has_batchnorm is True
    assert (setting.scale, setting.pair, setting.dataset, setting.network) == ("demo", MAIN, "digits", "resnet8")
    assert setting.title == content(finished, MANIFESTS["step-decay"])["pairs"][0]["title"]
    assert setting.averages == ("ema-0.7", "ema-0.8", "ema-0.9")
    assert setting.seeds == tuple(range(SEEDS))


def test_studies_of_one_pair_share_a_setting_that_has_the_arms_of_all(setting: Setting, finished: Path):
    assert set(setting.variants) == {"tune", "refit", "swa", *(f"tune at {rate:g}" for rate in RATES), *VARIANTS}
    by_study = {name: set(content(finished, file)["pairs"][0]["arms"]) for name, file in MANIFESTS.items()}
    assert set.union(*by_study.values()) == set(VARIANTS) and by_study["generalization"] == set()


@pytest.mark.parametrize(
    ("variant", "trained_on", "holds"),
    [
        ("tune", "80%", lambda told: told["recipe"]["training"]["bootstrap"] is None),
        *((f"tune at {rate:g}", "80%", lambda told, rate=rate: told["rate"] == rate) for rate in RATES),
        ("refit", "100%", lambda told: bool(told["keep"]) and not told["swa"]),
        ("swa", "100%", lambda told: told["swa"]),
        ("step", "100%", lambda told: told["recipe"]["training"]["schedule"] == "step"),
        ("constant", "100%", lambda told: told["constant_from"] is not None and not told["swa"]),
        ("bootstrap", "80%", lambda told: told["recipe"]["training"]["bootstrap"] == "ema-0.9"),
        ("posthoc", "80%", lambda told: told["posthoc"] == 100 and not told["keep"]),
        *(
            (f"every {T}", "100%", lambda told, T=T: told["recipe"]["averages"]["every"] == T and not told["swa"])
            for T in (1, 2, 4, 8)
        ),
    ],
)
def test_an_arm_has_the_right_runs_in_the_order_of_the_seeds(
    variant: str, trained_on: str, holds: Callable[[Any], bool], setting: Setting, finished: Path
):
    given = [told(finished / each.id) for each in setting.variants[variant]]
    assert [each["seed"] for each in given] == list(range(SEEDS))
    assert [(each.seed, each.rate) for each in setting.variants[variant]] == [
        (each["seed"], each["rate"]) for each in given
    ]
    assert {each["trained_on"] for each in given} == {trained_on} and all(map(holds, given))
    own = [(each["recipe"]["training"]["bootstrap"], each["constant_from"]) for each in given]
    assert [(each.copied_back, each.constant_from) for each in setting.variants[variant]] == own


def test_the_tuned_runs_are_those_that_each_seed_chose(setting: Setting, finished: Path):
    choices = content(finished, setting.protocol, "summary.json")["choices"]
    assert [each.id for each in setting.variants["tune"]] == [choice["run"] for choice in choices]
    assert [each.rate for each in setting.variants["refit"]] == [choice["rate"] for choice in choices]


def own_names(folder: Path) -> dict[str, str]:
    """The averages of a run by the names that the setting has for them: the shortest memory first."""
    decays = sorted(told(folder)["recipe"]["averages"]["decays"])
    return dict(zip((f"ema-{decay:g}" for decay in decays), ("ema-0.7", "ema-0.8", "ema-0.9"), strict=True))


def test_curves_are_every_row_of_an_epoch_and_nothing_else(setting: Setting, finished: Path):
    """Against pandas, for every run of every variant."""
    frame = load_results(finished)
    frame = frame[frame.selected_by.isna() & frame.epoch.notna()]
    kinds: set[tuple[str, str]] = set()
    for variant, some in setting.variants.items():
        for each in some:
            mine = frame[frame.run == each.id]
            names = own_names(finished / each.id)
            expected: dict[Curve, list[float]] = {}
            for key, rows in mine.groupby(["weights", "batchnorm", "split", "metric"]):
                weights, *rest = key  # type: ignore[misc]
                by_epoch = dict(zip(rows.epoch, rows.value, strict=True))
                assert len(by_epoch) == EPOCHS or weights == "swa", "but for SWA, all are measured each epoch"
                values = [by_epoch.get(epoch, np.nan) for epoch in range(1, EPOCHS + 1)]
                expected[Curve(names.get(weights, weights), *rest)] = values
            assert each.curves.keys() == expected.keys()
            for curve, values in expected.items():
                np.testing.assert_array_equal(each.curves[curve], values)
            assert {curve.weights for curve in each.curves} >= {"live", *setting.averages}, variant
            kinds |= {(curve.split, curve.metric) for curve in each.curves}
    assert kinds >= {("val", "accuracy"), ("test", "loss")}


def test_averages_of_another_period_are_renamed_by_their_memory(setting: Setting, finished: Path):
    for period in (1, 4, 8):
        for each in setting.variants[f"every {period}"]:
            names = own_names(finished / each.id)
            assert not set(names) & set(setting.averages), "they have other names in their own folder"
            decays = [float(name.removeprefix("ema-")) for name in names]
            for decay, name in zip(decays, names.values(), strict=True):
                horizon = np.log(decay) / period
                assert horizon == pytest.approx(np.log(float(name.removeprefix("ema-"))) / 2, rel=1e-4)
    same = {each.id: each for each in setting.variants["refit"]}
    assert all(each.curves.keys() == same[each.id].curves.keys() for each in setting.variants["every 2"])


def test_predictions_are_the_arrays_of_the_file_and_are_read_when_asked_for(setting: Setting, finished: Path):
    for variant in ("tune", "refit"):
        for each in setting.variants[variant]:
            names = sorted(path.stem for path in (finished / each.id / "predictions").glob("*.npz"))
            assert len(names) > 2
            for name in names:
                with np.load(finished / each.id / "predictions" / f"{name}.npz") as arrays:
                    expected = {key: arrays[key].tolist() for key in arrays.files}
                found = {
                    f"{kind}_{split}": array.tolist()
                    for split, both in each.predictions(name).items()
                    for kind, array in zip(("logits", "labels"), both, strict=True)
                }
                assert found == expected


def test_the_cost_of_averages_is_what_was_measured(results: Results, finished: Path):
    (measured,) = content(finished, MANIFESTS["sampling-period"])["overheads"]
    (found,) = results.overheads
    assert measured == {name: list(value) if isinstance(value, tuple) else value for name, value in vars(found).items()}


# More than one setting -----------------------------------------------------------------------------------------------


def test_another_configuration_of_the_same_pair_is_a_setting_of_its_own(setting: Setting, runs: Path):
    study = next(study for study in ALL if study.name == "bootstrap")
    run_studies(runs, [study], lambda config: replace(small(config), seeds=1))
    results = read_results(runs)
    other, same = sorted(results.settings, key=lambda setting: len(setting.seeds))
    assert same.protocol == setting.protocol and set(same.variants) == set(setting.variants) - {
        "bootstrap",
        "bootstrap every 5",
    }
    assert other.protocol != setting.protocol and other.pair == same.pair and len(other.seeds) == 1
    assert {variant: len(some) for variant, some in other.variants.items()}["bootstrap"] == 1
    assert [each.id for each in other.variants["bootstrap"]] == [each.id for each in setting.variants["bootstrap"][:1]]
    unasked = "not used by any study in this folder"
    others = sorted(setting.variants[variant][1].id for variant in ("bootstrap", "bootstrap every 5"))
    assert results.skipped == (Skipped(", ".join(others), unasked),)


def test_one_protocol_for_two_pairs_makes_two_settings(setting: Setting, runs: Path):
    ran = Ran(pair="cifar100n-resnet34", title="the other", protocol=setting.protocol)
    write_manifest(Manifest(study="label-noise", scale="demo", command=COMMAND, state="done", pairs=(ran,)), runs)
    first, second = read_results(runs).settings
    assert (first.pair, first.title) == (setting.pair, setting.title)
    assert (second.pair, second.title) == ("cifar100n-resnet34", "the other")
    assert second.protocol == first.protocol and set(second.variants) == {
        each for each in first.variants if each not in VARIANTS
    }


# Columns --------------------------------------------------------------------------------------------------------------


def test_columns_are_the_rows_of_what_each_seed_chose(setting: Setting, finished: Path):
    """Against pandas: which run, which weights, at which epoch, and every metric of them."""
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


def test_pairs_of_seeds_are_the_rows_that_compare_them(setting: Setting, finished: Path):
    """Churn and JS against the predictions themselves."""
    for column in setting.columns:
        if column.title in ("SGD", "slowest (loss)") and column.split == "test":
            runs = setting.variants["tune" if column.trained_on == "80%" else "refit"]
            name = "ema-0.9-recomputed-loss" if column.title != "SGD" else (
                "live-accuracy" if column.trained_on == "80%" else "live-last")  # fmt: skip
            one, other = (run.predictions(name)["test"][0].argmax(axis=1) for run in runs)
            assert list(column.values["churn"]) == [pytest.approx(np.mean(one != other))]


def test_a_setting_can_be_read_by_its_protocols_folder_alone(setting: Setting, finished: Path):
    alone = read_setting(finished / setting.protocol)
    assert alone.columns == setting.columns and alone.choices == setting.choices
    assert set(alone.variants) == {"tune", "refit", "swa", *(f"tune at {rate:g}" for rate in RATES)}


def test_a_summary_with_the_tables_of_an_earlier_emabank_is_read_as_well(setting: Setting, runs: Path):
    path = runs / setting.protocol / "summary.json"
    put(path, {**content(path), "tables": [{"column": "SGD", "values": {"accuracy": [2.0]}}]})
    assert read_results(runs).settings[0].columns == setting.columns
