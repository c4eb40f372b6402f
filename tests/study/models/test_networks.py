"""Every network by its name: parameters, width and input as documented, layers and first weights as published."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emabank.study.models import NETWORKS, build_network
from emabank.study.models.resnet import resnet8, resnet18, wide_resnet
from emabank.study.models.vgg import vgg16, vgg_small

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


# Residual networks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "stages"), [(resnet8, 3), (resnet18, 4)])
def test_every_stage_after_the_first_halves_the_size(build, stages):
    model = build(classes=10).eval()
    x = model.stem(torch.randn(1, 3, 32, 32))
    sizes = [x.shape[-1]]
    for stage in model.stages:
        x = stage(x)
        sizes.append(x.shape[-1])
    assert sizes == [32, *(32 // 2**i for i in range(stages))]


def test_the_padded_shortcut_keeps_every_channel():
    block = resnet8(classes=10).stages[1][0]
    x = torch.randn(2, 16, 8, 8)
    output = block.shortcut(x)
    assert output.shape == (2, 32, 4, 4)
    assert torch.equal(output[:, 8:24], x[:, :, ::2, ::2])
    assert not output[:, :8].any()
    assert not output[:, 24:].any()


def published_forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The forward pass in eval mode, as in the paper and its authors' code."""
    state = model.state_dict()

    def activated(x, name):
        gain, shift = state[f"{name}.weight"], state[f"{name}.bias"]
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        column = (1, -1, 1, 1)
        normed = (x - mean.view(column)) / (variance.view(column) + 1e-5).sqrt()
        return (normed * gain.view(column) + shift.view(column)).clamp(min=0)

    x = F.conv2d(x, state["stem.weight"], padding=1)
    for stage, stride in enumerate((1, 2, 2)):
        block = 0
        while f"stages.{stage}.{block}.first.weight" in state:
            name, step = f"stages.{stage}.{block}", stride if block == 0 else 1
            inner = activated(x, f"{name}.first_norm")
            out = F.conv2d(inner, state[f"{name}.first.weight"], stride=step, padding=1)
            out = F.conv2d(activated(out, f"{name}.second_norm"), state[f"{name}.second.weight"], padding=1)
            widened = f"{name}.shortcut.weight" in state
            x = out + (F.conv2d(inner, state[f"{name}.shortcut.weight"], stride=step) if widened else x)
            block += 1
    return activated(x, "norm").mean(dim=(2, 3)) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize(("depth", "widen"), [(16, 2), (10, 1)])
def test_forward_pass_is_the_published_one(depth, widen):
    torch.manual_seed(0)
    model = wide_resnet(classes=5, depth=depth, widen=widen).double()
    for module in model.modules():  # batch norms that are not the identity
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 2)
            for tensor in (module.bias.data, module.running_mean):
                tensor.uniform_(-0.5, 0.5)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), published_forward(model, x))


@pytest.mark.parametrize("name", ["resnet8", "wrn", "vgg16", "whitened-cnn"])
def test_convolutions_are_initialised_as_published(name):
    model = wide_resnet(classes=3, depth=10, widen=4) if name == "wrn" else build_network(name, classes=10)
    for convolution in (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 30_000):
        deviation = (2 / (convolution.weight[0, 0].numel() * convolution.out_channels)) ** 0.5
        assert convolution.weight.std().item() == pytest.approx(deviation, rel=0.02)
        assert convolution.bias is None or not convolution.bias.any()


# VGG ------------------------------------------------------------------------------------------------------------------

# The list of the authors (timgaripov/swa, models/vgg.py); M is max-pooling.
PUBLISHED = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


def test_vgg16_has_the_published_layers():
    with torch.device("meta"):
        model = vgg16(classes=10)
    layers = [layer for stage in model.stages for layer in stage]
    channels = [getattr(layer, "out_channels", "M") for layer in layers if not isinstance(layer, nn.ReLU)]
    assert channels == PUBLISHED
    assert all(isinstance(after, nn.ReLU) for layer, after in pairwise(layers) if hasattr(layer, "bias"))
    assert [type(layer) for layer in model.hidden] == [nn.Dropout, nn.Linear, nn.ReLU] * 2
    assert all(layer.p == 0.5 for layer in model.hidden if isinstance(layer, nn.Dropout))


def test_vgg16_on_32_pixels_equals_the_authors_network():
    model = vgg16(classes=10).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        published = nn.Sequential(model.stages, nn.Flatten(), model.hidden, model.head)(x)  # no pooling to one pixel
        assert torch.equal(model(x), published)


@pytest.mark.parametrize(("channels", "size", "width"), [(1, 8, 16), (3, 32, 16), (1, 8, 64)])
def test_vgg_small_keeps_the_scale_of_its_signal(channels, size, width):
    torch.manual_seed(0)
    model = vgg_small(classes=10, channels=channels, width=width)
    sizes = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _module, _inputs, out: sizes.append(out.square().mean().sqrt().item()))
    with torch.no_grad():
        model(torch.randn(16, channels, size, size))
    # Zero padding lowers it and max-pooling raises it: without them every value would be sqrt(2).
    assert len(sizes) == 6 and all(0.5 < value < 5 for value in sizes), sizes
