"""Residual networks have the published depths, sizes and shortcuts; test_networks.py counts their parameters."""

import pytest
import torch
from torch import nn

from emabank.study.models.resnet import resnet8, resnet18, resnet20, resnet34


@pytest.mark.parametrize(("build", "stages"), [(resnet8, 3), (resnet18, 4)])
def test_every_stage_after_the_first_halves_the_size(build, stages):
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


def test_the_padded_shortcut_keeps_every_channel():
    block = resnet8(classes=10).stages[1][0]
    x = torch.randn(2, 16, 8, 8)
    output = block.shortcut(x)
    assert output.shape == (2, 32, 4, 4)
    assert torch.equal(output[:, 8:24], x[:, :, ::2, ::2])
    assert not output[:, :8].any()
    assert not output[:, 24:].any()
