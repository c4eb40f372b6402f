"""Results of a folder of runs match its files."""

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
    (setting,) = results.settings
    return setting


def config_of(run: Path) -> dict[str, Any]:
    return content(run, "config.json")["config"]


# One setting ---------------------------------------------------------------------------------------------------------


def test_nothing_of_a_finished_folder_is_skipped(results: Results):
    assert results.skipped == ()
    assert results.scales == ["demo"]


def test_studies_have_their_scale_command_and_state(results: Results, finished: Path):
    assert {study.study for study in results.studies} == set(NAMES)
    for study in results.studies:
        assert (study.scale, study.command, study.state, study.reason) == ("demo", COMMAND, "done", "")
    assert read_studies(finished) == (results.studies, ())


def test_a_setting_matches_the_summary_of_its_protocol(setting: Setting, finished: Path):
    summary = content(finished, setting.protocol, "summary.json")
    assert setting.choices == summary["choices"]
    assert to_dict(setting.config) == summary["config"] and setting.has_batchnorm is True
    assert (setting.scale, setting.pair, setting.dataset, setting.network) == ("demo", MAIN, "digits", "resnet8")
    assert setting.title == content(finished, MANIFESTS["step-decay"])["pairs"][0]["title"]
    assert setting.averages == ("ema-0.7", "ema-0.8", "ema-0.9")
    assert setting.seeds == tuple(range(SEEDS))


def test_studies_of_one_pair_share_a_setting_with_all_their_arms(setting: Setting, finished: Path):
    assert set(setting.variants) == {"tune", "refit", "swa", *(f"tune at {rate:g}" for rate in RATES), *VARIANTS}
    by_study = {name: set(content(finished, file)["pairs"][0]["arms"]) for name, file in MANIFESTS.items()}
    assert set.union(*by_study.values()) == set(VARIANTS) and by_study["generalization"] == set()


@pytest.mark.parametrize(
    ("variant", "trained_on", "holds"),
    [
        ("tune", "80%", lambda config: config["recipe"]["training"]["bootstrap"] is None),
        *((f"tune at {rate:g}", "80%", lambda config, rate=rate: config["rate"] == rate) for rate in RATES),
        ("refit", "100%", lambda config: bool(config["keep"]) and not config["swa"]),
        ("swa", "100%", lambda config: config["swa"]),
        ("step", "100%", lambda config: config["recipe"]["training"]["schedule"] == "step"),
        ("constant", "100%", lambda config: config["constant_from"] is not None and not config["swa"]),
        ("bootstrap", "80%", lambda config: config["recipe"]["training"]["bootstrap"] == "ema-0.9"),
        ("posthoc", "80%", lambda config: config["posthoc"] == 100 and not config["keep"]),
        *(
            (f"every {T}", "100%", lambda config, T=T: config["recipe"]["averages"]["every"] == T and not config["swa"])
            for T in (1, 2, 4, 8)
        ),
    ],
)
def test_an_arm_has_the_right_runs_in_the_order_of_the_seeds(
    variant: str, trained_on: str, holds: Callable[[Any], bool], setting: Setting, finished: Path
):
    configs = [config_of(finished / run.id) for run in setting.variants[variant]]
    assert [config["seed"] for config in configs] == list(range(SEEDS))
    assert {config["trained_on"] for config in configs} == {trained_on} and all(map(holds, configs))
    for run, config in zip(setting.variants[variant], configs, strict=True):
        assert (run.seed, run.rate) == (config["seed"], config["rate"])
        assert run.copied_back == config["recipe"]["training"]["bootstrap"]
        assert run.constant_from == config["constant_from"]


def test_the_tuned_runs_are_those_that_each_seed_chose(setting: Setting, finished: Path):
    choices = content(finished, setting.protocol, "summary.json")["choices"]
    assert [run.id for run in setting.variants["tune"]] == [choice["run"] for choice in choices]
    assert [run.rate for run in setting.variants["refit"]] == [choice["rate"] for choice in choices]


def own_names(folder: Path) -> dict[str, str]:
    """The names in the setting of a run's own averages, shortest memory first."""
    decays = sorted(config_of(folder)["recipe"]["averages"]["decays"])
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


def test_averages_of_another_period_are_renamed_by_their_memory(setting: Setting, finished: Path):
    for period in (1, 4, 8):
        for run in setting.variants[f"every {period}"]:
            names = own_names(finished / run.id)
            assert not set(names) & set(setting.averages), "the run itself uses other names"
            decays = [float(name.removeprefix("ema-")) for name in names]
            for decay, name in zip(decays, names.values(), strict=True):
                horizon = np.log(decay) / period
                assert horizon == pytest.approx(np.log(float(name.removeprefix("ema-"))) / 2, rel=1e-4)
    same = {run.id: run for run in setting.variants["refit"]}
    assert all(run.curves.keys() == same[run.id].curves.keys() for run in setting.variants["every 2"])


def test_predictions_match_the_arrays_in_the_file(setting: Setting, finished: Path):
    for variant in ("tune", "refit"):
        for run in setting.variants[variant]:
            names = sorted(path.stem for path in (finished / run.id / "predictions").glob("*.npz"))
            assert len(names) > 2
            for name in names:
                with np.load(finished / run.id / "predictions" / f"{name}.npz") as arrays:
                    expected = {key: arrays[key].tolist() for key in arrays.files}
                found = {
                    f"{kind}_{split}": array.tolist()
                    for split, both in run.predictions(name).items()
                    for kind, array in zip(("logits", "labels"), both, strict=True)
                }
                assert found == expected


def test_overheads_match_the_manifest(results: Results, finished: Path):
    (measured,) = content(finished, MANIFESTS["sampling-period"])["overheads"]
    (found,) = results.overheads
    assert measured == {name: list(value) if isinstance(value, tuple) else value for name, value in vars(found).items()}


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
    ran = Ran(pair="cifar100n-resnet34", title="the other", protocol=setting.protocol)
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


def test_churn_matches_the_predictions(setting: Setting, finished: Path):
    for column in setting.columns:
        if column.title in ("SGD", "slowest (loss)") and column.split == "test":
            runs = setting.variants["tune" if column.trained_on == "80%" else "refit"]
            name = "ema-0.9-recomputed-loss" if column.title != "SGD" else (
                "live-accuracy" if column.trained_on == "80%" else "live-last")  # fmt: skip
            one, other = (run.predictions(name)["test"][0].argmax(axis=1) for run in runs)
            assert list(column.values["churn"]) == [pytest.approx(np.mean(one != other))]


def test_a_setting_can_be_read_from_its_protocol_folder(setting: Setting, finished: Path):
    alone = read_setting(finished / setting.protocol)
    assert alone.columns == setting.columns and alone.choices == setting.choices
    assert set(alone.variants) == {"tune", "refit", "swa", *(f"tune at {rate:g}" for rate in RATES)}


def test_a_summary_of_an_earlier_emabank_can_be_read(setting: Setting, runs: Path):
    path = runs / setting.protocol / "summary.json"
    put(path, {**content(path), "tables": [{"column": "SGD", "values": {"accuracy": [2.0]}}]})
    assert read_results(runs).settings[0].columns == setting.columns
