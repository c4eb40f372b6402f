"""The wide residual networks are the published ones: parameter counts, blocks written out again, shapes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emabank.study.models.wide_resnet import wide_resnet


def counted(depth: int, widen: int, classes: int, channels: int = 3) -> int:
    """The parameters, from the paper's definition: convolutions without biases, batch norm before each 3x3 one."""
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
        (
            16,
            10,
            10,
            17_116_634,
        ),  # this and the next: 17.1M and 35.7M; the exact counts are those other implementations have
        (40, 8, 10, 35_748_314),
        (10, 1, 3, None),  # at this width the first stage keeps 16 channels and needs no projection
    ],
)
def test_parameter_counts(depth, widen, classes, parameters):
    with torch.device("meta"):
        model = wide_resnet(classes=classes, depth=depth, widen=widen)
    count = sum(p.numel() for p in model.parameters())
    assert count == counted(depth, widen, classes)
    assert parameters is None or count == parameters


def test_the_depth_counts_the_convolutions():
    with torch.device("meta"):
        model = wide_resnet(classes=10)
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 28


def test_wide_resnet_28_10_takes_an_image():
    model = wide_resnet(classes=7).eval()
    image = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        features, logits = model.features(image), model(image)
    assert features.shape == (1, 640) and logits.shape == (1, 7)
    assert torch.equal(model.head(features), logits)


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (3, 64)])
def test_the_last_layer_sees_the_features(channels, size):
    model = wide_resnet(classes=7, channels=channels, depth=10, widen=2).eval()
    images = torch.randn(2, channels, size, size)
    with torch.no_grad():
        features, logits = model.features(images), model(images)
    assert features.shape == (2, model.head.in_features) == (2, 128)
    assert torch.equal(model.head(features), logits)


def test_stages_after_the_first_halve_the_size():
    model = wide_resnet(classes=10, depth=10, widen=1).eval()
    x, sizes = model.stem(torch.randn(1, 3, 32, 32)), [32]
    for stage in model.stages:
        x = stage(x)
        sizes.append(x.shape[-1])
    assert sizes == [32, 32, 16, 8]


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The forward pass in eval mode, written from the paper and its authors' code, weights by name."""
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
def test_the_forward_pass_is_the_papers(depth, widen):
    torch.manual_seed(0)
    model = wide_resnet(classes=5, depth=depth, widen=widen).double()
    for module in model.modules():  # batch norms that do something of their own
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 2)
            for tensor in (module.bias.data, module.running_mean):
                tensor.uniform_(-0.5, 0.5)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), plain(model, x))


def test_convolutions_begin_as_published():
    weight = wide_resnet(classes=3, depth=10, widen=4).stages[2][0].second.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)


def test_dropout_acts_in_training_alone_and_is_off_by_default():
    x = torch.randn(2, 3, 8, 8)
    assert not any(isinstance(m, nn.Dropout) for m in wide_resnet(classes=3, depth=10, widen=1).modules())
    model = wide_resnet(classes=3, depth=10, widen=1, dropout=0.3)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.3] * 3
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_every_parameter_is_trained():
    torch.manual_seed(0)
    model = wide_resnet(classes=3, channels=1, depth=16, widen=2)
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"depth": 27}, r"depth is 27; give 6n \+ 4"),
        ({"depth": 4}, "depth is 4;"),
        ({"depth": -2}, "depth is -2;"),
        ({"widen": 0}, "widen is 0; give 1 or more"),
        ({"dropout": 1.0}, "dropout is 1.0; give a share from 0 to below 1"),
        ({"dropout": float("nan")}, "dropout is nan"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        wide_resnet(classes=10, **arguments)
