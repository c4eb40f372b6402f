"""Wide residual networks have the published parameter counts and forward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emabank.study.models.resnet import wide_resnet


def count_parameters(depth: int, widen: int, classes: int, channels: int = 3) -> int:
    """By the paper's definition: convolutions without biases, batch norm before each 3x3 convolution."""
    total, incoming = channels * 16 * 9, 16
    for outgoing in (16 * widen, 32 * widen, 64 * widen):
        for _ in range((depth - 4) // 6):
            total += 2 * incoming + 9 * incoming * outgoing + 2 * outgoing + 9 * outgoing * outgoing
            total += incoming * outgoing if incoming != outgoing else 0
            incoming = outgoing
    return total + 2 * incoming + incoming * classes + classes


@pytest.mark.parametrize(
    ("depth", "widen", "classes", "parameters"),
    [
        (28, 10, 10, 36_479_194),  # Zagoruyko & Komodakis 2016: 36.5M
        (28, 10, 100, 36_536_884),
        (16, 10, 10, 17_116_634),  # 17.1M; the exact count is that of other implementations, as below
        (40, 8, 10, 35_748_314),  # 35.7M
        (10, 1, 3, None),  # the first stage keeps 16 channels and needs no projection
    ],
)
def test_parameter_counts(depth, widen, classes, parameters):
    with torch.device("meta"):
        model = wide_resnet(classes=classes, depth=depth, widen=widen)
    count = sum(p.numel() for p in model.parameters())
    assert count == count_parameters(depth, widen, classes)
    assert parameters is None or count == parameters


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


def test_convolutions_are_initialised_as_published():
    weight = wide_resnet(classes=3, depth=10, widen=4).stages[2][0].second.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    model = wide_resnet(classes=3, channels=1, depth=16, widen=2)
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
