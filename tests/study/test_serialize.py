"""Configurations as JSON and TOML, overrides from the command line, and the ids of runs."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emabank.study import serialize
from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    Keep,
    Place,
    ProtocolConfig,
    Recipe,
    RunConfig,
    TrainingConfig,
)
from emabank.study.serialize import apply_overrides, from_dict, read_toml, run_id, to_dict, to_toml
from tests.support.processes import run

# Configurations ------------------------------------------------------------------------------------------------------

shares, finite = st.floats(0, 1), st.floats(0, 1e30, exclude_min=True)
counts = st.none() | st.integers(10, 2**70)

protocols = st.builds(
    ProtocolConfig,
    data=st.builds(DataConfig, noise=shares, subset=counts, size=counts, crop=counts, flip=st.none() | st.booleans()),
    training=st.builds(
        TrainingConfig,
        epochs=st.integers(3, 40),
        schedule=st.sampled_from(["cosine", "step"]),
        weight_decay=st.none() | finite,
        milestones=st.sets(st.floats(0.2, 0.9)).map(sorted).map(tuple),
    ),
    averages=st.builds(
        AveragesConfig,
        half_lives=st.lists(st.floats(1e-9, 100), min_size=1, unique_by=lambda share: f"{share:g}").map(tuple),
    ),
    seeds=st.integers(1, 100) | st.lists(st.integers(0, 2**70), min_size=1, unique=True).map(tuple),
    rates=st.lists(finite, min_size=1, unique=True).map(tuple),
    swa=st.booleans(),
    transfer=st.lists(st.sampled_from(["cifar100", "digits"]), unique=True).map(tuple),
)


# JSON and TOML -------------------------------------------------------------------------------------------------------


def through_toml(config: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.toml")
        path.write_bytes(to_toml(config).encode())
        return read_toml(path, type(config))


KEPT = Keep(weights="a b\n", epoch=3, batchnorm="own", selected_by="last")


@example(RunConfig(recipe=Recipe(), rate=1e-5, seed=2**70, trained_on="100%", keep=(KEPT,), constant_from=10))
@example(Place(data=Path("a b/é[]'\\\n"), cache=Path("c"), tensorboard=True, wandb='a "b"\\\x7f\u2028'))
@given(st.one_of(protocols, protocols.map(ProtocolConfig.completed)))
def test_every_configuration_survives_json_and_toml(config):
    assert from_dict(type(config), json.loads(json.dumps(to_dict(config))), where="") == config
    assert through_toml(config) == config


# Files ---------------------------------------------------------------------------------------------------------------


def read(tmp_path: Path, text: str | bytes, kind: type = ProtocolConfig) -> Any:
    path = tmp_path / "study.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_toml(path, kind)


def test_missing_keys_of_a_file_have_their_defaults(tmp_path: Path):
    config = read(tmp_path, "rates = [1, 0.5]\n[data]\nnoise = 1\nsubset = 100\n[training]\nnetwork = 'vgg-small'\n")
    expected = ProtocolConfig(
        rates=(1.0, 0.5), data=DataConfig(noise=1.0, subset=100), training=TrainingConfig(network="vgg-small")
    )
    assert config == expected
    assert type(config.rates[0]) is float and type(config.data.noise) is float


@pytest.mark.parametrize("text", ["", "# nothing\n", "[data]\n", "\ufeffseeds = 3", "seeds = 3\r\n[data]\r\n"])
def test_empty_files_byte_order_marks_and_windows_line_ends_are_read(tmp_path: Path, text: str):
    assert read(tmp_path, text) == ProtocolConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = 3", ": unknown key 'epochs'; there are data, training, averages, measuring, hardware, rates, "),
        ("[training]\nepoch = 3", ", training: unknown key 'epoch'; there are network, width, epochs, "),
        ("[data]\nsubset = '100'", ", data: subset is '100'; give a whole number"),
        ("[data]\nsubset = true", ", data: subset is True; give a whole number"),
        ("[data]\nnoise = false", ", data: noise is False; give a number"),
        (f"[data]\nnoise = {'9' * 400}", r", data: noise is 9+; give a number"),
        ("[data]\nflip = 1", ", data: flip is 1; give true or false"),
        ("[data]\ndataset = 'cifar11'", ", data: dataset is 'cifar11'; give one of digits, cifar10, "),
        ("[data]\ndataset = ['digits']", r", data: dataset is \['digits'\]; give one of digits"),
        ("[training]\nbootstrap = 7.1", ", training: bootstrap is 7.1; give a text"),
        ("data = 'digits'", ": data is 'digits'; give a table"),
        ("rates = 0.4", ": rates is 0.4; give a list"),
        ("rates = [0.4, '0.8']", r": rates\[1\] is '0.8'; give a number"),
        ("[training]\nepochs = 0", ", training: epochs is 0; give 1 or more"),
        ("[training]\nbootstrap = 'ema-1%'\n", ": bootstrap is 'ema-1%'; the averages are "),
        ("rates = [0.4", r" is not a TOML file: .*end of document"),
        ("rates: [0.4]", r" is not a TOML file: .*line 1"),
        (b"rates = [0.4] # \xff", r" is not a TOML file: .*utf-8"),
    ],
)
def test_an_invalid_file_is_an_error_with_file_and_key(tmp_path: Path, text: str, message: str):
    with pytest.raises(ValueError, match=f"study.toml{message}") as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path)) and str(caught.value).count(str(tmp_path)) == 1
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="study.toml: batchnorm, selected_by is missing; give every key that has no"):
        read(tmp_path, "weights = 'live'\nepoch = 3", Keep)
    with pytest.raises(ValueError, match="unknown key 'name'"):  # a property, not a field
        from_dict(Keep, {"name": "live"}, where="here")


def test_a_bug_is_not_reported_as_an_error_of_the_file():
    class Faulty(Keep):
        def __post_init__(self) -> None:
            raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        from_dict(Faulty, to_dict(Keep(weights="a", epoch=1, batchnorm="own", selected_by="last")), where="")


# Overrides -----------------------------------------------------------------------------------------------------------


def leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its full name."""
    settings: dict[str, Any] = {}
    for key, value in values.items():
        settings |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return settings


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("training.epochs=10", "training.epochs", 10),
        ("epochs=10", "training.epochs", 10),
        (" epochs = 10 ", "training.epochs", 10),
        ("rates=[0.1, 2]", "rates", [0.1, 2.0]),
        ("network=vgg-small", "training.network", "vgg-small"),
        ('network="vgg-small"', "training.network", "vgg-small"),
        ("bootstrap=ema-7.1%", "training.bootstrap", "ema-7.1%"),
        ("subset=None", "data.subset", None),
        ("weight_decay=5e-4", "training.weight_decay", 5e-4),
    ],
)
def test_an_override_changes_one_setting_only(setting: str, key: str, value: Any):
    config = ProtocolConfig(data=DataConfig(subset=100), transfer=("cifar10",), swa=False)
    before, after = leaves(to_dict(config)), leaves(to_dict(apply_overrides(config, [setting])))
    assert after == {**before, key: value}
    assert before[key] != value and type(after[key]) is type(value)


