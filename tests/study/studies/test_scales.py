"""The scales and the studies: the paper's settings, short runs with distinct averages, and what studies report."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from emabank.study.averages import rules
from emabank.study.config import AveragesConfig, DataConfig, ProtocolConfig, TrainingConfig
from emabank.study.models import build_network
from emabank.study.protocol import resolve
from emabank.study.studies import catalogue
from emabank.study.studies.catalogue import STUDIES, Study, settings_of, studies_named
from emabank.study.studies.cost import SIZES
from emabank.study.studies.scales import CLEAN, CONSTANT, MAIN, NOISY, SCALES, protocol_of

PAIRS = (*CLEAN, *NOISY, CONSTANT)
SHORT = [(pair, scale) for scale in ("small", "demo") for pair in PAIRS if protocol_of(pair, scale) is not None]


def protocol(pair: str, scale: Any) -> ProtocolConfig:
    config = protocol_of(pair, scale)
    assert config is not None
    return config.completed()


# Short runs ----------------------------------------------------------------------------------------------------------


def steps_of(config: ProtocolConfig) -> dict[str, int]:
    """Steps of a run on 80% and on 100% of the images; the last batch of an epoch may be smaller."""
    images = config.data.subset or SIZES[config.data.dataset].train
    return {
        trained_on: config.training.epochs * math.ceil(count / config.training.batch)
        for trained_on, count in (("80%", images - images // 5), ("100%", images))
    }


def distinct_counts(averages: AveragesConfig, steps: int) -> set[int]:
    """The numbers of different weights that averages give to a new sample, over all steps of a run."""
    all_rules = rules(averages, steps).values()
    counts: set[int] = set()
    for step in range(averages.every, steps + 1, averages.every):
        at = {"steps": step, "elapsed": averages.every, "samples": step // averages.every - 1, "every": averages.every}
        counts.add(len({round(math.log(1 - rule.decay_at(**at)), 2) for rule in all_rules}))
    return counts


@pytest.mark.parametrize(("pair", "scale"), SHORT)
def test_the_five_averages_of_a_short_run_differ_at_every_step(pair: str, scale: str):
    config = protocol(pair, scale)
    assert (config.averages.decay_warmup, len(config.averages.names)) == ("none", 5)
    for steps in steps_of(config).values():
        assert distinct_counts(config.averages, steps) == {5}


def test_control_some_averages_coincide_with_the_papers_warm_up():
    config = protocol(MAIN, "demo")
    warmed = replace(config.averages, decay_warmup="steps")
    assert distinct_counts(warmed, steps_of(config)["80%"]) != {5}


# All scales -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_every_network_fits_its_images_and_those_of_its_targets(scale: Any):
    for pair in PAIRS:
        config = protocol_of(pair, scale)
        if config is None:
            continue
        config = resolve(config)
        size, pixels = SIZES[config.data.dataset], config.data.size
        image = size.image if pixels is None else (size.image[0], pixels, pixels)
        with torch.device("meta"):
            model = build_network(
                config.training.network, classes=size.classes, channels=size.image[0], width=config.training.width
            )
            assert list(model(torch.zeros(2, *image)).shape) == [2, size.classes]
        assert all(SIZES[target].image[0] == size.image[0] for target in config.transfer)
        assert config.data.dataset not in config.transfer


def test_different_data_or_training_has_a_different_title():
    for scale in SCALES:
        configs = [config for config in (protocol_of(pair, scale) for pair in PAIRS) if config is not None]
        assert len({config.title for config in configs}) == len({(config.data, config.training) for config in configs})
    assert protocol(MAIN, "paper").title == "CIFAR-100, ResNet-18"
    assert protocol("cifar100-wrn-28-10", "paper").title == "CIFAR-100, WideResNet-28-10"
    for data, title in ((DataConfig(noise=0.4), "40% with wrong labels"), (DataConfig(subset=4000), "4,000 images")):
        assert ProtocolConfig(data=data).title == f"digits, {title}, ResNet-8"
    assert protocol(MAIN, "small").title == "CIFAR-100, 10,000 images, at 16 × 16, ResNet-8 of width 32"
    assert protocol("cifar10n-resnet34", "small").title == "CIFAR-10N, 15,000 images, whitened CNN"
    assert ProtocolConfig(training=TrainingConfig(width=24)).title == "digits, ResNet-8 of width 24"


# The studies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_protocols_measure_what_their_study_reports(scale: Any):
    measured = {
        name: [protocol_of(pair, scale).measuring for pair in study.pairs_at(scale)]  # type: ignore[union-attr]
        for name, study in STUDIES.items()
    }
    assert all(measuring.test_curves for several in measured.values() for measuring in several)
    assert all(measuring.recompute == "each-epoch" for measuring in measured["batchnorm"])
    assert all(measuring.on_train for name in ("label-noise", "constant-lr") for measuring in measured[name])
    wrong = [protocol_of(p, scale).data for n in ("label-noise", "constant-lr") for p in STUDIES[n].pairs_at(scale)]  # type: ignore[union-attr]
    assert all(data.has_wrong_labels for data in wrong)
    for pair in settings_of([STUDIES["lr-search"]], scale):
        assert len({f"tune at {rate:g}" for rate in pair.config.rates} | set(pair.arms)) > 1


def test_a_pair_without_a_protocol_at_the_scale_is_skipped(monkeypatch: pytest.MonkeyPatch):
    original = catalogue.protocol_of
    monkeypatch.setattr(catalogue, "protocol_of", lambda pair, scale: None if pair == "b" else original(MAIN, scale))
    assert Study(name="x", title="X", question="?", makes="y", pairs=("a", "b", "c")).pairs_at("demo") == ("a", "c")


def test_the_error_of_an_unknown_study_lists_the_studies_and_the_nearest_name():
    with pytest.raises(ValueError, match="^there is no study ''; give all, or one of generalization, dynamics, "):
        studies_named("")
    with pytest.raises(ValueError, match=r"'generalisation' \(did you mean generalization\?\); give"):
        studies_named("generalisation")
