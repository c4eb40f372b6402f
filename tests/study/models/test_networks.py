"""Every name builds its network, with the documented size, width and input."""

import pytest
import torch
from torch import nn

from emabank.study.models import NETWORKS, build_network
from tests.support.processes import run

PARAMETERS = {
    "resnet8": 75_290,
    "resnet20": 269_722,  # He et al. 2016, table 6: 0.27M
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "wrn-28-10": 36_479_194,  # Zagoruyko & Komodakis 2016: 36.5M
    "vgg16": 15_245_130,
    "vgg-small": 72_730,
    "whitened-cnn": 497_802,
}
SMALLEST = {"vgg16": 32, "vgg-small": 8, "whitened-cnn": 2}
"""Height and width, in pixels, of the smallest images that a network takes; the other networks take any."""


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_features_and_smallest_images(name):
    side = SMALLEST.get(name, 1)
    with torch.device("meta"):
        assert sum(p.numel() for p in build_network(name, classes=10).parameters()) == PARAMETERS[name]
        model = build_network(name, classes=4, channels=2).eval()
        images = torch.empty(3, 2, side, side)
        assert model.features(images).shape == (3, model.head.in_features)
        assert model(images).shape == (3, 4)
        if side > 1:
            with pytest.raises(ValueError, match="images are"):
                model(images[:, :, 1:])


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "wrn-28-10"])  # large; see test_wide_resnet.py
def test_the_head_gets_the_features_and_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    model = build_network(name, classes=3, channels=1).eval()  # dropout would hide some gradients
    side = max(8, SMALLEST.get(name, 1))
    images = torch.randn(4, 1, side, side)
    logits = model(images)
    torch.testing.assert_close(model.head(model.features(images)), logits)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "default"), [("resnet8", 16), ("resnet20", 16), ("vgg-small", 16), ("whitened-cnn", 32)]
)
def test_width_is_the_number_of_channels_of_the_first_stage(name, default):
    def first_width(**options: int) -> int:
        with torch.device("meta"):
            model = build_network(name, classes=10, **options)
        return next(m for m in model.modules() if isinstance(m, nn.Conv2d)).out_channels

    assert first_width(width=6) == 6
    assert first_width() == NETWORKS[name].default_width == default


@pytest.mark.parametrize("name", ["resnet8", "vgg-small", "whitened-cnn"])
def test_the_same_seed_builds_the_same_weights(name):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_network(name, classes=3, channels=1).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet9", {}, "network is 'resnet9'; give resnet8, resnet20, .* vgg-small or whitened-cnn"),
        (
            "resnet18",
            {"width": 8},
            "width is 8, and resnet18 has one size; .* resnet8, resnet20, vgg-small or whitened",
        ),
        ("resnet8", {"width": 0}, "width is 0; give 1 or more channels, 16 is usual in resnet8"),
    ],
)
def test_unknown_names_and_impossible_widths_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_network(name, **{"classes": 10, **arguments})


def test_network_names_do_not_import_torch():
    names = "import sys, emabank.study.models\nassert 'torch' not in sys.modules"
    assert run(names).returncode == 0
    builders = names.replace("models", "models.resnet")
    assert "AssertionError" in run(builders).stderr, "a control: the builders import torch"