def test_overrides_are_checked_together_and_the_last_one_counts():
    config = apply_overrides(ProtocolConfig(), ["epochs=2", "swa=false", "data.noise=0.4", "epochs=1"])
    expected = ProtocolConfig(training=TrainingConfig(epochs=1), swa=False, data=DataConfig(noise=0.4))
    assert config == expected, "one epoch is too few with SWA, so they are checked together"
    assert apply_overrides(config, []) == config


def test_every_setting_has_a_unique_short_name():
    config = ProtocolConfig(swa=False)
    for key, value in leaves(to_dict(config)).items():
        name = key.rpartition(".")[2]
        text = "None" if value is None else json.dumps(value)
        assert apply_overrides(config, [f"{name}={text}"]) == config, name


@given(protocols)
def test_every_configuration_can_be_set_by_overrides(config):
    settings = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in leaves(to_dict(config)).items()]
    settings = [setting.removesuffix("null") + "None" if setting.endswith("=null") else setting for setting in settings]
    assert apply_overrides(ProtocolConfig(), settings) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epoch=3", "--set: there is no setting 'epoch'; there are rates, seeds, .*, training.epochs, "),
        ("data=digits", "--set: there is no setting 'data'"),
        ("measuring.epochs=3", "--set: there is no setting 'measuring.epochs'"),
        ("epochs", "--set: 'epochs' is not a setting; give key=value, such as training.epochs=10"),
        ("epochs=", "--set, training: epochs is ''; give a whole number"),
        ("epochs=1\nseeds=2", r"--set, training: epochs is '1\\nseeds=2'; give a whole number"),
        ("rates=0.1,0.2", "--set: rates is '0.1,0.2'; give a list"),
        ("rates=[0.1", r"--set: rates is '\[0.1'; give a list"),
    ],
)
def test_an_invalid_override_is_a_clear_error(setting: str, message: str):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        apply_overrides(ProtocolConfig(), [setting])
    assert "\n" not in str(caught.value)


# The identity of a run -----------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
CONFIGS = st.dictionaries(st.text(max_size=4), PLAIN, max_size=4)
CONFIG = {"network": "resnet8", "rates": (0.1, 0.8), "noise": {"share": 0.4, "kind": "symmetric"}, "decay": None}


def test_an_id_is_the_start_of_the_sha256_of_the_canonical_json(monkeypatch: pytest.MonkeyPatch):
    text = (
        'emabank run 1\n{"decay":null,"network":"resnet8","noise":{"kind":"symmetric","share":0.4},"rates":[0.1,0.8]}'
    )
    assert run_id(CONFIG) == hashlib.sha256(text.encode("ascii")).hexdigest()[:16]
    other = run(f"from emabank.study.serialize import run_id; print(run_id({CONFIG!r}))")
    assert other.stdout.strip() == run_id(CONFIG), "the same in every process"
    monkeypatch.setattr(serialize, "FORMAT", 2)
    assert run_id(CONFIG) != hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


@given(config=CONFIGS)
def test_ids_do_not_depend_on_order_or_on_json(config: dict[str, Any]):
    assert run_id(dict(reversed(config.items()))) == run_id(config)
    assert run_id(json.loads(json.dumps(config))) == run_id(config)


def marked(value: Any) -> Any:
    """Values that compare as they should: 1 equals 1.0, but not True."""
    if isinstance(value, dict):
        return {key: marked(item) for key, item in value.items()}
    return [marked(item) for item in value] if isinstance(value, list) else (type(value) is bool, value)


@example(a={"epochs": 1}, b={"epochs": 1.0})
@example(a={"epochs": 1}, b={"epochs": True})
@example(a={"epochs": 1}, b={"epochs": "1"})
@example(a={"epochs": 1}, b={"epochs": None})
@example(a={"epochs": 1}, b={"epochs": [1]})
@example(a={"epochs": 1}, b={"epochs": 1, "decay": None})
@given(a=CONFIGS, b=CONFIGS)
def test_ids_are_equal_only_if_the_configurations_are(a: dict[str, Any], b: dict[str, Any]):
    assert (run_id(a) == run_id(b)) == (marked(a) == marked(b))


def test_a_configuration_with_nan_has_no_id():
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_id({"a": {"b": [0.5, float("nan")]}})
