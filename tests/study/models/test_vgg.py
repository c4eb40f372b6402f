"""VGG-16 is that of the SWA authors; VGG-small keeps its signal and memorises."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emabank.study.models.vgg import vgg16, vgg_small

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


def test_vgg16_is_initialised_as_published():
    model = vgg16(classes=10)
    for convolution in (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.in_channels > 3):
        assert convolution.weight.std().item() == pytest.approx((2 / (9 * convolution.out_channels)) ** 0.5, rel=0.02)
        assert not convolution.bias.any()


def test_vgg16_on_32_pixels_equals_the_authors_network():
    model = vgg16(classes=10).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        published = nn.Sequential(model.stages, nn.Flatten(), model.hidden, model.head)(x)  # no pooling to one pixel
        assert torch.equal(model(x), published)


def test_vgg16_has_dropout_in_its_features():
    model = vgg16(classes=10, channels=1)
    images = torch.randn(1, 1, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model.features(images), model.features(images))


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


def test_vgg_small_memorises():
    torch.manual_seed(0)
    model = vgg_small(classes=10, channels=1, width=8)
    images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model(images).argmax(dim=1) == labels).all()
