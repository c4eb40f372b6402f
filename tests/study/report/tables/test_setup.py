"""The set-up: what the configurations say, in the rows of the paper's table; what they do not say is a dash."""

from dataclasses import replace

from emabank.study.config import ProtocolConfig
from emabank.study.plain import to_plain
from emabank.study.recipe import AveragesConfig, DataConfig, TrainingConfig
from emabank.study.report.tables.settings import label
from emabank.study.report.tables.setup import hyperparameters
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, setting, whole


def told(config: ProtocolConfig, pair: str = "cifar100-resnet18"):
    return replace(setting(pair), config=to_plain(config.completed()))


def test_every_row_says_what_a_real_configuration_says():
    config = ProtocolConfig(
        data=DataConfig(dataset="cifar10n", subset=4000),
        training=TrainingConfig(network="resnet8", width=24, epochs=40),
        averages=AveragesConfig(decays=(0.968, 0.998), every=16, decay_warmup="steps"), rates=(0.4, 0.8), seeds=5,
    )  # fmt: skip
    one = told(config)
    (sheet,) = hyperparameters(made_evidence(one), "demo")
    assert {row: cells[0].text for row, cells in sheet.rows} == {
        "data": "cifar10n, worse labels, 4000 images", "network": "resnet8, width 24", "optimizer": "SGD, Nesterov",
        "momentum": "0.9", "learning rates tried": "0.4, 0.8", "schedule": "cosine, warm-up 1 epochs",
        "weight decay": "0.0001", "batch size": "128", "epochs": "40", "averages": "0.968, 0.998",
        "sampling period, steps": "16", "warm-up of the decay": "steps", "crop, pixels": "4", "mirrored": "yes",
        "seeds": "5",
    }  # fmt: skip
    papers = {row: cells[1].text for row, cells in sheet.rows}
    assert papers["weight decay"] == "ResNet: 1e-4; WideResNet, VGG-16: 5e-4" and papers["batch size"] == "128"
    assert papers["averages"] == "[0.968, 0.984, 0.992, 0.996, 0.998]" and papers["sampling period, steps"] == "T = 16"
    assert papers["warm-up of the decay"] == "min(α, (t+1)/(t+10))" and papers["seeds"] == "3" and papers["data"] == "–"


def test_half_lives_are_percentages_and_synthetic_noise_is_told():
    one = told(ProtocolConfig(data=DataConfig(noise=0.4)))
    (sheet,) = hyperparameters(made_evidence(one), "demo")
    assert at(sheet, "averages", label(one)).text == "0.44%, 0.88%, 1.8%, 3.5%, 7.1%"
    assert (
        at(sheet, "data", label(one)).text == "digits, 40% wrong labels"
        and at(sheet, "mirrored", label(one)).text == "no"
    )


def test_settings_have_a_column_each_and_what_one_does_not_say_is_a_dash():
    one, other = told(ProtocolConfig()), replace(setting("cifar10-resnet18"), config={"seeds": 2})
    made = hyperparameters(made_evidence(one, other), "demo")
    assert list(made[0].columns) == ["", label(one), label(other), "paper"] and whole(made)
    assert at(made[0], "seeds", label(other)).text == "2" and at(made[0], "momentum", label(other)).text == "–"


def test_without_configurations_there_is_no_table():
    assert hyperparameters(made_evidence(replace(setting(), config={})), "demo") == []
