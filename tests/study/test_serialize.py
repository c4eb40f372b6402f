"""Configurations as plain values, JSON and TOML: what is written comes back, and what does not fit is named."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    HardwareConfig,
    Keep,
    MeasuringConfig,
    Place,
    ProtocolConfig,
    Recipe,
    RunConfig,
    TrainingConfig,
)
from emabank.study.serialize import apply_overrides, from_dict, read_toml, to_dict, to_toml

# Configurations ------------------------------------------------------------------------------------------------------


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def floats(low: float, high: float, **more: Any) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, **more)


counts = st.integers(0, 2**70)
texts = st.text(st.characters(codec="utf-8"), max_size=20)

data = st.one_of(
    st.builds(
        DataConfig,
        dataset=st.sampled_from(["digits", "cifar10", "cifar100", "tiny-imagenet", "own"]),
        noise=floats(0, 1),
        noise_seed=counts,
        subset=maybe(st.integers(10)),
        test_subset=maybe(st.integers(10)),
        size=maybe(st.integers(2)),
        split_seed=counts,
        validation_labels=st.sampled_from(["clean", "noisy"]),
        crop=maybe(counts),
        flip=maybe(st.booleans()),
    ),
    st.builds(DataConfig, dataset=st.just("cifar10n"), labels=maybe(st.sampled_from(["worse", "random3"]))),
)
averages = st.builds(
    AveragesConfig,
    decays=st.lists(st.sampled_from([0.0, 0.5, 0.968, 0.998, 1.0]), unique=True).map(tuple),
    half_lives=st.lists(floats(1e-9, 100), min_size=1, unique_by=lambda share: f"{share:g}").map(tuple),
    every=st.integers(1),
    decay_warmup=st.sampled_from(["steps", "updates", "none"]),
)
measuring = st.builds(
    MeasuringConfig,
    recompute=st.sampled_from(["chosen", "each-epoch"]),
    on_train=st.booleans(),
    test_curves=st.booleans(),
    curve_images=maybe(st.integers(10)),
    train_every=st.integers(1),
)
hardware = st.builds(
    HardwareConfig,
    device=st.sampled_from(["auto", "cpu", "cuda", "mps"]),
    threads=st.integers(1),
    precision=st.sampled_from(["float32", "bf16", "fp16"]),
    channels_last=st.none() | st.booleans(),
    fused=st.sampled_from([None, False]),
    compile=st.booleans(),
)


@st.composite
def trainings(draw: st.DrawFn) -> TrainingConfig:
    network = draw(st.sampled_from(["resnet8", "vgg-small", "resnet18", "own"]))
    return TrainingConfig(
        network=network,
        width=draw(maybe(st.integers(1))) if network in ("resnet8", "vgg-small") else None,
        epochs=draw(st.integers(3, 40)),
        batch=draw(st.integers(2)),
        momentum=draw(floats(0, 1, exclude_max=True)),
        weight_decay=draw(maybe(floats(0, 1e30))),
        schedule=draw(st.sampled_from(["cosine", "step"])),
        warmup_epochs=draw(maybe(floats(0, 0.3))),
        milestones=tuple(sorted(draw(st.sets(floats(0.2, 0.9))))),
        factor=draw(floats(1, 1e30, exclude_min=True)),
    )


def recipes(kind: type[Recipe], **more: Any) -> st.SearchStrategy[Any]:
    common = {"data": data, "training": trainings(), "averages": averages, "measuring": measuring, "hardware": hardware}
    return st.builds(kind, **common, **more)


rates = floats(0, 1e30, exclude_min=True)
targets = st.lists(st.sampled_from(["cifar100", "digits"]), unique=True).map(tuple)
protocols = recipes(
    ProtocolConfig,
    rates=st.lists(rates, min_size=1, unique=True).map(tuple),
    seeds=st.integers(1) | st.lists(counts, min_size=1, unique=True).map(tuple),
    swa=st.booleans(),
    transfer=targets,
)
keeps = st.builds(
    Keep,
    weights=texts,
    epoch=st.integers(1, 3),
    batchnorm=st.sampled_from(["averaged", "recomputed", "own"]),
    selected_by=st.sampled_from(["accuracy", "loss", "last"]),
)
runs = st.builds(
    RunConfig,
    recipe=recipes(Recipe),
    rate=rates,
    seed=counts,
    trained_on=st.sampled_from(["80%", "100%"]),
    keep=st.lists(keeps, max_size=3).map(tuple),
    constant_from=st.integers(1, 2),
    swa=st.booleans(),
    transfer=targets,
    fingerprint=texts,
)
paths = st.text("abc /.é[]'\"\\\n", max_size=10).map(Path)
somewhere = st.builds(
    Place,
    data=paths,
    cache=maybe(paths),
    runs=paths,
    jobs=maybe(st.integers(1)),
    checkpoint_seconds=floats(0, 1e30),
    tensorboard=st.booleans(),
    wandb=maybe(texts),
)


# There and back ------------------------------------------------------------------------------------------------------


def through_toml(config: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.toml")
        path.write_bytes(to_toml(config).encode())
        return read_toml(path, type(config))


@given(st.one_of(protocols, runs, somewhere))
def test_any_configuration_comes_back_from_json(config):
    assert from_dict(type(config), json.loads(json.dumps(to_dict(config))), where="") == config


@given(st.one_of(protocols, runs, somewhere))
def test_any_configuration_comes_back_from_toml(config):
    assert through_toml(config) == config


@given(protocols)
def test_a_complete_configuration_comes_back_complete(config):
    assert through_toml(config.completed()) == config.completed()


def test_every_kind_of_value_is_written_as_toml_has_it():
    keep = (Keep(weights='a "b"\\\x7f', epoch=3, batchnorm="own", selected_by="last"),)
    config = RunConfig(recipe=Recipe(), rate=1e-5, seed=0, trained_on="100%", keep=keep)
    lines = to_toml(config).splitlines()
    assert lines[:2] == ["rate = 1e-05", "seed = 0"]
    said = r'keep = [{weights = "a \"b\"\\\u007f", epoch = 3, batchnorm = "own", selected_by = "last"}]'
    assert said in lines
    assert {"[recipe.training]", "half_lives = [0.44, 0.88, 1.8, 3.5, 7.1]", "flip = false"} <= set(lines)
    assert not any(line.startswith(("constant_from", "labels")) for line in lines), "None has no form in TOML"


# What a file may say -------------------------------------------------------------------------------------------------


def read(tmp_path: Path, text: str | bytes, kind: type = ProtocolConfig) -> Any:
    path = tmp_path / "study.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_toml(path, kind)


def test_a_file_gives_what_it_says_and_the_rest_are_defaults(tmp_path: Path):
    found = read(tmp_path, "rates = [1, 0.5]\n[data]\nnoise = 1\nsubset = 100\n[training]\nnetwork = 'vgg-small'\n")
    expected = ProtocolConfig(
        rates=(1.0, 0.5), data=DataConfig(noise=1.0, subset=100), training=TrainingConfig(network="vgg-small")
    )
    assert found == expected
    assert type(found.rates[0]) is float and type(found.data.noise) is float


@pytest.mark.parametrize("text", ["", "# nothing\n", "[data]\n", "\ufeffseeds = 3", "seeds = 3\r\n[data]\r\n"])
def test_a_file_may_say_nothing_new_in_many_ways(tmp_path: Path, text: str):
    assert read(tmp_path, text) == ProtocolConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs = 3", ": unknown key 'epochs'; there are data, training, averages, measuring, hardware, rates, "),
        ("a = 1\nb = 2", ": unknown key 'a', 'b'; there are data,"),
        ("[training]\nepoch = 3", ", training: unknown key 'epoch'; there are network, width, epochs, "),
        ("[data]\nsubset = '100'", ", data: subset is '100'; give a whole number"),
        ("[data]\nsubset = 100.0", ", data: subset is 100.0; give a whole number"),
        ("[data]\nsubset = true", ", data: subset is True; give a whole number"),
        ("[data]\nnoise = '0.4'", ", data: noise is '0.4'; give a number"),
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
        ("rates = [nan]", ": rates are nan; give one or more"),
        ("[training]\nweight_decay = inf", ", training: weight_decay is inf; give a finite number"),
        ("[training]\nbootstrap = 'ema-1%'\n", ": bootstrap is 'ema-1%'; the averages are "),
        ("rates = [0.4", r" is not a TOML file: .*end of document"),
        ("rates: [0.4]", r" is not a TOML file: .*line 1"),
        (b"rates = [0.4] # \xff", r" is not a TOML file: .*utf-8"),
        ("seeds = 3\nseeds = 4", " is not a TOML file: "),
    ],
)
def test_what_does_not_fit_is_one_sentence_with_file_and_key(tmp_path: Path, text: str, said: str):
    with pytest.raises(ValueError, match=f"study.toml{said}") as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path)) and str(caught.value).count(str(tmp_path)) == 1
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="study.toml: batchnorm, selected_by is missing; give every key that has no"):
        read(tmp_path, "weights = 'live'\nepoch = 3", Keep)


def test_a_fault_of_the_program_is_not_told_as_one_of_the_file():
    class Faulty(Keep):
        def __post_init__(self) -> None:
            raise TypeError("a fault")

    with pytest.raises(TypeError, match="a fault"):
        from_dict(Faulty, to_dict(Keep(weights="a", epoch=1, batchnorm="own", selected_by="last")), where="")


def test_what_is_no_field_of_a_class_is_unknown_too():
    with pytest.raises(ValueError, match="unknown key 'name'"):
        from_dict(Keep, {"name": "live"}, where="here")


def test_plain_values_share_nothing_with_the_configuration():
    config = ProtocolConfig()
    plain = to_dict(config)
    plain["data"]["dataset"], plain["rates"][0] = "cifar10", 9.0
    assert config == ProtocolConfig() and to_dict(config) != plain


# Other settings ------------------------------------------------------------------------------------------------------


def leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its whole name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("training.epochs=10", "training.epochs", 10),
        ("epochs=10", "training.epochs", 10),
        (" epochs = 10 ", "training.epochs", 10),
        ("seeds=5", "seeds", 5),
        ("seeds=[10, 12]", "seeds", [10, 12]),
        ("swa=true", "swa", True),
        ("noise=1", "data.noise", 1.0),
        ("rates=[0.1, 2]", "rates", [0.1, 2.0]),
        ("transfer=['digits']", "transfer", ["digits"]),
        ("transfer=[]", "transfer", []),
        ("averages.half_lives=[50]", "averages.half_lives", [50.0]),
        ("network=vgg-small", "training.network", "vgg-small"),
        ('network="vgg-small"', "training.network", "vgg-small"),
        ("data.dataset = digits-0-4", "data.dataset", "digits-0-4"),
        ("bootstrap=ema-7.1%", "training.bootstrap", "ema-7.1%"),
        ("subset=None", "data.subset", None),
        ("width = None", "training.width", None),
        ("weight_decay=5e-4", "training.weight_decay", 5e-4),
    ],
)
def test_one_setting_changes_what_it_names_and_nothing_else(setting: str, key: str, value: Any):
    given: dict[str, Any] = {
        "data": DataConfig(subset=100),
        "training": TrainingConfig(width=4),
        "transfer": ("cifar10",),
    }
    config = ProtocolConfig(**given, swa=False)
    before, after = leaves(to_dict(config)), leaves(to_dict(apply_overrides(config, [setting])))
    assert after == {**before, key: value}
    assert before[key] != value and type(after[key]) is type(value)


def test_settings_add_up_and_the_last_word_counts():
    config = apply_overrides(ProtocolConfig(), ["epochs=2", "swa=false", "data.noise=0.4", "epochs=1"])
    expected = ProtocolConfig(training=TrainingConfig(epochs=1), swa=False, data=DataConfig(noise=0.4))
    assert config == expected, "one epoch is too few with SWA, so all are looked at together"
    assert apply_overrides(config, []) == config


def test_every_setting_can_be_named_short_and_whole():
    """So no two tables may have a key in common."""
    config = ProtocolConfig(swa=False)
    known = leaves(to_dict(config))
    for key, value in known.items():
        for name in (key, key.rpartition(".")[2]):
            text = "None" if value is None else json.dumps(value)
            assert apply_overrides(config, [f"{name}={text}"]) == config, name


@given(protocols)
def test_what_a_configuration_is_written_as_can_be_set(config):
    settings = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in leaves(to_dict(config)).items()]
    settings = [setting.removesuffix("null") + "None" if setting.endswith("=null") else setting for setting in settings]
    assert apply_overrides(ProtocolConfig(), settings) == config


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("epoch=3", "--set: there is no setting 'epoch'; there are rates, seeds, .*, training.epochs, "),
        ("data=digits", "--set: there is no setting 'data'"),
        ("=3", "--set: there is no setting ''"),
        ("measuring.epochs=3", "--set: there is no setting 'measuring.epochs'"),
        ("epochs", "--set: 'epochs' is no setting; give key=value, such as training.epochs=10"),
        ("nonsense", "--set: 'nonsense' is no setting; give key=value"),
        ("epochs=", "--set, training: epochs is ''; give a whole number"),
        ("epochs=ten", "--set, training: epochs is 'ten'; give a whole number"),
        ("epochs=10.5", "--set, training: epochs is 10.5; give a whole number"),
        ("epochs=None", "--set, training: epochs is None; give a whole number"),
        ("epochs=0", "--set, training: epochs is 0; give 1 or more"),
        ("epochs=1\nseeds=2", r"--set, training: epochs is '1\\nseeds=2'; give a whole number"),
        ("flip=yes", "--set, data: flip is 'yes'; give true or false"),
        ("rates=0.1", "--set: rates is 0.1; give a list"),
        ("rates=0.1,0.2", "--set: rates is '0.1,0.2'; give a list"),
        ("rates=[]", "--set: rates are empty; give one or more"),
        ("rates=[0.1", r"--set: rates is '\[0.1'; give a list"),
        ("network=resnet9", "--set, training: network is 'resnet9'; give one of resnet8"),
        ("transfer=['own']", "--set: transfer\\[0\\] is 'own'; give one of digits"),
        ("bootstrap=ema-1%", "--set: bootstrap is 'ema-1%'; the averages are "),
    ],
)
def test_a_setting_that_does_not_fit_is_one_sentence(setting: str, said: str):
    with pytest.raises(ValueError, match=f"^{said}") as caught:
        apply_overrides(ProtocolConfig(), [setting])
    assert "\n" not in str(caught.value)
