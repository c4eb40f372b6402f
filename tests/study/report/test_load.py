"""From a folder of runs to evidence: everything is what the files hold."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emabank.study import load_results
from emabank.study.report.evidence import Curve, Evidence, LeftOut, Setting
from emabank.study.report.load import load_evidence, load_studies
from emabank.study.report.pairs import MAIN
from emabank.study.runs.manifest import Manifest, Ran, write_manifest
from tests.study.report.spoiling import content, put
from tests.study.small_folder import ALL, COMMAND, EPOCHS, NAMES, RATES, SEEDS, run_studies, small
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs

MANIFESTS = {name: f"study-demo-{name}.json" for name in NAMES}
ARMS = ("step", "constant", "bootstrap", "posthoc", "every 1", "every 2", "every 4", "every 8")


@pytest.fixture(scope="module")
def evidence(finished: Path) -> Evidence:
    return load_evidence(finished)


@pytest.fixture(scope="module")
def setting(evidence: Evidence) -> Setting:
    (only,) = evidence.settings
    return only


def told(runs: Path) -> dict[str, Any]:
    """What a run was told, without our own reader."""
    return content(runs, "config.json")["config"]


# What the files hold -------------------------------------------------------------------------------------------------


def test_nothing_of_a_finished_folder_is_left_out(evidence: Evidence):
    assert evidence.left_out == ()
    assert evidence.scales == ["demo"]


def test_studies_are_as_they_were_asked_for(evidence: Evidence, finished: Path):
    assert {study.name for study in evidence.studies} == set(NAMES)
    for study in evidence.studies:
        assert (study.scale, study.command, study.state, study.reason) == ("demo", COMMAND, "done", "")
    assert load_studies(finished) == (evidence.studies, ())


def test_a_setting_is_what_its_protocol_wrote(setting: Setting, finished: Path):
    summary = content(finished, setting.protocol, "summary.json")
    assert setting.tables == summary["tables"] and setting.choices == summary["choices"]
    assert setting.config == summary["config"] and setting.has_batchnorm is True
    assert (setting.scale, setting.pair, setting.dataset, setting.network) == ("demo", MAIN, "digits", "resnet8")
    assert setting.title == content(finished, MANIFESTS["step-decay"])["pairs"][0]["title"]
    assert setting.averages == ("ema-0.7", "ema-0.8", "ema-0.9")
    assert setting.seeds == tuple(range(SEEDS))


def test_studies_of_one_pair_share_a_setting_that_has_the_arms_of_all(setting: Setting, finished: Path):
    assert set(setting.arms) == {"tune", "refit", "swa", *(f"tune at {rate:g}" for rate in RATES), *ARMS}
    by_study = {name: set(content(finished, file)["pairs"][0]["arms"]) for name, file in MANIFESTS.items()}
    assert set.union(*by_study.values()) == set(ARMS) and by_study["generalization"] == set()


@pytest.mark.parametrize(
    ("arm", "trained_on", "holds"),
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
    arm: str, trained_on: str, holds: Callable[[Any], bool], setting: Setting, finished: Path
):
    given = [told(finished / each.id) for each in setting.arms[arm]]
    assert [each["seed"] for each in given] == list(range(SEEDS))
    assert [(each.seed, each.rate) for each in setting.arms[arm]] == [(each["seed"], each["rate"]) for each in given]
    assert {each["trained_on"] for each in given} == {trained_on} and all(map(holds, given))
    own = [(each["recipe"]["training"]["bootstrap"], each["constant_from"]) for each in given]
    assert [(each.copied_back, each.constant_from) for each in setting.arms[arm]] == own


def test_the_tuned_runs_are_those_that_each_seed_chose(setting: Setting, finished: Path):
    choices = content(finished, setting.protocol, "summary.json")["choices"]
    assert [each.id for each in setting.arms["tune"]] == [choice["run"] for choice in choices]
    assert [each.rate for each in setting.arms["refit"]] == [choice["rate"] for choice in choices]


def own_names(folder: Path) -> dict[str, str]:
    """The averages of a run by the names that the setting has for them: the shortest memory first."""
    decays = sorted(told(folder)["recipe"]["averages"]["decays"])
    return dict(zip((f"ema-{decay:g}" for decay in decays), ("ema-0.7", "ema-0.8", "ema-0.9"), strict=True))


def test_curves_are_every_row_of_an_epoch_and_nothing_else(setting: Setting, finished: Path):
    """Against pandas, for every run of every arm."""
    frame = load_results(finished)
    frame = frame[frame.selected_by.isna() & frame.epoch.notna()]
    kinds: set[tuple[str, str]] = set()
    for arm, some in setting.arms.items():
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
            assert {curve.weights for curve in each.curves} >= {"live", *setting.averages}, arm
            kinds |= {(curve.split, curve.metric) for curve in each.curves}
    assert kinds >= {("val", "accuracy"), ("test", "loss")}


def test_averages_of_another_period_are_renamed_by_their_memory(setting: Setting, finished: Path):
    for period in (1, 4, 8):
        for each in setting.arms[f"every {period}"]:
            names = own_names(finished / each.id)
            assert not set(names) & set(setting.averages), "they have other names in their own folder"
            decays = [float(name.removeprefix("ema-")) for name in names]
            for decay, name in zip(decays, names.values(), strict=True):
                horizon = np.log(decay) / period
                assert horizon == pytest.approx(np.log(float(name.removeprefix("ema-"))) / 2, rel=1e-4)
    same = {each.id: each for each in setting.arms["refit"]}
    assert all(each.curves.keys() == same[each.id].curves.keys() for each in setting.arms["every 2"])


def test_rates_seed_and_conditions_are_those_of_the_runs_folder(setting: Setting, finished: Path):
    for each in (each for some in setting.arms.values() for each in some):
        history = content(finished, each.id, "history.json")
        assert each.rates.tolist() == [epoch["rate"] for epoch in history] and each.epochs == EPOCHS
        assert each.conditions == content(finished, each.id, "environment.json")["sessions"][-1]


def test_predictions_are_the_arrays_of_the_file_and_are_read_when_asked_for(setting: Setting, finished: Path):
    for arm in ("tune", "refit"):
        for each in setting.arms[arm]:
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


def test_the_cost_of_averages_is_what_was_measured(evidence: Evidence, finished: Path):
    (measured,) = content(finished, MANIFESTS["sampling-period"])["overheads"]
    (found,) = evidence.overheads
    assert measured == {name: list(value) if isinstance(value, tuple) else value for name, value in vars(found).items()}


# More than one setting -----------------------------------------------------------------------------------------------


def test_another_configuration_of_the_same_pair_is_a_setting_of_its_own(setting: Setting, runs: Path):
    study = next(study for study in ALL if study.name == "bootstrap")
    run_studies(runs, [study], lambda config: replace(small(config), seeds=1))
    evidence = load_evidence(runs)
    other, same = sorted(evidence.settings, key=lambda setting: len(setting.seeds))
    assert same.protocol == setting.protocol and set(same.arms) == set(setting.arms) - {"bootstrap"}
    assert other.protocol != setting.protocol and other.pair == same.pair and len(other.seeds) == 1
    assert {arm: len(some) for arm, some in other.arms.items()}["bootstrap"] == 1
    assert [each.id for each in other.arms["bootstrap"]] == [each.id for each in setting.arms["bootstrap"][:1]]
    unasked = "a run that no study of this folder asks for, or not any more"
    assert evidence.left_out == (LeftOut(setting.arms["bootstrap"][1].id, unasked),)


def test_one_protocol_for_two_pairs_makes_two_settings(setting: Setting, runs: Path):
    ran = Ran(pair="cifar100n-resnet34", title="the other", protocol=setting.protocol)
    write_manifest(Manifest(study="label-noise", scale="demo", command=COMMAND, state="done", pairs=(ran,)), runs)
    first, second = load_evidence(runs).settings
    assert (first.pair, first.title) == (setting.pair, setting.title)
    assert (second.pair, second.title) == ("cifar100n-resnet34", "the other")
    assert second.protocol == first.protocol and set(second.arms) == {each for each in first.arms if each not in ARMS}


def test_the_same_at_another_scale_is_another_setting(runs: Path):
    manifest = content(runs, MANIFESTS["step-decay"])
    put(runs / "study-small-step-decay.json", {**manifest, "scale": "small"})
    evidence = load_evidence(runs)
    assert evidence.scales == ["small", "demo"] and len(evidence.settings) == 2
    assert [each.scale for each in evidence.settings if "bootstrap" not in each.arms] == ["small"]


def test_what_was_put_together_afterwards_is_read_and_shown(setting: Setting):
    found = setting.afterwards()
    assert list(found)[:3] == ["ema-0.7", "ema-0.8", "ema-0.9"] and len(found) == 6
    assert all(each.shape == (SEEDS, EPOCHS) for each in found.values())
    assert set(setting.afterwards("weight_distance")) == {"ema-0.7", "ema-0.8", "ema-0.9"}
    assert all(not run.posthoc for arm, runs in setting.arms.items() if arm != "posthoc" for run in runs)
