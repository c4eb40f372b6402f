"""The command line: defaults, configuration files, settings, help, and errors that name a remedy."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from emabank.study.commands.parsing import COMMANDS
from emabank.study.commands.studies import (
    ClaimsArguments,
    DataArguments,
    DemoArguments,
    ListArguments,
    ProtocolArguments,
    ReportArguments,
    RunArguments,
    StatusArguments,
)
from emabank.study.config import DataConfig, Place, ProtocolConfig, PublishedName, TrainingConfig
from emabank.study.data.catalogue import DATASETS
from emabank.study.studies.scales import MAIN, protocol_of
from tests.study.commands.parsing import error_of, output_of, parsed


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_commands_without_options_have_the_defaults_of_the_configuration():
    assert parsed("demo") == DemoArguments()
    assert parsed("protocol") == ProtocolArguments() == ProtocolArguments(protocol=ProtocolConfig(), place=Place())
    assert parsed("data", "check", "digits") == DataArguments(action="check", name="digits")
    assert parsed("list") == ListArguments(scale="demo")
    assert parsed("run", "all") == RunArguments(study="all", scale="demo", seeds=None, set=(), place=Place())
    assert parsed("status") == StatusArguments(runs=Path("runs"))
    assert parsed("report") == ReportArguments(runs=Path("runs"), out=None, tables="")
    assert parsed("claims") == ClaimsArguments(runs=Path("runs"), all=False)


def test_flags_set_fields_of_every_table():
    words = "--epochs 5 --noise 0.4 --decays 0.99 0.9 --test-curves --threads 2 --seeds 1 --no-swa --jobs 2 --dry-run"
    command = parsed("protocol", *words.split())
    protocol = command.protocol
    assert (protocol.training.epochs, protocol.data.noise, protocol.averages.decays) == (5, 0.4, (0.99, 0.9))
    assert (protocol.measuring.test_curves, protocol.hardware.threads) == (True, 2)
    assert (protocol.seeds, protocol.swa, command.place.jobs, command.dry_run) == (1, False, 2, True)


def test_missing_trackers_are_refused_before_any_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("emabank.study.config.find_spec", lambda name: None)
    for words, name in ((["--tensorboard"], "tensorboard"), (["--wandb", "mine"], "wandb")):
        for command in (["run", "dynamics"], ["protocol"]):
            message = error_of(capsys, *command, *words)
            assert f"--{name} needs the package {name}: pip install {name}" in message


# Configuration files -------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(
        "seeds = 1\nswa = false\n[training]\nepochs = 7\nwidth = 8\n[data]\nnoise = 0.4\n[place]\nruns = 'mine'\n"
    )
    return path


def test_a_file_gives_defaults_and_the_command_line_overrides_them(file: Path):
    expected = ProtocolConfig(
        seeds=1, swa=False, training=TrainingConfig(epochs=7, width=8), data=DataConfig(noise=0.4)
    )
    command = parsed("protocol", "--config", str(file))
    assert command == ProtocolArguments(protocol=expected, place=Place(runs=Path("mine")), config=file)
    command = parsed("protocol", "--epochs", "5", f"--config={file}", "--swa", "--runs", "other", "--noise", "0")
    training = TrainingConfig(epochs=5, width=8)
    assert command.protocol == dataclasses.replace(expected, training=training, swa=True, data=DataConfig())
    assert command.place == Place(runs=Path("other"))


def test_none_resets_a_value_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]):
    assert parsed("protocol", "--config", str(file), "--width", "None").protocol.training.width is None
    message = error_of(capsys, "protocol", "--config", str(file), "--network", "resnet18")
    assert "width is 8, and resnet18 has one size" in message
    parsed("protocol", "--config", str(file), "--network", "resnet18", "--width", "None")


def test_help_shows_the_defaults_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]):
    output = output_of(capsys, "protocol", "--config", str(file), "--help", code=0)
    assert re.search(r" --epochs INT [^(]*\(default: 7\) ", output)
    assert "(default: mine)" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = 7", "study.toml: unknown key 'epochs'; there are data, training, .*, place"),
        ("[place]\nrun = 'a'", "study.toml, place: unknown key 'run'; there are data, cache, runs, "),
        ("[place]\njobs = 0", "study.toml, place: jobs is 0; give 1 or more"),
        ("[training]\nnetwork = 'own'", "study.toml, training: network is own, which needs Python: use emabank"),
        ("[data]\ndataset = 'own'", "study.toml, data: dataset is own, which needs Python: use emabank"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name_and_key(tmp_path: Path, text: str, message: str):
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/") + message) as caught:
        parsed("protocol", "--config", str(tmp_path / "study.toml"))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path):
    for path in ("no.toml", str(tmp_path)):
        with pytest.raises(ValueError, match=f"^--config must be a TOML file; got {path}"):
            parsed("protocol", "--config", path)


# Errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("protocol --epochs 0", "epochs is 0; give 1 or more"),
        ("protocol --labels worse", "labels is worse; digits has its own labels only: leave labels out"),
        ("protocol --rates", "rates are empty; give one or more learning rates above 0, each once"),
        ("protocol --jobs 0", "jobs is 0; give 1 or more"),
        ("protocol --epochs 2", "epochs is 2 and swa is on, which would begin after epoch 2; give 3 epochs or more"),
        ("protocol --epoch 3", "--epochs"),
        ("demo --noise 40", "noise is 40.0; give a share from 0 to 1, such as 0.4"),
        ("data check own", "cifar10"),
        ("run", "STUDY"),
        ("run nonsense", "there is no study 'nonsense'; give all, or one of generalization, dynamics, batchnorm, "),
        ("run dynamics --seeds 0", "seeds is 0; give 1 or more"),
        ("run dynamics --set nonsense", "--set: 'nonsense' is no setting; give key=value, such as training.epochs=10"),
        ("run dynamics --scale huge", "small"),
    ],
)
def test_errors_name_the_remedy_and_the_help(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert message in error_of(capsys, *words.split())


def test_remedies_named_by_errors_work():
    parsed("protocol", "--epochs", "2", "--no-swa")
    parsed("protocol", "--bootstrap", "ema-7.1%", "--no-swa")
    parsed("protocol", "--epochs", "3")


# Settings of a study -------------------------------------------------------------------------------------------------


def main_protocol(*words: str) -> ProtocolConfig:
    """The protocol of the main pair, as changed by these words."""
    config = protocol_of(MAIN, "demo")
    assert config is not None
    return parsed("run", "all", *words).change(config)


def test_settings_change_only_their_fields():
    plain = main_protocol()
    assert plain == protocol_of(MAIN, "demo")
    changed = main_protocol(
        "--set", "training.epochs=9", "rates=[0.1, 0.3]", "swa=false", "dataset=digits-0-4", "--seeds", "5"
    )
    training = dataclasses.replace(plain.training, epochs=9)
    data = dataclasses.replace(plain.data, dataset="digits-0-4")
    assert changed == dataclasses.replace(plain, training=training, data=data, rates=(0.1, 0.3), swa=False, seeds=5)


def test_the_last_of_two_settings_wins_and_the_device_is_set():
    changed = main_protocol("--set", "epochs=9", "--set", "batch=64", "--set", "epochs=8", "--device", "cpu")
    assert (changed.training.epochs, changed.training.batch) == (8, 64)
    assert changed.hardware == dataclasses.replace(main_protocol().hardware, device="cpu")


def test_a_setting_must_fit_only_the_pairs_of_the_study(capsys: pytest.CaptureFixture[str]):
    # Only CIFAR-10N has other labels.
    words = ["--scale", "small", "--set", "data.labels=aggregate"]
    assert parsed("run", "constant-lr", *words).set == (("data.labels=aggregate",),)
    assert "--set, data: labels is aggregate; " in error_of(capsys, "run", "dynamics", *words)
    # The averages of the digits have other names than the paper's.
    bootstrap = ["--set", "bootstrap=ema-0.992", "swa=false"]
    assert parsed("run", "bootstrap", "--scale", "paper", *bootstrap).scale == "paper"
    assert "--set: bootstrap is 'ema-0.992'; the averages are " in error_of(capsys, "run", "bootstrap", *bootstrap)


# Help ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_usage_and_description(command: str, capsys: pytest.CaptureFixture[str]):
    output = output_of(capsys, command, "--help", code=0)
    assert output.startswith(f"usage: emabank {command} [-h] ")
    assert " ".join((COMMANDS[command].__doc__ or "").split()[:8]) in output


def test_every_published_data_set_can_be_named_in_the_command_data():
    assert set(get_args(PublishedName)) == set(DATASETS)
