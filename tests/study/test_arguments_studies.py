"""The commands of the studies: what each flag sets, and settings that change what every pair is trained with."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from emabank.study.config import ProtocolConfig
from emabank.study.report.pairs import MAIN
from emabank.study.studies.scales import protocol_of
from tests.study.parsing import parsed, refused, values


@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ("list --scale paper", "scale", "paper"),
        ("run dynamics", "study", "dynamics"),
        ("run dynamics --scale small", "scale", "small"),
        ("run dynamics --seeds 5", "seeds", 5),
        ("run dynamics --set epochs=9", "set", (("epochs=9",),)),
        ("run dynamics --device cpu", "device", "cpu"),
        ("run dynamics --data elsewhere", "place.data", Path("elsewhere")),
        ("run dynamics --cache elsewhere", "place.cache", Path("elsewhere")),
        ("run dynamics --runs elsewhere", "place.runs", Path("elsewhere")),
        ("run dynamics --jobs 2", "place.jobs", 2),
        ("run dynamics --checkpoint-seconds 5", "place.checkpoint_seconds", 5.0),
        ("run dynamics --dry-run", "dry_run", True),
        ("status elsewhere", "runs", Path("elsewhere")),
        ("report elsewhere", "runs", Path("elsewhere")),
        ("report --out elsewhere", "out", Path("elsewhere")),
        ("report --tables all", "tables", "all"),
        ("claims elsewhere", "runs", Path("elsewhere")),
        ("claims --short", "short", True),
    ],
)
def test_a_flag_of_the_studies_sets_its_field_and_no_other(words: str, place: str, value: Any):
    command, *_ = words.split()
    before = dict(values(parsed(*([command, "all"] if command == "run" else [command]))))
    after = dict(values(parsed(*words.split())))
    assert after[place] == value and type(after[place]) is type(value)
    others = {"study"} if command == "run" else set[str]()
    assert {name for name in before if before[name] != after[name]} <= {place, *others}


# Settings for every pair ---------------------------------------------------------------------------------------------


def trained(*words: str, pair: str = MAIN, scale: Any = "demo") -> ProtocolConfig:
    """What a pair is trained with."""
    config = protocol_of(pair, scale)
    assert config is not None
    return parsed("run", "all", "--scale", scale, *words).change(config)


def test_settings_change_what_is_trained_and_nothing_else():
    plain = trained()
    assert plain == protocol_of(MAIN, "demo")
    found = trained("--set", "training.epochs=9", "rates=[0.1, 0.3]", "swa=false", "dataset=digits-0-4", "--seeds", "5")
    training = dataclasses.replace(plain.training, epochs=9)
    data = dataclasses.replace(plain.data, dataset="digits-0-4")
    assert found == dataclasses.replace(plain, training=training, data=data, rates=(0.1, 0.3), swa=False, seeds=5)


def test_settings_may_be_given_one_after_the_other():
    found = trained("--set", "epochs=9", "--seeds", "2", "--set", "noise=0.3", "batch=64", "--set", "epochs=8")
    assert (found.training.epochs, found.training.batch, found.data.noise, found.seeds) == (8, 64, 0.3, 2)


def test_the_device_is_that_of_every_run():
    assert trained().hardware.device == "auto"
    assert trained("--device", "cpu").hardware == dataclasses.replace(trained().hardware, device="cpu")


def test_a_setting_need_only_fit_what_the_study_trains():
    """The other labels of CIFAR-10N, which digits do not have."""
    words = ["--scale", "small", "--set", "data.labels=aggregate"]
    assert parsed("run", "label-noise", *words).set == (("data.labels=aggregate",),)
    assert refused("run", "dynamics", *words).startswith("--set, data: labels is aggregate; ")
    # The paper's averages have other names than those of the digits.
    bootstrap = ["--set", "bootstrap=ema-0.992", "swa=false"]
    assert parsed("run", "bootstrap", "--scale", "paper", *bootstrap).scale == "paper"
    assert refused("run", "bootstrap", *bootstrap).startswith("--set: bootstrap is 'ema-0.992'; the averages are ")
