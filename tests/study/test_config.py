"""Configurations: refused values, defaults, and the identity of a run."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

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
    parse_seeds,
)
from emabank.study.serialize import run_id, to_dict

KEPT = Keep(weights="live", epoch=3, batchnorm="own", selected_by="accuracy")
RUN: dict[str, Any] = {"recipe": Recipe(), "rate": 0.4, "seed": 0, "trained_on": "80%"}
nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DataConfig, {"dataset": "cifar11"}, "dataset is 'cifar11'; give one of digits, cifar10, .*, own"),
        (DataConfig, {"labels": "worse"}, "labels is worse; digits has its own labels only: leave labels out"),
        (DataConfig, {"dataset": "cifar100n", "labels": "worse"}, "labels is worse; cifar100n has noisy"),
        (DataConfig, {"dataset": "cifar10n", "noise": 0.4}, "noise is 0.4; cifar10n has wrong labels of its own"),
        (DataConfig, {"crop": -1}, "crop is -1"),
        (DataConfig, {"noise": 40.0}, "noise is 40.0; give a share from 0 to 1"),
        (DataConfig, {"subset": 9}, "subset is 9; give 10 or more"),
        (TrainingConfig, {"network": "resnet18", "width": 8}, "width is 8, and resnet18 has one size"),
        (TrainingConfig, {"width": 0}, "width is 0; give 1 or more"),
        (TrainingConfig, {"epochs": 0}, "epochs is 0"),
        (TrainingConfig, {"batch": 1}, "batch is 1; give 2 or more"),
        (TrainingConfig, {"momentum": 1.0}, "momentum is 1.0; give a number from 0 to below 1"),
        (TrainingConfig, {"weight_decay": -1e-4}, "weight_decay is -0.0001; give 0 or more"),
        (TrainingConfig, {"weight_decay": inf}, "weight_decay is inf; give a finite number"),
        (TrainingConfig, {"warmup_epochs": 60.0}, "warmup_epochs is 60.0; give less than the 60 epochs"),
        (TrainingConfig, {"milestones": (0.6, 0.3)}, "milestones are 0.6 0.3; give rising shares of the run"),
        (TrainingConfig, {"milestones": (0.3, 1.0)}, "milestones are 0.3 1.0"),
        (TrainingConfig, {"schedule": "step", "warmup_epochs": 18.0}, "milestones are 0.3 0.6 0.8; .* after the warm"),
        (TrainingConfig, {"factor": 1.0}, "factor is 1.0; the rate is divided by it"),
        (AveragesConfig, {"decays": (1.5,)}, "decays has 1.5; give the weight of the past, from 0 to 1"),
        (AveragesConfig, {"decays": (0.9999991, 0.9999992)}, ".* different in their first six digits"),
        (AveragesConfig, {"half_lives": (0.0,)}, "half_lives has 0.0; give percentages of the run"),
        (AveragesConfig, {"half_lives": ()}, "decays and half_lives are both empty; give at least one average"),
        (AveragesConfig, {"every": 0}, "every is 0"),
        (MeasuringConfig, {"recompute": "always"}, "recompute is 'always'; give one of chosen, each-epoch"),
        (HardwareConfig, {"device": "tpu"}, "device is 'tpu'; give one of auto, cpu, cuda, mps"),
        (HardwareConfig, {"fused": True, "precision": "fp16"}, "fused is True and precision is fp16"),
        (TrainingConfig, {"bootstrap_every": 5}, "bootstrap_every is 5 and bootstrap is None; name an average"),
        (Recipe, {"training": TrainingConfig(bootstrap="ema-9%")}, "bootstrap is 'ema-9%'; the averages are ema-0.44%"),
        (Keep, {**vars(KEPT), "batchnorm": "none"}, "batchnorm is 'none'; give one of averaged, recomputed, own"),
        (RunConfig, {**RUN, "trained_on": "90%"}, "trained_on is '90%'; give one of 80%, 100%"),
        (RunConfig, {**RUN, "rate": 0.0}, "rate is 0.0; give a learning rate above 0"),
        (RunConfig, {**RUN, "constant_from": 60}, "constant_from is 60; give an epoch from 2 to 59"),
        (RunConfig, {**RUN, "posthoc": 9, "trained_on": "100%"}, "posthoc is 9 and trained_on is 100%; choosing needs"),
        (RunConfig, {**RUN, "swa": True}, "swa needs constant_from"),
        (RunConfig, {**RUN, "keep": (dataclasses.replace(KEPT, epoch=61),)}, "keep has epoch 61; .* 1 to 60"),
        (RunConfig, {**RUN, "transfer": ("own",)}, "transfer is 'own'; give a tuple, each once, of digits, cifar10"),
        (ProtocolConfig, {"rates": ()}, "rates are empty; give one or more learning rates above 0, each once"),
        (ProtocolConfig, {"rates": (0.1, 0.1)}, "rates are 0.1 0.1"),
        (ProtocolConfig, {"seeds": ()}, "seeds are empty; give one or more, 0 or above, each once"),
        (ProtocolConfig, {"seeds": (4, 4)}, "seeds are 4 4"),
        (ProtocolConfig, {"seeds": 0}, "seeds is 0; give 1 or more"),
        (ProtocolConfig, {"seeds": (-1, 4)}, "seeds are -1 4"),
        (MeasuringConfig, {"train_every": 0}, "train_every is 0"),
        (DataConfig, {"size": 1}, "size is 1; give 2 or more"),
        (ProtocolConfig, {"transfer": "digits"}, "transfer is 'digits'; give a tuple"),
        (ProtocolConfig, {"transfer": ("digits", "digits")}, "transfer is digits, digits; give a tuple, each once"),
        (ProtocolConfig, {"training": TrainingConfig(bootstrap="ema-7.1%")}, "bootstrap is ema-7.1% .* give --no-swa"),
        (ProtocolConfig, {"training": TrainingConfig(epochs=20, warmup_epochs=16.0)}, ".* a warm-up that is over"),
        (Place, {"jobs": 0}, "jobs is 0"),
        (Place, {"checkpoint_seconds": -1.0}, "checkpoint_seconds is -1.0"),
    ],
)
def test_wrong_values_are_refused(kind, values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        kind(**values)


def test_boundary_values_are_accepted():
    DataConfig(noise=1.0, subset=10, crop=0)
    TrainingConfig(network="own", momentum=0.0, weight_decay=0.0, warmup_epochs=0.0, milestones=())
    TrainingConfig(warmup_epochs=30.0)  # a cosine has no milestones
    AveragesConfig(decays=(0.0, 1.0), half_lives=())
    ProtocolConfig(training=TrainingConfig(bootstrap="ema-7.1%"), swa=False)


@pytest.mark.parametrize(("epochs", "fits"), [(1, False), (2, False), (3, True), (4, True), (200, True)])
def test_swa_needs_at_least_three_epochs(epochs, fits):
    training = TrainingConfig(epochs=epochs)
    ProtocolConfig(training=training, swa=False)
    if fits:
        config = ProtocolConfig(training=training)
        RunConfig(**{**RUN, "recipe": config.recipe, "swa": True, "constant_from": config.swa_epoch})
    else:
        with pytest.raises(ValueError, match=f"epochs is {epochs} and swa is on, .* or --no-swa"):
            ProtocolConfig(training=training)


def test_names_of_averages_are_ordered_from_shortest_to_longest_memory():
    assert AveragesConfig(decays=(0.998, 0.968, 0.99)).names == ("ema-0.968", "ema-0.99", "ema-0.998")
    assert AveragesConfig(half_lives=(7.1, 0.44)).names == ("ema-0.44%", "ema-7.1%")
    assert AveragesConfig(decays=(0.9,), half_lives=(7.1,)).names == ("ema-0.9",)


# Defaults ------------------------------------------------------------------------------------------------------------


def test_a_run_has_a_completed_recipe():
    run = RunConfig(**{**RUN, "recipe": Recipe(data=DataConfig(dataset="cifar10n"))})
    assert run.recipe == run.recipe.completed() == Recipe(data=DataConfig(dataset="cifar10n")).completed()


# Identity ------------------------------------------------------------------------------------------------------------

BASE = RunConfig(
    recipe=Recipe(data=DataConfig(dataset="cifar10n")), rate=0.4, seed=0, trained_on="100%", constant_from=45
)


def field_paths(config: Any, above: str = "") -> Iterator[str]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from field_paths(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def with_field(config: Any, path: str, value: Any) -> Any:
    """A copy with one field replaced, without validation."""
    name, _, rest = path.partition(".")
    copied = copy.copy(config)
    object.__setattr__(copied, name, with_field(getattr(config, name), rest, value) if rest else value)
    return copied


def test_changing_any_field_makes_another_run():
    ids = {path: run_id(to_dict(with_field(BASE, path, "another"))) for path in field_paths(BASE)}
    assert {"recipe.data.size", "recipe.training.bootstrap_every", "recipe.averages.every", "posthoc"} <= set(ids)
    assert run_id(to_dict(BASE)) not in ids.values()
    assert len(set(ids.values())) == len(ids) > 40


@pytest.mark.parametrize(
    ("options", "channels_last", "fused"),
    [
        ({"device": "cpu"}, True, True),
        ({"device": "cpu", "precision": "fp16"}, True, False),
        ({"device": "cuda"}, False, True),
        ({"device": "cuda", "precision": "bf16"}, True, True),
        ({"device": "mps"}, False, False),
        ({"device": "cpu", "channels_last": False, "fused": False}, False, False),
        ({"device": "auto"}, None, None),
    ],
)
def test_default_memory_format_and_fused_optimizer_depend_on_the_hardware(options, channels_last, fused):
    hardware = HardwareConfig(**options).completed()
    assert (hardware.channels_last, hardware.fused) == (channels_last, fused)
    assert hardware.completed() == hardware


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", (0, 1, 2)),
        ("10-12", (10, 11, 12)),
        ("10,15,12", (10, 15, 12)),
        ("4,10-11", (4, 10, 11)),
    ],
)
def test_seeds_are_read_from_a_command_line(text: str, numbers: tuple[int, ...]):
    assert ProtocolConfig(seeds=parse_seeds(text)).seed_numbers == numbers


@pytest.mark.parametrize("text", ["", "x", "-3", "1.5", "10-", "10-9", "1,,2", "1-2-3"])
def test_malformed_seeds_are_refused(text: str):
    with pytest.raises(ValueError, match="^seeds is '.*'; give a count, such as 3, or seeds, such as 10-19"):
        parse_seeds(text)


def test_the_same_seeds_are_the_same_protocol():
    count, listed = ProtocolConfig(seeds=3), ProtocolConfig(seeds=(0, 1, 2))
    assert count == listed and to_dict(listed)["seeds"] == 3
    assert to_dict(ProtocolConfig(seeds=(10, 11)))["seeds"] == [10, 11]
