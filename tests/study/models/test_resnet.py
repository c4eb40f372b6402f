"""The networks are the published ones: parameter counts, shapes, shortcuts."""

import pytest
import torch
from torch import nn

from emabank.study.models.resnet import resnet8, resnet18, resnet20, resnet34

FAMILY = (resnet8, resnet20, resnet18, resnet34)


@pytest.mark.parametrize(
    ("build", "classes", "parameters"),
    [
        (resnet8, 10, 75_290),
        (resnet20, 10, 269_722),  # He et al. 2016, table 6: 0.27M
        (resnet18, 10, 11_173_962),
        (resnet18, 100, 11_220_132),
        (resnet34, 10, 21_282_122),
        (resnet34, 100, 21_328_292),
    ],
)
def test_parameter_counts(build, classes, parameters):
    assert sum(p.numel() for p in build(classes=classes).parameters()) == parameters


@pytest.mark.parametrize("build", FAMILY)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
def test_the_last_layer_sees_the_features(build, channels, size):
    model = build(classes=7, channels=channels).eval()
    images = torch.randn(2, channels, size, size)
    with torch.no_grad():
        features, logits = model.features(images), model(images)
    assert features.shape == (2, model.head.in_features)
    assert logits.shape == (2, 7)
    assert torch.equal(model.head(features), logits)


@pytest.mark.parametrize(("build", "stages"), [(resnet8, 3), (resnet18, 4)])
def test_each_stage_after_the_first_halves_the_size(build, stages):
    model = build(classes=10).eval()
    x = model.stem(torch.randn(1, 3, 32, 32))
    sizes = [x.shape[-1]]
    for stage in model.stages:
        x = stage(x)
        sizes.append(x.shape[-1])
    assert sizes == [32, *(32 // 2**i for i in range(stages))]


@pytest.mark.parametrize(("build", "depth"), [(resnet8, 8), (resnet20, 20), (resnet18, 18), (resnet34, 34)])
def test_the_number_in_the_name_counts_the_weight_layers(build, depth):
    layers = [m for m in build(classes=10).modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert sum(1 for m in layers if not (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1))) == depth


def test_width_widens_the_cifar_family():
    assert resnet8(classes=10, width=4).head.in_features == 16
    assert resnet20(classes=10, width=64).head.in_features == 256


def test_the_padded_shortcut_passes_every_channel_on():
    block = resnet8(classes=10).stages[1][0]
    x = torch.randn(2, 16, 8, 8)
    passed = block.shortcut(x)
    assert passed.shape == (2, 32, 4, 4)
    assert torch.equal(passed[:, 8:24], x[:, :, ::2, ::2])
    assert not passed[:, :8].any()
    assert not passed[:, 24:].any()


@pytest.mark.parametrize("build", FAMILY)
def test_every_parameter_is_trained(build):
    model = build(classes=3, channels=1)
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
