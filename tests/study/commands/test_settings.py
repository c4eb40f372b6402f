"""`--set`, `--seeds` and `--device` change what every setting of a study is trained with."""

import dataclasses
from typing import Any

import pytest

from emabank.study.config import ProtocolConfig
from emabank.study.studies.scales import MAIN, protocol_of
from tests.study.commands.parsing import parsed, refused


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


def test_a_setting_need_only_fit_what_the_study_trains(capsys: pytest.CaptureFixture[str]):
    """The other labels of CIFAR-10N, which digits do not have."""
    words = ["--scale", "small", "--set", "data.labels=aggregate"]
    assert parsed("run", "label-noise", *words).set == (("data.labels=aggregate",),)
    assert "--set, data: labels is aggregate; " in refused(capsys, "run", "dynamics", *words)
    # The paper's averages have other names than those of the digits.
    bootstrap = ["--set", "bootstrap=ema-0.992", "swa=false"]
    assert parsed("run", "bootstrap", "--scale", "paper", *bootstrap).scale == "paper"
    assert "--set: bootstrap is 'ema-0.992'; the averages are " in refused(capsys, "run", "bootstrap", *bootstrap)
