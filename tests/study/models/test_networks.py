"""Every name builds its network, and what is said of a network is true of it."""

import pytest
import torch
from torch import nn

from emabank.study.models import NETWORKS, build_network
from tests.support.processes import run

NAMES = ["resnet8", "resnet20", "resnet18", "resnet34", "wrn-28-10", "vgg16", "vgg-small", "whitened-cnn"]
PARAMETERS = {
    "resnet8": 75_290,
    "resnet20": 269_722,
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "wrn-28-10": 36_479_194,
    "vgg16": 15_245_130,
    "vgg-small": 72_730,
    "whitened-cnn": 497_802,
}


def test_the_names():
    assert list(NETWORKS) == NAMES
    assert [network.name for network in NETWORKS.values()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_name_builds_its_network(name):
    with torch.device("meta"):
        model = build_network(name, classes=10)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_network_is_true_of_it(name):
    entry = NETWORKS[name]
    with torch.device("meta"):
        model = build_network(name, classes=4, channels=2).eval()
        images = torch.empty(3, 2, entry.smallest_side, entry.smallest_side)
        assert model.features(images).shape == (3, model.head.in_features)
        assert model(images).shape == (3, 4)
        if entry.smallest_side > 1:
            with pytest.raises(ValueError, match="images are"):
                model(images[:, :, 1:])
    assert entry.has_batchnorm == any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert entry.takes_width == (name in ("resnet8", "resnet20", "vgg-small", "whitened-cnn"))


def test_weight_decays_by_family():
    assert {name: network.weight_decay for name, network in NETWORKS.items()} == {
        name: 5e-4 if name.startswith(("wrn", "vgg")) else 1e-4 for name in NAMES
    }


@pytest.mark.parametrize(
    ("name", "usual"), [("resnet8", 16), ("resnet20", 16), ("vgg-small", 16), ("whitened-cnn", 32)]
)
def test_a_width_is_that_of_the_first_stage(name, usual):
    def first_width(**given: int) -> int:
        with torch.device("meta"):
            model = build_network(name, classes=10, **given)
        return next(m for m in model.modules() if isinstance(m, nn.Conv2d)).out_channels

    assert first_width(width=6) == 6
    assert first_width() == NETWORKS[name].default_width == usual


@pytest.mark.parametrize("name", ["resnet8", "vgg-small", "whitened-cnn"])
def test_the_same_seed_builds_the_same_weights(name):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_network(name, classes=3, channels=1).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("resnet9", {}, "network is 'resnet9'; give resnet8, resnet20, .* vgg-small or whitened-cnn"),
        ("ResNet8", {}, "network is 'ResNet8'; give"),
        (
            "resnet18",
            {"width": 8},
            "width is 8, and resnet18 has one size; .* resnet8, resnet20, vgg-small or whitened-cnn",
        ),
        ("wrn-28-10", {"width": 10}, "width is 10, and wrn-28-10 has one size"),
        ("vgg16", {"width": 64}, "width is 64, and vgg16 has one size"),
        ("resnet8", {"width": 0}, "width is 0; give 1 or more channels, 16 is usual in resnet8"),
        ("resnet8", {"classes": 0}, "classes is 0; a network needs 1 or more"),
        ("resnet8", {"channels": -1}, "channels is -1; a network needs 1 or more"),
    ],
)
def test_what_cannot_be_is_refused(name, arguments, said):
    with pytest.raises(ValueError, match=said):
        build_network(name, **{"classes": 10, **arguments})


def test_the_facts_load_no_torch():
    facts = "import sys, emabank.study.models\nassert 'torch' not in sys.modules"
    assert run(facts).returncode == 0
    builders = facts.replace("models", "models.resnet")
    assert "AssertionError" in run(builders).stderr, "a control: the builders do load torch"
