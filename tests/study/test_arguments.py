"""The command line: a flag for each field, a file for other defaults, help that helps, refusals in one sentence."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from emabank.study.arguments import (
    COMMANDS,
    ClaimsArguments,
    DataArguments,
    ListArguments,
    ProtocolArguments,
    ReportArguments,
    RunArguments,
    StatusArguments,
)
from emabank.study.config import DemoConfig, ProtocolConfig
from emabank.study.data.catalogue import DATASETS
from emabank.study.place import Place
from emabank.study.plain import toml_text
from emabank.study.recipe import DataConfig, PublishedName, TrainingConfig
from tests.study.parsing import parsed, refused, values


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")


def ends(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    """What is printed at the end of the process, without the lines of boxes, with each space and line end one space."""
    with pytest.raises(SystemExit) as stopped:
        parsed(*words)
    assert stopped.value.code == code
    printed = capsys.readouterr()
    return re.sub(r"([\s│─╭╮╰╯]|-{3,})+", " ", printed.out if code == 0 else printed.err)


def test_without_words_every_command_has_the_defaults_of_its_configuration():
    assert parsed("demo") == DemoConfig()
    assert parsed("protocol") == ProtocolArguments() == ProtocolArguments(protocol=ProtocolConfig(), place=Place())
    assert parsed("data", "check", "digits") == DataArguments(action="check", name="digits")
    assert parsed("list") == ListArguments(scale="demo")
    assert parsed("run", "all") == RunArguments(study="all", scale="demo", seeds=None, set=(), place=Place())
    assert parsed("status") == StatusArguments(runs=Path("runs"))
    assert parsed("report") == ReportArguments(runs=Path("runs"), out=None, tables="")
    assert parsed("claims") == ClaimsArguments(runs=Path("runs"), short=False)


def test_what_is_parsed_are_the_real_classes_down_to_the_last():
    found = parsed("protocol", "--epochs", "5")
    assert type(found) is ProtocolArguments and type(found.protocol) is ProtocolConfig and type(found.place) is Place
    assert type(found.protocol.training) is TrainingConfig and type(found.protocol.data) is DataConfig
    assert found.protocol == ProtocolConfig(training=TrainingConfig(epochs=5))
    with pytest.raises(ValueError, match="epochs is 0"):
        dataclasses.replace(found.protocol.training, epochs=0)


# A flag for each field -----------------------------------------------------------------------------------------------

WORDS = {
    "protocol.data.dataset": "--dataset cifar10",
    "protocol.data.labels": "--dataset cifar10n --labels aggregate",
    "protocol.data.noise": "--noise 0.4",
    "protocol.data.noise_seed": "--noise-seed 1",
    "protocol.data.subset": "--subset 100",
    "protocol.data.test_subset": "--test-subset 50",
    "protocol.data.split_seed": "--split-seed 1",
    "protocol.data.validation_labels": "--validation-labels noisy",
    "protocol.data.crop": "--crop 3",
    "protocol.data.flip": "--flip True",
    "protocol.training.network": "--network resnet20",
    "protocol.training.width": "--width 8",
    "protocol.training.epochs": "--epochs 5",
    "protocol.training.batch": "--batch 64",
    "protocol.training.momentum": "--momentum 0.8",
    "protocol.training.weight_decay": "--weight-decay 0.0005",
    "protocol.training.schedule": "--schedule step",
    "protocol.training.warmup_epochs": "--warmup-epochs 2",
    "protocol.training.milestones": "--milestones 0.2 0.4",
    "protocol.training.factor": "--factor 10",
    "protocol.training.bootstrap": "--no-swa --bootstrap ema-7.1%",
    "protocol.averages.decays": "--decays 0.99 0.9",
    "protocol.averages.half_lives": "--half-lives 1 2",
    "protocol.averages.every": "--every 16",
    "protocol.averages.decay_warmup": "--decay-warmup steps",
    "protocol.measuring.recompute": "--recompute each-epoch",
    "protocol.measuring.on_train": "--on-train",
    "protocol.measuring.test_curves": "--test-curves",
    "protocol.hardware.device": "--device cpu",
    "protocol.hardware.threads": "--threads 2",
    "protocol.hardware.precision": "--precision bf16",
    "protocol.hardware.channels_last": "--channels-last True",
    "protocol.hardware.fused": "--fused True",
    "protocol.hardware.compile": "--compile",
    "protocol.rates": "--rates 0.1 0.2",
    "protocol.seeds": "--seeds 1",
    "protocol.swa": "--no-swa",
    "protocol.transfer": "--transfer cifar100",
    "place.data": "--data elsewhere",
    "place.cache": "--cache elsewhere",
    "place.runs": "--runs elsewhere",
    "place.jobs": "--jobs 2",
    "place.executor": "--executor slurm",
    "place.slurm": "--executor slurm --slurm time=5",
    "place.address": "--executor ray --address auto",
    "place.retries": "--retries 5",
    "place.checkpoint_seconds": "--checkpoint-seconds 5",
    "dry_run": "--dry-run",
}
TESTED_ELSEWHERE = {"config", "place.tensorboard", "place.wandb"}


def test_every_field_has_words_here():
    assert {place for place, _ in values(ProtocolArguments())} == set(WORDS) | TESTED_ELSEWHERE


@pytest.mark.parametrize("place", WORDS)
def test_a_flag_sets_its_field_and_no_other(place: str):
    before, after = dict(values(ProtocolArguments())), dict(values(parsed("protocol", *WORDS[place].split())))
    others = {"protocol.data.dataset"} if "--dataset" in WORDS[place] else {"protocol.swa"}  # what some cases need
    others |= {"place.executor"} if "--executor" in WORDS[place] else set()
    assert place in {name for name in before if before[name] != after[name]} <= {place, *others}
    words = WORDS[place].split("--")[-1].split()
    given = after[place] if isinstance(after[place], tuple) else (after[place],)
    if len(words) > 1:
        assert [type(each)(word) for each, word in zip(given, words[1:], strict=True)] == list(given)
    else:
        assert given == (not words[0].startswith("no-"),)


def test_flags_may_be_written_with_underscores_as_the_files_have_them():
    assert parsed("protocol", "--noise_seed", "3").protocol.data.noise_seed == 3


def test_trackers_that_are_not_installed_are_refused_before_any_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.place.find_spec", lambda name: None)
    for words, name in ((["--tensorboard"], "tensorboard"), (["--wandb", "mine"], "wandb")):
        assert refused("run", "dynamics", *words).startswith(f"{name} is asked for and not installed; ")
        said = refused("protocol", *words)
        assert said.startswith(f'{name} is asked for and not installed; pip install "emabank[trackers]" ')


# A file for other defaults -------------------------------------------------------------------------------------------


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
    found = parsed("protocol", "--config", str(file))
    assert found == ProtocolArguments(protocol=expected, place=Place(runs=Path("mine")), config=file)
    found = parsed("protocol", "--epochs", "5", f"--config={file}", "--swa", "--runs", "other", "--noise", "0")
    training = TrainingConfig(epochs=5, width=8)
    assert found.protocol == dataclasses.replace(expected, training=training, swa=True, data=DataConfig())
    assert found.place == Place(runs=Path("other"))


def test_none_undoes_what_a_file_gives(file: Path):
    assert parsed("protocol", "--config", str(file), "--width", "None").protocol.training.width is None
    said = refused("protocol", "--config", str(file), "--network", "resnet18")
    assert said.startswith("width is 8, and resnet18 has one size")
    parsed("protocol", "--config", str(file), "--network", "resnet18", "--width", "None")


def test_of_two_files_the_last_one_counts_as_with_any_flag(file: Path):
    (file.parent / "other.toml").write_text("seeds = 2")
    found = parsed("protocol", "--config", str(file), "--config", str(file.parent / "other.toml"))
    assert found.protocol == ProtocolConfig(seeds=2) and found.config == file.parent / "other.toml"


def test_what_a_dry_run_prints_is_a_file_that_gives_the_same(tmp_path: Path):
    words = ["--decays", "0.9", "--no-swa", "--dataset", "cifar10n", "--transfer", "cifar100", "--rates", "1e-5"]
    config = parsed("protocol", *words).protocol.completed()
    (tmp_path / "again.toml").write_text(toml_text(config))
    assert parsed("protocol", "--config", str(tmp_path / "again.toml")).protocol == config


def test_help_shows_the_defaults_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, "protocol", "--config", str(file), "--help", code=0)
    assert " --epochs INT How often every training image is seen. (default: 7) " in printed
    assert "(default: mine)" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs = 7", "study.toml: unknown key 'epochs'; there are data, training, .*, place "),
        ("[place]\nrun = 'a'", "study.toml, place: unknown key 'run'; there are data, cache, runs, "),
        ("[place]\njobs = 0", "study.toml, place: jobs is 0; give 1 or more "),
        ("[training]\nepochs = 0", "study.toml, training: epochs is 0; give 1 or more "),
        ("[training]\nepochs = '7'", "study.toml, training: epochs is '7'; give a whole number "),
        ("[training]\nnetwork = 'resnet9'", "study.toml, training: network is 'resnet9'; give one of "),
        ("[training]\nnetwork = 'own'", "study.toml, training: network is own, which no command can know; use emabank"),
        ("[data]\ndataset = 'own'", "study.toml, data: dataset is own, which no command can know; use emabank"),
        ("epochs 7", "study.toml is not a TOML file: "),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(tmp_path: Path, text: str, said: str):
    (tmp_path / "study.toml").write_text(text)
    words = refused("protocol", "--config", str(tmp_path / "study.toml"))
    assert re.match(re.escape(f"{tmp_path}/") + said, words) and "\n" not in words
    assert words.endswith("(`emabank protocol --help` explains every option)")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    assert refused("protocol", "--config", "no.toml").startswith("--config is no.toml, which is no file; give a TOML")
    assert refused("protocol", "--config", str(tmp_path)).startswith(f"--config is {tmp_path}, which is no file")


def test_a_flag_without_its_file_is_said(capsys: pytest.CaptureFixture[str]):
    assert "Missing value" in ends(capsys, "protocol", "--config", code=2)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("protocol --milestones 0.9 0.1", "milestones are 0.9 0.1; give rising shares of the run, after the warm-up, "),
        ("protocol --epochs 0", "epochs is 0; give 1 or more ("),
        ("protocol --labels worse", "labels is worse; digits has its own labels only: leave labels out ("),
        ("protocol --rates", "rates are empty; give one or more learning rates above 0, each once ("),
        ("protocol --jobs 0", "jobs is 0; give 1 or more ("),
        ("protocol --epochs 2", "epochs is 2 and swa is on, which would begin after epoch 2; give 3 epochs or more"),
        ("protocol --bootstrap ema-7.1%", "bootstrap is ema-7.1% and swa is on, which are two studies; "),
        ("demo --noise 40", "noise is 40.0; give a share from 0 to 1, such as 0.4 ("),
        ("run nonsense", "there is no study 'nonsense'; give all, or one of generalization, dynamics, batchnorm, "),
        ("run Dynamics", "there is no study 'Dynamics'; give all, or one of "),
        ("run dynamics --seeds 0", "seeds is 0; give 1 or more ("),
        ("run dynamics --jobs 0", "jobs is 0; give 1 or more ("),
        ("run dynamics --set nonsense", "--set: 'nonsense' is no setting; give key=value, such as training.epochs=10"),
        ("run dynamics --set colour=red", "--set: there is no setting 'colour'; there are rates, seeds, swa, "),
        ("run dynamics --set epochs=0", "--set, training: epochs is 0; give 1 or more ("),
        ("run dynamics --set epochs=many", "--set, training: epochs is 'many'; give a whole number ("),
        ("run dynamics --set network=resnet9", "--set, training: network is 'resnet9'; give one of resnet8, "),
        ("run dynamics --set rates=[]", "--set: rates are empty; give one or more learning rates above 0, each once ("),
        (
            "run dynamics --set epochs=2 warmup_epochs=0",
            "--set: epochs is 2 and swa is on, which would begin after epoch 2; ",
        ),
    ],
)
def test_refused_values_are_one_sentence_with_the_way_to_help(words: str, said: str):
    sentence = refused(*words.split())
    assert sentence.startswith(said) and "\n" not in sentence and "tyro" not in sentence
    assert sentence.endswith(f"(`emabank {words.split()[0]} --help` explains every option)")


def test_what_a_refusal_advises_works():
    parsed("protocol", "--epochs", "2", "--no-swa")
    parsed("protocol", "--bootstrap", "ema-7.1%", "--no-swa")
    parsed("protocol", "--epochs", "3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("demmo", ["demmo", ", ".join(COMMANDS)]),
        ("demo --epoch 3", ["--epoch", "--epochs", "emabank demo --help"]),
        ("protocol --epoch 3", ["--epoch", "--epochs", "emabank protocol --help"]),
        ("protocol --epochs three", ["--epochs", "three", "emabank protocol --help"]),
        ("protocol --dataset own", ["--dataset", "own", "cifar10", "emabank protocol --help"]),
        ("protocol --network own", ["--network", "own", "resnet8", "emabank protocol --help"]),
        ("protocol --transfer own", ["--transfer", "own", "cifar100", "emabank protocol --help"]),
        ("demo --config study.toml", ["--config", "emabank demo --help"]),
        ("data", ["check", "fetch", "emabank data --help"]),
        ("data check", ["cifar10", "emabank data --help"]),
        ("data check own", ["own", "cifar10", "emabank data --help"]),
        ("data remove digits", ["remove", "check", "emabank data --help"]),
        ("run", ["STUDY", "Its name, or all.", "emabank run --help"]),
        ("run --scale demo", ["STUDY", "emabank run --help"]),
        ("run dynamics transfer", ["transfer", "emabank run --help"]),
        ("run dynamics --scale huge", ["huge", "demo", "small", "paper", "emabank run --help"]),
        ("run dynamics --seeds many", ["--seeds", "many", "emabank run --help"]),
        ("run dynamics --seed 3", ["--seed", "--seeds", "emabank run --help"]),
        ("run dynamics --device tpu", ["tpu", "cuda", "emabank run --help"]),
        ("list --scale huge", ["huge", "demo", "emabank list --help"]),
        ("list all", ["all", "emabank list --help"]),
        ("report one two", ["two", "emabank report --help"]),
        ("report --table all", ["--table", "--tables", "emabank report --help"]),
        ("claims --long", ["--long", "emabank claims --help"]),
        ("status --runs mine", ["--runs", "emabank status --help"]),
    ],
)
def test_words_that_make_no_sense_are_named(words: str, said: list[str], capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, *words.split(), code=2)
    assert all(each in printed for each in said), printed
    assert "tyro" not in printed and "Traceback" not in printed


# Help ----------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_what_it_does(capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, "--help", code=0)
    assert "What it is." in printed
    for name, kind in COMMANDS.items():
        assert f" {name} {' '.join((kind.__doc__ or '').split()[:5])} " in printed


EXAMPLES: dict[str, Any] = {
    "protocol": ProtocolArguments(),
    "list": ListArguments(),
    "run": RunArguments(study="all"),
    "status": StatusArguments(),
    "report": ReportArguments(),
    "claims": ClaimsArguments(),
}
POSITIONAL = {"run": {"study": "STUDY"}, **{name: {"runs": "[PATH]"} for name in ("status", "report", "claims")}}


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_explains_every_flag(command: str, capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, command, "--help", code=0)
    for place, _ in values(EXAMPLES[command]):
        flag = place.split(".")[-1].replace("_", "-")
        shown = POSITIONAL.get(command, {}).get(place)
        # The flag, its values or the other flag of a pair, then an explanation that begins like a sentence.
        begins = re.escape(f" positional arguments {shown} ") if shown else rf" --{flag}(,| [A-Z{{[]\S+)( \S+)*? "
        assert re.search(begins + r"([A-Z][a-z'&]*|demo:) [a-z0-9]", printed), flag


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_what_the_command_does(command: str, capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, command, "--help", code=0)
    assert printed.startswith(f"usage: emabank {command} [-h] ")
    assert " ".join((COMMANDS[command].__doc__ or "").split()[:8]) in printed


def test_help_is_grouped_as_the_tables_of_a_file_are(capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, "protocol", "--help", code=0)
    groups = ["data", "training", "averages", "measuring", "hardware", "place"]
    assert re.findall(r" (\w+) options (?=[A-Z-])", printed)[1:] == groups


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_words_of_python(command: str, capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, command, "--help", code=0)
    assert "None}" not in printed and "{None" not in printed and "default: None" not in printed
    assert "(default: )" not in printed and "(default: '')" not in printed and "(default: ())" not in printed
    assert "tyro" not in printed and "own}" not in printed
    if command == "protocol":
        assert "(default: 0.4 0.8)" in printed and "(default: resnet8)" in printed


@pytest.mark.parametrize("command", EXAMPLES)
def test_where_there_is_no_default_help_says_what_happens(command: str, capsys: pytest.CaptureFixture[str]):
    printed = ends(capsys, command, "--help", code=0)
    for place, value in values(EXAMPLES[command]):
        if value in (None, "", ()) and place not in ("config", "protocol.averages.decays", "protocol.transfer"):
            flag = place.split(".")[-1].replace("_", "-")
            explanation = re.search(rf" --{flag} [\[A-Z{{]\S\S.*?(?= --)", f"{printed} --")
            assert explanation and re.search(r"\b(by|its) default\b", explanation[0], re.IGNORECASE), flag


def test_the_command_data_knows_what_can_be_fetched():
    assert set(get_args(PublishedName)) == set(DATASETS)
